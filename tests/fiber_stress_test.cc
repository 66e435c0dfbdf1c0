// Fibers that begin, block, move, are stopped and end in all ways at once, and counts that balance.
#include <gtest/gtest.h>
#include <jiffy/mutex.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>
#include <jiffy/semaphore.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "sched/runtime_state.h"
#include "support/runtimes.h"
#include "support/sanitizer.h"
#include "support/stress.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

// A parked Cpu that has something queued has been woken, and its thread waits for a CPU.
bool idle(Runtime& rt) {
  RuntimeState& state = rt.state();
  if (state.parked_cpus.load() != rt.cpus()) return false;
  for (Cpu* cpu : state.cpus) {
    if (cpu->rq->nr_running_hint() > 0) return false;
  }
  return true;
}

// What each Cpu and the runtime count of fibers is zero again once all Cpus are idle: a count that
// went below would hide work from the Cpus, and one that stayed above would keep them from parking
// (the test's watchdog sees that).
void expect_accounts_at_zero(Runtime& rt) {
  RuntimeState& state = rt.state();
  while (!idle(rt)) std::this_thread::yield();
  for (Cpu* cpu : state.cpus) {
    preempt_disable();
    cpu->rq->lock.lock();
    EXPECT_EQ(cpu->rq->nr_queued(), 0) << "Cpu " << cpu->id;
    EXPECT_EQ(cpu->rq->fair().nr_delayed(), 0) << "Cpu " << cpu->id;
    EXPECT_EQ(cpu->rq->nr_running_hint(), 0) << "Cpu " << cpu->id;
    EXPECT_EQ(cpu->rq->nr_movable_hint(), 0) << "Cpu " << cpu->id;
    cpu->rq->lock.unlock();
    preempt_enable();
    EXPECT_TRUE(cpu->timers.empty()) << "Cpu " << cpu->id;
  }
  EXPECT_EQ(state.foreign_spawns.load(), 0);
  EXPECT_EQ(state.foreign_wakers.load(), 0);
}

// All the ways to begin, to block, to be stopped and to end, mixed; the teardown balances them.
TEST(FiberStress, MixesOfCreateBlockCancelAndJoinBalance) {
  Options options = host_options(2);
  CheckedRuntime rt(options);
  Watchdog dog([&] { return rt->dump(); });
  Random random(5);
  std::atomic<int64_t> begun{0}, over{0};
  for (Budget budget(0.2); budget.left(); dog.progress()) {
    std::stop_source stop;
    Semaphore units;
    const auto life = [&](uint64_t kind) {
      ++begun;
      const std::stop_token token = stop.get_token();
      switch (kind % 6) {
        case 0:
          (void)units.acquire(token);
          break;
        case 1:
          (void)sleep_for(std::chrono::microseconds(kind % 300), token);
          break;
        case 2:
          spawn([] { yield(); }).join();
          break;
        case 3:
          for (int i = 0; i < 5; ++i) yield();
          break;
        case 4: {
          Scope scope;
          for (int i = 0; i < 3; ++i) {
            (void)scope.spawn([](std::stop_token s) { (void)sleep_for(1h, s); });
          }
          break;  // the destructor stops them
        }
        case 5:
          (void)units.acquire(now() + 100us);
          break;
      }
      ++over;
    };
    std::vector<JoinHandle<void>> joined;
    for (int i = 0; i < 64; ++i) {
      const uint64_t kind = random.next();
      SpawnOptions o = random.below(2) == 0 ? migratable() : SpawnOptions{};
      if (random.below(4) == 0) o.policy = Policy::kFifo;
      if (random.below(8) == 0) o.stack_size = 32 * 1024;
      auto handle = rt->spawn([&life, kind] { life(kind); }, o);
      ASSERT_TRUE(handle.valid()) << handle.error();
      joined.push_back(std::move(handle));
    }
    units.release(static_cast<int64_t>(random.below(10)));
    random_pause(random);
    stop.request_stop();
    for (auto& handle : joined) handle.join();
    ASSERT_EQ(begun, over);
    expect_accounts_at_zero(*rt);
  }
}

TEST(FiberStress, MillionChildrenOfOneFiberRunWithoutSpinningOrDeadlock) {
  constexpr int kChildren = 1'000'000 / kSlowdown;
  CheckedRuntime rt(MachineKind::kHost, 2);
  Watchdog dog([&] { return "a million children\n"; });
  std::atomic<int> ran{0};
  int left = kChildren;
  rt->run([&] {
    // In waves, since each waiting child holds a stack.
    for (Budget budget(0.5); left > 0 && budget.left();) {
      Scope scope;
      const int wave = std::min(left, 10'000);
      for (int i = 0; i < wave; ++i) {
        ASSERT_TRUE(scope.spawn([&ran] { ran.fetch_add(1, std::memory_order_relaxed); }).ok());
      }
      scope.join();
      left -= wave;
      dog.progress();
    }
  });
  EXPECT_EQ(ran, kChildren - left);
  if (left > 0) std::printf("stopped by the budget after %d children\n", ran.load());
}

TEST(FiberStress, StealingStormsRunEachFiberOnce) {
  for (const Preemption mode : {Preemption::kLazy, Preemption::kFull}) {
    Options options = host_options(3);
    options.preemption = mode;
    CheckedRuntime rt(options);
    Watchdog dog([&] { return rt->dump(); });
    constexpr int kFibers = 300;
    for (Budget budget(0.1); budget.left(); dog.progress()) {
      std::vector<std::atomic<int>> steps(kFibers);
      std::atomic<int> running{0};
      rt->run([&] {
        Scope scope;
        for (int i = 0; i < kFibers; ++i) {
          (void)scope.spawn(
              [&, i] {
                for (int n = 0; n < 4; ++n) {
                  ++running;
                  steps[static_cast<size_t>(i)].fetch_add(1, std::memory_order_relaxed);
                  --running;
                  if (n % 2 == 0) {
                    yield();
                  } else {
                    (void)sleep_for(std::chrono::microseconds(i % 7));
                  }
                }
              },
              migratable());
        }
        scope.join();
      });
      for (const auto& n : steps) ASSERT_EQ(n, 4);
      EXPECT_EQ(running, 0);
    }
    const CounterSnapshot counts = rt->counters();
    std::printf("%s: %llu steals, %llu migrations\n", preemption_name(mode),
                static_cast<unsigned long long>(counts.at(Counter::kSteals)),
                static_cast<unsigned long long>(counts.at(Counter::kMigrations)));
  }
}

TEST(FiberStress, ModeMayChangeAllTheTime) {
  CheckedRuntime rt(MachineKind::kHost, 2);
  Watchdog dog([&] { return rt->dump(); });
  std::atomic<bool> quit{false};
  std::thread switcher([&] {
    Random random(6);
    while (!quit) {
      rt->set_preemption(static_cast<Preemption>(random.below(kPreemptionModes)));
      random_pause(random);
    }
  });
  Mutex mutex;
  int64_t count = 0;
  for (Budget budget(0.1); budget.left(); dog.progress()) {
    rt->run([&] {
      Scope scope;
      for (int i = 0; i < 8; ++i) {
        SpawnOptions o = i % 2 == 0 ? migratable() : SpawnOptions{};
        o.kernel_mode = i % 3 == 0;
        (void)scope.spawn(
            [&] {
              for (int n = 0; n < 50; ++n) {
                const std::lock_guard lock(mutex);
                ++count;
                if (n % 16 == 0) (void)cond_resched();
                if (n % 25 == 0) (void)sleep_for(5us);
              }
            },
            o);
      }
      scope.join();
    });
  }
  quit = true;
  switcher.join();
  EXPECT_EQ(count % 400, 0);
}

// Stop requests by fibers that are preempted, and move, while they run the callbacks.
TEST(FiberStress, StopRequestsWakeEachWaiterOnce) {
  Options options = host_options(3);
  options.preemption = Preemption::kFull;
  CheckedRuntime rt(options);
  Watchdog dog([&] { return rt->dump(); });
  for (Budget budget(0.1); budget.left(); dog.progress()) {
    rt->run(
        [] {
          std::stop_source stop;
          std::atomic<int> stopped{0};
          Semaphore never;
          WaitQueue queue;
          Scope scope;
          for (int i = 0; i < 24; ++i) {
            (void)scope.spawn(
                [&, i] {
                  const std::stop_token token = stop.get_token();
                  const WaitResult result = i % 3 == 0   ? never.acquire(token)
                                            : i % 3 == 1 ? queue.wait([] { return false; }, token)
                                                         : sleep_for(1h, token);
                  stopped += result == WaitResult::kStopped;
                },
                migratable());
          }
          for (int i = 0; i < 3; ++i) {
            (void)scope.spawn([&] { stop.request_stop(); }, migratable());
          }
          scope.join();
          EXPECT_EQ(stopped, 24);
        },
        migratable());
  }
}

}  // namespace
}  // namespace jiffy
