// The simulated machine: time, ticks, timers, interrupts, order, and the end of a simulation.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>
#include <jiffy/semaphore.h>
#include <jiffy/timer.h>

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "support/sim_world.h"

namespace jiffy {
namespace {

using std::chrono::nanoseconds;

Options with(int cpus, int hz = 250) {
  Options options;
  options.cpus = cpus;
  options.hz = hz;
  options.preemption = Preemption::kFull;
  options.trace_records = 8192;
  return options;
}

std::vector<nanoseconds> times(const std::vector<TraceRecord>& records) {
  std::vector<nanoseconds> all;
  for (const TraceRecord& r : records) all.push_back(nanoseconds(static_cast<int64_t>(r.time_ns)));
  return all;
}

// --- Time.

TEST(SimTime, BeginsAtZeroAndPassesOnlyWhereItIsConsumed) {
  SimWorld world(with(1));
  auto f = world.spawn(world.kernel("F"), [&] {
    EXPECT_EQ(now().time_since_epoch(), 0ns);
    for (int i = 0; i < 1000; ++i) yield();
    EXPECT_EQ(now().time_since_epoch(), 0ns);
    consume(3ms);
    EXPECT_EQ(now().time_since_epoch(), 3ms);
    consume(0ns);
    consume(1ns);
    EXPECT_EQ(now().time_since_epoch(), 3ms + 1ns);
  });
  f.join();
  EXPECT_EQ(world.time(), 3ms + 1ns);
}

TEST(SimTime, CpusConsumeSideBySide) {
  SimWorld world(with(4));
  std::vector<JoinHandle<void>> fibers;
  for (int cpu = 0; cpu < 4; ++cpu) {
    fibers.push_back(world.spawn(world.kernel("F", cpu), [] { consume(10ms); }));
  }
  for (auto& f : fibers) f.join();
  EXPECT_EQ(world.time(), 10ms);
}

TEST(SimTime, ConsumeIsOwnTimeAlsoWhenPreempted) {
  SimWorld world(with(1));
  auto a = world.spawn(world.kernel("A"), [] { consume(30ms); });
  auto b = world.spawn(world.kernel("B"), [] { consume(30ms); });
  world.run_until(59ms);
  EXPECT_GT(world.count(Counter::kForcedSwitches), 10u);
  world.join(a, b);
  EXPECT_EQ(world.time(), 60ms);
}

TEST(SimTime, ALimitedJoinFromOutsideEndsAtItsDeadline) {
  SimWorld world(with(1));
  auto f = world.spawn(world.kernel("F"), [] { consume(10ms); });
  // A plain thread's clock is the host's: a deadline in virtual time is a point.
  EXPECT_EQ(f.wait(Until(TimePoint(4ms))), WaitResult::kTimeout);
  EXPECT_GE(world.time(), 4ms);
  EXPECT_EQ(f.wait(Until(TimePoint(20ms))), WaitResult::kReady);
  EXPECT_EQ(world.time(), 10ms);
}

// --- Ticks.

TEST(SimTicks, ComeAtMultiplesOfThePeriod) {
  for (const int hz : {100, 250, 1000}) {
    SimWorld world(with(1, hz));
    const nanoseconds period(1'000'000'000 / hz);
    // Begun off the grid.
    auto a = world.spawn(world.kernel("A"), [] { consume(123us + 50ms); });
    auto b = world.spawn(world.kernel("B"), [] { consume(50ms); });
    world.join(a, b);
    const auto ticks = times(world.trace(TraceEvent::kTick));
    ASSERT_GE(ticks.size(), 5u);
    for (size_t i = 0; i < ticks.size(); ++i) {
      EXPECT_EQ(ticks[i], period * static_cast<int64_t>(i + 1)) << hz;
    }
  }
}

TEST(SimTicks, ThePhaseMovesTheGrid) {
  SimWorld world(with(1), {.tick_phase = 1500us});
  auto a = world.spawn(world.kernel("A"), [] { consume(10ms); });
  auto b = world.spawn(world.kernel("B"), [] { consume(10ms); });
  world.join(a, b);
  const auto ticks = times(world.trace(TraceEvent::kTick));
  ASSERT_GE(ticks.size(), 3u);
  EXPECT_EQ(ticks[0], 1500us);
  EXPECT_EQ(ticks[1], 5500us);
}

TEST(SimTicks, ServeOnlyThoseWhoWait) {
  SimWorld world(with(1));
  auto a = world.spawn(world.kernel("A"), [] { consume(50ms); });
  world.run_until(21ms);
  EXPECT_EQ(world.count(Counter::kTicks), 0u) << "one alone needs none";
  auto b = world.spawn(world.kernel("B"), [] { consume(1ms); });
  world.join(a, b);
  const auto ticks = times(world.trace(TraceEvent::kTick));
  ASSERT_GE(ticks.size(), 1u);
  EXPECT_EQ(ticks[0], 24ms);
  EXPECT_LE(ticks.size(), 3u) << "and none again when B has gone";
}

// --- Interrupts.

TEST(SimInterrupts, AReschedule) {
  SimOptions sim;
  sim.ipi_latency = 7us;
  SimWorld world(with(2), sim);
  SpawnOptions fifo = world.kernel("F", 0);
  fifo.policy = Policy::kFifo;
  Sleeper f(world, fifo);
  f.settle();
  auto a = world.spawn(world.kernel("A", 0), [] { consume(1ms); });
  auto waker = world.spawn(world.kernel("waker", 1), [&] {
    consume(100us);
    f.wake();
  });
  world.join(a, waker);
  f.settle();
  EXPECT_EQ(f.ran()[0], 107us) << "takes the time of an interrupt to arrive";
  EXPECT_EQ(times(world.trace(TraceEvent::kIpi, 0)), std::vector<nanoseconds>{107us});
}

TEST(SimInterrupts, AParkedCpuTakesItsTimeToWakeUp) {
  SimOptions sim;
  sim.wake_latency = 30us;
  SimWorld world(
      [] {
        Options options = with(2);
        options.latency_stats = true;
        return options;
      }(),
      sim);
  EXPECT_EQ(world.time(), 0ns);
  nanoseconds ran{};
  auto waker = world.spawn(world.kernel("waker", 1), [&] {
    const nanoseconds start = world.time();
    auto f = spawn([&] { ran = world.time() - start; }, world.kernel("F", 0));
    consume(1ms);
  });
  waker.join();
  EXPECT_EQ(ran, 30us);
}

TEST(SimInterrupts, WaitWhilePreemptionOrInterruptsAreOff) {
  SimWorld world(with(1));
  nanoseconds taken[2] = {};
  auto f = world.spawn(world.kernel("F"), [&] {
    {
      const PreemptDisabled guard;
      consume(2ms);
    }
    local_irq_disable();
    consume(2ms);
    local_irq_enable();
    consume(1ms);
  });
  world.interrupt_at(1ms, 0, [&] { taken[0] = world.time(); });
  world.interrupt_at(3ms, 0, [&] { taken[1] = world.time(); });
  f.join();
  EXPECT_EQ(taken[0], 2ms);
  EXPECT_EQ(taken[1], 4ms);
  EXPECT_EQ(world.time(), 5ms);
}

// --- Timers.

TEST(SimTimers, FireExactlyAlsoInsideAnothersTime) {
  SimWorld world(with(1));
  std::vector<nanoseconds> fired;
  bool in_irq = true;
  Timer timer(world.rt, [&] {
    fired.push_back(world.time());
    in_irq = in_irq && in_hardirq();
  });
  auto a = world.spawn(world.kernel("A"), [&] {
    timer.start(now() + 1234us, 500us);
    consume(3ms);
    EXPECT_TRUE(timer.cancel());
    EXPECT_FALSE(timer.cancel());
    consume(3ms);
  });
  a.join();
  EXPECT_EQ(fired, (std::vector<nanoseconds>{1234us, 1734us, 2234us, 2734us}));
  EXPECT_TRUE(in_irq);
}

TEST(SimTimers, APeriodThatPassedUnservedIsSkipped) {
  SimWorld world(with(1));
  std::vector<nanoseconds> fired;
  Timer timer(world.rt, [&] { fired.push_back(world.time()); });
  auto a = world.spawn(world.kernel("A"), [&] {
    timer.start(now() + 1ms, 1ms);
    {
      const PreemptDisabled guard;
      consume(3500us);
    }
    consume(1ms);
    timer.cancel();
  });
  a.join();
  EXPECT_EQ(fired, (std::vector<nanoseconds>{3500us, 4ms}));
}

TEST(SimTimers, ASleepEndsExactlyOnAnIdleCpu) {
  SimWorld world(with(1));
  auto a = world.spawn(world.kernel("A"), [&] {
    EXPECT_EQ(sleep_for(12345ns), WaitResult::kTimeout);
    EXPECT_EQ(world.time(), 12345ns);
    EXPECT_EQ(sleep_until(TimePoint(1us)), WaitResult::kTimeout) << "a point in the past";
    EXPECT_EQ(world.time(), 12345ns);
  });
  a.join();
}

TEST(SimTimers, ManySleepersWakeInTheOrderOfTheirDeadlines) {
  SimWorld world(with(1));
  std::vector<int> order;
  std::vector<JoinHandle<void>> fibers;
  for (int i = 0; i < 50; ++i) {
    const int ms = (i * 37) % 50 + 1;
    fibers.push_back(world.spawn(world.kernel("F"), [&order, &world, ms] {
      sleep_for(std::chrono::milliseconds(ms));
      order.push_back(ms);
      EXPECT_EQ(world.time(), std::chrono::milliseconds(ms));
    }));
  }
  for (auto& f : fibers) f.join();
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(order.size(), 50u);
}

// --- The world outside.

TEST(SimAt, RunsInNoCpusContextInOrder) {
  SimWorld world(with(1));
  std::vector<int> order;
  world.at(2ms, [&] { order.push_back(3); });
  world.at(1ms, [&] {
    order.push_back(1);
    EXPECT_EQ(world.time(), 1ms);
    EXPECT_EQ(this_cpu(), nullptr);
    EXPECT_FALSE(this_fiber::on_fiber());
    world.at(0ms, [&] {
      order.push_back(2);
      EXPECT_EQ(world.time(), 1ms) << "what is past is now";
    });
  });
  world.at(2ms, [&] { order.push_back(4); });
  world.run_until(3ms);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
}

TEST(SimAt, MayReleaseWhatAFiberWaitsFor) {
  SimWorld world(with(1));
  Semaphore semaphore;
  world.at(5ms, [&] { semaphore.release(); });
  auto f = world.spawn(world.kernel("F"), [&] {
    semaphore.acquire();
    EXPECT_EQ(world.time(), 5ms);
  });
  f.join();
}

// --- Order.

// A busy little world: fibers of all kinds on four Cpus, many events at the same instants.
std::vector<TraceRecord> busy_world(uint64_t seed, std::string* order = nullptr) {
  SimOptions sim;
  sim.seed = seed;
  SimWorld world(with(4), sim);
  Semaphore semaphore(2);
  std::vector<JoinHandle<void>> fibers;
  std::string who;
  for (int i = 0; i < 12; ++i) {
    SpawnOptions options;
    options.name = std::string(1, static_cast<char>('a' + i));
    options.cpu = i % 4;
    options.kernel_mode = i % 3 == 0;
    options.nice = i % 5;
    fibers.push_back(world.spawn(options, [&, name = options.name] {
      for (int step = 0; step < 20; ++step) {
        semaphore.acquire();
        who += name;
        consume(100us);
        semaphore.release();
        sleep_for(300us);
      }
    }));
  }
  for (auto& f : fibers) f.join();
  if (order != nullptr) *order = who;
  // The rules hold whatever the order: all have had their time.
  EXPECT_EQ(who.size(), 240u);
  for (const auto& record : world.rt.trace()) EXPECT_LE(record.time_ns, 1'000'000'000u);
  return world.rt.trace();
}

TEST(SimOrder, TheSameSeedGivesTheSameTrace) {
  for (const uint64_t seed : {1, 2, 77}) EXPECT_EQ(busy_world(seed), busy_world(seed)) << seed;
}

TEST(SimOrder, OtherSeedsOrderWhatIsSimultaneousDifferently) {
  std::set<std::string> orders;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    std::string order;
    (void)busy_world(seed, &order);
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 5u);
}

TEST(SimOrder, TheDefaultSeedKeepsTheOrderOfCauses) {
  SimWorld world(with(1));
  std::string order;
  for (const char c : std::string("abcdefgh")) world.at(1ms, [&order, c] { order += c; });
  world.run_until(2ms);
  EXPECT_EQ(order, "abcdefgh");
}

// --- Limits and ends.

TEST(SimEnd, WaitingForWhatCannotHappenIsADeadlock) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        SimWorld world(with(2));
        Semaphore never;
        auto f = world.spawn(world.kernel("stuck"), [&] { never.acquire(); });
        f.join();
      },
      "waiting for fiber 'stuck'.*deadlock");
}

TEST(SimEnd, RunUntilSaysSoWithoutAborting) {
  SimWorld world(with(1));
  const Status status = world.rt.state().machine->run_until([] { return false; });
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("deadlock"), std::string::npos);
}

TEST(SimEnd, CannotBeRunFromWithinItself) {
  SimWorld world(with(1));
  world.at(1ms,
           [&] { EXPECT_FALSE(world.rt.state().machine->run_until([] { return true; }).ok()); });
  world.run_until(2ms);
}

TEST(SimEnd, TheNumberOfCpusIsBounded) {
  for (const int cpus : {-1, 1025}) {
    Options options;
    options.machine = make_sim_machine({.cpus = cpus});
    Runtime rt(options);
    const Status status = rt.start();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("1024"), std::string::npos) << status.message();
  }
}

TEST(SimEnd, HundredsOfCpusWork) {
  SimWorld world(with(300));
  std::vector<JoinHandle<int>> fibers;
  for (int cpu = 0; cpu < 300; ++cpu) {
    fibers.push_back(world.spawn(world.kernel("F", cpu), [] {
      consume(1ms);
      return this_fiber::cpu();
    }));
  }
  for (int cpu = 0; cpu < 300; ++cpu) EXPECT_EQ(fibers[static_cast<size_t>(cpu)].join(), cpu);
  EXPECT_EQ(world.time(), 1ms);
}

TEST(SimEnd, SeveralSimulationsLiveSideBySide) {
  SimWorld one(with(1));
  SimWorld two(with(2));
  auto f = one.spawn(one.kernel("F"), [] { consume(5ms); });
  auto g = two.spawn(two.kernel("G", 1), [] { consume(7ms); });
  g.join();
  EXPECT_EQ(one.time(), 0ns);
  f.join();
  EXPECT_EQ(one.time(), 5ms);
  EXPECT_EQ(two.time(), 7ms);
}

TEST(SimEnd, AShutdownNamesWhomItWaitsForEachTenSeconds) {
  SimWorld world(with(1));
  SpawnOptions options = world.kernel("straggler");
  world.spawn(options, [] { (void)sleep_for(25s); }).detach();
  testing::internal::CaptureStderr();
  world.rt.stop();
  const std::string text = testing::internal::GetCapturedStderr();
  size_t reports = 0;
  for (size_t at = 0; (at = text.find("straggler", at)) != std::string::npos; ++at) ++reports;
  EXPECT_EQ(reports, 2u) << text;
}

}  // namespace
}  // namespace jiffy
