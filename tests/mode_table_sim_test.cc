// The rules of the preemption modes as behaviour: in each mode, which request is made, and what the
// tick makes of it. Where requests are honoured is tested in mode_points_sim_test.cc.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>

#include <chrono>
#include <string>

#include "support/sim_world.h"

namespace jiffy {
namespace {

// One Cpu in each mode. Kernel-mode fiber A runs from 0 to 20 ms; ticks come each 4 ms.
class ModeTable : public ::testing::TestWithParam<Preemption> {
 protected:
  static constexpr auto kEnd = 20ms;

  Preemption mode() const { return GetParam(); }
  bool lazy_mode() const { return mode() == Preemption::kLazy; }
  bool full_mode() const { return mode() == Preemption::kFull; }
  // Whether kernel code can be preempted at all.
  bool preemptible() const { return lazy_mode() || full_mode(); }

  // A fair fiber that should preempt any other at its wakeup: its slice is the shortest.
  static SpawnOptions eager(const std::string& name) {
    SpawnOptions options = SimWorld::kernel(name);
    options.slice = 100us;
    return options;
  }
  static SpawnOptions fifo(const std::string& name, int priority) {
    SpawnOptions options = SimWorld::kernel(name);
    options.policy = Policy::kFifo;
    options.priority = priority;
    return options;
  }
  static SpawnOptions user(const std::string& name) {
    SpawnOptions options = SimWorld::kernel(name);
    options.kernel_mode = false;
    return options;
  }
  // When the wakee of a fair wakeup at 1 ms runs, behind a kernel-mode fiber.
  std::chrono::nanoseconds fair_wakee_runs() const {
    return full_mode() ? 1ms : lazy_mode() ? 4ms : kEnd;
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, ModeTable, ::testing::ValuesIn(kAllModes),
                         [](const auto& row) { return std::string(preemption_name(row.param)); });

// --- Which request is made.

TEST_P(ModeTable, FairWakeupOverFairByAnInterrupt) {
  SimWorld world = SimWorld::with_mode(mode());
  Sleeper w(world, eager("W"));
  w.settle();
  auto a = world.spawn(world.kernel("A"), [] { consume(kEnd); });
  bool lazy = false;
  bool hard = false;
  world.interrupt_at(1ms, 0, [&] {
    w.wake();
    lazy = world.lazy(0);
    hard = world.hard(0);
  });
  a.join();
  w.settle();
  EXPECT_EQ(lazy, lazy_mode());
  EXPECT_EQ(hard, !lazy_mode());
  ASSERT_EQ(w.ran().size(), 1u);
  EXPECT_EQ(w.ran()[0], fair_wakee_runs());
}

TEST_P(ModeTable, FairWakeupFromAnotherCpuSendsNoInterruptWhenLazy) {
  SimWorld world = SimWorld::with_mode(mode(), 2);
  Sleeper w(world, eager("W"));
  w.settle();
  auto a = world.spawn(world.kernel("A", 0), [] { consume(kEnd); });
  auto waker = world.spawn(world.kernel("waker", 1), [&] {
    consume(1ms);
    w.wake();
    EXPECT_EQ(world.lazy(0), lazy_mode());
    EXPECT_EQ(world.hard(0), !lazy_mode());
  });
  world.join(a, waker);
  w.settle();
  EXPECT_EQ(world.trace(TraceEvent::kIpi, 0).size(), lazy_mode() ? 0u : 1u);
  EXPECT_EQ(world.count(Counter::kIpisSent), lazy_mode() ? 0u : 1u);
  EXPECT_EQ(world.count(Counter::kWakeupsRemote), 1u);
  EXPECT_EQ(w.ran()[0], fair_wakee_runs());
}

TEST_P(ModeTable, SliceExpiryIsSeenByTheTick) {
  SimWorld world = SimWorld::with_mode(mode());
  auto a = world.spawn(world.kernel("A"), [] { consume(kEnd); });
  std::chrono::nanoseconds b_ran{};
  auto b = world.spawn(world.kernel("B"), [&] { b_ran = world.time(); });
  world.run_until(4ms + 1us);
  EXPECT_EQ(world.lazy(0), lazy_mode());
  EXPECT_EQ(world.hard(0), !preemptible());
  world.join(a, b);
  // Lazy: the request of one tick is promoted by the next one, not by the same.
  EXPECT_EQ(b_ran, full_mode() ? 4ms : lazy_mode() ? 8ms : kEnd);
  EXPECT_EQ(world.count(Counter::kPromotions), lazy_mode() ? 1u : 0u);
}

TEST_P(ModeTable, SliceExpiryIsSeenByAnEnqueue) {
  SimWorld world = SimWorld::with_mode(mode());
  SpawnOptions batch = world.kernel("W");  // would not preempt by itself
  batch.policy = Policy::kBatch;
  Sleeper w(world, batch);
  w.settle();
  world.mark();
  auto a = world.spawn(world.kernel("A"), [] { consume(kEnd); });
  auto b = world.spawn(world.kernel("B"), [] {});
  world.interrupt_at(1ms, 0, [&] { w.wake(); });
  world.run_until(1ms + 1us);
  EXPECT_EQ(world.lazy(0), lazy_mode());
  EXPECT_EQ(world.hard(0), !preemptible());
  EXPECT_EQ(world.order(), full_mode() ? "A B W A" : "A");
  world.join(a, b);
  w.settle();
}

TEST_P(ModeTable, WakeupOfAHigherClassIsHardInEachMode) {
  SimWorld world = SimWorld::with_mode(mode());
  Sleeper f(world, fifo("F", 10));
  f.settle();
  auto a = world.spawn(world.kernel("A"), [] { consume(kEnd); });
  bool hard = false;
  world.interrupt_at(1ms, 0, [&] {
    f.wake();
    hard = world.hard(0) && !world.lazy(0);
  });
  a.join();
  f.settle();
  EXPECT_TRUE(hard);
  EXPECT_EQ(f.ran()[0], preemptible() ? 1ms : kEnd);
}

TEST_P(ModeTable, HigherFifoPriorityAndStopAreHardInEachMode) {
  SimWorld world = SimWorld::with_mode(mode());
  Sleeper low(world, fifo("low", 9));
  Sleeper high(world, fifo("high", 11));
  Sleeper stop(world, fifo("stop", 1), [] { consume(1ms); });
  fiber_make_stopper(stop.fiber());
  world.run_until([&] { return low.asleep() && high.asleep() && stop.asleep(); });
  auto f = world.spawn(fifo("F", 10), [] { consume(kEnd); });
  world.interrupt_at(1ms, 0, [&] {
    low.wake();
    EXPECT_FALSE(world.hard(0) || world.lazy(0)) << "a lower priority asks for nothing";
    stop.wake();
    EXPECT_TRUE(world.hard(0));
  });
  world.interrupt_at(3ms, 0, [&] {
    high.wake();
    EXPECT_TRUE(world.hard(0));
  });
  f.join();
  for (Sleeper* s : {&low, &high, &stop}) s->settle();
  EXPECT_EQ(stop.ran()[0], preemptible() ? 1ms : kEnd);
  EXPECT_EQ(high.ran()[0], preemptible() ? 3ms : kEnd + 1ms);
  EXPECT_EQ(low.ran()[0], kEnd + 1ms);
}

TEST_P(ModeTable, WakeupOfAHigherClassFromAnotherCpuInterrupts) {
  SimWorld world = SimWorld::with_mode(mode(), 2);
  Sleeper f(world, fifo("F", 10));
  f.settle();
  auto a = world.spawn(world.kernel("A", 0), [] { consume(kEnd); });
  auto waker = world.spawn(world.kernel("waker", 1), [&] {
    consume(1ms);
    f.wake();
  });
  world.join(a, waker);
  f.settle();
  EXPECT_EQ(world.trace(TraceEvent::kIpi, 0).size(), 1u);
  EXPECT_EQ(f.ran()[0], preemptible() ? 1ms : kEnd);
}

TEST_P(ModeTable, AnIdleTargetSchedulesAtOnce) {
  SimWorld world = SimWorld::with_mode(mode(), 2);
  Sleeper w(world, world.kernel("W", 0));
  w.settle();
  auto waker = world.spawn(world.kernel("waker", 1), [&] {
    consume(1ms);
    w.wake();
    EXPECT_TRUE(world.hard(0));
    EXPECT_FALSE(world.lazy(0));
    consume(1ms);
  });
  waker.join();
  w.settle();
  EXPECT_EQ(w.ran()[0], 1ms);
  EXPECT_EQ(world.count(Counter::kIpisSent), 0u) << "it is unparked instead";
  EXPECT_EQ(world.count(Counter::kLazyUpgradedIdle), 0u) << "the request was hard from the start";
}

// The request primitive itself: a lazy request to a Cpu whose idle loop runs.
TEST_P(ModeTable, ALazyRequestToAnIdleCpuIsUpgraded) {
  SimWorld world = SimWorld::with_mode(mode());
  RunQueue& rq = *world.cpu(0).rq;
  preempt_disable();
  rq.lock.lock();
  rq.request_resched(Moment::kFairWakeup);
  rq.unlock_and_notify();
  preempt_enable();
  EXPECT_TRUE(world.hard(0));
  EXPECT_FALSE(world.lazy(0));
  EXPECT_EQ(world.count(Counter::kLazyUpgradedIdle), lazy_mode() ? 1u : 0u);
}

TEST_P(ModeTable, HrtickIsHardInEachMode) {
  Options options;
  options.preemption = mode();
  options.hrtick = true;
  options.trace_records = 1024;
  SimWorld world(options);
  SpawnOptions a_options = world.kernel("A");
  a_options.slice = 3ms;
  std::chrono::nanoseconds b_ran{};
  auto a = world.spawn(a_options, [] { consume(kEnd); });
  world.run_until(1us);
  auto b = world.spawn(world.kernel("B"), [&] { b_ran = world.time(); });
  world.run_until(1500us + 1us);
  EXPECT_EQ(world.hard(0), !preemptible()) << "a new fiber's slice is half of what it asks for";
  EXPECT_FALSE(world.lazy(0));
  world.join(a, b);
  EXPECT_EQ(b_ran, preemptible() ? 1500us : kEnd);
}

// --- Requests that are pending already.

TEST_P(ModeTable, NothingIsAddedToAHardRequest) {
  SimWorld world = SimWorld::with_mode(mode());
  Sleeper f(world, fifo("F", 10));
  Sleeper w(world, eager("W"));
  world.run_until([&] { return f.asleep() && w.asleep(); });
  auto a = world.spawn(world.kernel("A"), [] { consume(kEnd); });
  world.interrupt_at(1ms, 0, [&] {
    world.mark();
    f.wake();
    w.wake();
    EXPECT_TRUE(world.hard(0));
    EXPECT_FALSE(world.lazy(0));
    EXPECT_EQ(world.count(Counter::kHardRequests), 1u);
    EXPECT_EQ(world.count(Counter::kLazyRequests), 0u);
  });
  a.join();
  f.settle();
  w.settle();
}

TEST_P(ModeTable, AHardRequestIsAddedToALazyOne) {
  SimWorld world = SimWorld::with_mode(mode());
  Sleeper f(world, fifo("F", 10));
  Sleeper w(world, eager("W"));
  Sleeper w2(world, eager("W2"));
  world.run_until([&] { return f.asleep() && w.asleep() && w2.asleep(); });
  auto a = world.spawn(world.kernel("A"), [] { consume(kEnd); });
  world.interrupt_at(1ms, 0, [&] {
    world.mark();
    w.wake();
    w2.wake();  // the same bit again: nothing
    EXPECT_EQ(world.count(Counter::kLazyRequests), lazy_mode() ? 1u : 0u);
    f.wake();
    EXPECT_TRUE(world.hard(0));
    EXPECT_EQ(world.lazy(0), lazy_mode());
    EXPECT_EQ(world.count(Counter::kHardRequests), 1u);
  });
  a.join();
  for (Sleeper* s : {&f, &w, &w2}) s->settle();
  EXPECT_EQ(f.ran()[0], preemptible() ? 1ms : kEnd);
}

TEST_P(ModeTable, ScheduleClearsBothBits) {
  SimWorld world = SimWorld::with_mode(mode());
  Sleeper w(world, eager("W"));
  uint32_t need_seen = UINT32_MAX;
  Sleeper f(world, fifo("F", 10), [&] { need_seen = world.cpu(0).need.load(); });
  world.run_until([&] { return f.asleep() && w.asleep(); });
  auto a = world.spawn(world.kernel("A"), [] { consume(kEnd); });
  world.interrupt_at(1ms, 0, [&] {
    w.wake();
    f.wake();
  });
  a.join();
  f.settle();
  w.settle();
  EXPECT_EQ(need_seen, 0u);
}

// --- The tick.

TEST_P(ModeTable, TheTickPromotesALazyRequestOnce) {
  SimWorld world = SimWorld::with_mode(mode());
  Sleeper w(world, eager("W"));
  w.settle();
  // Its slice is over at the tick, so that the class too would ask, were it first.
  auto a = world.spawn(world.kernel("A"), [] { consume(kEnd); });
  world.run_until(3ms);
  world.mark();
  world.interrupt_at(3500us, 0, [&] { w.wake(); });
  a.join();
  w.settle();
  const auto promotions = world.trace(TraceEvent::kPromotion);
  if (!lazy_mode()) {
    EXPECT_TRUE(promotions.empty());
    return;
  }
  ASSERT_EQ(promotions.size(), 1u);
  EXPECT_EQ(promotions[0].time_ns, 4'000'000u);
  EXPECT_EQ(w.ran()[0], 4ms);
  EXPECT_EQ(world.count(Counter::kHardRequests), 0u) << "the class found the promoted bit set";
  EXPECT_EQ(world.count(Counter::kLazyRequests), 1u);
  EXPECT_EQ(world.switches().back(), "A idle exit");
}

}  // namespace
}  // namespace jiffy
