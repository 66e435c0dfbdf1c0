// Interrupts and soft interrupts of a Cpu: when they run, what holds them off, and the limits of a
// run of soft interrupts.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/sim.h>

#include <functional>
#include <string>
#include <vector>

#include "support/sim_world.h"

namespace jiffy {
namespace {

constexpr Vector kVectorA = static_cast<Vector>(kFirstUserVector + 1);
constexpr Vector kVectorB = static_cast<Vector>(kFirstUserVector + 2);

// Notes each call of a soft interrupt: when, and in whose context.
class SoftirqProbe {
 public:
  SoftirqProbe(Cpu& cpu, Softirq nr, std::function<void()> body = nullptr)
      : body_(std::move(body)) {
    cpu.softirqs[static_cast<size_t>(nr)] = {called, this};
  }

  struct Call {
    std::chrono::nanoseconds when;
    std::string context;
  };
  const std::vector<Call>& calls() const { return calls_; }
  size_t count() const { return calls_.size(); }
  size_t count_in(const std::string& context) const {
    size_t n = 0;
    for (const Call& call : calls_) n += call.context == context;
    return n;
  }

 private:
  static void called(Cpu& cpu, void* arg) {
    auto& self = *static_cast<SoftirqProbe*>(arg);
    EXPECT_EQ(this_cpu(), &cpu);
    EXPECT_FALSE(in_hardirq());
    EXPECT_EQ(preempt_count() & kSoftirqMask, kSoftirqUnit) << "serving one, and not nested";
    self.calls_.push_back(
        {std::chrono::nanoseconds(cpu.now()), cpu.current->is_idle ? "idle" : cpu.current->name});
    if (self.body_) self.body_();
  }

  std::function<void()> body_;
  std::vector<Call> calls_;
};

Options one_cpu(Preemption mode, int hz = 250) {
  Options options;
  options.cpus = 1;
  options.preemption = mode;
  options.hz = hz;
  return options;
}

// By a fiber, outside of interrupts.
void raise_here(Softirq nr) {
  preempt_disable();
  this_cpu()->raise_softirq(nr);
  preempt_enable();
}

// --- When they run.

TEST(SoftirqSim, RaisedInAnInterruptRunsAtItsExitInOrderOfPriority) {
  SimWorld world(one_cpu(Preemption::kLazy));
  std::string order;
  const SoftirqProbe net(world.cpu(0), Softirq::kNetRx, [&] { order += "net "; });
  const SoftirqProbe hi(world.cpu(0), Softirq::kHi, [&] { order += "hi "; });
  const SoftirqProbe rcu(world.cpu(0), Softirq::kRcu, [&] { order += "rcu "; });
  world.interrupt_at(1ms, 0, [&] {
    for (const Softirq nr : {Softirq::kRcu, Softirq::kNetRx, Softirq::kHi}) {
      world.cpu(0).raise_softirq(nr);
    }
    EXPECT_EQ(order, "") << "not inside the interrupt";
  });
  auto hog = world.spawn(SimWorld::kernel("hog"), [] { consume(2ms); });
  world.join(hog);
  EXPECT_EQ(order, "hi net rcu ");
  EXPECT_EQ(net.calls()[0].when, 1ms);
  EXPECT_EQ(net.calls()[0].context, "hog") << "in the interrupted context";
}

TEST(SoftirqSim, RaisedTwiceBeforeItRunsIsOneRun) {
  SimWorld world(one_cpu(Preemption::kLazy));
  const SoftirqProbe probe(world.cpu(0), Softirq::kBlock);
  world.interrupt_at(1ms, 0, [&] {
    world.cpu(0).raise_softirq(Softirq::kBlock);
    world.cpu(0).raise_softirq(Softirq::kBlock);
  });
  world.run_until(2ms);
  EXPECT_EQ(probe.count(), 1u);
  EXPECT_EQ(probe.calls()[0].context, "idle");
}

TEST(SoftirqSim, RaisedOutsideAnInterruptWakesKsoftirqd) {
  SimWorld world(one_cpu(Preemption::kFull));
  const SoftirqProbe probe(world.cpu(0), Softirq::kTasklet);
  auto raiser = world.spawn(SimWorld::kernel("raiser"), [&] {
    consume(1ms);
    raise_here(Softirq::kTasklet);
    EXPECT_EQ(probe.count_in("raiser"), 0u) << "not in place";
    (void)sleep_for(1ms);
  });
  world.join(raiser);
  EXPECT_EQ(probe.count_in("ksoftirqd/0"), 1u);
  EXPECT_EQ(probe.count(), 1u);
}

TEST(SoftirqSim, WakeupOfKsoftirqdIsALazyRequestInLazyMode) {
  const auto latency = [](Preemption mode) {
    SimWorld world(one_cpu(mode));
    const SoftirqProbe probe(world.cpu(0), Softirq::kTasklet);
    auto raiser = world.spawn(SimWorld::kernel("raiser"), [&] {
      consume(1ms);
      raise_here(Softirq::kTasklet);
      consume(19ms);
    });
    world.join(raiser);
    return probe.calls().at(0).when - 1ms;
  };
  EXPECT_EQ(latency(Preemption::kFull), 0ms);
  EXPECT_EQ(latency(Preemption::kLazy), 3ms) << "the tick at 4 ms promotes it";
}

// --- The limits of a run.

TEST(SoftirqSim, TenRoundsThenKsoftirqdGetsTheRest) {
  SimWorld world(one_cpu(Preemption::kFull));
  int left = 25;
  const SoftirqProbe probe(world.cpu(0), Softirq::kNetRx, [&] {
    if (--left > 0) world.cpu(0).raise_softirq(Softirq::kNetRx);
  });
  auto hog = world.spawn(SimWorld::kernel("hog"), [] { consume(6ms); });
  world.interrupt_at(1ms, 0, [&] { world.cpu(0).raise_softirq(Softirq::kNetRx); });
  world.join(hog);
  EXPECT_EQ(probe.count_in("hog"), 10u);
  EXPECT_EQ(probe.count_in("ksoftirqd/0"), 15u);
  EXPECT_GE(world.count(Counter::kSoftirqDeferred), 1u);
}

// 2 ms are measured in jiffies, hence rounded up to whole ticks.
TEST(SoftirqSim, TwoMillisecondsAreCountedInJiffies) {
  struct Row {
    int hz;
    size_t inline_runs;  // of 0.5 ms each, from 1 ms on
  };
  // HZ 1000: jiffies 1 to 3. HZ 250: until the tick at 4 ms. HZ 100: the tick at 10 ms is farther
  // than ten rounds.
  for (const Row row : {Row{1000, 4}, Row{250, 6}, Row{100, 10}}) {
    SCOPED_TRACE(row.hz);
    SimWorld world(one_cpu(Preemption::kFull, row.hz));
    int left = 30;
    const SoftirqProbe probe(world.cpu(0), Softirq::kNetRx, [&] {
      consume(500us);
      if (--left > 0) world.cpu(0).raise_softirq(Softirq::kNetRx);
    });
    auto hog = world.spawn(SimWorld::kernel("hog"), [] { consume(60ms); });
    world.interrupt_at(1ms, 0, [&] { world.cpu(0).raise_softirq(Softirq::kNetRx); });
    world.join(hog);
    world.run_until(200ms);
    // The first stretch of them, before anybody else ran.
    size_t first = 0;
    while (first < probe.count() && probe.calls()[first].context == "hog") ++first;
    EXPECT_EQ(first, row.inline_runs);
    EXPECT_EQ(probe.count(), 30u) << "the rest has run too";
  }
}

TEST(SoftirqSim, HardRequestEndsTheRunALazyOneDoesNot) {
  const auto inline_runs = [](Policy policy) {
    SimWorld world(one_cpu(Preemption::kLazy));
    SpawnOptions options = SimWorld::kernel("wakee");
    options.policy = policy;
    Sleeper wakee(world, options);
    wakee.settle();
    int left = 8;
    const SoftirqProbe probe(world.cpu(0), Softirq::kNetRx, [&] {
      if (left == 8) wakee.wake();
      if (--left > 0) world.cpu(0).raise_softirq(Softirq::kNetRx);
    });
    auto hog = world.spawn(SimWorld::kernel("hog"), [] { consume(20ms); });
    world.interrupt_at(1ms, 0, [&] { world.cpu(0).raise_softirq(Softirq::kNetRx); });
    world.join(hog);
    wakee.finish();
    EXPECT_EQ(probe.count(), 8u);
    return probe.count_in("hog");
  };
  EXPECT_EQ(inline_runs(Policy::kFifo), 1u);
  EXPECT_EQ(inline_runs(Policy::kNormal), 8u);
}

// --- Soft interrupts off.

TEST(SoftirqSim, DisabledTheyWaitForTheOutermostEnable) {
  SimWorld world(one_cpu(Preemption::kFull));
  const SoftirqProbe probe(world.cpu(0), Softirq::kTimer);
  world.interrupt_at(1ms, 0, [&] { world.cpu(0).raise_softirq(Softirq::kTimer); });
  auto fiber = world.spawn(SimWorld::kernel("fiber"), [&] {
    local_bh_disable();
    local_bh_disable();
    consume(2ms);
    local_bh_enable();
    EXPECT_EQ(probe.count(), 0u);
    local_bh_enable();
    EXPECT_EQ(probe.count_in("fiber"), 1u) << "in place, at the enable";
    local_bh_disable();
    world.cpu(0).raise_softirq(Softirq::kTimer);
    EXPECT_EQ(probe.count(), 1u);
    local_bh_enable();
    EXPECT_EQ(probe.count_in("fiber"), 2u) << "ksoftirqd is not asked";
  });
  world.join(fiber);
}

TEST(SoftirqSim, InterruptsComeWhileSoftInterruptsAreOff) {
  SimWorld world(one_cpu(Preemption::kFull));
  std::chrono::nanoseconds taken{0};
  world.interrupt_at(1ms, 0, [&] { taken = world.time(); });
  auto fiber = world.spawn(SimWorld::kernel("fiber"), [&] {
    local_bh_disable();
    consume(2ms);
    local_bh_enable();
  });
  world.join(fiber);
  EXPECT_GE(taken, 1ms);
  EXPECT_LE(taken, 2ms) << "at the latest at the enable, which is a safe point";
}

// --- Interrupts.

struct IrqProbe {
  IrqProbe(Cpu& cpu, Vector vector, std::function<void()> b = nullptr) : body(std::move(b)) {
    cpu.irqs[vector] = {called, this};
  }
  static void called(Cpu& cpu, void* arg) {
    auto& self = *static_cast<IrqProbe*>(arg);
    EXPECT_EQ(preempt_count() & kHardirqMask, kHardirqUnit) << "not nested";
    self.when.push_back(std::chrono::nanoseconds(cpu.now()));
    if (self.body) self.body();
  }
  std::function<void()> body;
  std::vector<std::chrono::nanoseconds> when;
};

using Times = std::vector<std::chrono::nanoseconds>;

TEST(InterruptSim, VectorRaisedWhileItIsPendingCoalesces) {
  SimWorld world(one_cpu(Preemption::kFull));
  const IrqProbe a(world.cpu(0), kVectorA);
  for (const auto when : {1ms, 2ms, 3ms}) world.at(when, [&] { world.cpu(0).raise(kVectorA); });
  auto fiber = world.spawn(SimWorld::kernel("fiber"), [] {
    const PreemptGuard guard;
    consume(5ms);
  });
  world.join(fiber);
  EXPECT_EQ(a.when, Times{5ms});
}

TEST(InterruptSim, EachGuardHoldsInterruptsOffAndReplaysThemAtItsEnd) {
  struct Row {
    const char* name;
    void (*off)();
    void (*on)();
  };
  static constexpr Row kRows[] = {
      {"local_irq_disable", [] { local_irq_disable(); }, [] { local_irq_enable(); }},
      {"preempt_disable", [] { preempt_disable(); }, [] { preempt_enable(); }},
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    SimWorld world(one_cpu(Preemption::kFull));
    const IrqProbe a(world.cpu(0), kVectorA), b(world.cpu(0), kVectorB);
    world.at(1ms, [&] { world.cpu(0).raise(kVectorB); });
    world.at(2ms, [&] { world.cpu(0).raise(kVectorA); });
    auto fiber = world.spawn(SimWorld::kernel("fiber"), [&] {
      row.off();
      row.off();
      consume(3ms);
      row.on();
      EXPECT_TRUE(a.when.empty()) << "the outer one still holds";
      consume(1ms);
      row.on();
      EXPECT_EQ(a.when, Times{4ms});
      EXPECT_EQ(b.when, Times{4ms});
    });
    world.join(fiber);
  }
}

TEST(InterruptSim, MixedGuardsReplayAtTheLast) {
  SimWorld world(one_cpu(Preemption::kFull));
  const IrqProbe a(world.cpu(0), kVectorA);
  world.at(1ms, [&] { world.cpu(0).raise(kVectorA); });
  auto fiber = world.spawn(SimWorld::kernel("fiber"), [&] {
    local_irq_disable();
    preempt_disable();
    consume(2ms);
    local_irq_enable();
    EXPECT_TRUE(a.when.empty());
    preempt_enable();
    EXPECT_EQ(a.when, Times{2ms});
  });
  world.join(fiber);
}

TEST(InterruptSim, InterruptsDoNotNest) {
  SimWorld world(one_cpu(Preemption::kFull));
  const IrqProbe b(world.cpu(0), kVectorB);
  const IrqProbe a(world.cpu(0), kVectorA, [&] {
    consume(1ms);
    EXPECT_TRUE(b.when.empty()) << "it waits for the end of the first";
  });
  world.at(1ms, [&] { world.cpu(0).raise(kVectorA); });
  world.at(1500us, [&] { world.cpu(0).raise(kVectorB); });
  auto fiber = world.spawn(SimWorld::kernel("fiber"), [] { consume(5ms); });
  world.join(fiber);
  EXPECT_EQ(a.when, Times{1ms});
  EXPECT_EQ(b.when, Times{2ms});
}

TEST(InterruptSim, SoftInterruptIsNotEnteredFromAnInterruptThatCameDuringOne) {
  SimWorld world(one_cpu(Preemption::kFull));
  const SoftirqProbe soft(world.cpu(0), Softirq::kNetRx, [] { consume(1ms); });
  const IrqProbe a(world.cpu(0), kVectorA, [&] { world.cpu(0).raise_softirq(Softirq::kNetRx); });
  world.at(1ms, [&] { world.cpu(0).raise(kVectorA); });
  world.at(1500us, [&] { world.cpu(0).raise(kVectorA); });
  auto fiber = world.spawn(SimWorld::kernel("fiber"), [] { consume(5ms); });
  world.join(fiber);
  EXPECT_EQ(soft.count(), 2u);  // the probe itself checks the nesting
}

TEST(InterruptSim, RequestMadeInAnInterruptIsHonouredAtItsExit) {
  SimWorld world(one_cpu(Preemption::kFull));
  SpawnOptions options = SimWorld::kernel("wakee");
  options.policy = Policy::kFifo;
  Sleeper wakee(world, options);
  wakee.settle();
  world.interrupt_at(1ms, 0, [&] {
    wakee.wake();
    consume(100us);
    EXPECT_TRUE(wakee.ran().empty());
  });
  auto hog = world.spawn(SimWorld::kernel("hog"), [] { consume(5ms); });
  world.join(hog);
  wakee.finish();
  EXPECT_EQ(wakee.ran(), Times{1100us});
}

TEST(InterruptDeathTest, BlockingInAnInterruptAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        SimWorld world(one_cpu(Preemption::kFull));
        world.interrupt_at(1ms, 0, [] { (void)sleep_for(1ms); });
        auto fiber = world.spawn(SimWorld::kernel("victim"), [] { consume(2ms); });
        world.join(fiber);
      },
      "victim");
}

}  // namespace
}  // namespace jiffy
