// Runtimes that come and go: creation and shutdown under load, several runtimes at once.
#include <gtest/gtest.h>
#include <jiffy/event_fd.h>
#include <jiffy/offload.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>
#include <jiffy/semaphore.h>
#include <jiffy/timer.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "support/runtimes.h"
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
