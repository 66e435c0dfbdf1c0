#include "kworker_chain.h"

#include <jiffy/fiber.h>
#include <jiffy/sim.h>
#include <jiffy/time.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

namespace jiffy {

namespace {

// A vhost handler's turn: after so much the worker offers other handlers theirs.
constexpr size_t kTurnBytes = 0x80000;
constexpr size_t kTurnPackets = 256;

constexpr size_t kSourceBytes = size_t{1} << 20;
constexpr auto kBlockFor = std::chrono::microseconds(20);
constexpr uint64_t kChecksumEvery = 64;  // packets

int64_t now_ns() { return std::chrono::nanoseconds(now().time_since_epoch()).count(); }

// Where an interrupt may arrive. Deliveries are taken inside jiffy calls, so the loops make one
// for each packet: for kernel-mode code the release of a lock, for a guest's an exit.
void safe_point() { const PreemptDisabled region; }

// In a simulation time passes; elsewhere it has.
void take(std::chrono::nanoseconds cost) {
  if (cost.count() != 0) consume(cost);
}

void add(std::atomic<uint64_t>& counter, uint64_t n = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

class Producer {
 public:
  explicit Producer(Chain& chain)
      : chain_(chain),
        random_(chain.options.block_seed),
        run_for_ns_(next_run_ns()),
        packets_(make_packets(std::max(kSourceBytes, chain.options.ring.packet_bytes))),
        bin_(chain.options.ring.packet_bytes) {}

  void run() {
    const size_t packet_bytes = chain_.options.ring.packet_bytes;
    const size_t sources = packets_.size() / packet_bytes;
    for (uint64_t sequence = 0; !stopping(); ++sequence) {
      const std::byte* packet = packets_.data() + sequence % sources * packet_bytes;
      if (chain_.ring.has_room() || (chain_.options.block_when_full && wait_for_room())) {
        chain_.ring.produce(packet, sequence);
        if (chain_.ring.wants_notification()) notify();
      } else {
        drop(packet);
      }
      add(chain_.offered);
      take(chain_.options.costs.produce);
      safe_point();
      end_packet(packet_bytes);
    }
  }

 private:
  bool stopping() const { return chain_.stop_producing.load(std::memory_order_relaxed); }

  void notify() {
    if (chain_.signalled_at.load(std::memory_order_relaxed) == 0) {
      chain_.signalled_at.store(now_ns(), std::memory_order_relaxed);
    }
    chain_.call.signal();
    if (chain_.options.inject_in_place) take(chain_.options.costs.inject);
  }

  // The packet has come all the same, and costs what it costs: a full ring must not make the
  // sender faster.
  void drop(const std::byte* packet) {
    std::memcpy(bin_.data(), packet, bin_.size());
    Checksum checksum;
    checksum.add(bin_.data(), bin_.size());
    bin_sum_ = checksum.value();
    add(chain_.dropped);
  }

  // False if the run ended meanwhile.
  bool wait_for_room() {
    chain_.ring.announce_wait();
    (void)chain_.room.wait([&] { return stopping() || chain_.ring.has_room(); });
    chain_.ring.end_wait();
    return chain_.ring.has_room();
  }

  void end_packet(size_t bytes) {
    turn_bytes_ += bytes;
    if (turn_bytes_ >= kTurnBytes || ++turn_packets_ >= kTurnPackets) {
      turn_bytes_ = turn_packets_ = 0;
      (void)cond_resched();
    }
    if (chain_.options.block_every_ns == 0) return;
    const int64_t now = now_ns();
    if (blocked_at_ == 0) blocked_at_ = now;
    if (now - blocked_at_ < run_for_ns_) return;
    (void)sleep_for(kBlockFor);
    blocked_at_ = now_ns();
    run_for_ns_ = next_run_ns();
  }

  int64_t next_run_ns() {
    const int64_t mean = chain_.options.block_every_ns;
    if (chain_.options.block_seed == 0 || mean == 0) return mean;
    return static_cast<int64_t>(
        std::exponential_distribution<double>(1.0 / static_cast<double>(mean))(random_));
  }

  Chain& chain_;
  std::mt19937_64 random_;
  int64_t run_for_ns_;
  const std::vector<std::byte> packets_;
  std::vector<std::byte> bin_;
  volatile uint64_t bin_sum_ = 0;  // volatile, so that it is really computed
  size_t turn_bytes_ = 0;
  size_t turn_packets_ = 0;
  int64_t blocked_at_ = 0;
};

class Consumer {
 public:
  explicit Consumer(Chain& chain) : chain_(chain), packet_(chain.options.ring.packet_bytes) {}

  void run() {
    GuestRing& ring = chain_.ring;
    for (;;) {
      while (ring.readable()) take_packet();
      chain_.signalled_at.store(0, std::memory_order_relaxed);
      ring.enable_notifications();
      // Without this second look a packet that came in between would wait for the next signal.
      if (!ring.readable()) {
        if (chain_.stop_consuming.load(std::memory_order_relaxed)) return;
        sleep();
      }
      ring.disable_notifications();
    }
  }

 private:
  void take_packet() {
    const PacketHeader header = chain_.ring.consume_into(packet_.data());
    chain_.ring.release_packet();
    if (chain_.ring.producer_waits()) chain_.room.wake(WaitQueue::kAll);
    check(header);
    add(chain_.received);
    take(chain_.options.costs.consume);
    safe_point();
  }

  void check(const PacketHeader& header) {
    if (header.sequence < expected_) ++chain_.sequence_errors;
    expected_ = header.sequence + 1;
    if (header.sequence % kChecksumEvery != 0) return;
    Checksum checksum;
    checksum.add(packet_.data(), packet_.size());
    if (checksum.value() != header.checksum) ++chain_.checksum_errors;
  }

  void sleep() {
    const int64_t before = now_ns();
    chain_.asleep_since.store(before, std::memory_order_relaxed);
    chain_.interrupt.wait();
    const int64_t after = now_ns();
    chain_.asleep_since.store(0, std::memory_order_relaxed);
    chain_.asleep_ns.store(chain_.asleep_ns.load(std::memory_order_relaxed) + after - before,
                           std::memory_order_relaxed);
    // No stamp: the interrupt came late, for packets that the look above had found.
    const int64_t signalled = chain_.signalled_at.load(std::memory_order_relaxed);
    if (signalled != 0) {
      chain_.signal_to_run.record(static_cast<uint64_t>(std::max<int64_t>(after - signalled, 0)));
    }
  }

  Chain& chain_;
  std::vector<std::byte> packet_;
  uint64_t expected_ = 0;
};

}  // namespace

void GuestInterrupt::inject() {
  halted_.with_lock([this] {
    pending_ = true;
    (void)halted_.wake_locked(WaitQueue::kAll);
  });
}

void GuestInterrupt::wait() {
  (void)halted_.wait([this] { return std::exchange(pending_, false); });
}

void run_producer(Chain& chain) { Producer(chain).run(); }
void run_consumer(Chain& chain) { Consumer(chain).run(); }

std::vector<std::byte> make_packets(size_t bytes) {
  std::vector<std::byte> packets(bytes);
  uint64_t state = 0x9E3779B97F4A7C15ull;
  for (std::byte& b : packets) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    b = static_cast<std::byte>(state >> 56);
  }
  return packets;
}

}  // namespace jiffy
