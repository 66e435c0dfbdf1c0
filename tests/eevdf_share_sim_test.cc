// Who gets how much of a Cpu: weights, changes of them, custom slices, yield.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/sim_world.h"

namespace jiffy {
namespace {

using std::chrono::nanoseconds;

Options with(Preemption mode, bool hrtick = false) {
  Options options;
  options.preemption = mode;
  options.hz = 1000;
  options.hrtick = hrtick;
  options.trace_records = 16384;
  return options;
}

auto spawn_hog(SimWorld& world, const SpawnOptions& options, nanoseconds end) {
  return world.spawn(options, [&world, end] {
    while (world.time() < end) consume(end - world.time());
  });
}

SpawnOptions with_nice(const std::string& name, int nice) {
  SpawnOptions options = SimWorld::kernel(name);
  options.nice = nice;
  return options;
}

nanoseconds time_of(const JoinHandle<void>& handle) {
  return nanoseconds(static_cast<int64_t>(handle.native()->fair.sum_exec));
}

// Shares of the time between two moments.
std::vector<double> shares(SimWorld& world, const std::vector<JoinHandle<void>>& hogs,
                           nanoseconds from, nanoseconds to) {
  world.run_until(from);
  std::vector<nanoseconds> before;
  for (const auto& hog : hogs) before.push_back(time_of(hog));
  world.run_until(to);
  std::vector<double> all;
  for (size_t i = 0; i < hogs.size(); ++i) {
    all.push_back(std::chrono::duration<double>(time_of(hogs[i]) - before[i]) / (to - from));
  }
  return all;
}

void join_all(std::vector<JoinHandle<void>>& hogs) {
  for (auto& hog : hogs) hog.join();
}

// --- Weights.

class EevdfShares : public ::testing::TestWithParam<Preemption> {};
INSTANTIATE_TEST_SUITE_P(Modes, EevdfShares,
                         ::testing::Values(Preemption::kLazy, Preemption::kFull),
                         [](const auto& row) { return std::string(preemption_name(row.param)); });

TEST_P(EevdfShares, NiceZeroFiveAndTenShareByWeight) {
  SimWorld world(with(GetParam()));
  std::vector<JoinHandle<void>> hogs;
  for (const int nice : {0, 5, 10}) {
    hogs.push_back(spawn_hog(world, with_nice("nice " + std::to_string(nice), nice), 21s));
  }
  const std::vector<double> share = shares(world, hogs, 1s, 21s - 1us);
  const double weights = 1024 + 335 + 110;
  EXPECT_NEAR(share[0], 1024 / weights, 0.01);
  EXPECT_NEAR(share[1], 335 / weights, 0.01);
  EXPECT_NEAR(share[2], 110 / weights, 0.01);
  EXPECT_NEAR(share[1] / share[0], 335.0 / 1024, 0.01 * 335 / 1024);
  EXPECT_NEAR(share[2] / share[0], 110.0 / 1024, 0.01 * 110 / 1024);
  join_all(hogs);
}

TEST_P(EevdfShares, EqualWeightsShareEquallyHoweverMany) {
  SimWorld world(with(GetParam()));
  std::vector<JoinHandle<void>> hogs;
  for (int i = 0; i < 7; ++i) hogs.push_back(spawn_hog(world, world.kernel("hog"), 10s));
  for (const double share : shares(world, hogs, 1s, 9s)) EXPECT_NEAR(share, 1.0 / 7, 0.01 / 7);
  join_all(hogs);
}

TEST_P(EevdfShares, ASleeperGetsWhatItAsksForBelowItsShare) {
  SimWorld world(with(GetParam()));
  std::vector<JoinHandle<void>> fibers;
  fibers.push_back(spawn_hog(world, world.kernel("hog"), 10s));
  fibers.push_back(world.spawn(world.kernel("sleeper"), [&] {
    while (world.time() < 10s) {
      consume(1ms);
      sleep_for(9ms);
    }
  }));
  const std::vector<double> share = shares(world, fibers, 1s, 9s);
  EXPECT_GT(share[1], 0.08) << "its wish is a tenth, less what it waits for the tick";
  EXPECT_LE(share[1], 0.1001);
  join_all(fibers);
}

TEST_P(EevdfShares, IdlePolicyGetsAlmostNothing) {
  SimWorld world(with(GetParam()));
  SpawnOptions idle = world.kernel("idle");
  idle.policy = Policy::kIdle;
  std::vector<JoinHandle<void>> hogs;
  hogs.push_back(spawn_hog(world, world.kernel("hog"), 20s));
  hogs.push_back(spawn_hog(world, idle, 20s));
  const std::vector<double> share = shares(world, hogs, 1s, 19s);
  EXPECT_GT(share[1], 0) << "but something";
  EXPECT_NEAR(share[1], 3.0 / 1027, 0.001);
  join_all(hogs);
}

// --- Changes of weight.

TEST_P(EevdfShares, AChangeOfNiceTakesEffectOnRunningAndWaitingFibers) {
  SimWorld world(with(GetParam()));
  std::vector<JoinHandle<void>> hogs;
  for (int i = 0; i < 3; ++i) hogs.push_back(spawn_hog(world, world.kernel("hog"), 21s));
  world.run_until(1s);
  ASSERT_TRUE(set_attributes(*hogs[1].native(), with_nice("", 5)).ok());
  ASSERT_TRUE(set_attributes(*hogs[2].native(), with_nice("", 10)).ok());
  const std::vector<double> share = shares(world, hogs, 1s + 100ms, 21s - 1us);
  EXPECT_NEAR(share[1] / share[0], 335.0 / 1024, 0.01 * 335 / 1024);
  EXPECT_NEAR(share[2] / share[0], 110.0 / 1024, 0.015 * 110 / 1024);
  join_all(hogs);
}

TEST(EevdfReweight, NobodyJumpsTheQueueByChangingItsNiceBackAndForth) {
  SimWorld world(with(Preemption::kFull));
  std::vector<JoinHandle<void>> hogs;
  for (int i = 0; i < 2; ++i) hogs.push_back(spawn_hog(world, world.kernel("hog"), 5s));
  for (nanoseconds t = 1ms; t < 5s; t += 1300us) {
    world.at(t, [&] {
      (void)set_attributes(*hogs[0].native(), with_nice("", 1));
      (void)set_attributes(*hogs[0].native(), with_nice("", 0));
    });
  }
  for (const double share : shares(world, hogs, 1s, 5s - 1us)) EXPECT_NEAR(share, 0.5, 0.01);
  join_all(hogs);
}

// --- Custom slices.

TEST(EevdfSlices, SliceLengthsDoNotChangeTheShares) {
  SimWorld world(with(Preemption::kFull, /*hrtick=*/true));
  SpawnOptions shorter = world.kernel("short");
  shorter.slice = 500us;
  SpawnOptions longer = world.kernel("long");
  longer.slice = 8ms;
  std::vector<JoinHandle<void>> hogs;
  hogs.push_back(spawn_hog(world, shorter, 10s));
  hogs.push_back(spawn_hog(world, longer, 10s));
  for (const double share : shares(world, hogs, 1s, 9s)) EXPECT_NEAR(share, 0.5, 0.005);
  join_all(hogs);
}

TEST(EevdfSlices, EqualHogsAlternateBySliceWithAPreciseTimer) {
  for (const auto slice : {nanoseconds(700us), nanoseconds(5ms)}) {
    SimWorld world(with(Preemption::kLazy, /*hrtick=*/true));
    SpawnOptions options = world.kernel("A");
    options.slice = slice;
    auto a = spawn_hog(world, options, 100ms);
    options.name = "B";
    auto b = spawn_hog(world, options, 100ms);
    world.join(a, b);
    const auto switches = world.trace(TraceEvent::kSwitch);
    // The first slice of a new fiber is half a one; the last switches are the ends.
    ASSERT_GT(switches.size(), 10u);
    for (size_t i = 3; i + 4 < switches.size(); ++i) {
      EXPECT_EQ(switches[i + 1].time_ns - switches[i].time_ns,
                static_cast<uint64_t>(slice.count()));
      EXPECT_EQ(switches[i + 1].arg2, switches[i].arg1);
    }
  }
}

TEST(EevdfSlices, AChangedSliceIsUsedFromTheNextRequestOn) {
  SimWorld world(with(Preemption::kFull, /*hrtick=*/true));
  auto a = spawn_hog(world, world.kernel("A"), 100ms);
  auto b = spawn_hog(world, world.kernel("B"), 100ms);
  world.run_until(20ms);
  SpawnOptions longer;
  longer.slice = 3ms;
  (void)set_attributes(*a.native(), longer);
  (void)set_attributes(*b.native(), longer);
  world.run_until(40ms);
  world.mark();
  world.run_until(80ms);
  const auto switches = world.trace(TraceEvent::kSwitch);
  ASSERT_GT(switches.size(), 3u);
  EXPECT_EQ(switches[2].time_ns - switches[1].time_ns, 3'000'000u);
  (void)set_attributes(*a.native(), SpawnOptions());
  EXPECT_EQ(a.native()->fair.slice, base_slice_ns(1)) << "0: the base slice again";
  world.join(a, b);
}

TEST(EevdfSlices, AChangedSliceOfAWaitingFiberCountsAtOnceForTheOthersProtection) {
  SimWorld world(with(Preemption::kFull));
  SpawnOptions three = world.kernel("");
  three.slice = 3ms;
  auto a = spawn_hog(world, three, 20ms);
  auto b = spawn_hog(world, three, 20ms);
  auto c = spawn_hog(world, three, 20ms);
  world.run_until(500us);
  SpawnOptions shorter;
  shorter.slice = 200us;
  Fiber* waiting = world.cpu(0).current == b.native() ? c.native() : b.native();
  (void)set_attributes(*waiting, shorter);
  world.run_until(8ms);
  const Fiber& current = *world.cpu(0).current;
  if (&current != waiting) {
    EXPECT_LE(current.fair.vprot - current.fair.vruntime, 200'000);
  }
  (void)set_attributes(*waiting, three);
  world.join(a, b, c);
}

// --- Yield.

TEST(EevdfYield, AYielderPaysForTheSliceThatItGivesUp) {
  SimWorld world(with(Preemption::kFull));
  std::vector<JoinHandle<void>> fibers;
  fibers.push_back(world.spawn(world.kernel("A"), [&] {
    while (world.time() < 1s) {
      consume(100us);
      yield();
    }
  }));
  fibers.push_back(spawn_hog(world, world.kernel("B"), 1s));
  world.run_until(100us + 1ns);
  EXPECT_EQ(world.switches().back(), "A B yield");
  // For 100 us each it is charged up to 700 us; it would have half the Cpu without that.
  EXPECT_LT(shares(world, fibers, 100ms, 900ms)[0], 0.25);
  EXPECT_GT(world.count(Counter::kYields), 1000u);
  join_all(fibers);
}

TEST(EevdfYield, TwoYieldersTakeTurns) {
  SimWorld world(with(Preemption::kLazy));
  std::string order;
  const auto loop = [&](char name) {
    return [&order, name] {
      for (int i = 0; i < 4; ++i) {
        order += name;
        yield();
      }
    };
  };
  auto a = world.spawn(world.kernel("A"), loop('a'));
  auto b = world.spawn(world.kernel("B"), loop('b'));
  world.join(a, b);
  EXPECT_EQ(order, "abababab");
}

TEST(EevdfYield, AloneItReturnsAtOnce) {
  SimWorld world(with(Preemption::kLazy));
  auto a = world.spawn(world.kernel("A"), [] {
    for (int i = 0; i < 100; ++i) yield();
  });
  a.join();
  EXPECT_EQ(world.time(), 0ns);
  EXPECT_EQ(world.order(), "A");
}

// --- Changes of class.

TEST(EevdfAttributes, AChangeOfClassDoesNotWakeADelayedSleeper) {
  Options options = with(Preemption::kFull);
  options.hz = 250;
  SimWorld world(options);
  Sleeper l(world, world.kernel("L"), [] {
    const PreemptDisabled guard;
    consume(3ms);
  });
  l.settle();
  l.wake();
  world.run_until(1us);
  auto a = spawn_hog(world, world.kernel("A"), 20ms);
  world.run_until(3ms + 1us);
  ASSERT_TRUE(l.fiber().fair.delayed);
  SpawnOptions fifo;
  fifo.policy = Policy::kFifo;
  ASSERT_TRUE(set_attributes(l.fiber(), fifo).ok());
  EXPECT_FALSE(l.fiber().on_rq);
  world.run_until(10ms);
  EXPECT_TRUE(l.asleep());
  EXPECT_EQ(l.ran().size(), 1u) << "nobody woke it";
  world.interrupt_at(12ms, 0, [&] { l.wake(); });
  a.join();
  l.settle();
  EXPECT_EQ(l.ran()[1], 12ms) << "as FIFO";
}

TEST(EevdfAttributes, ARunningFiberMayBecomeFifoAndFairAgain) {
  SimWorld world(with(Preemption::kFull));
  auto a = world.spawn(world.kernel("A"), [&] {
    SpawnOptions fifo;
    fifo.policy = Policy::kFifo;
    (void)set_attributes(*current_fiber(), fifo);
    consume(20ms);
    EXPECT_EQ(world.time(), 20ms) << "no slice ends it";
    (void)set_attributes(*current_fiber(), SpawnOptions());
    consume(20ms);
    EXPECT_GT(world.time(), 50ms) << "it shares again";
  });
  auto b = spawn_hog(world, world.kernel("B"), 100ms);
  world.join(a, b);
}

}  // namespace
}  // namespace jiffy
