// Time: sleeps and timers to the nanosecond, what delays them, and which clock is read.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/sim.h>
#include <jiffy/timer.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/sim_world.h"
#include "support/stress.h"

namespace jiffy {
namespace {

using Times = std::vector<std::chrono::nanoseconds>;

std::chrono::nanoseconds virtual_now() { return now().time_since_epoch(); }
TimePoint point(std::chrono::nanoseconds t) { return TimePoint(t); }

SpawnOptions fifo(SpawnOptions options) {
  options.policy = Policy::kFifo;
  return options;
}

// --- Exactness.

TEST(TimerSim, SleepOnAnIdleCpuEndsAtItsDeadlineToTheNanosecond) {
  SimWorld world = SimWorld::with_mode(Preemption::kLazy, 2);
  Random random(1);
  std::vector<JoinHandle<void>> sleepers;
  for (int i = 0; i < 200; ++i) {
    const auto deadline = std::chrono::nanoseconds(1 + random.below(50'000'000));
    sleepers.push_back(world.rt.spawn([deadline] {
      EXPECT_EQ(sleep_until(point(deadline)), WaitResult::kTimeout);
      EXPECT_EQ(virtual_now(), deadline);
    }));
  }
  for (auto& sleeper : sleepers) sleeper.join();
}

TEST(TimerSim, SleepersWakeInTheOrderOfTheirDeadlines) {
  SimWorld world = SimWorld::with_mode(Preemption::kFull);
  std::vector<int> order;
  std::vector<JoinHandle<void>> sleepers;
  const int ranks[] = {3, 0, 4, 1, 2};
  for (const int rank : ranks) {
    sleepers.push_back(world.rt.spawn([&order, rank] {
      (void)sleep_until(point(1ms + rank * 10ns));
      order.push_back(rank);
    }));
  }
  for (auto& sleeper : sleepers) sleeper.join();
  EXPECT_EQ(order, (std::vector{0, 1, 2, 3, 4}));
}

TEST(TimerSim, WakeupLatencyOfTheMachineIsAddedOnce) {
  Options options;
  options.cpus = 1;
  SimOptions sim;
  sim.wake_latency = 3us;
  SimWorld world(options, sim);
  world.rt.run([] {
    (void)sleep_until(point(100us));
    EXPECT_EQ(virtual_now(), 100us) << "the Cpu's own timer needs no wakeup from outside";
  });
}

// --- What delays a sleeper whose Cpu is busy: only the rule of the mode.

struct DelayRow {
  const char* what;
  bool kernel_hog;
  bool fifo_sleeper;
  std::chrono::nanoseconds runs_at[kPreemptionModes];  // none, voluntary, lazy, full
};

// The hog runs from 0 to 20 ms, the sleeper is due at 5 ms, ticks come each 4 ms.
constexpr DelayRow kDelays[] = {
    {"fair behind user mode", false, false, {5ms, 5ms, 5ms, 5ms}},
    {"fair behind kernel mode", true, false, {20ms, 20ms, 8ms, 5ms}},
    {"FIFO behind user mode", false, true, {5ms, 5ms, 5ms, 5ms}},
    {"FIFO behind kernel mode", true, true, {20ms, 20ms, 5ms, 5ms}},
};

TEST(TimerSim, BusyFiberDelaysASleeperToThePointThatItsModeSays) {
  for (const DelayRow& row : kDelays) {
    for (const Preemption mode : kAllModes) {
      SCOPED_TRACE(std::string(row.what) + ", " + preemption_name(mode));
      SimWorld world = SimWorld::with_mode(mode);
      std::chrono::nanoseconds ran{0};
      SpawnOptions options = SimWorld::kernel("sleeper");
      if (row.fifo_sleeper) options = fifo(options);
      auto sleeper = world.spawn(options, [&ran] {
        (void)sleep_until(point(5ms));
        ran = virtual_now();
      });
      options = SimWorld::kernel("hog");
      options.kernel_mode = row.kernel_hog;
      auto hog = world.spawn(options, [] { consume(20ms); });
      world.join(sleeper, hog);
      EXPECT_EQ(ran, row.runs_at[static_cast<size_t>(mode)]);
    }
  }
}

// A fiber that runs too long is asked to leave by the tick, and leaves at its next call that the
// mode makes a point, also while a timer is pending.
TEST(TimerSim, RequestOfTheTickIsHonouredAtTheNextPointOfTheMode) {
  struct Row {
    const char* call;
    void (*fn)();
    std::chrono::nanoseconds other_runs_at[kPreemptionModes];
  };
  static constexpr Row kRows[] = {
      {"nothing", [] {}, {24ms, 24ms, 8ms, 4ms}},
      {"cond_resched()", [] { (void)cond_resched(); }, {6ms, 6ms, 8ms, 4ms}},
      {"might_sleep()", [] { might_sleep(); }, {24ms, 6ms, 8ms, 4ms}},
  };
  for (const Row& row : kRows) {
    for (const Preemption mode : kAllModes) {
      SCOPED_TRACE(std::string(row.call) + ", " + preemption_name(mode));
      SimWorld world = SimWorld::with_mode(mode);
      Timer pending(world.rt, [] {});
      std::chrono::nanoseconds ran{-1};
      auto hog = world.spawn(SimWorld::kernel("hog"), [&] {
        pending.start(now() + 1h);
        for (int i = 0; i < 8; ++i) {
          consume(3ms);
          row.fn();
        }
      });
      auto other = world.spawn(SimWorld::kernel("other"), [&ran] { ran = virtual_now(); });
      world.join(hog, other);
      EXPECT_EQ(ran, row.other_runs_at[static_cast<size_t>(mode)]);
      (void)pending.cancel();
    }
  }
}

TEST(TimerSim, TimerWaitsForTheEndOfAPreemptionGuardAndNoLonger) {
  SimWorld world = SimWorld::with_mode(Preemption::kFull);
  Times fired;
  Timer timer(world.rt, [&fired] { fired.push_back(virtual_now()); });
  world.rt.run([&] {
    timer.start(point(1ms));
    {
      const PreemptDisabled guard;
      consume(3ms);
      EXPECT_TRUE(fired.empty());
    }
    EXPECT_EQ(fired, Times{3ms});
    timer.start(point(4ms));
    consume(3ms);
  });
  EXPECT_EQ(fired, (Times{3ms, 4ms})) << "it comes into the middle of a busy stretch";
}

// --- Periods, cancelling, starting anew.

TEST(TimerSim, PeriodsThatPassedUnservedAreSkippedNotMadeUp) {
  SimWorld world = SimWorld::with_mode(Preemption::kFull);
  Times fired;
  Timer timer(world.rt, [&fired] { fired.push_back(virtual_now()); });
  world.rt.run([&] {
    timer.start(point(1ms), 1ms);
    consume(2500us);
    {
      const PreemptDisabled guard;
      consume(3700us);  // until 6.2 ms
    }
    consume(2ms);
    EXPECT_TRUE(timer.cancel());
    consume(5ms);
  });
  EXPECT_EQ(fired, (Times{1ms, 2ms, 6200us, 7ms, 8ms}));
}

TEST(TimerSim, CancelledTimerDoesNotFireAndAStartReplacesAnEarlierOne) {
  SimWorld world = SimWorld::with_mode(Preemption::kFull, 2);
  Times fired;
  Timer timer(world.rt, [&fired] { fired.push_back(virtual_now()); });
  world.rt.run([&] {
    EXPECT_FALSE(timer.cancel()) << "nothing to cancel";
    timer.start(point(1ms));
    EXPECT_TRUE(timer.cancel());
    timer.start(point(2ms));
    timer.start(point(3ms));
    (void)sleep_until(point(5ms));
    EXPECT_FALSE(timer.cancel());
    timer.start(point(6ms));
    // Cancelled from the other Cpu.
    spawn([&timer] { EXPECT_TRUE(timer.cancel()); },
          [] {
            SpawnOptions options;
            options.cpu = 1;
            return options;
          }())
        .join();
    (void)sleep_until(point(9ms));
    timer.start(point(1ms));  // long ago
    (void)sleep_until(point(10ms));
  });
  EXPECT_EQ(fired, (Times{3ms, 9ms}));
}

TEST(TimerSim, CallbackRunsInAnInterruptOfTheCpuThatStartedIt) {
  SimWorld world = SimWorld::with_mode(Preemption::kFull, 2);
  int cpu = -1;
  bool in_irq = false;
  Timer timer(world.rt, [&] {
    cpu = this_cpu()->id;
    in_irq = in_hardirq();
  });
  SpawnOptions options;
  options.cpu = 1;
  world.rt.run(
      [&] {
        timer.start(point(1ms));
        (void)sleep_until(point(2ms));
      },
      options);
  EXPECT_EQ(cpu, 1);
  EXPECT_TRUE(in_irq);
}

TEST(TimerSim, EndedWaitLeavesNoTimerBehind) {
  SimWorld world = SimWorld::with_mode(Preemption::kFull);
  world.rt.run([&world] {
    Semaphore semaphore(0);
    auto giver = spawn([&semaphore] {
      consume(10us);
      semaphore.release();
    });
    EXPECT_EQ(semaphore.acquire(point(1h)), WaitResult::kReady);
    giver.join();
    EXPECT_TRUE(world.cpu(0).timers.empty());
  });
}

// --- Clocks.

TEST(Clocks, WallClockIsNeverReadInTheRuntime) {
  namespace fs = std::filesystem;
  const fs::path runtime = fs::path(__FILE__).parent_path().parent_path() / "runtime";
  if (!fs::exists(runtime)) GTEST_SKIP() << "the sources are not at " << runtime;
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(runtime)) {
    if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
    ++files;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      for (const char* clock : {"system_clock", "CLOCK_REALTIME", "gettimeofday", "time(nullptr)",
                                "time(NULL)", "FUTEX_CLOCK_REALTIME", "high_resolution_clock"}) {
        EXPECT_EQ(line.find(clock), std::string::npos) << entry.path() << ": " << line;
      }
    }
  }
  EXPECT_GT(files, 40);
}

TEST(Clocks, VirtualTimeStandsStillUnlessSomebodyConsumesOrSleeps) {
  SimWorld world = SimWorld::with_mode(Preemption::kLazy);
  world.rt.run([] {
    for (int i = 0; i < 1000; ++i) yield();
    EXPECT_EQ(virtual_now(), 0ns);
    consume(5us);
    EXPECT_EQ(virtual_now(), 5us);
    (void)sleep_for(7us);
    EXPECT_EQ(virtual_now(), 12us);
  });
}

}  // namespace
}  // namespace jiffy
