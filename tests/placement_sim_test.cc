// Which Cpu a fiber runs on: at its start, at its wakeup, and when another Cpu idles.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/sim_world.h"

namespace jiffy {
namespace {

using std::chrono::nanoseconds;

Options with(int cpus, Preemption mode = Preemption::kFull) {
  Options options;
  options.cpus = cpus;
  options.preemption = mode;
  options.trace_records = 4096;
  return options;
}

SpawnOptions anywhere(const std::string& name) {
  SpawnOptions options;
  options.name = name;
  options.kernel_mode = true;
  return options;
}

SpawnOptions migratable(const std::string& name) {
  SpawnOptions options = anywhere(name);
  options.migratable = true;
  return options;
}

// Sleeps on Cpu 0 (the first of the idle ones, at its spawn), and notes the Cpu it runs on.
class Wanderer {
 public:
  Wanderer(SimWorld& world, const SpawnOptions& options)
      : sleeper_(world, options, [this] { cpus_.push_back(this_fiber::cpu()); }) {
    sleeper_.settle();
    EXPECT_EQ(sleeper_.fiber().cpu.load()->id, 0);
    world.mark();
  }
  void wake() { sleeper_.wake(); }
  Sleeper& sleeper() { return sleeper_; }
  const std::vector<int>& cpus() const { return cpus_; }

 private:
  std::vector<int> cpus_;
  Sleeper sleeper_;
};

std::vector<JoinHandle<void>> occupy(SimWorld& world, const std::vector<int>& cpus,
                                     nanoseconds until = 20ms) {
  std::vector<JoinHandle<void>> hogs;
  for (const int cpu : cpus) {
    hogs.push_back(world.spawn(world.kernel("hog", cpu), [&world, until] {
      while (world.time() < until) consume(until - world.time());
    }));
  }
  return hogs;
}

// Where a fiber that slept on Cpu 0 runs when a device that is no Cpu wakes it at 1 ms, with some
// Cpus busy.
int woken_on(int cpus, const std::vector<int>& busy, const SpawnOptions& options,
             nanoseconds* latency = nullptr) {
  SimWorld world(with(cpus));
  Wanderer w(world, options);
  auto hogs = occupy(world, busy);
  world.at(1ms, [&] { w.wake(); });
  for (auto& hog : hogs) hog.join();
  world.run_until(50ms);
  EXPECT_EQ(w.cpus().size(), 1u);
  if (latency != nullptr) *latency = w.sleeper().latencies()[0];
  EXPECT_EQ(world.count(Counter::kMigrations), w.cpus()[0] == 0 ? 0u : 1u);
  return w.cpus()[0];
}

// --- Wakeups.

TEST(WakeupPlacement, APinnedFiberSkipsTheSearch) {
  SpawnOptions pinned = SimWorld::kernel("W", 0);
  pinned.migratable = true;
  pinned.slice = 3ms;
  nanoseconds latency{};
  EXPECT_EQ(woken_on(4, {0}, pinned, &latency), 0);
  EXPECT_GE(latency, 3ms) << "it waits behind the hog, with three Cpus idle";
}

TEST(WakeupPlacement, AStartedCooperativeFiberStaysOnItsCpu) {
  EXPECT_EQ(woken_on(4, {0}, anywhere("W")), 0);
}

TEST(WakeupPlacement, AMigratableFiberRunsAtOnceOnAnIdleCpu) {
  nanoseconds latency = 1s;
  EXPECT_EQ(woken_on(4, {0}, migratable("W"), &latency), 1);
  EXPECT_EQ(latency, 0ns);
}

TEST(WakeupPlacement, TheSearchTakesThePreviousCpuThenTheNextIdleOne) {
  EXPECT_EQ(woken_on(4, {}, migratable("W")), 0);
  EXPECT_EQ(woken_on(4, {1, 2}, migratable("W")), 0);
  EXPECT_EQ(woken_on(4, {0, 1}, migratable("W")), 2);
  EXPECT_EQ(woken_on(4, {0, 2}, migratable("W")), 1);
  EXPECT_EQ(woken_on(4, {0, 1, 2}, migratable("W")), 3);
}

TEST(WakeupPlacement, WithNoIdleCpuItIsThePreviousOne) {
  EXPECT_EQ(woken_on(3, {0, 1, 2}, migratable("W")), 0);
}

TEST(WakeupPlacement, OnlyAllowedCpusAreTaken) {
  SpawnOptions options = migratable("W");
  options.allowed = {0, 3};
  EXPECT_EQ(woken_on(4, {}, options), 0);
  EXPECT_EQ(woken_on(4, {0}, options), 3);
  EXPECT_EQ(woken_on(4, {0, 3}, options), 0);
}

TEST(WakeupPlacement, AnIdleCpuThatTookTheInterruptKeepsTheFiber) {
  SimWorld world(with(4));
  Wanderer w(world, migratable("W"));
  auto hogs = occupy(world, {0, 1});
  world.interrupt_at(1ms, 3, [&] { w.wake(); });
  for (auto& hog : hogs) hog.join();
  EXPECT_EQ(w.cpus(), std::vector<int>{3});
}

TEST(WakeupPlacement, AMigratableFiberThatSleepsComesBackToItsIdleCpu) {
  SimWorld world(with(4));
  std::vector<int> cpus;
  auto f = world.spawn(migratable("F"), [&] {
    for (int i = 0; i < 5; ++i) {
      cpus.push_back(this_fiber::cpu());
      sleep_for(1ms);
    }
  });
  f.join();
  EXPECT_EQ(cpus, std::vector<int>(5, 0));
}

TEST(WakeupPlacement, ADelayedSleeperIsWokenWhereItIsQueued) {
  SimWorld world(with(2));
  bool first = true;
  std::vector<int> cpus;
  Sleeper l(world, migratable("L"), [&] {
    cpus.push_back(this_fiber::cpu());
    const PreemptDisabled guard;
    if (first) consume(3ms);
    first = false;
  });
  l.settle();
  l.wake();
  world.run_until(1us);
  auto hogs = occupy(world, {0});
  world.run_until(3ms + 1us);
  ASSERT_TRUE(l.fiber().fair.delayed);
  world.mark();
  world.at(3ms + 2us, [&] { l.wake(); });
  world.run_until(3ms + 3us);
  EXPECT_EQ(world.count(Counter::kWakeupsReal), 1u);
  EXPECT_EQ(world.count(Counter::kMigrations), 0u);
  EXPECT_EQ(l.fiber().cpu.load()->id, 0) << "no search, though Cpu 1 idles";
  for (auto& hog : hogs) hog.join();
}

// --- The stacking rule.

void no_hook(Fiber*, bool) {}

// K, pinned to Cpu 0, wakes a client that slept there. Returns the client's Cpu.
int client_of(bool worker, int others_on_cpu, bool in_an_interrupt) {
  SimWorld world(with(2));
  Wanderer client(world, migratable("client"));
  std::vector<JoinHandle<void>> others;
  auto k = world.spawn(world.kernel("K", 0), [&] {
    if (worker) current_fiber()->sleep_hook = no_hook;
    consume(1ms);
    for (int i = 0; i < others_on_cpu; ++i) others.push_back(spawn([] {}, world.kernel("other")));
    if (in_an_interrupt) {
      world.interrupt(0, [&] { client.wake(); });
      consume(1us);
    } else {
      client.wake();
    }
    consume(100us);
    current_fiber()->sleep_hook = nullptr;
  });
  k.join();
  for (auto& other : others) other.join();
  world.run_until(50ms);
  return client.cpus().at(0);
}

TEST(StackingRule, TheClientOfAPinnedWorkerStaysBehindIt) {
  EXPECT_EQ(client_of(true, 0, false), 0);
}

TEST(StackingRule, OnlyAWorkerIsAboutToSleep) { EXPECT_EQ(client_of(false, 0, false), 1); }

TEST(StackingRule, NotWithAnotherRunnableFiberThere) { EXPECT_EQ(client_of(true, 1, false), 1); }

TEST(StackingRule, NotFromAnInterrupt) { EXPECT_EQ(client_of(true, 0, true), 1); }

// --- New fibers.

TEST(SpawnPlacement, FromOutsideItIsTheLeastLoadedCpu) {
  SimWorld world(with(3));
  auto hogs = occupy(world, {0, 1});
  int cpu = -1;
  auto f = world.spawn(anywhere("F"), [&] { cpu = this_fiber::cpu(); });
  f.join();
  EXPECT_EQ(cpu, 2);
  for (auto& hog : hogs) hog.join();
}

TEST(SpawnPlacement, AFiberSpawnsOnItsOwnCpu) {
  SimWorld world(with(3));
  int cpu = -1;
  auto parent = world.spawn(world.kernel("parent", 1), [&] {
    auto f = spawn([&] { cpu = this_fiber::cpu(); }, anywhere("F"));
    f.join();
  });
  parent.join();
  EXPECT_EQ(cpu, 1);
}

// --- Idle Cpus pull.

struct Start {
  int cpu = -1;
  nanoseconds when{};
};

// A fiber on Cpu 0 spawns `n` with `options` and goes on for 20 ms.
std::vector<Start> spawned_beside_a_hog(SimWorld& world, int n, const SpawnOptions& options) {
  std::vector<Start> starts(static_cast<size_t>(n));
  auto parent = world.spawn(world.kernel("parent", 0), [&] {
    std::vector<JoinHandle<void>> children;
    for (Start& start : starts) {
      children.push_back(spawn(
          [&] {
            start = {this_fiber::cpu(), world.time()};
            consume(1ms);
          },
          options));
    }
    consume(20ms);
    for (auto& child : children) child.join();
  });
  parent.join();
  return starts;
}

TEST(IdlePull, UnstartedFibersAreTakenAtOnceWhereSeveralWait) {
  SimWorld world(with(2, Preemption::kNone));  // the parent keeps its Cpu
  const std::vector<Start> starts = spawned_beside_a_hog(world, 3, anywhere("child"));
  int at_once = 0;
  for (const Start& start : starts) {
    if (start.cpu == 1 && start.when < 4ms) ++at_once;
  }
  EXPECT_EQ(at_once, 2) << "all but the last one, which its parent may be about to wait for";
  EXPECT_EQ(world.count(Counter::kSteals), 3u) << "and that one after a tick";
}

TEST(IdlePull, ALoneWaitingFiberIsTakenAfterATick) {
  SimWorld world(with(2, Preemption::kLazy));
  const std::vector<Start> starts = spawned_beside_a_hog(world, 1, anywhere("child"));
  EXPECT_EQ(starts[0].cpu, 1);
  EXPECT_EQ(starts[0].when, 4ms);
  EXPECT_EQ(world.count(Counter::kSteals), 1u);
  const auto migrations = world.trace(TraceEvent::kMigrate);
  ASSERT_EQ(migrations.size(), 1u);
  EXPECT_EQ(migrations[0].cpu, 1);
}

TEST(IdlePull, PinnedFibersAndThoseWithAMaskAreLeft) {
  SimWorld world(with(2, Preemption::kNone));
  for (const Start& start : spawned_beside_a_hog(world, 3, world.kernel("child", 0))) {
    EXPECT_EQ(start.cpu, 0);
  }
  EXPECT_EQ(world.count(Counter::kSteals), 0u);
}

// Two fibers that have run on Cpu 0 compete for it for 40 ms.
int cpus_used_by_started(const SpawnOptions& options) {
  SimWorld world(with(2));
  std::vector<int> used(2);
  auto parent = world.spawn(world.kernel("parent", 0), [&] {
    std::vector<JoinHandle<void>> children;
    for (int i = 0; i < 2; ++i) {
      children.push_back(spawn(
          [&] {
            yield();  // both have started, and nobody was idle long enough to take one
            for (int step = 0; step < 20; ++step) {
              consume(1ms);
              used[static_cast<size_t>(this_fiber::cpu())] = 1;
            }
          },
          options));
    }
    for (auto& child : children) child.join();
  });
  parent.join();
  EXPECT_EQ(world.count(Counter::kSteals), static_cast<uint64_t>(used[1]));
  return used[0] + used[1];
}

TEST(IdlePull, AStartedCooperativeFiberIsNeverTaken) {
  EXPECT_EQ(cpus_used_by_started(anywhere("child")), 1);
}

TEST(IdlePull, AMigratableFiberIsTakenAlsoWhenItHasStarted) {
  EXPECT_EQ(cpus_used_by_started(migratable("child")), 2);
}

TEST(IdlePull, AMigratableFiberThatIsPinnedIsLeft) {
  SpawnOptions options = migratable("child");
  options.cpu = 0;
  EXPECT_EQ(cpus_used_by_started(options), 1);
}

TEST(IdlePull, AMigratableFiberStaysWithinItsMask) {
  SpawnOptions options = migratable("child");
  options.allowed = {0};
  EXPECT_EQ(cpus_used_by_started(options), 1);
}

TEST(IdlePull, APulledFiberKeepsItsRelativeDeadline) {
  SimWorld world(with(2, Preemption::kLazy));
  int64_t before = 0;
  int64_t after = 0;
  auto parent = world.spawn(world.kernel("parent", 0), [&] {
    SpawnOptions options = anywhere("child");
    options.slice = 5ms;
    auto child = spawn(
        [&] {
          const FairEntity& e = current_fiber()->fair;
          after = e.deadline - e.vruntime;
        },
        options);
    before = child.native()->fair.deadline - child.native()->fair.vruntime;
    consume(20ms);
    child.join();
  });
  parent.join();
  EXPECT_EQ(world.count(Counter::kSteals), 1u);
  EXPECT_EQ(before, 2'500'000) << "half a slice: it is new";
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace jiffy
