// Locks are served in order of arrival: whoever takes one in a loop starves nobody.
#include <gtest/gtest.h>
#include <jiffy/detail/spinlock.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>

#include <atomic>
#include <thread>

#include "support/runtimes.h"
#include "support/stress.h"

namespace jiffy {
namespace {

TEST(SpinLockStress, ExcludesAndIsFreeAfterTheLastUnlock) {
  RawSpinLock lock;
  int64_t plain = 0;
  std::atomic<int64_t> entered{0};
  std::atomic<bool> stop{false};
  const auto work = [&] {
    while (!stop.load(std::memory_order_relaxed)) {
      lock.lock();
      ++plain;
      lock.unlock();
      entered.fetch_add(1, std::memory_order_relaxed);
      if (lock.try_lock()) {
        ++plain;
        lock.unlock();
        entered.fetch_add(1, std::memory_order_relaxed);
      }
    }
  };
  std::thread threads[3] = {std::thread(work), std::thread(work), std::thread(work)};
  for (Budget budget(0.2); budget.left();) std::this_thread::yield();
  stop = true;
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(plain, entered.load());
  EXPECT_FALSE(lock.is_locked());
  EXPECT_TRUE(lock.try_lock());
  EXPECT_TRUE(lock.is_locked());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
}

// A Cpu whose fibers do nothing but yield has its run queue locked nearly all the time. With an
// unfair lock a waker on another Cpu waited for seconds: the watchdog would end this test.
TEST(SpinLockStress, AWakerReachesACpuThatDoesNothingButYield) {
  constexpr int kRoundsToReach = 200;
  Runtime rt(host_options(2));
  ASSERT_TRUE(rt.start().ok());
  Watchdog watchdog([&] { return rt.dump(); });
  std::atomic<bool> stop{false};
  const SpawnOptions on[2] = {{.cpu = 0}, {.cpu = 1}};
  const auto busy = [&stop] {
    while (!stop.load(std::memory_order_relaxed)) yield();
  };
  auto busy0 = rt.spawn(busy, on[0]);
  auto busy1 = rt.spawn(busy, on[1]);
  Semaphore ping, pong;
  auto partner = rt.spawn(
      [&] {
        for (;;) {
          ping.acquire();
          const bool last = stop.load(std::memory_order_relaxed);
          pong.release();
          if (last) return;
        }
      },
      on[1]);
  rt.run(
      [&] {
        int rounds = 0;
        for (Budget budget(0.5); budget.left() || rounds < kRoundsToReach; ++rounds) {
          ping.release();
          pong.acquire();
          watchdog.progress();
        }
        stop = true;
        ping.release();
        pong.acquire();
      },
      on[0]);
  partner.join();
  busy0.join();
  busy1.join();
}

}  // namespace
}  // namespace jiffy
