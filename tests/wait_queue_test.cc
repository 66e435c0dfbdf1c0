// The wait queue: order, exclusive entries, and wake functions in the waker's context.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>
#include <jiffy/wait_queue.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "cpu/this_cpu.h"
#include "support/runtimes.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

// An entry that notes its calls in a common log.
struct Probe : WaitEntry {
  Probe(std::string& l, char n, uint8_t entry_flags, int r = 1) : log(l), name(n), result(r) {
    flags = entry_flags;
    wake = called;
  }
  static int called(WaitEntry& entry, uint64_t k) {
    auto& self = static_cast<Probe&>(entry);
    self.log += self.name;
    self.key = k;
    if (self.unlinks) self.node.unlink();
    return self.result;
  }
  std::string& log;
  char name;
  int result;
  bool unlinks = false;
  uint64_t key = 0;
};

class WaitQueueTest : public ::testing::Test {
 protected:
  void add(std::initializer_list<Probe*> probes) {
    for (Probe* probe : probes) queue_.with_lock([&] { queue_.add(*probe); });
  }
  int wake(int exclusive, uint64_t key = 0) {
    log_.clear();
    return queue_.wake(exclusive, key);
  }
  static constexpr uint8_t kShared = 0;
  static constexpr uint8_t kExclusive = WaitEntry::kExclusive;
  static constexpr uint8_t kPriority = WaitEntry::kPriority;

  WaitQueue queue_;
  std::string log_;
  Probe a_{log_, 'a', kShared}, b_{log_, 'b', kShared};
  Probe x_{log_, 'x', kExclusive}, y_{log_, 'y', kExclusive}, z_{log_, 'z', kExclusive};
};

TEST_F(WaitQueueTest, SharedGoToTheHeadExclusiveToTheTailPriorityToTheHead) {
  add({&x_, &a_, &y_, &b_});
  (void)wake(WaitQueue::kAll);
  EXPECT_EQ(log_, "baxy");
  Probe p(log_, 'p', kExclusive | kPriority);
  add({&p});
  (void)wake(WaitQueue::kAll);
  EXPECT_EQ(log_, "pbaxy");
}

TEST_F(WaitQueueTest, WakeReachesAllSharedAndAsManyExclusiveAsItIsTold) {
  add({&x_, &y_, &z_, &a_});
  EXPECT_EQ(wake(1), 2);
  EXPECT_EQ(log_, "ax");
  EXPECT_EQ(wake(2), 3);
  EXPECT_EQ(log_, "axy");
  EXPECT_EQ(wake(WaitQueue::kAll), 4);
  EXPECT_EQ(log_, "axyz");
}

TEST_F(WaitQueueTest, ExclusiveEntryThatDeclinesUsesNothingUp) {
  x_.result = 0;
  add({&x_, &y_, &z_});
  EXPECT_EQ(wake(1), 1);
  EXPECT_EQ(log_, "xy");
}

TEST_F(WaitQueueTest, NegativeReturnStopsTheWalk) {
  x_.result = -1;
  add({&x_, &y_, &a_});
  EXPECT_EQ(wake(WaitQueue::kAll), 1);
  EXPECT_EQ(log_, "ax");
}

TEST_F(WaitQueueTest, PriorityExclusiveEntryAtTheHeadTakesTheEvent) {
  Probe p(log_, 'p', kExclusive | kPriority);
  add({&a_, &x_, &p});
  EXPECT_EQ(wake(1), 1);
  EXPECT_EQ(log_, "p") << "as an irqfd before the readers of its eventfd";
}

TEST_F(WaitQueueTest, EntryMayUnlinkItselfDuringTheWalk) {
  for (Probe* probe : {&a_, &b_, &x_, &y_}) probe->unlinks = true;
  add({&a_, &b_, &x_, &y_});
  EXPECT_EQ(wake(WaitQueue::kAll), 4);
  EXPECT_EQ(log_, "baxy");
  EXPECT_EQ(wake(WaitQueue::kAll), 0);
  EXPECT_TRUE(queue_.with_lock([&] { return queue_.empty(); }));
}

TEST_F(WaitQueueTest, RemovedEntryIsNotCalled) {
  add({&a_, &x_});
  queue_.with_lock([&] { queue_.remove(a_); });
  EXPECT_EQ(wake(WaitQueue::kAll, 77), 1);
  EXPECT_EQ(log_, "x");
  EXPECT_EQ(x_.key, 77u) << "the key of the waker";
}

// --- The waker's context.

struct ContextProbe : WaitEntry {
  ContextProbe() { wake = called; }
  static int called(WaitEntry& entry, uint64_t) {
    auto& self = static_cast<ContextProbe&>(entry);
    self.thread = std::this_thread::get_id();
    self.fiber = this_fiber::id();
    self.locked = self.queue->is_locked();
    self.preemptible = (preempt_count() & kPreemptMask) == 0;
    return 1;
  }
  WaitQueue* queue = nullptr;
  std::thread::id thread;
  uint64_t fiber = 0;
  bool locked = false;
  bool preemptible = true;
};

TEST(WaitQueueContext, WakeFunctionRunsInTheWakersContextUnderTheLockPreemptionOff) {
  CheckedRuntime rt(MachineKind::kHost, 2);
  WaitQueue queue;
  ContextProbe probe;
  probe.queue = &queue;
  queue.with_lock([&] { queue.add(probe); });
  const auto check = [&] {
    EXPECT_EQ(queue.wake(1), 1);
    EXPECT_EQ(probe.thread, std::this_thread::get_id());
    EXPECT_EQ(probe.fiber, this_fiber::id());
    EXPECT_TRUE(probe.locked);
    EXPECT_FALSE(probe.preemptible);
  };
  check();
  for (int cpu = 0; cpu < 2; ++cpu) rt->run(check, pinned(cpu));
}

// --- wait().

class WaitTest : public ::testing::TestWithParam<MachineKind> {
 protected:
  CheckedRuntime rt_{GetParam(), 2};
};
INSTANTIATE_TEST_SUITE_P(, WaitTest, kBothMachines, kMachineNames);

TEST_P(WaitTest, ConditionIsAskedUnderTheLockBeforeAndAfterEachWakeup) {
  rt_->run([] {
    WaitQueue queue;
    int asked = 0;
    bool ready = false;
    auto waiter = spawn([&] {
      return queue.wait([&] {
        EXPECT_TRUE(queue.is_locked());
        ++asked;
        return ready;
      });
    });
    const auto asked_times = [&](int n) {
      while (queue.with_lock([&] { return asked; }) < n) (void)sleep_for(10us);
    };
    asked_times(1);
    (void)sleep_for(100us);
    (void)queue.wake(WaitQueue::kAll);
    asked_times(2);
    queue.with_lock([&] {
      ready = true;
      (void)queue.wake_locked(WaitQueue::kAll);
    });
    EXPECT_EQ(waiter.join(), WaitResult::kReady);
    EXPECT_EQ(asked, 3);
  });
}

TEST_P(WaitTest, ExclusiveWaitersAreWokenOneByOneInOrder) {
  rt_->run(
      [] {
        WaitQueue queue;
        int tickets = 0, queued = 0;
        std::vector<int> order;
        Scope scope;
        for (int i = 0; i < 4; ++i) {
          (void)scope.spawn(
              [&, i] {
                while (queued < i) yield();
                ++queued;
                (void)queue.wait(
                    [&] {
                      if (tickets == 0) return false;
                      --tickets;
                      return true;
                    },
                    {}, WaitEntry::kExclusive);
                order.push_back(i);
              },
              pinned(0));
        }
        while (queued < 4) (void)sleep_for(10us);
        (void)sleep_for(100us);
        for (int i = 0; i < 4; ++i) {
          queue.with_lock([&] {
            ++tickets;
            EXPECT_EQ(queue.wake_locked(1), 1);
          });
          while (order.size() < static_cast<size_t>(i + 1)) (void)sleep_for(10us);
          EXPECT_EQ(order.back(), i);
        }
        scope.join();
      },
      pinned(0));
}

TEST_P(WaitTest, WakeupOfAWaiterWhoseDeadlinePassedGoesToTheNext) {
  rt_->run(
      [] {
        WaitQueue queue;
        int tickets = 0;
        const auto take = [&] {
          if (tickets == 0) return false;
          --tickets;
          return true;
        };
        std::vector<WaitResult> results(2);
        Scope scope;
        const TimePoint deadline = now() + 1ms;
        (void)scope.spawn([&] { results[0] = queue.wait(take, deadline, WaitEntry::kExclusive); },
                          pinned(0));
        (void)scope.spawn([&] { results[1] = queue.wait(take, Until(), WaitEntry::kExclusive); },
                          pinned(0));
        (void)sleep_until(deadline + 1us);
        consume(2ms);  // nobody else runs here: the first waiter is awake and has not looked
        queue.with_lock([&] {
          ++tickets;
          (void)queue.wake_locked(1);
        });
        (void)sleep_for(2ms);
        queue.with_lock([&] {
          ++tickets;
          (void)queue.wake_locked(1);
        });
        scope.join();
        EXPECT_EQ(results[1], WaitResult::kReady) << "no ticket was lost";
        EXPECT_EQ(tickets, results[0] == WaitResult::kReady ? 0 : 1);
      },
      pinned(0));
}

TEST(WaitHost, PlainThreadsAndFibersWaitOnOneQueue) {
  CheckedRuntime rt(MachineKind::kHost, 2);
  WaitQueue queue;
  bool ready = false;
  std::atomic<int> woken{0}, waiting{0};
  const auto body = [&] {
    bool first = true;
    EXPECT_EQ(queue.wait([&] {
      if (std::exchange(first, false)) ++waiting;
      return ready;
    }),
              WaitResult::kReady);
    ++woken;
  };
  std::vector<JoinHandle<void>> fibers;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    fibers.push_back(rt->spawn(body));
    threads.emplace_back(body);
  }
  while (waiting < 8) std::this_thread::yield();
  EXPECT_EQ(woken, 0);
  queue.with_lock([&] {
    ready = true;
    (void)queue.wake_locked(WaitQueue::kAll);
  });
  for (auto& fiber : fibers) fiber.join();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(woken, 8);
}

}  // namespace
}  // namespace jiffy
