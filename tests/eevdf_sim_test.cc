// Each piece of EEVDF on a running Cpu: what it is for, and, switched off, the fault that comes
// back. The pieces that FULL's short latencies stand on are in eevdf_latency_sim_test.cc, the
// arithmetic of each in fair_queue_test.cc.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/sim_world.h"

namespace jiffy {
namespace {

using std::chrono::nanoseconds;

Options with(Preemption mode, const std::function<void(SchedFeatures&)>& change = {}) {
  Options options;
  options.preemption = mode;
  options.trace_records = 4096;
  if (change) change(options.features);
  return options;
}

SpawnOptions with_slice(const std::string& name, nanoseconds slice) {
  SpawnOptions options = SimWorld::kernel(name);
  options.slice = slice;
  return options;
}

// Runs until `end`, in kernel mode.
auto spawn_hog(SimWorld& world, const SpawnOptions& options, nanoseconds end) {
  return world.spawn(options, [&world, end] {
    while (world.time() < end) consume(end - world.time());
  });
}

// --- The average.

// When a wakee without lag, woken at 1 ms, runs beside a hog with a long slice.
nanoseconds first_run_beside_hog(const Options& options) {
  SimWorld world(options);
  Sleeper w(world, with_slice("W", 3ms));
  w.settle();
  auto a = spawn_hog(world, with_slice("A", 3ms), 20ms);
  world.interrupt_at(1ms, 0, [&] { w.wake(); });
  a.join();
  w.settle();
  return w.ran()[0];
}

TEST(EevdfAverage, AWakeeWithoutLagWaitsForTheSliceOfTheCurrentFiber) {
  EXPECT_EQ(first_run_beside_hog(with(Preemption::kFull)), 4ms);
}

TEST(EevdfAverage, WithoutTheRunningFiberInItEachWakeupPreempts) {
  const auto off = [](SchedFeatures& f) { f.average_with_current = false; };
  EXPECT_EQ(first_run_beside_hog(with(Preemption::kFull, off)), 1ms);
}

// --- The clamp.

// W waits behind kernel code for 200 ms in NONE, is served a little, sleeps; then, in FULL, it
// wants 100 ms. Returns what its competitor gets until W has had them.
nanoseconds competitor_gets(const Options& options) {
  SimWorld world(options);
  nanoseconds done{};
  bool second = false;
  Sleeper w(world, world.kernel("W"), [&] {
    consume(second ? 100ms : 10us);
    done = world.time();
  });
  w.settle();
  auto a = world.spawn(world.kernel("A"), [] {
    consume(200ms);
    sleep_for(1ms);
    consume(500ms);
  });
  world.interrupt_at(1ms, 0, [&] { w.wake(); });
  world.interrupt_at(210ms, 0, [&] {
    world.rt.set_preemption(Preemption::kFull);
    second = true;
    w.wake();
  });
  a.join();
  w.settle();
  EXPECT_EQ(w.ran().size(), 2u);
  return done - w.ran()[1] - 100ms;
}

TEST(EevdfClamp, ALongWaiterIsPaidNoMoreThanASliceAndATick) {
  EXPECT_GT(competitor_gets(with(Preemption::kNone)), 80ms) << "all but 2 x 4.7 ms are shared";
}

TEST(EevdfClamp, WithoutItALongWaiterMonopolisesTheCpu) {
  const auto off = [](SchedFeatures& f) { f.clamp_lag = false; };
  EXPECT_LT(competitor_gets(with(Preemption::kNone, off)), 10ms);
}

// --- Delayed dequeue.

// L overruns its slice by far, in a section that cannot be preempted, and then sleeps a moment, to
// come back without its debt. Returns its share beside a hog.
double launderers_share(const Options& options) {
  constexpr auto kEnd = 2s;
  SimWorld world(options);
  auto a = spawn_hog(world, world.kernel("A"), kEnd);
  nanoseconds served{};
  auto l = world.spawn(world.kernel("L"), [&] {
    while (world.time() < kEnd) {
      {
        const PreemptDisabled guard;
        consume(3ms);
      }
      served += 3ms;
      sleep_for(10us);
    }
  });
  world.join(a, l);
  return std::chrono::duration<double>(served) / kEnd;
}

TEST(EevdfDelayedDequeue, AShortSleepDoesNotLaunderDebt) {
  EXPECT_NEAR(launderers_share(with(Preemption::kFull)), 0.5, 0.01);
  // Also by itself, without the lag that is saved at a real dequeue.
  const auto no_lag = [](SchedFeatures& f) { f.place_lag = false; };
  EXPECT_NEAR(launderers_share(with(Preemption::kFull, no_lag)), 0.5, 0.01);
}

TEST(EevdfDelayedDequeue, WithoutItAShortSleepLaundersDebt) {
  const auto off = [](SchedFeatures& f) { f.place_lag = f.delay_dequeue = false; };
  EXPECT_GT(launderers_share(with(Preemption::kFull, off)), 0.7);
}

// L runs into debt, sleeps from 3 ms until it is woken at `wake`, beside hog A. Returns its wait.
// A slice is two ticks; A's end at 8 ms, 16 ms, and so on.
nanoseconds wait_after_debt(const Options& options, nanoseconds wake) {
  SimWorld world(options);
  bool first = true;
  Sleeper l(world, with_slice("L", 8ms), [&] {
    const PreemptDisabled guard;
    if (first) consume(3ms);
    first = false;
  });
  l.settle();
  l.wake();
  world.run_until(1us);
  auto a = spawn_hog(world, with_slice("A", 8ms), wake + 40ms);
  world.interrupt_at(wake, 0, [&] { l.wake(); });
  a.join();
  l.settle();
  return l.latencies()[1];
}

TEST(EevdfDelayedDequeue, DebtIsBurntBySleepingAndLeavesNoCredit) {
  // Neither debt nor credit: it waits for the end of A's slice.
  EXPECT_EQ(wait_after_debt(with(Preemption::kFull), 9500us), 6500us);
}

TEST(EevdfDelayedDequeue, WithoutDelayZeroDebtSleptOffTurnsIntoCredit) {
  const auto off = [](SchedFeatures& f) { f.delay_zero = false; };
  EXPECT_EQ(wait_after_debt(with(Preemption::kFull, off), 9500us), 0us) << "it preempts at once";
}

TEST(EevdfDelayedDequeue, WithoutItDebtIsKeptHoweverLongTheSleep) {
  const auto off = [](SchedFeatures& f) { f.delay_dequeue = false; };
  // It owes 1.5 ms: at the end of A's slice it is not eligible, and waits for another one.
  EXPECT_EQ(wait_after_debt(with(Preemption::kFull, off), 103900us), 8100us);
  EXPECT_EQ(wait_after_debt(with(Preemption::kFull), 103900us), 0us)
      << "alone, A has used up its slice long ago";
}

TEST(EevdfDelayedDequeue, TheTickTakesTheSleeperOffAndThenStops) {
  for (const Preemption mode : {Preemption::kFull, Preemption::kLazy}) {
    SimWorld world(with(mode));
    Sleeper l(world, world.kernel("L"), [] {
      const PreemptDisabled guard;
      consume(3ms);
    });
    l.settle();
    l.wake();
    world.run_until(1us);
    auto a = spawn_hog(world, world.kernel("A"), 200ms);
    world.run_until(3ms + 1us);
    EXPECT_TRUE(l.fiber().fair.delayed);
    EXPECT_TRUE(l.fiber().on_rq);
    EXPECT_EQ(world.cpu(0).rq->nr_running(), 1);
    world.run_until(100ms);
    EXPECT_FALSE(l.fiber().on_rq);
    EXPECT_EQ(world.fair(0).nr_queued(), 1);
    EXPECT_FALSE(world.cpu(0).tick_running.load()) << "nobody waits";
    a.join();
  }
}

TEST(EevdfDelayedDequeue, AnIdleCpuKeepsNoDelayedSleeper) {
  SimWorld world(with(Preemption::kFull));
  Sleeper l(world, world.kernel("L"), [] {
    const PreemptDisabled guard;
    consume(3ms);
  });
  l.settle();
  l.wake();
  world.run_until(1us);
  auto a = spawn_hog(world, world.kernel("A"), 3500us);
  a.join();
  EXPECT_EQ(world.fair(0).nr_queued(), 0);
  EXPECT_FALSE(l.fiber().on_rq);
}

// --- Protection.

uint64_t forced_switches(const Options& options) {
  constexpr auto kEnd = 1s;
  SimWorld world(options);
  std::vector<std::unique_ptr<Sleeper>> wakees;
  std::mt19937 random(1);
  for (int i = 0; i < 5; ++i) {
    wakees.push_back(std::make_unique<Sleeper>(world, world.kernel("W"), [] { consume(50us); }));
    wakees.back()->settle();
    for (nanoseconds t = 100us; t < kEnd; t += nanoseconds(200'000 + random() % 800'000)) {
      world.interrupt_at(t, 0, [w = wakees.back().get()] {
        if (w->asleep()) w->wake();
      });
    }
  }
  std::vector<JoinHandle<void>> hogs;
  for (int i = 0; i < 3; ++i) hogs.push_back(spawn_hog(world, world.kernel("A"), kEnd));
  for (auto& hog : hogs) hog.join();
  for (auto& w : wakees) w->settle();
  return world.count(Counter::kForcedSwitches);
}

TEST(EevdfProtection, WithoutItFullPreemptsTooOften) {
  const uint64_t on = forced_switches(with(Preemption::kFull));
  const auto off = [](SchedFeatures& f) { f.run_to_parity = false; };
  EXPECT_GT(forced_switches(with(Preemption::kFull, off)), on * 5 / 4);
}

// A wakee with a short slice and no lag, woken at 1 ms beside a hog with a long one.
nanoseconds short_slice_runs(const Options& options) {
  SimWorld world(options);
  Sleeper w(world, with_slice("W", 100us));
  w.settle();
  auto a = spawn_hog(world, with_slice("A", 50ms), 20ms);
  world.interrupt_at(1ms, 0, [&] { w.wake(); });
  a.join();
  w.settle();
  return w.ran()[0];
}

TEST(EevdfPreemptShort, AShorterSliceRunsAtOnce) {
  EXPECT_EQ(short_slice_runs(with(Preemption::kFull)), 1ms);
}

TEST(EevdfPreemptShort, WithoutItACustomSliceHasNoEffectAtWakeup) {
  const auto off = [](SchedFeatures& f) { f.preempt_short = false; };
  EXPECT_EQ(short_slice_runs(with(Preemption::kFull, off)), 4ms);
}

// --- The tick.

nanoseconds second_hog_runs(const Options& options) {
  SimWorld world(options);
  nanoseconds ran{};
  auto a = spawn_hog(world, world.kernel("A"), 50ms);
  auto b = world.spawn(world.kernel("B"), [&] { ran = world.time(); });
  world.join(a, b);
  return ran;
}

TEST(EevdfSliceCheck, TheTickEndsAUsedUpSlice) {
  EXPECT_EQ(second_hog_runs(with(Preemption::kFull)), 4ms);
  EXPECT_EQ(second_hog_runs(with(Preemption::kLazy)), 8ms) << "one more tick, to be promoted";
}

TEST(EevdfSliceCheck, WithoutItAHogNeverYields) {
  const auto off = [](SchedFeatures& f) { f.slice_check = false; };
  EXPECT_EQ(second_hog_runs(with(Preemption::kFull, off)), 50ms);
}

TEST(EevdfPromotion, WithoutItLazyWaitsForTheBlock) {
  const auto off = [](SchedFeatures& f) { f.promote_lazy = false; };
  EXPECT_EQ(short_slice_runs(with(Preemption::kLazy)), 4ms);
  EXPECT_EQ(short_slice_runs(with(Preemption::kLazy, off)), 20ms);
}

// --- Policies.

nanoseconds runs_beside(Policy current, Policy wakee) {
  SimWorld world(with(Preemption::kFull));
  SpawnOptions w_options = with_slice("W", 3ms);
  w_options.policy = wakee;
  Sleeper w(world, w_options);
  w.settle();
  SpawnOptions a_options = with_slice("A", 3ms);
  a_options.policy = current;
  auto a = spawn_hog(world, a_options, 20ms);
  world.interrupt_at(1ms, 0, [&] { w.wake(); });
  a.join();
  w.settle();
  return w.ran()[0];
}

TEST(EevdfPolicies, IdlePolicyIsPreemptedByAnyOther) {
  EXPECT_EQ(runs_beside(Policy::kIdle, Policy::kNormal), 1ms);
  EXPECT_EQ(runs_beside(Policy::kIdle, Policy::kBatch), 1ms);
}

TEST(EevdfPolicies, BatchAndIdleNeverPreempt) {
  EXPECT_GE(runs_beside(Policy::kIdle, Policy::kIdle), 4ms);
  EXPECT_GE(runs_beside(Policy::kNormal, Policy::kIdle), 4ms);
  EXPECT_GE(runs_beside(Policy::kNormal, Policy::kBatch), 4ms);
  EXPECT_GE(runs_beside(Policy::kBatch, Policy::kBatch), 4ms);
}

TEST(EevdfPolicies, ANewFiberNeverPreempts) {
  SimWorld world(with(Preemption::kFull));
  nanoseconds ran{};
  auto a = world.spawn(with_slice("A", 3ms), [&] {
    consume(500us);
    auto b = spawn([&] { ran = world.time(); }, with_slice("B", 100us));
    consume(10ms);
  });
  a.join();
  EXPECT_EQ(ran, 4ms);
}

}  // namespace
}  // namespace jiffy
