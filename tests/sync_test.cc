// Mutex, condition variable, semaphore, sleep and timer, between fibers and plain threads.
#include <gtest/gtest.h>
#include <jiffy/condition_variable.h>
#include <jiffy/mutex.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>
#include <jiffy/semaphore.h>
#include <jiffy/timer.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "support/runtimes.h"
#include "support/sanitizer.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

class SyncTest : public ::testing::TestWithParam<MachineKind> {
 protected:
  CheckedRuntime rt_{GetParam(), 2};
};
INSTANTIATE_TEST_SUITE_P(, SyncTest, kBothMachines, kMachineNames);

// Between fibers and plain threads there is only the host.
class SyncHost : public ::testing::Test {
 protected:
  // Runs `body` in some fibers and some plain threads at once.
  void everywhere(int fibers, int threads, const std::function<void(int)>& body) {
    std::vector<JoinHandle<void>> handles;
    for (int i = 0; i < fibers; ++i) handles.push_back(rt_->spawn([&body, i] { body(i); }));
    std::vector<std::thread> plain;
    for (int i = 0; i < threads; ++i) plain.emplace_back([&body, i, fibers] { body(fibers + i); });
    for (auto& thread : plain) thread.join();
    for (auto& handle : handles) handle.join();
  }
  CheckedRuntime rt_{MachineKind::kHost, 2};
};

// --- Mutex.

TEST_P(SyncTest, MutexExcludesAcrossSuspensions) {
  rt_->run([] {
    Mutex mutex;
    int inside = 0, rounds = 0;
    Scope scope;
    for (int i = 0; i < 8; ++i) {
      (void)scope.spawn([&] {
        for (int n = 0; n < 50; ++n) {
          const std::lock_guard lock(mutex);
          ASSERT_EQ(++inside, 1);
          if (n % 2 == 0) yield();
          if (n % 10 == 0) (void)sleep_for(10us);
          ++rounds;
          --inside;
        }
      });
    }
    scope.join();
    EXPECT_EQ(rounds, 400);
  });
}

TEST_P(SyncTest, TryLockFailsWhileHeldAndDoesNotBlock) {
  rt_->run([] {
    Mutex mutex;
    EXPECT_TRUE(mutex.try_lock());
    spawn([&] { EXPECT_FALSE(mutex.try_lock()); }).join();
    mutex.unlock();
    EXPECT_TRUE(mutex.try_lock());
    mutex.unlock();
  });
}

TEST_P(SyncTest, MutexWaitersThatGaveUpDoNotSwallowTheUnlock) {
  rt_->run([] {
    Mutex mutex;
    mutex.lock();
    std::atomic<int> timeouts{0}, locked{0};
    Scope scope;
    for (int i = 0; i < 4; ++i) {
      (void)scope.spawn([&] { timeouts += mutex.lock(now() + 50us) == WaitResult::kTimeout; });
      (void)scope.spawn([&] {
        const std::lock_guard lock(mutex);
        ++locked;
      });
    }
    while (timeouts < 4) (void)sleep_for(20us);
    mutex.unlock();
    scope.join();
    EXPECT_EQ(locked, 4);
    EXPECT_TRUE(mutex.try_lock()) << "it is free at the end";
    mutex.unlock();
  });
}

TEST_F(SyncHost, MutexExcludesFibersAndThreads) {
  Mutex mutex;
  int64_t count = 0;  // under mutex
  constexpr int kRounds = 20'000 / kSlowdown;
  everywhere(3, 3, [&](int) {
    for (int n = 0; n < kRounds; ++n) {
      const std::lock_guard lock(mutex);
      ++count;
    }
  });
  EXPECT_EQ(count, 6 * kRounds);
}

// --- Condition variable.

TEST_P(SyncTest, NotifyOneWakesOneAndNotifyAllTheRest) {
  rt_->run([] {
    Mutex mutex;
    ConditionVariable condition;
    int tokens = 0, through = 0, waiting = 0;
    Scope scope;
    for (int i = 0; i < 6; ++i) {
      (void)scope.spawn([&] {
        std::unique_lock lock(mutex);
        ++waiting;
        EXPECT_EQ(condition.wait(lock, [&] { return tokens > 0; }), WaitResult::kReady);
        EXPECT_TRUE(lock.owns_lock());
        --tokens;
        ++through;
      });
    }
    const auto locked = [&](auto fn) {
      const std::lock_guard lock(mutex);
      return fn();
    };
    while (locked([&] { return waiting; }) < 6) (void)sleep_for(10us);
    locked([&] { tokens = 1; });
    condition.notify_one();
    while (locked([&] { return through; }) < 1) (void)sleep_for(10us);
    locked([&] { tokens = 5; });
    condition.notify_all();
    scope.join();
    EXPECT_EQ(through, 6);
    EXPECT_EQ(tokens, 0);
  });
}

TEST_P(SyncTest, NotifyWithoutWaitersIsNotRemembered) {
  rt_->run([] {
    Mutex mutex;
    ConditionVariable condition;
    condition.notify_one();
    condition.notify_all();
    std::unique_lock lock(mutex);
    EXPECT_EQ(condition.wait(lock, Until(now() + 100us)), WaitResult::kTimeout);
    EXPECT_TRUE(lock.owns_lock());
  });
}

TEST_P(SyncTest, ConditionThatHoldsAtTheDeadlineIsReady) {
  rt_->run([] {
    Mutex mutex;
    ConditionVariable condition;
    std::unique_lock lock(mutex);
    bool flag = false;
    auto setter = spawn([&] {
      (void)sleep_for(50us);
      flag = true;  // without a notification
    });
    EXPECT_EQ(condition.wait(
                  lock, [&] { return flag; }, now() + 5ms),
              WaitResult::kReady);
    setter.join();
  });
}

// A bounded queue with producers and consumers on both sides.
TEST_F(SyncHost, ConditionVariablesCarryAQueueBetweenFibersAndThreads) {
  Mutex mutex;
  ConditionVariable not_full, not_empty;
  std::deque<int> queue;  // under mutex, like all below
  int64_t sum = 0;
  int taken = 0;
  constexpr int kItems = 3000 / kSlowdown;
  everywhere(4, 4, [&](int who) {
    for (int n = 0; n < kItems; ++n) {
      std::unique_lock lock(mutex);
      if (who % 2 == 0) {
        not_full.wait(lock, [&] { return queue.size() < 8; });
        queue.push_back(n);
        not_empty.notify_one();
      } else {
        not_empty.wait(lock, [&] { return !queue.empty(); });
        sum += queue.front();
        ++taken;
        queue.pop_front();
        not_full.notify_one();
      }
    }
  });
  EXPECT_EQ(taken, 4 * kItems);
  EXPECT_EQ(sum, int64_t{4} * kItems * (kItems - 1) / 2);
}

// --- Semaphore.

TEST_P(SyncTest, SemaphoreHandsItsUnitsOutInOrder) {
  rt_->run(
      [] {
        Semaphore semaphore;
        std::vector<int> order;
        Scope scope;
        SpawnOptions in_order = pinned(0);  // FIFO: they run in the order of their wakeups
        in_order.policy = Policy::kFifo;
        int queued = 0;
        for (int i = 0; i < 5; ++i) {
          (void)scope.spawn(
              [&, i] {
                while (queued < i) yield();
                ++queued;
                semaphore.acquire();
                order.push_back(i);
              },
              in_order);
        }
        while (queued < 5) (void)sleep_for(10us);
        (void)sleep_for(100us);
        EXPECT_FALSE(semaphore.try_acquire());
        semaphore.release(5);
        EXPECT_FALSE(semaphore.try_acquire()) << "nobody overtakes those that were served";
        scope.join();
        EXPECT_EQ(order, (std::vector{0, 1, 2, 3, 4}));
      },
      pinned(0));
}

TEST_P(SyncTest, SemaphoreCountsWhatNobodyWaitsFor) {
  rt_->run([] {
    Semaphore semaphore(2);
    semaphore.release(3);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(semaphore.try_acquire());
    EXPECT_FALSE(semaphore.try_acquire());
    EXPECT_EQ(semaphore.acquire(now() + 10us), WaitResult::kTimeout);
    semaphore.release();
    EXPECT_EQ(semaphore.acquire(now() - 1s), WaitResult::kReady) << "a unit goes before a deadline";
  });
}

// A semaphore on the waiter's stack ends while the release() is on its way back.
TEST_F(SyncHost, SemaphoreMayEndAsSoonAsItsLastAcquireReturned) {
  constexpr int kRounds = 1000 / kSlowdown;
  std::atomic<Semaphore*> offered{nullptr};
  std::atomic<bool> stop{false};
  std::thread releaser([&] {
    while (!stop) {
      if (Semaphore* semaphore = offered.exchange(nullptr)) {
        semaphore->release();
      } else {
        std::this_thread::yield();
      }
    }
  });
  const auto wait_rounds = [&] {
    for (int i = 0; i < kRounds; ++i) {
      auto semaphore = std::make_unique<Semaphore>();
      offered = semaphore.get();
      semaphore->acquire();
    }
  };
  rt_->run(wait_rounds);
  wait_rounds();
  stop = true;
  releaser.join();
}

TEST_F(SyncHost, SemaphorePingsBetweenFiberAndThread) {
  Semaphore ping, pong;
  constexpr int kRounds = 2000 / kSlowdown;
  auto fiber = rt_->spawn([&] {
    for (int i = 0; i < kRounds; ++i) {
      ping.acquire();
      pong.release();
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    ping.release();
    pong.acquire();
  }
  fiber.join();
  EXPECT_FALSE(ping.try_acquire());
  EXPECT_FALSE(pong.try_acquire());
}

// --- Sleep and join.

TEST_P(SyncTest, SleepLastsAtLeastAsLongAsAsked) {
  rt_->run([] {
    for (const auto duration : {0us, 1us, 50us, 700us, 3000us}) {
      const TimePoint start = now();
      EXPECT_EQ(sleep_for(duration), WaitResult::kTimeout);
      EXPECT_GE(now() - start, duration);
    }
    EXPECT_EQ(sleep_for(-1h), WaitResult::kTimeout) << "the past is over";
    EXPECT_EQ(sleep_until(TimePoint::min()), WaitResult::kTimeout);
  });
}

TEST_F(SyncHost, PlainThreadsSleepToo) {
  const TimePoint start = now();
  EXPECT_EQ(sleep_for(2ms), WaitResult::kTimeout);
  EXPECT_GE(now() - start, 2ms);
  EXPECT_EQ(sleep_until(TimePoint::min()), WaitResult::kTimeout);
}

TEST_P(SyncTest, LimitsBeyondTheClocksRangeAreForEver) {
  rt_->run([] {
    Semaphore semaphore;
    auto waiter = spawn([&] { return semaphore.acquire(std::chrono::nanoseconds::max()); });
    (void)sleep_for(100us);
    semaphore.release();
    EXPECT_EQ(waiter.join(), WaitResult::kReady);
    std::stop_source stop;
    auto sleeper =
        spawn([&] { return sleep_for(std::chrono::nanoseconds::max(), stop.get_token()); });
    (void)sleep_for(100us);
    stop.request_stop();
    EXPECT_EQ(sleeper.join(), WaitResult::kStopped);
  });
}

TEST_F(SyncHost, DeadlinesLongAgoEndTheWaitOfAPlainThread) {
  Semaphore semaphore;
  EXPECT_EQ(semaphore.acquire(TimePoint::min()), WaitResult::kTimeout);
  EXPECT_EQ(semaphore.acquire(TimePoint()), WaitResult::kTimeout);
}

// --- Timer.

TEST_P(SyncTest, TimerFiresOnceOrEachPeriodUntilCancelled) {
  Semaphore fired;
  std::atomic<int> count{0};
  Timer timer(*rt_, [&] {
    ++count;
    fired.release();
  });
  rt_->run([&] {
    timer.start(now() + 100us);
    fired.acquire();
    EXPECT_FALSE(timer.cancel()) << "it has fired";
    EXPECT_EQ(count, 1);
    timer.start(now() + 100us, 100us);
    for (int i = 0; i < 5; ++i) fired.acquire();
    EXPECT_TRUE(timer.cancel());
    const int final_count = count;
    (void)sleep_for(1ms);
    EXPECT_EQ(count, final_count);
    timer.start(now() + 1h);
    timer.start(now() + 100us);  // replaces the first
    while (fired.try_acquire()) {
    }
    fired.acquire();
    EXPECT_FALSE(timer.cancel());
  });
}

TEST_F(SyncHost, TimerOfAPlainThreadWakesAnIdleRuntime) {
  Semaphore fired;
  Timer timer(*rt_, [&] { fired.release(); });
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(1ms);  // each Cpu parks
    timer.start(now() + 200us);
    EXPECT_EQ(fired.acquire(now() + 20s), WaitResult::kReady);
  }
}

// Its owner starts and cancels; the callback is either over or does not happen.
TEST_F(SyncHost, CancelledTimerDoesNotRunAfterTheCancel) {
  constexpr int kRounds = 500;
  for (const bool from_fiber : {true, false}) {
    const auto body = [&] {
      for (int i = 0; i < kRounds; ++i) {
        auto alive = std::make_unique<std::atomic<bool>>(true);
        Timer timer(*rt_, [p = alive.get()] { EXPECT_TRUE(*p); });
        timer.start(now() + std::chrono::microseconds(i % 60));
        if (i % 3 == 0) (void)sleep_for(std::chrono::microseconds(i % 50));
        (void)timer.cancel();
        *alive = false;
      }
    };
    if (from_fiber) {
      rt_->run(body);
    } else {
      body();
    }
  }
}

}  // namespace
}  // namespace jiffy
