// The two ramifications of lazy preemption that P1 names, as exact counts and sequences of
// switches: ping-pong becomes block and wakeup, and a delayed pick may take a detour.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/sim_world.h"

namespace jiffy {
namespace {

constexpr int kRounds = 100;

Options with(Preemption mode) {
  Options options;
  options.preemption = mode;
  options.trace_records = 8192;
  return options;
}

// A fair fiber in kernel mode whose slice is short enough to be preferred at its wakeup.
SpawnOptions eager(const std::string& name, std::chrono::microseconds slice) {
  SpawnOptions options = SimWorld::kernel(name);
  options.slice = slice;
  return options;
}

// --- Ping-pong. A works; amid its work an interrupt wakes B, which does something for A and wakes
// it; A needs that before its next round, and waits for it if it is not there yet.
struct PingPong {
  explicit PingPong(Preemption mode)
      : world(with(mode)), b(world, eager("B", 100us), [this] {
          consume(5us);
          answered = true;
          const PreemptGuard guard;
          (void)try_to_wake_up(*a.native());
        }) {
    b.settle();
    world.mark();
    // Its slice outlasts the test: near the end of one its deadline would be before B's.
    a = world.spawn(eager("A", 100ms), [this] {
      for (int i = 0; i < kRounds; ++i) {
        answered = false;
        world.interrupt_at(world.time() + 10us, 0, [this] { b.wake(); });
        consume(20us);
        Waiter waiter;
        waiter.prepare();
        if (answered) {
          waiter.cancel();
        } else {
          ++blocks;
          (void)waiter.block(INT64_MAX);
        }
        EXPECT_TRUE(answered);
      }
      done = world.count(Counter::kVoluntarySwitches);
      counts = world.rt.counters();
    });
    start = world.rt.counters();
    a.join();
    counts = counts - start;
  }

  SimWorld world;
  JoinHandle<void> a;
  bool answered = false;
  int blocks = 0;
  uint64_t done = 0;
  CounterSnapshot start, counts;
  Sleeper b;
};

TEST(PingPongBecomesBlockAndWakeup, InFullTheWakeupOfAIsANoop) {
  PingPong p(Preemption::kFull);
  EXPECT_EQ(p.blocks, 0);
  // Per round: one real wakeup, B's; A's is a no-op, and so is its own cancel(), which counts as a
  // wakeup of oneself. One forced switch to B, one voluntary back.
  EXPECT_EQ(p.counts.at(Counter::kWakeupsReal), kRounds * 1u);
  EXPECT_EQ(p.counts.at(Counter::kWakeupsNoop), kRounds * 2u);
  EXPECT_EQ(p.counts.at(Counter::kForcedSwitches), kRounds * 1u);
  EXPECT_EQ(p.done, kRounds * 1u + 1) << "and the first one, from idle to A";
}

TEST(PingPongBecomesBlockAndWakeup, InLazyEachRoundBlocksAndEachWakeupIsReal) {
  PingPong p(Preemption::kLazy);
  EXPECT_EQ(p.blocks, kRounds);
  // Per round one more block and one more real wakeup; no forced switch, no no-op.
  EXPECT_EQ(p.counts.at(Counter::kWakeupsReal), kRounds * 2u);
  EXPECT_EQ(p.counts.at(Counter::kWakeupsNoop), 0u);
  EXPECT_EQ(p.counts.at(Counter::kForcedSwitches), 0u);
  EXPECT_EQ(p.done, kRounds * 2u + 1);
  EXPECT_EQ(p.counts.at(Counter::kPromotions), 0u) << "A blocks long before the tick";
  EXPECT_EQ(p.counts.at(Counter::kLazyRequests), kRounds * 1u);
}

TEST(PingPongBecomesBlockAndWakeup, TheSequencesOfSwitches) {
  const auto sequence = [](Preemption mode) {
    PingPong p(mode);
    std::vector<std::string> lines = p.world.switches();
    lines.resize(5);
    return lines;
  };
  EXPECT_EQ(sequence(Preemption::kFull),
            (std::vector<std::string>{"idle A idle", "A B preempt_hard", "B A block",
                                      "A B preempt_hard", "B A block"}));
  EXPECT_EQ(sequence(Preemption::kLazy),
            (std::vector<std::string>{"idle A idle", "A B block", "B A block", "A B block",
                                      "B A block"}));
}

// NONE and VOLUNTARY: the request is hard, but kernel code is not preempted.
TEST(PingPongBecomesBlockAndWakeup, WithoutKernelPreemptionItIsAsInLazy) {
  for (const Preemption mode : {Preemption::kNone, Preemption::kVoluntary}) {
    PingPong p(mode);
    EXPECT_EQ(p.blocks, kRounds);
    EXPECT_EQ(p.counts.at(Counter::kWakeupsReal), kRounds * 2u);
    EXPECT_EQ(p.counts.at(Counter::kLazyRequests), 0u);
  }
}

// --- The detour. An interrupt wakes B; a little later another one wakes C, which has the earlier
// deadline; A, in kernel mode, blocks after that.
std::string detour(Preemption mode, std::string* picked_for_b = nullptr) {
  SimWorld world(with(mode));
  Sleeper b(world, eager("B", 500us), [] { consume(50us); });
  Sleeper c(world, eager("C", 100us), [] { consume(50us); });
  world.run_until([&] { return b.asleep() && c.asleep(); });
  world.mark();
  auto a = world.spawn(world.kernel("A"), [] {
    consume(1200us);
    sleep_for(1ms);
  });
  world.interrupt_at(1000us, 0, [&] { b.wake(); });
  world.interrupt_at(1100us, 0, [&] { c.wake(); });
  a.join();
  if (picked_for_b != nullptr) *picked_for_b = world.switches()[1];
  const std::string order = world.order();
  if (mode == Preemption::kFull) {
    EXPECT_EQ(b.latencies()[0], 0us);
    EXPECT_EQ(c.latencies()[0], 0us);
  } else {
    EXPECT_EQ(c.latencies()[0], 100us);
    EXPECT_EQ(b.latencies()[0], 250us) << "C's run is part of it";
  }
  return order;
}

TEST(Detour, InLazyCIsPickedThoughTheRequestWasB) {
  std::string first;
  EXPECT_EQ(detour(Preemption::kLazy, &first), "A C B A");
  EXPECT_EQ(first, "A C block");
}

TEST(Detour, InFullBRunsBeforeCHasCome) {
  std::string first;
  EXPECT_EQ(detour(Preemption::kFull, &first), "A B A C A A");
  EXPECT_EQ(first, "A B preempt_hard");
}

// The same by the tick instead of a block: the pick is made when the promotion is, not when the
// request was.
TEST(Detour, APromotionPicksAnewToo) {
  SimWorld world(with(Preemption::kLazy));
  Sleeper b(world, eager("B", 500us), [] { consume(50us); });
  Sleeper c(world, eager("C", 100us), [] { consume(50us); });
  world.run_until([&] { return b.asleep() && c.asleep(); });
  world.mark();
  auto a = world.spawn(world.kernel("A"), [] { consume(8ms); });
  world.interrupt_at(1000us, 0, [&] { b.wake(); });
  world.interrupt_at(1100us, 0, [&] { c.wake(); });
  a.join();
  EXPECT_EQ(world.order(), "A C B A");
  EXPECT_EQ(world.count(Counter::kLazyRequests), 1u) << "C's finds the bit set";
  EXPECT_EQ(world.count(Counter::kPromotions), 1u);
  EXPECT_EQ(c.latencies()[0], 2900us);
  EXPECT_EQ(b.latencies()[0], 3050us);
}

}  // namespace
}  // namespace jiffy
