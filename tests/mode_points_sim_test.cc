// The rules of the preemption modes as behaviour: in each mode, where a request is honoured. Which
// requests are made is tested in mode_table_sim_test.cc.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>

#include <chrono>
#include <string>

#include "support/sim_world.h"

namespace jiffy {
namespace {

// One Cpu in each mode. Fiber A begins at 0; F, of the FIFO class, asks for a hard request when it
// wakes; W, of the fair class, for one of the mode's own kind.
class ModePoints : public ::testing::TestWithParam<Preemption> {
 protected:
  ModePoints() : world(make_options(GetParam())), f(world, fifo()), w(world, eager()) {
    world.run_until([this] { return f.asleep() && w.asleep(); });
    world.mark();
  }
  bool lazy_mode() const { return GetParam() == Preemption::kLazy; }
  bool preemptible() const { return lazy_mode() || GetParam() == Preemption::kFull; }
  // Leaves a lazy request behind, whatever the mode is: it was made when the mode was LAZY.
  void wake_w_lazily() {
    world.rt.set_preemption(Preemption::kLazy);
    w.wake();
    world.rt.set_preemption(GetParam());
    EXPECT_TRUE(world.lazy(0));
    EXPECT_FALSE(world.hard(0));
  }
  SpawnOptions user(const std::string& name) {
    SpawnOptions options = SimWorld::kernel(name);
    options.kernel_mode = false;
    return options;
  }

 private:
  static Options make_options(Preemption mode) {
    Options options;
    options.preemption = mode;
    options.trace_records = 1024;
    return options;
  }
  static SpawnOptions fifo() {
    SpawnOptions options = SimWorld::kernel("F");
    options.policy = Policy::kFifo;
    return options;
  }
  static SpawnOptions eager() {
    SpawnOptions options = SimWorld::kernel("W");
    options.slice = 100us;
    return options;
  }

 protected:
  SimWorld world;
  Sleeper f, w;
};

INSTANTIATE_TEST_SUITE_P(Modes, ModePoints, ::testing::ValuesIn(kAllModes),
                         [](const auto& row) { return std::string(preemption_name(row.param)); });

// --- A hard request that is pending.

TEST_P(ModePoints, ATickPromotesNothingWhereTheRequestIsHardAlready) {
  auto a = world.spawn(world.kernel("A"), [&] {
    preempt_disable();
    consume(1ms);
    wake_w_lazily();
    f.wake();
    EXPECT_TRUE(world.lazy(0) && world.hard(0));
    consume(4ms);
    preempt_enable();  // takes the tick of 4 ms
  });
  a.join();
  EXPECT_EQ(world.count(Counter::kTicks), 1u);
  EXPECT_EQ(world.count(Counter::kPromotions), 0u);
}

TEST_P(ModePoints, AFairWakeupDecidesNothingWhereTheRequestIsHardAlready) {
  SpawnOptions options = world.kernel("A");
  options.slice = 50ms;
  auto a = world.spawn(options, [&] {
    consume(1ms);
    preempt_disable();
    f.wake();
    const int64_t protection = current_fiber()->fair.vprot;
    w.wake();  // its shorter slice would end the protection
    EXPECT_EQ(current_fiber()->fair.vprot, protection);
    preempt_enable();
  });
  a.join();
}

// --- Return to user mode.

TEST_P(ModePoints, ReturnToUserModeHonoursAHardRequest) {
  auto a = world.spawn(user("A"), [] { consume(10ms); });
  world.interrupt_at(1ms, 0, [&] { f.wake(); });
  a.join();
  ASSERT_EQ(f.ran().size(), 1u);
  EXPECT_EQ(f.ran()[0], 1ms);
}

TEST_P(ModePoints, ReturnToUserModeHonoursALazyRequest) {
  auto a = world.spawn(user("A"), [] { consume(10ms); });
  world.interrupt_at(1ms, 0, [&] { wake_w_lazily(); });
  a.join();
  ASSERT_EQ(w.ran().size(), 1u);
  EXPECT_EQ(w.ran()[0], 1ms);
  EXPECT_EQ(world.switches()[1], "A W preempt_lazy");
}

TEST_P(ModePoints, TheEndOfAJiffyCallIsAReturnToUserMode) {
  auto a = world.spawn(user("A"), [&] {
    consume(1ms);
    w.wake();  // by the fiber itself, not by an interrupt
    EXPECT_EQ(w.ran().size(), 1u);
    consume(10ms);
  });
  a.join();
  EXPECT_EQ(w.ran()[0], 1ms);
}

// --- Interrupts that return to kernel code.

TEST_P(ModePoints, InterruptReturnToKernelCodeHonoursHardOnly) {
  auto a = world.spawn(world.kernel("A"), [] { consume(3ms); });
  world.interrupt_at(1ms, 0, [&] { wake_w_lazily(); });
  world.run_until(1ms + 1us);
  EXPECT_EQ(w.ran().size(), 0u) << "lazy: never";
  world.interrupt_at(2ms, 0, [&] { f.wake(); });
  a.join();
  ASSERT_EQ(f.ran().size(), 1u);
  EXPECT_EQ(f.ran()[0], preemptible() ? 2ms : 3ms);
}

TEST_P(ModePoints, InterruptReturnWithTheCountRaisedHonoursNothing) {
  auto a = world.spawn(world.kernel("A"), [] {
    const PreemptDisabled guard;
    consume(3ms);
  });
  world.at(1ms, [&] { f.wake(); });
  a.join();
  EXPECT_EQ(f.ran()[0], 3ms);
}

// --- The end of a critical section.

TEST_P(ModePoints, OutermostPreemptEnableHonoursHardWhereKernelCodeIsPreemptible) {
  auto a = world.spawn(world.kernel("A"), [&] {
    preempt_disable();
    preempt_disable();
    consume(1ms);
    f.wake();
    EXPECT_TRUE(world.hard(0));
    consume(1ms);
    preempt_enable();
    EXPECT_EQ(f.ran().size(), 0u) << "not the outermost";
    preempt_enable();
    EXPECT_EQ(f.ran().size(), preemptible() ? 1u : 0u);
    consume(1ms);
  });
  a.join();
  ASSERT_EQ(f.ran().size(), 1u);
  EXPECT_EQ(f.ran()[0], preemptible() ? 2ms : 3ms);
}

TEST_P(ModePoints, PreemptEnableNeverHonoursALazyRequest) {
  auto a = world.spawn(world.kernel("A"), [&] {
    preempt_disable();
    consume(1ms);
    wake_w_lazily();
    preempt_enable();
    EXPECT_EQ(w.ran().size(), 0u);
    consume(1ms);
  });
  a.join();
  EXPECT_EQ(w.ran()[0], 2ms);
}

TEST_P(ModePoints, SpinUnlockIsAPreemptEnable) {
  SpinLock lock;
  auto a = world.spawn(world.kernel("A"), [&] {
    lock.lock();
    f.wake();
    EXPECT_EQ(f.ran().size(), 0u);
    lock.unlock();
    EXPECT_EQ(f.ran().size(), preemptible() ? 1u : 0u);
    consume(1ms);
  });
  a.join();
  ASSERT_EQ(f.ran().size(), 1u);
}

TEST_P(ModePoints, LocalIrqEnableIsAnInterruptAndAPreemptEnable) {
  auto a = world.spawn(world.kernel("A"), [&] {
    local_irq_disable();
    world.interrupt(0, [&] { f.wake(); });
    consume(1ms);
    EXPECT_TRUE(f.asleep()) << "interrupts wait";
    local_irq_enable();
    EXPECT_EQ(f.ran().size(), preemptible() ? 1u : 0u);
    consume(1ms);
  });
  a.join();
  ASSERT_EQ(f.ran().size(), 1u);
  EXPECT_EQ(f.ran()[0], preemptible() ? 1ms : 2ms);
}

// --- Voluntary points.

TEST_P(ModePoints, CondReschedSchedulesOnlyWhereKernelCodeIsNotPreemptible) {
  auto a = world.spawn(world.kernel("A"), [&] {
    consume(1ms);
    w.wake();  // hard, but lazy in LAZY; and in FULL it has run already
    const size_t before = w.ran().size();
    EXPECT_EQ(before, GetParam() == Preemption::kFull ? 1u : 0u);
    EXPECT_EQ(cond_resched(), !preemptible());
    EXPECT_EQ(w.ran().size(), lazy_mode() ? 0u : 1u);
    consume(1ms);
  });
  a.join();
  ASSERT_EQ(w.ran().size(), 1u);
  EXPECT_EQ(w.ran()[0], lazy_mode() ? 2ms : 1ms);
}

TEST_P(ModePoints, CondReschedIsNoPointWhereKernelCodeIsPreemptible) {
  auto a = world.spawn(world.kernel("A"), [&] {
    preempt_disable();
    f.wake();
    preempt_enable_no_resched();  // so that the request is still there
    EXPECT_EQ(cond_resched(), !preemptible());
    EXPECT_EQ(f.ran().size(), preemptible() ? 0u : 1u);
  });
  a.join();
}

// In user mode each safe point is a return to user mode, and this is one.
TEST_P(ModePoints, CondReschedOfAUserModeFiberSaysThatItSwitched) {
  auto a = world.spawn(user("A"), [&] {
    world.interrupt(0, [&] { f.wake(); });  // pending: the fiber reaches no safe point before
    EXPECT_TRUE(f.asleep());
    EXPECT_TRUE(cond_resched());
    EXPECT_EQ(f.ran().size(), 1u);
  });
  a.join();
}

TEST_P(ModePoints, CondReschedIgnoresALazyRequestAndARaisedCount) {
  auto a = world.spawn(world.kernel("A"), [&] {
    consume(1ms);
    wake_w_lazily();
    EXPECT_FALSE(cond_resched());
    preempt_disable();
    f.wake();
    EXPECT_FALSE(cond_resched());
    EXPECT_EQ(f.ran().size(), 0u);
    preempt_enable();
    consume(1ms);
  });
  a.join();
  EXPECT_EQ(f.ran()[0], preemptible() ? 1ms : 2ms);
}

TEST_P(ModePoints, CondReschedWithoutARequestDoesNothing) {
  auto a = world.spawn(world.kernel("A"), [&] {
    auto b = spawn([] {}, world.kernel("B"));
    EXPECT_FALSE(cond_resched());
    b.join();
  });
  a.join();
}

TEST_P(ModePoints, MightSleepSchedulesInVoluntaryOnly) {
  auto a = world.spawn(world.kernel("A"), [&] {
    consume(1ms);
    w.wake();
    might_sleep();
    EXPECT_EQ(w.ran().size(), GetParam() == Preemption::kVoluntary ||
                                      GetParam() == Preemption::kFull  // at the wakeup
                                  ? 1u
                                  : 0u);
    consume(1ms);
  });
  a.join();
  ASSERT_EQ(w.ran().size(), 1u);
  EXPECT_EQ(world.count(Counter::kForcedSwitches),
            GetParam() == Preemption::kVoluntary || GetParam() == Preemption::kFull ? 1u : 0u);
}

TEST_P(ModePoints, MightSleepNeverHonoursALazyRequest) {
  auto a = world.spawn(world.kernel("A"), [&] {
    consume(1ms);
    wake_w_lazily();
    might_sleep();
    EXPECT_EQ(w.ran().size(), 0u);
    consume(1ms);
  });
  a.join();
  EXPECT_EQ(w.ran()[0], 2ms);
}

TEST_P(ModePoints, MightSleepIsNoPointWhereKernelCodeIsPreemptible) {
  auto a = world.spawn(world.kernel("A"), [&] {
    preempt_disable();
    f.wake();
    preempt_enable_no_resched();  // so that the request is still there
    might_sleep();
    EXPECT_EQ(f.ran().size(), GetParam() == Preemption::kVoluntary ? 1u : 0u);
  });
  a.join();
}

// --- Blocking.

TEST_P(ModePoints, ABlockAlwaysSchedules) {
  auto a = world.spawn(world.kernel("A"), [&] {
    consume(1ms);
    wake_w_lazily();
    sleep_for(1ms);
  });
  a.join();
  ASSERT_EQ(w.ran().size(), 1u);
  EXPECT_EQ(w.ran()[0], 1ms);
  EXPECT_EQ(world.switches()[1], "A W block");
}

TEST_P(ModePoints, APreemptedFiberThatHasAnnouncedItsSleepStaysQueued) {
  bool announced = false;
  auto a = world.spawn(world.kernel("A"), [&] {
    Waiter waiter;
    waiter.prepare();
    announced = true;
    consume(2ms);  // an interrupt preempts it here, where the mode lets it
    EXPECT_TRUE(current_fiber()->on_rq);
    waiter.cancel();
    announced = false;
  });
  world.interrupt_at(1ms, 0, [&] { f.wake(); });
  a.join();
  EXPECT_FALSE(announced) << "nobody woke it: it had not looked yet";
}

TEST_P(ModePoints, AWakeupBeforeTheSleepIsNotLost) {
  JoinHandle<void> a;
  a = world.spawn(world.kernel("A"), [&] {
    Waiter waiter;
    waiter.prepare();
    consume(2ms);
    (void)waiter.block(INT64_MAX);
    EXPECT_EQ(world.time(), 2ms) << "it did not sleep at all";
  });
  world.interrupt_at(1ms, 0, [&] {
    EXPECT_TRUE(try_to_wake_up(*a.native()));
    EXPECT_EQ(world.count(Counter::kWakeupsReal), 0u);
    EXPECT_EQ(world.count(Counter::kWakeupsNoop), 1u);
  });
  a.join();
}

// --- The mode changes while the runtime runs.

TEST_P(ModePoints, ARequestKeepsTheKindItWasMadeAs) {
  SpawnOptions options = world.kernel("A");
  options.slice = 100ms;
  auto a = world.spawn(options, [] { consume(7ms); });
  world.interrupt_at(1ms, 0, [&] { wake_w_lazily(); });
  world.run_until(4ms - 1us);
  EXPECT_TRUE(world.lazy(0));
  EXPECT_FALSE(world.hard(0));
  a.join();
  // Only LAZY promotes; in the others the class's own check at the tick finds that W's shorter
  // slice has ended A's protection.
  EXPECT_EQ(world.count(Counter::kPromotions), lazy_mode() ? 1u : 0u);
  EXPECT_EQ(w.ran()[0], preemptible() ? 4ms : 7ms);
}

TEST_P(ModePoints, AHardRequestIsHonouredOnceTheModeAllowsIt) {
  auto a = world.spawn(world.kernel("A"), [] { consume(3ms); });
  world.interrupt_at(1ms, 0, [&] { f.wake(); });
  world.run_until(1500us);
  EXPECT_EQ(f.ran().size(), preemptible() ? 1u : 0u);
  world.rt.set_preemption(Preemption::kFull);
  EXPECT_EQ(world.rt.preemption(), Preemption::kFull);
  world.interrupt_at(2ms, 0, [] {});
  a.join();
  EXPECT_EQ(f.ran()[0], preemptible() ? 1ms : 2ms);
}

}  // namespace
}  // namespace jiffy
