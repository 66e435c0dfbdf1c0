// Runtimes and fibers that come and go: creation and shutdown under load, several runtimes at once,
// and counts that balance.
#include <gtest/gtest.h>
#include <jiffy/event_fd.h>
#include <jiffy/mutex.h>
#include <jiffy/offload.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>
#include <jiffy/semaphore.h>
#include <jiffy/timer.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
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

// What the watchdog shows while runtimes come and go.
class Shown {
 public:
  void set(Runtime* rt) {
    const std::lock_guard lock(mutex_);
    rt_ = rt;
  }
  // While the mutex is held the runtime is not replaced; a runtime that hangs in its stop() is
  // still shown, since it is hidden only afterwards.
  std::string dump() {
    const std::lock_guard lock(mutex_);
    return rt_ == nullptr ? "between two runtimes\n" : rt_->dump();
  }

 private:
  std::mutex mutex_;
  Runtime* rt_ = nullptr;
};

// --- Runtimes.

TEST(LifecycleStress, RuntimesThatCrossSubmitComeAndGo) {
  Shown shown;
  Watchdog dog([&] { return shown.dump(); });
  Random random(1);
  int64_t rounds = 0;
  for (Budget budget(0.15); budget.left(); ++rounds) {
    Options options = host_options(1 + static_cast<int>(random.below(4)));
    options.preemption = static_cast<Preemption>(random.below(kPreemptionModes));
    CheckedRuntime rt(options);
    shown.set(&*rt);
    const int items = 1 + static_cast<int>(random.below(20));
    std::atomic<int> done{0};
    std::vector<JoinHandle<void>> fibers;
    for (int cpu = 0; cpu < rt->cpus(); ++cpu) {
      fibers.push_back(rt->spawn(
          [&, cpu] {
            Scope scope;
            for (int i = 0; i < items; ++i) {
              (void)scope.spawn([&done] { ++done; }, pinned((cpu + 1 + i) % rt->cpus()));
            }
            scope.join();
          },
          pinned(cpu)));
    }
    for (auto& fiber : fibers) fiber.join();
    EXPECT_EQ(done, items * rt->cpus());
    rt.finish();
    shown.set(nullptr);
    dog.progress();
  }
  std::printf("%lld runtimes\n", static_cast<long long>(rounds));
}

// When stop() begins, fibers are on their way from Cpu to Cpu, and those that have nothing to do
// are parked: the last one that ends has to find who waits for it.
TEST(LifecycleStress, StopMeetsFibersThatStillCrossSubmit) {
  struct Hop {
    static void run(std::atomic<int>& ended, int cpus, int left) {
      if (left > 0) {
        spawn([&ended, cpus, left] { run(ended, cpus, left - 1); },
              pinned((this_fiber::cpu() + 1) % cpus))
            .detach();
      }
      ++ended;
    }
  };
  Shown shown;
  Watchdog dog([&] { return shown.dump(); });
  Random random(8);
  for (Budget budget(0.1); budget.left(); dog.progress()) {
    Runtime rt(host_options(1 + static_cast<int>(random.below(4))));
    ASSERT_TRUE(rt.start().ok());
    shown.set(&rt);
    constexpr int kChains = 4;
    const int hops = static_cast<int>(random.below(40));
    std::atomic<int> ended{0};
    for (int i = 0; i < kChains; ++i) {
      rt.spawn([&ended, cpus = rt.cpus(), hops] { Hop::run(ended, cpus, hops); },
               pinned(i % rt.cpus()))
          .detach();
    }
    random_pause(random);
    rt.stop();
    EXPECT_EQ(ended, kChains * (hops + 1));
    shown.set(nullptr);
  }
}

TEST(LifecycleStress, StoppedRuntimeStartsAgain) {
  Shown shown;
  Watchdog dog([&] { return shown.dump(); });
  Runtime rt(host_options(2));
  shown.set(&rt);
  for (Budget budget(0.05); budget.left(); dog.progress()) {
    ASSERT_TRUE(rt.start().ok());
    EXPECT_EQ(rt.run([] { return spawn([] { return 4; }, pinned(1)).join(); }), 4);
    rt.stop();
  }
  shown.set(nullptr);
}

// Wakeups and spawns by plain threads while the runtime stops are honoured or refused.
TEST(LifecycleStress, ForeignThreadsNotifyWhileTheRuntimeStops) {
  Shown shown;
  Watchdog dog([&] { return shown.dump(); });
  Random random(2);
  for (Budget budget(0.15); budget.left(); dog.progress()) {
    // They outlive the runtime, as the contract asks.
    EventFd event;
    Semaphore semaphore;
    std::atomic<int> started{0}, ended{0};
    std::atomic<bool> quit{false};
    auto rt = std::make_unique<Runtime>(host_options(2));
    ASSERT_TRUE(rt->start().ok());
    shown.set(rt.get());
    constexpr int kFibers = 6;
    for (int i = 0; i < kFibers; ++i) {
      rt->spawn(
            [&, i] {
              ++started;
              if (i % 2 == 0) {
                (void)event.read();
              } else {
                semaphore.acquire();
              }
              ++ended;
            },
            i % 3 == 0 ? migratable() : SpawnOptions{})
          .detach();
    }
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        Random own(t + 3);
        while (!quit) {
          random_pause(own);
          event.signal();
          semaphore.release();
          if (own.below(8) == 0) std::this_thread::yield();
        }
      });
    }
    for (uint64_t n = random.below(200); n > 0; --n) cpu_relax();
    rt->stop();
    EXPECT_EQ(started, kFibers);
    EXPECT_EQ(ended, kFibers) << "stop() waits for those that were spawned";
    shown.set(nullptr);
    rt.reset();
    quit = true;
    for (auto& thread : threads) thread.join();
  }
}

TEST(LifecycleStress, SpawnsThatMeetTheShutdownRunOrAreRefused) {
  Shown shown;
  Watchdog dog([&] { return shown.dump(); });
  Random random(4);
  for (Budget budget(0.1); budget.left(); dog.progress()) {
    Runtime rt(host_options(2));
    ASSERT_TRUE(rt.start().ok());
    shown.set(&rt);
    std::atomic<int> accepted{0}, ran{0};
    std::atomic<bool> quit{false};
    std::thread spawner([&] {
      while (!quit) {
        auto handle = rt.spawn([&ran] { ++ran; });
        if (!handle.valid()) continue;
        ++accepted;
        handle.detach();
      }
    });
    for (uint64_t n = random.below(20'000); n > 0; --n) cpu_relax();
    rt.stop();
    quit = true;
    spawner.join();
    EXPECT_EQ(accepted, ran);
    shown.set(nullptr);
  }
}

TEST(LifecycleStress, TwoRuntimesAtOnceShareNothing) {
  CheckedRuntime left(MachineKind::kHost, 2), right(MachineKind::kHost, 1);
  Watchdog dog([&] { return left->dump() + right->dump(); });
  Semaphore to_left, to_right;
  const Budget budget(0.05);
  std::atomic<bool> stop{false};
  auto a = left->spawn([&, mine = budget]() mutable {
    while (!stop) {
      to_right.release();
      to_left.acquire();
      EXPECT_EQ(right->spawn([] { return this_fiber::cpu(); }).join(), 0);
      dog.progress();
      if (!mine.left()) stop = true;
    }
    to_right.release();
  });
  auto b = right->spawn([&] {
    while (!stop) {
      to_right.acquire();
      to_left.release();
    }
  });
  a.join();
  to_left.release();
  to_right.release();
  b.join();
}

// --- Fibers.

// What each Cpu and the runtime count of fibers is zero again once all Cpus are parked: a count
// that went below, or stayed above, would hide work from the Cpus or keep them from parking.
void expect_accounts_at_zero(Runtime& rt) {
  RuntimeState& state = rt.state();
  while (state.parked_cpus.load() != rt.cpus()) std::this_thread::yield();
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
TEST(LifecycleStress, MixesOfCreateBlockCancelAndJoinBalance) {
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

TEST(LifecycleStress, MillionChildrenOfOneFiberRunWithoutSpinningOrDeadlock) {
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

TEST(LifecycleStress, StealingStormsRunEachFiberOnce) {
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

TEST(LifecycleStress, ModeMayChangeAllTheTime) {
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
TEST(LifecycleStress, StopRequestsWakeEachWaiterOnce) {
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

TEST(LifecycleStress, OffloadsAndTimersMeetTheShutdown) {
  Shown shown;
  Watchdog dog([&] { return shown.dump(); });
  for (Budget budget(0.05); budget.left(); dog.progress()) {
    CheckedRuntime rt(MachineKind::kHost, 2);
    shown.set(&*rt);
    std::atomic<int> ticks{0}, calls{0};
    {
      Timer timer(*rt, [&ticks] { ++ticks; });
      rt->run([&] {
        timer.start(now(), 20us);
        Scope scope;
        for (int i = 0; i < 8; ++i) {
          (void)scope.spawn([&calls] { offload([&calls] { ++calls; }); });
        }
        scope.join();
      });
    }
    EXPECT_EQ(calls, 8);
    rt.finish();
    shown.set(nullptr);
  }
}

}  // namespace
}  // namespace jiffy
