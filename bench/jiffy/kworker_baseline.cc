// What bounds every cell: how fast each end is alone, and what it costs to wake another Cpu.
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>

#include <chrono>

#include "kworker_cell.h"
#include "kworker_chain.h"

namespace jiffy {

namespace {

using std::chrono::milliseconds;

double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(now() - start).count();
}

SpawnOptions on_cpu(int cpu, const char* name) {
  SpawnOptions options;
  options.name = name;
  options.cpu = cpu;
  return options;
}

// Filling and draining in turn, each on its own Cpu: both find the lines where the other left
// them, as they do in the chain, but neither waits for the other.
class RatesAlone {
 public:
  explicit RatesAlone(const RingShape& shape)
      : ring_(shape), packets_(make_packets(shape.packet_bytes)), out_(shape.packet_bytes) {}

  void measure(Runtime& rt, Baseline* baseline) {
    auto consumer = rt.spawn([this] { drain_all(); }, on_cpu(1, "drain"));
    auto producer = rt.spawn([this] { fill_all(); }, on_cpu(0, "fill"));
    producer.join();
    consumer.join();
    baseline->producer_gbit_s = range_of(fill_rates_).median;
    baseline->consumer_gbit_s = range_of(drain_rates_).median;
  }

 private:
  void fill_all() {
    constexpr size_t kRounds = 2000;
    const TimePoint end = now() + milliseconds(400);
    for (size_t round = 0; round < kRounds && now() < end; ++round) {
      const TimePoint start = now();
      uint64_t packets = 0;
      for (; ring_.has_room(); ++packets) ring_.produce(packets_.data(), packets);
      fill_rates_.push_back(rate(packets, start));
      full_.release();
      empty_.acquire();
    }
    done_ = true;
    full_.release();
  }

  void drain_all() {
    for (;;) {
      full_.acquire();
      if (done_) return;
      const TimePoint start = now();
      uint64_t packets = 0;
      for (; ring_.readable(); ++packets) {
        (void)ring_.consume_into(out_.data());
        ring_.release_packet();
      }
      drain_rates_.push_back(rate(packets, start));
      empty_.release();
    }
  }

  double rate(uint64_t packets, TimePoint start) const {
    const auto bits = static_cast<double>(packets * ring_.shape().packet_bytes * 8);
    return bits / seconds_since(start) / 1e9;
  }

  GuestRing ring_;
  const std::vector<std::byte> packets_;
  std::vector<std::byte> out_;
  Semaphore full_, empty_;
  bool done_ = false;  // handed over by full_
  std::vector<double> fill_rates_, drain_rates_;
};

// From a release to the waiter running on another Cpu, which has been idle for `pause`.
double median_wake_ns(Runtime& rt, std::chrono::nanoseconds pause, int rounds) {
  Semaphore ask, answer;
  TimePoint asked;  // handed over by ask
  std::vector<double> samples;
  auto waiter = rt.spawn(
      [&] {
        for (int i = 0; i < rounds; ++i) {
          ask.acquire();
          samples.push_back(std::chrono::duration<double, std::nano>(now() - asked).count());
          answer.release();
        }
      },
      on_cpu(1, "wakee"));
  auto waker = rt.spawn(
      [&] {
        for (int i = 0; i < rounds; ++i) {
          // Busy, so that the waker's own Cpu is awake whatever the pause.
          for (const TimePoint end = now() + pause; now() < end;) {
          }
          asked = now();
          ask.release();
          answer.acquire();
        }
      },
      on_cpu(0, "waker"));
  waker.join();
  waiter.join();
  return range_of(samples).median;
}

}  // namespace

Status measure_baseline(const KworkerOptions& options, const RingShape& ring, Baseline* baseline) {
  Options o;
  o.cpus = cpus_for(options);
  o.pin = pinned(o.cpus);
  o.hz = options.hz;
  o.preemption = Preemption::kFull;
  Runtime rt(o);
  if (Status status = rt.start(); !status.ok()) return status;
  RatesAlone(ring).measure(rt, baseline);
  baseline->wake_parked_ns = median_wake_ns(rt, milliseconds(2), 51);
  baseline->wake_polling_ns = median_wake_ns(rt, std::chrono::microseconds(2), 501);
  return Status();
}

}  // namespace jiffy
