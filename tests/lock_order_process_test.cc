// What the builds with JIFFY_CHECK_LOCKS refuse: spin locks taken against their order or with
// preemption on, and handlers that leave more behind than they found.
#include <gtest/gtest.h>
#include <jiffy/event_fd.h>
#include <jiffy/runtime.h>
#include <jiffy/wait_queue.h>

#include <functional>

#include "sched/runtime_state.h"
#include "support/runtimes.h"
#include "support/sim_world.h"

namespace jiffy {
namespace {

class LockOrder : public testing::Test {
 protected:
  void SetUp() override {
#ifndef JIFFY_CHECK_LOCKS
    GTEST_SKIP() << "a build without JIFFY_CHECK_LOCKS";
#endif
    testing::FLAGS_gtest_death_test_style = "threadsafe";
  }

  // On a fiber with preemption off.
  static void in_fiber(const std::function<void(RuntimeState&)>& fn) {
    Runtime rt(sim_options(2));
    (void)rt.start();
    rt.run([&] {
      const PreemptGuard guard;
      fn(rt.state());
    });
  }
};

TEST_F(LockOrder, OuterInsideInnerIsRefusedThoughNobodyElseIsThere) {
  const auto wrong = [](RuntimeState&) {
    RawSpinLock inner(LockClass::kRunQueue), outer(LockClass::kWaitQueue);
    inner.lock();
    outer.lock();
  };
  EXPECT_DEATH(in_fiber(wrong), "wait queue lock taken inside the lock of class run queue");
}

TEST_F(LockOrder, InnerInsideOuterAndTheReleaseInAnyOrderAreRight) {
  in_fiber([](RuntimeState&) {
    RawSpinLock outer(LockClass::kTimers), middle(LockClass::kWaitQueue),
        inner(LockClass::kRunQueue);
    outer.lock();
    middle.lock();
    inner.lock();
    middle.unlock();
    outer.unlock();
    inner.unlock();
    outer.lock();
    outer.unlock();
  });
}

TEST_F(LockOrder, RunQueuesAreTakenInTheOrderOfTheirCpus) {
  in_fiber([](RuntimeState& state) {
    state.cpus[0]->rq->lock.lock();
    state.cpus[1]->rq->lock.lock();
    state.cpus[0]->rq->lock.unlock();
    state.cpus[1]->rq->lock.unlock();
  });
  const auto wrong = [](RuntimeState& state) {
    state.cpus[1]->rq->lock.lock();
    state.cpus[0]->rq->lock.lock();
  };
  EXPECT_DEATH(in_fiber(wrong), "run queue lock taken inside the lock of class run queue");
}

TEST_F(LockOrder, TheSameLockAgainIsRefusedInsteadOfHanging) {
  const auto wrong = [](RuntimeState&) {
    RawSpinLock lock;
    lock.lock();
    lock.lock();
  };
  EXPECT_DEATH(in_fiber(wrong), "other lock taken again by who holds it");
}

TEST_F(LockOrder, ALockTakenWithPreemptionOnIsRefused) {
  const auto wrong = [] {
    Runtime rt(sim_options(1));
    rt.run([] {
      RawSpinLock lock;
      lock.lock();
    });
  };
  EXPECT_DEATH(wrong(), "taken with preemption on: an interrupt here could want it too");
  RawSpinLock lock;  // a plain thread is not interrupted
  lock.lock();
  lock.unlock();
}

TEST_F(LockOrder, AReleaseByWhoDoesNotHoldItIsRefused) {
  const auto wrong = [](RuntimeState&) { RawSpinLock().unlock(); };
  EXPECT_DEATH(in_fiber(wrong), "released by who does not hold it");
}

TEST_F(LockOrder, ALockThatEndsWhileItIsHeldIsRefused) {
  const auto wrong = [](RuntimeState&) {
    RawSpinLock lock;
    lock.lock();
  };
  EXPECT_DEATH(in_fiber(wrong), "is destroyed while it is held");
}

// A chain of event descriptors is what they are for; one that bites its tail would hang.
TEST_F(LockOrder, WakeFunctionsMayWakeTheNextQueueButNotTheirOwn) {
  struct Chain : WaitEntry {
    WaitQueue* next = nullptr;
  };
  const auto wake_next = [](WaitEntry& entry, uint64_t) -> int {
    return static_cast<Chain&>(entry).next->wake(WaitQueue::kAll);
  };
  const auto chain_to = [&](bool itself) {
    in_fiber([&](RuntimeState&) {
      WaitQueue first, second;
      Chain chain;
      chain.wake = wake_next;
      chain.next = itself ? &first : &second;
      first.with_lock([&] { first.add(chain); });
      first.wake(WaitQueue::kAll);
      first.with_lock([&] { first.remove(chain); });
    });
  };
  chain_to(false);
  EXPECT_DEATH(chain_to(true), "wait queue lock taken again by who holds it");
}

// --- What a handler leaves behind.

void interrupt_with(const std::function<void()>& handler) {
  SimWorld world(Options{.cpus = 1});
  auto busy = world.spawn(SimWorld::kernel("busy"), [] { consume(std::chrono::milliseconds(2)); });
  world.interrupt_at(std::chrono::milliseconds(1), 0, handler);
  busy.join();
}

TEST_F(LockOrder, AnInterruptThatLeavesPreemptionOffIsNamed) {
  EXPECT_DEATH(interrupt_with([] { preempt_disable(); }),
               "the handler of interrupt [0-9]+ on Cpu 0 began with count 0x[0-9a-f]+ and 0 locks");
}

TEST_F(LockOrder, AnInterruptThatKeepsALockIsNamed) {
  static RawSpinLock kept;
  EXPECT_DEATH(interrupt_with([] { kept.lock(); }), "and ended with count 0x[0-9a-f]+ and 1 locks");
}

}  // namespace
}  // namespace jiffy
