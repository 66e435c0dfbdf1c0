// Parking and waking for real: millions of rounds with random pauses, between Cpus, within one, and
// with foreign threads. A lost wakeup stops the progress, and the watchdog says who sleeps.
#include <gtest/gtest.h>
#include <jiffy/event_fd.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>

#include <atomic>
#include <cstdio>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "sched/runtime_state.h"
#include "support/runtimes.h"
#include "support/stress.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

// The preemption mode and the polling change what the waker finds: parked, polling or busy.
struct Setting {
  const char* name;
  Preemption mode;
  Delivery delivery;
  int spin_us;
};
constexpr Setting kSettings[] = {
    {"LazyParking", Preemption::kLazy, Delivery::kSafePoints, 0},
    {"FullPolling", Preemption::kFull, Delivery::kSafePoints, 5},
    {"FullSignals", Preemption::kFull, Delivery::kSignals, 0},
    {"NonePolling", Preemption::kNone, Delivery::kSignals, 20},
};

class ParkStress : public ::testing::TestWithParam<Setting> {
 protected:
  static Options options() {
    Options o = host_options(2);
    o.preemption = GetParam().mode;
    o.delivery = GetParam().delivery;
    o.spin_us = GetParam().spin_us;
    return o;
  }
  // Of the program's budget, for each of its tests.
  static constexpr double kShare = 0.15 / std::size(kSettings);

  CheckedRuntime rt_{options()};
  Watchdog dog_{[this] { return rt_->dump(); }};
};
INSTANTIATE_TEST_SUITE_P(, ParkStress, ::testing::ValuesIn(kSettings),
                         [](const auto& row) { return std::string(row.param.name); });

// The two sides of a ping-pong pause at random, so that the wakeup meets each step of the park.
template <class Prepare>
void ping_pong(Semaphore& mine, Semaphore& other, bool first, uint64_t seed, Budget budget,
               std::atomic<bool>& stop, Watchdog& dog, Prepare&& pause) {
  Random random(seed);
  if (first) other.release();
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      mine.acquire();
      if (stop.load(std::memory_order_relaxed)) {
        other.release();
        return;
      }
      pause(random);
      other.release();
    }
    dog.progress();
    if (first && !budget.left()) stop = true;
  }
}

TEST_P(ParkStress, PingPongBetweenTwoCpus) {
  Semaphore a, b;
  std::atomic<bool> stop{false};
  const Budget budget(kShare);
  auto left = rt_->spawn([&] { ping_pong(a, b, true, 1, budget, stop, dog_, random_pause); },
                         pinned(0, "left"));
  auto right = rt_->spawn([&] { ping_pong(b, a, false, 2, budget, stop, dog_, random_pause); },
                          pinned(1, "right"));
  left.join();
  right.join();
}

TEST_P(ParkStress, PingPongWithAPlainThread) {
  Semaphore a, b;
  std::atomic<bool> stop{false};
  const Budget budget(kShare);
  auto fiber = rt_->spawn([&] { ping_pong(a, b, true, 3, budget, stop, dog_, random_pause); },
                          migratable("fiber"));
  ping_pong(b, a, false, 4, budget, stop, dog_, random_pause);
  fiber.join();
}

TEST_P(ParkStress, PingPongOfMigratableFibers) {
  constexpr int kPairs = 3;
  std::vector<std::unique_ptr<Semaphore>> semaphores;
  std::vector<JoinHandle<void>> fibers;
  std::atomic<bool> stop[kPairs]{};
  const Budget budget(kShare);
  for (int i = 0; i < 2 * kPairs; ++i) semaphores.push_back(std::make_unique<Semaphore>());
  for (int i = 0; i < 2 * kPairs; ++i) {
    const int pair = i / 2;
    fibers.push_back(rt_->spawn(
        [&, i, pair] {
          ping_pong(*semaphores[static_cast<size_t>(i)], *semaphores[static_cast<size_t>(i ^ 1)],
                    i % 2 == 0, static_cast<uint64_t>(i + 10), budget, stop[pair], dog_,
                    random_pause);
        },
        migratable()));
  }
  for (auto& fiber : fibers) fiber.join();
}

// An eventfd's reader parks between signals of foreign threads that come at random.
TEST_P(ParkStress, SignalsOfForeignThreadsWakeTheReader) {
  EventFd event;
  std::atomic<uint64_t> sent{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      Random random(t + 20);
      while (!stop) {
        random_pause(random);
        if (random.below(64) == 0) std::this_thread::yield();
        event.signal();
        ++sent;
        // Not too far ahead, or the reader never parks.
        while (!stop && (event.poll() & EventFd::kIn) != 0) std::this_thread::yield();
      }
    });
  }
  uint64_t got = 0;
  rt_->run([&] {
    for (Budget budget(kShare); budget.left();) {
      for (int i = 0; i < 64; ++i) got += event.read().value;
      dog_.progress();
    }
    stop = true;
  });
  for (auto& thread : threads) thread.join();
  if (const auto rest = event.try_read(); rest.result == WaitResult::kReady) got += rest.value;
  EXPECT_EQ(got, sent);
}

// Spawns by a plain thread into parked Cpus.
TEST_P(ParkStress, SpawnsWakeParkedCpus) {
  Random random(30);
  for (Budget budget(kShare); budget.left();) {
    for (int i = 0; i < 16; ++i) {
      random_pause(random);
      EXPECT_EQ(rt_->spawn([i] { return i; }).join(), i);
    }
    dog_.progress();
  }
}

// --- Not by setting.

class ParkOnce : public ::testing::Test {
 protected:
  CheckedRuntime rt_{MachineKind::kHost, 2};
  Watchdog dog_{[this] { return rt_->dump(); }};
};

// Parks in a word, without a system call: a round takes a tenth, so the two sides meet far oftener.
class WordWaiter final : public IdleWaiter {
 public:
  bool poll(Cpu&) override { return false; }
  void park(Cpu& cpu, int64_t until) override {
    for (int spins = 1; unparked_.load(std::memory_order_acquire) == 0; ++spins) {
      cpu_relax();
      if (spins % 4096 != 0) continue;
      std::this_thread::yield();
      if (cpu.now() >= until || cpu.pending.load(std::memory_order_relaxed) != 0) break;
    }
    unparked_.store(0, std::memory_order_relaxed);
  }
  void unpark(Cpu&) override { unparked_.store(1, std::memory_order_release); }

 private:
  alignas(64) std::atomic<uint32_t> unparked_{0};
};

// A pause that is longer or shorter by single instructions, around what a park takes.
void short_pause(Random& random) {
  for (uint64_t n = random.below(256); n > 0; --n) asm volatile("");
}

TEST(ParkRace, NoWakeupIsLostBetweenTheAnnouncementAndTheLook) {
  WordWaiter waiters[2];
  Runtime* started = nullptr;
  Options options = host_options(2);
  options.on_cpu_start = [&](int cpu) {
    started->state().cpus[static_cast<size_t>(cpu)]->waiter = &waiters[cpu];
  };
  Runtime rt(options);
  started = &rt;
  ASSERT_TRUE(rt.start().ok());
  Watchdog dog([&] { return rt.dump(); });
  Semaphore a, b;
  std::atomic<bool> stop{false};
  const Budget budget(0.15);
  auto left =
      rt.spawn([&] { ping_pong(a, b, true, 70, budget, stop, dog, short_pause); }, pinned(0));
  auto right =
      rt.spawn([&] { ping_pong(b, a, false, 71, budget, stop, dog, short_pause); }, pinned(1));
  left.join();
  right.join();
  std::printf("%llu parks\n", static_cast<unsigned long long>(rt.counters().at(Counter::kParks)));
}

// The window between a Cpu's start and its first park: there is no fallback that would hide a
// wakeup lost there.
TEST(ParkStart, WakeBetweenTheStartAndTheFirstParkIsKept) {
  std::unique_ptr<Runtime> rt;
  std::atomic<Runtime*> shown{nullptr};
  Watchdog dog([&] {
    Runtime* r = shown;
    return r == nullptr ? std::string("between two runtimes\n") : r->dump();
  });
  Random random(40);
  for (Budget budget(0.1); budget.left();) {
    Options options = host_options(2);
    rt = std::make_unique<Runtime>(options);
    ASSERT_TRUE(rt->start().ok());
    shown = rt.get();
    random_pause(random);
    auto a = rt->spawn([] { return 1; }, pinned(0));
    auto b = rt->spawn([] { return 2; }, pinned(1));
    EXPECT_EQ(a.join() + b.join(), 3);
    shown = nullptr;
    rt.reset();
    dog.progress();
  }
}

// Each sleeper's deadline is its own; all of them wake, none early.
TEST_F(ParkOnce, RandomSleepsAllWake) {
  const uint64_t total = 100'000;
  constexpr int kFibers = 200;
  std::atomic<uint64_t> slept{0}, early{0};
  const Budget whole_budget(0.3);
  std::vector<JoinHandle<void>> fibers;
  for (int i = 0; i < kFibers; ++i) {
    fibers.push_back(rt_->spawn(
        [&, i, budget = whole_budget]() mutable {
          Random random(static_cast<uint64_t>(i) + 50);
          while (slept.fetch_add(1) < total && budget.left()) {
            const auto duration = std::chrono::microseconds(random.below(2000));
            const TimePoint start = now();
            (void)sleep_for(duration);
            // Clocks of two Cpus agree to some microseconds.
            if (now() - start < duration - 20us) ++early;
            dog_.progress();
          }
        },
        i % 2 == 0 ? migratable() : SpawnOptions{}));
  }
  for (auto& fiber : fibers) fiber.join();
  EXPECT_EQ(early, 0u);
  if (slept < total)
    std::printf("stopped by the budget after %llu sleeps\n",
                static_cast<unsigned long long>(slept.load()));
}

// A Cpu that parks until a far deadline must be told of each earlier one: with the next timer an
// hour away nothing else would end a sleep that was not armed.
TEST_F(ParkOnce, ShortSleepDoesNotWaitForALongOne) {
  std::stop_source stop;
  std::vector<JoinHandle<void>> far, near;
  for (int cpu = 0; cpu < 2; ++cpu) {
    far.push_back(rt_->spawn([&] { (void)sleep_for(1h, stop.get_token()); }, pinned(cpu, "far")));
  }
  std::atomic<uint64_t> early{0};
  for (int cpu = 0; cpu < 2; ++cpu) {
    near.push_back(rt_->spawn(
        [&, cpu, budget = Budget(0.05)]() mutable {
          Random random(static_cast<uint64_t>(cpu) + 60);
          while (budget.left()) {
            const TimePoint deadline = now() + std::chrono::microseconds(random.below(3000));
            (void)sleep_until(deadline);
            early += now() < deadline;
            dog_.progress();
          }
        },
        pinned(cpu, "near")));
  }
  for (auto& fiber : near) fiber.join();
  EXPECT_EQ(early, 0u);
  stop.request_stop();
  for (auto& fiber : far) fiber.join();
}

}  // namespace
}  // namespace jiffy
