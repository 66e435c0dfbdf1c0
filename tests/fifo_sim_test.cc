// The classes above the fair one: FIFO by priority, and stop above all.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/sim_world.h"

namespace jiffy {
namespace {

using std::chrono::nanoseconds;

Options with(Preemption mode, int cpus = 1) {
  Options options;
  options.cpus = cpus;
  options.preemption = mode;
  options.trace_records = 4096;
  return options;
}

SpawnOptions fifo(const std::string& name, int priority) {
  SpawnOptions options = SimWorld::kernel(name);
  options.policy = Policy::kFifo;
  options.priority = priority;
  return options;
}

TEST(Fifo, RunsByPriorityThenByArrival) {
  SimWorld world(with(Preemption::kFull));
  std::vector<JoinHandle<void>> fibers;
  fibers.push_back(world.spawn(world.kernel("fair"), [] {}));
  for (const auto& [name, priority] :
       {std::pair{"a10", 10}, {"b10", 10}, {"c1", 1}, {"d99", 99}, {"e64", 64}, {"f63", 63}}) {
    fibers.push_back(world.spawn(fifo(name, priority), [] {}));
  }
  for (auto& f : fibers) f.join();
  EXPECT_EQ(world.order(), "d99 e64 f63 a10 b10 c1 fair");
}

TEST(Fifo, NoTickEndsItsTurn) {
  SimWorld world(with(Preemption::kFull));
  auto a = world.spawn(fifo("A", 10), [] { consume(50ms); });
  auto b = world.spawn(fifo("B", 10), [] { consume(1ms); });
  auto fair = world.spawn(world.kernel("fair"), [] {});
  world.join(a, b, fair);
  EXPECT_EQ(world.order(), "A B fair");
  EXPECT_EQ(world.count(Counter::kForcedSwitches), 0u);
}

TEST(Fifo, AYielderGoesBehindItsEquals) {
  SimWorld world(with(Preemption::kFull));
  std::vector<JoinHandle<void>> fibers;
  for (const char* name : {"A", "B", "C"}) {
    fibers.push_back(world.spawn(fifo(name, 10), [] {
      yield();
      yield();
    }));
  }
  fibers.push_back(world.spawn(fifo("low", 9), [] {}));
  for (auto& f : fibers) f.join();
  EXPECT_EQ(world.order(), "A B C A B C A B C low");
}

TEST(Fifo, APreemptedFiberStaysAtTheHead) {
  SimWorld world(with(Preemption::kFull));
  Sleeper high(world, fifo("high", 20), [] { consume(1ms); });
  high.settle();
  world.mark();
  auto a = world.spawn(fifo("A", 10), [] { consume(2ms); });
  auto b = world.spawn(fifo("B", 10), [] { consume(1ms); });
  world.interrupt_at(1ms, 0, [&] { high.wake(); });
  world.join(a, b);
  EXPECT_EQ(world.order(), "A high A B");
}

TEST(Fifo, PreemptsFairAtItsWakeupAndLeavesWhenItSleeps) {
  for (const Preemption mode : {Preemption::kLazy, Preemption::kFull}) {
    SimWorld world(with(mode));
    Sleeper f(world, fifo("F", 10), [] { consume(1ms); });
    f.settle();
    world.mark();
    auto a = world.spawn(world.kernel("A"), [] { consume(5ms); });
    world.interrupt_at(1500us, 0, [&] { f.wake(); });
    a.join();
    EXPECT_EQ(world.order(), "A F A");
    EXPECT_EQ(f.ran()[0], 1500us);
    EXPECT_EQ(world.time(), 6ms);
  }
}

TEST(Fifo, AFairFiberIsNotChargedForTheTimeOfAFifoOne) {
  SimWorld world(with(Preemption::kFull));
  Sleeper f(world, fifo("F", 10), [] { consume(10ms); });
  f.settle();
  auto a = world.spawn(world.kernel("A"), [] { consume(5ms); });
  world.interrupt_at(1ms, 0, [&] { f.wake(); });
  world.run_until(12ms);
  (void)set_attributes(*a.native(), SpawnOptions());  // which charges it up to now
  EXPECT_EQ(a.native()->fair.sum_exec, 2'000'000u);
  a.join();
}

TEST(Fifo, ChangedPriorityReordersTheWaiting) {
  SimWorld world(with(Preemption::kNone));
  auto a = world.spawn(fifo("A", 10), [] { consume(2ms); });
  auto b = world.spawn(fifo("B", 5), [] {});
  auto c = world.spawn(fifo("C", 5), [] {});
  world.run_until(1ms);
  ASSERT_TRUE(set_attributes(*c.native(), fifo("", 7)).ok());
  world.join(a, b, c);
  EXPECT_EQ(world.order(), "A C B");
}

TEST(Fifo, AWaitingFairFiberMayBecomeFifo) {
  SimWorld world(with(Preemption::kFull));
  auto a = world.spawn(world.kernel("A"), [] { consume(3ms); });
  nanoseconds ran{};
  auto b = world.spawn(world.kernel("B"), [&] { ran = world.time(); });
  world.interrupt_at(1ms, 0, [&] { (void)set_attributes(*b.native(), fifo("", 5)); });
  world.join(a, b);
  EXPECT_EQ(ran, 1ms);
}

TEST(Stop, IsAboveTheHighestPriority) {
  SimWorld world(with(Preemption::kLazy, 2));
  auto f = world.spawn(fifo("F", 99), [] { consume(10ms); });
  nanoseconds stopped{};
  int on_cpu = -1;
  auto caller = world.spawn(world.kernel("caller", 1), [&] {
    consume(3ms);
    auto fn = [&] {
      stopped = world.time();
      on_cpu = this_fiber::cpu();
    };
    stop_one_cpu(
        world.cpu(0), [](void* arg) { (*static_cast<decltype(fn)*>(arg))(); }, &fn);
    EXPECT_EQ(world.time(), 3ms) << "it waits until that is done";
  });
  world.join(f, caller);
  EXPECT_EQ(stopped, 3ms);
  EXPECT_EQ(on_cpu, 0);
}

TEST(Fifo, AWaitingMigratableFiberIsPulledByAnIdleCpu) {
  SimWorld world(with(Preemption::kFull, 2));
  SpawnOptions options = fifo("", 10);
  options.cpu = -1;
  std::vector<int> cpus;
  auto parent = world.spawn(fifo("parent", 20), [&] {
    std::vector<JoinHandle<void>> children;
    for (int i = 0; i < 3; ++i) {
      children.push_back(spawn(
          [&] {
            cpus.push_back(this_fiber::cpu());
            consume(1ms);
          },
          options));
    }
    consume(10ms);
    for (auto& child : children) child.join();
  });
  parent.join();
  EXPECT_EQ(cpus, (std::vector<int>{1, 1, 1}));
}

}  // namespace
}  // namespace jiffy
