// How long a short-running fiber waits for a Cpu that a hog in kernel mode occupies: the closed
// form of EEVDF, and the figures of an independent model of one CPU. The model places its ticks,
// wakeups and blocks by another random sequence, and its hogs begin with a whole slice, where a new
// fiber gets half of one: the first waits are shorter here, by up to a tick, and the means of a few
// hundred waits of a tick each by a thousandth. Hence the tolerances.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "support/sanitizer.h"
#include "support/sim_world.h"

namespace jiffy {
namespace {

using std::chrono::nanoseconds;

// One Cpu. A device interrupts about every 100 us and wakes the wakee, unless it is still at it.
struct Load {
  Preemption mode = Preemption::kFull;
  int hz = 250;
  bool hrtick = false;
  nanoseconds slice = 700us;
  nanoseconds run = 3us;  // the wakee's, for each wakeup
  int hogs = 1;
  nanoseconds block{0};  // a hog sleeps for 20 us after about this time; 0: never
  SchedFeatures features = {};
  nanoseconds length = 5s;
  uint32_t seed = 1;  // of the times of the wakeups and blocks, and of the tick's phase
};

struct Latency {
  double mean_us = 0;
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
  size_t served = 0;
  uint64_t switches = 0;
  uint64_t promotions = 0;
  uint64_t forced = 0;
};

SpawnOptions with_slice(const std::string& name, nanoseconds slice) {
  SpawnOptions options = SimWorld::kernel(name);
  options.slice = slice;
  return options;
}

Latency summarize(const SimWorld& world, std::vector<nanoseconds> waits) {
  std::sort(waits.begin(), waits.end());
  const auto us = [](nanoseconds t) {
    return std::chrono::duration<double, std::micro>(t).count();
  };
  Latency l;
  l.served = waits.size();
  if (waits.empty()) return l;
  const nanoseconds sum = std::accumulate(waits.begin(), waits.end(), nanoseconds(0));
  l.mean_us = us(sum) / static_cast<double>(waits.size());
  l.p50_us = us(waits[waits.size() / 2]);
  l.p99_us = us(waits[waits.size() * 99 / 100]);
  l.max_us = us(waits.back());
  l.switches = world.count(Counter::kContextSwitches);
  l.promotions = world.count(Counter::kPromotions);
  l.forced = world.count(Counter::kForcedSwitches);
  return l;
}

// The interrupts of the device, until `end`.
class Device {
 public:
  Device(SimWorld& world, Sleeper& wakee, nanoseconds end, uint32_t seed)
      : world_(world), wakee_(wakee), end_(end), random_(seed) {
    next();
  }

 private:
  void next() {
    const auto gap = nanoseconds(50'000 + random_() % 100'000);
    if (world_.time() + gap >= end_) return;
    world_.interrupt_at(world_.time() + gap, 0, [this] {
      if (wakee_.asleep()) wakee_.wake();
      next();
    });
  }

  SimWorld& world_;
  Sleeper& wakee_;
  const nanoseconds end_;
  std::mt19937 random_;
};

Latency measure(const Load& load) {
  Options options;
  options.preemption = load.mode;
  options.hz = load.hz;
  options.hrtick = load.hrtick;
  options.features = load.features;
  std::mt19937 random(load.seed);
  SimOptions sim;
  sim.tick_phase = nanoseconds(random() % static_cast<uint32_t>(1'000'000'000 / load.hz));
  SimWorld world(options, sim);
  Sleeper wakee(world, with_slice("wakee", load.slice), [&] { consume(load.run); });
  wakee.settle();
  std::exponential_distribution<double> exponential(1);
  std::vector<JoinHandle<void>> hogs;
  for (int i = 0; i < load.hogs; ++i) {
    hogs.push_back(world.spawn(with_slice("hog", load.slice), [&] {
      while (world.time() < load.length) {
        nanoseconds busy = load.length - world.time();
        if (load.block.count() != 0) {
          busy =
              std::min(busy, nanoseconds(static_cast<int64_t>(
                                 static_cast<double>(load.block.count()) * exponential(random))));
        }
        consume(busy + 1ns);
        if (load.block.count() != 0) sleep_for(20us);
      }
    }));
  }
  Device device(world, wakee, load.length, static_cast<uint32_t>(random()));
  for (auto& hog : hogs) hog.join();
  wakee.settle();
  return summarize(world, wakee.latencies());
}

::testing::AssertionResult near(double value, double expected, double tolerance) {
  if (value >= expected * (1 - tolerance) && value <= expected * (1 + tolerance)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << value << " is not within " << tolerance * 100 << " % of " << expected;
}

// --- The closed form. Each service costs the wakee half of its run in lag, each wait earns it half
// of the wait; so its waits add up to its runs, whatever slice and tick are.

TEST(EevdfClosedForm, MeanWaitIsTheRunTime) {
  for (const auto run : {1us, 3us, 10us, 30us}) {
    if (run == 1us && kSlowdown > 1) continue;  // half a minute
    for (const auto slice : {700us, 2800us}) {
      // The sum of all waits is known to one wait: rare waits need a long run.
      const Latency l = measure({.slice = slice, .run = run, .length = run == 1us ? 20s : 5s});
      EXPECT_TRUE(near(l.mean_us, static_cast<double>(run.count()), 0.05))
          << run.count() << " us, slice " << slice.count();
      EXPECT_EQ(l.p50_us, 0) << "nearly all wait not at all ...";
      EXPECT_LT(l.max_us, 2800 + 4000) << "... and few for up to a slice and a tick";
      EXPECT_GT(l.max_us, 3900);
    }
  }
}

TEST(EevdfClosedForm, MeanWaitDoesNotDependOnTheTick) {
  for (const int hz : {100, 1000}) {
    EXPECT_TRUE(near(measure({.hz = hz}).mean_us, 3, 0.06)) << hz;
  }
}

TEST(EevdfClosedForm, MeanWaitDoublesWithTwoHogs) {
  for (const auto run : {3us, 10us, 30us}) {
    if (run != 3us && kSlowdown > 1) continue;
    const Latency l = measure({.slice = 2800us, .run = run, .hogs = 2});
    EXPECT_TRUE(near(l.mean_us, 2 * static_cast<double>(run.count()), 0.05)) << run.count();
  }
}

// --- The model's figures.

struct Figure {
  const char* name;
  Load load;
  double mean_us;  // of the model
  double mean_tolerance;
  double max_us;  // the bound that the rules give; the model's own maximum is one sample
  double max_least_us;
};

void PrintTo(const Figure& figure, std::ostream* out) { *out << figure.name; }

constexpr Preemption kL = Preemption::kLazy;
constexpr Preemption kF = Preemption::kFull;

const Figure kFigures[] = {
    // clang-format off
    // The waits add up to the runs, but for one wait of up to a slice and a tick: the tolerance is
    // that wait's part of the sum.
    {"full_4ms_slice_2800",  {.mode = kF, .slice = 2800us},                  3.0, 0.047, 6800, 5500},
    {"full_4ms_slice_700",   {.mode = kF},                                   3.0, 0.033, 4700, 4000},
    // HRTICK ends the hog's slice by a hard request.
    {"full_hrtick_2800",     {.mode = kF, .hrtick = true, .slice = 2800us},  3.0, 0.02, 2801, 2700},
    {"full_hrtick_700",      {.mode = kF, .hrtick = true},                   3.0, 0.02,  701,  690},
    // In LAZY nearly each wakeup waits for a whole tick: it comes right after the last service. At
    // most: a slice, the tick that finds it over, and the tick that promotes.
    {"lazy_4ms_slice_2800",  {.mode = kL, .slice = 2800us},                 3946, 0.005, 10800, 7900},
    {"lazy_4ms_slice_700",   {.mode = kL},                                  3946, 0.005, 8700, 4350},
    {"lazy_1ms_slice_2800",  {.mode = kL, .hz = 1000, .slice = 2800us},      943, 0.005, 4800, 2800},
    {"lazy_1ms_slice_700",   {.mode = kL, .hz = 1000},                       943, 0.005, 2700, 1350},
    {"lazy_10ms_slice_2800", {.mode = kL, .hz = 100, .slice = 2800us},      9968, 0.005, 22800, 12000},
    {"lazy_hrtick_2800",     {.mode = kL, .hrtick = true, .slice = 2800us}, 1615, 0.005, 2800, 2790},
    {"lazy_hrtick_700",      {.mode = kL, .hrtick = true},                   557, 0.005,  700,  699},
    // A hog that blocks now and then lets the wakee in; how often it does is the seed's.
    {"lazy_blocks_700",      {.mode = kL, .slice = 2800us, .block = 700us},  516, 0.05, 10800, 5000},
    {"lazy_blocks_1500",     {.mode = kL, .slice = 2800us, .block = 1500us}, 1019, 0.05, 10800, 7000},
    {"full_blocks_700",      {.mode = kF, .slice = 2800us, .block = 700us},    25, 0.08, 6800, 4500},
    {"lazy_two_hogs",        {.mode = kL, .hogs = 2},                       3952, 0.005, 17400, 8700},
    // clang-format on
};

class EevdfModel : public ::testing::TestWithParam<Figure> {};

INSTANTIATE_TEST_SUITE_P(Figures, EevdfModel, ::testing::ValuesIn(kFigures),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(EevdfModel, LatencyIsTheModels) {
  const Figure& f = GetParam();
  const uint32_t seeds = kSlowdown > 1 ? 1 : 4;
  double mean_us = 0;
  double max_us = 0;
  Load load = f.load;
  for (load.seed = 1; load.seed <= seeds; ++load.seed) {
    const Latency l = measure(load);
    mean_us += l.mean_us / seeds;
    max_us = std::max(max_us, l.max_us);
  }
  EXPECT_TRUE(near(mean_us, f.mean_us, f.mean_tolerance));
  EXPECT_LE(max_us, f.max_us);
  if (seeds > 1) {
    EXPECT_GE(max_us, f.max_least_us);
  }
}

TEST(EevdfModelCounts, LazyServesATickfulOfWakeupsAtOnce) {
  const Latency full = measure({.mode = kF, .slice = 2800us});
  const Latency lazy = measure({.mode = kL, .slice = 2800us});
  EXPECT_TRUE(near(static_cast<double>(full.served), 48554, 0.01));
  EXPECT_TRUE(near(static_cast<double>(lazy.served), 1248, 0.01));
  EXPECT_TRUE(near(static_cast<double>(full.switches), 97108, 0.01));
  EXPECT_TRUE(near(static_cast<double>(lazy.switches), 2497, 0.01));
  EXPECT_EQ(full.promotions, 0u);
  EXPECT_TRUE(near(static_cast<double>(lazy.promotions), 1248, 0.02));
}

// --- What FULL's microseconds stand on.

TEST(EevdfPieces, WithoutKeptLagFullIsAsSlowAsLazy) {
  Load load{.slice = 2800us};
  load.features.place_lag = false;
  const Latency l = measure(load);
  EXPECT_TRUE(near(l.mean_us, 3942, 0.005));
}

TEST(EevdfPieces, WithoutInflationEachSleepLosesLag) {
  Load load{.slice = 2800us};
  load.features.inflate_lag = false;
  const Latency l = measure(load);
  EXPECT_GT(l.mean_us, 100) << "each sleep halves what it is owed";
}

}  // namespace
}  // namespace jiffy
