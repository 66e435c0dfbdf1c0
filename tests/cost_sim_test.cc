// What the runtime's own steps cost in a simulation, delays that the seed chooses, and how a
// simulation that cannot go on says so.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>
#include <jiffy/mutex.h>
#include <jiffy/offload.h>
#include <jiffy/semaphore.h>
#include <jiffy/wait_queue.h>
#include <jiffy/work.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "support/runtimes.h"
#include "support/sanitizer.h"
#include "support/seeds.h"
#include "support/sim_world.h"

namespace jiffy {
namespace {

using std::chrono::nanoseconds;

// Runs `body` on a fiber of Cpu 0, and says how long it took.
nanoseconds time_of(const SimOptions& sim, const std::function<void()>& body) {
  Options options;
  options.cpus = sim.cpus;
  options.machine = make_sim_machine(sim);
  Runtime rt(options);
  EXPECT_TRUE(rt.start().ok());
  return rt.run(
      [&] {
        const TimePoint start = now();
        body();
        return std::chrono::duration_cast<nanoseconds>(now() - start);
      },
      pinned(0));
}

// --- Costs.

TEST(SimCost, NothingTakesTimeUnlessItIsAskedFor) {
  EXPECT_EQ(time_of({},
                    [] {
                      auto other = spawn([] { yield(); });
                      yield();
                      other.join();
                      offload([] {});
                    }),
            0ns);
}

TEST(SimCost, EachSwitchTakesItsTime) {
  SimOptions sim;
  sim.switch_cost = 3us;
  // To the other one and back, ten times; and to its end.
  const auto body = [] {
    auto other = spawn(
        [] {
          for (int i = 0; i < 10; ++i) yield();
        },
        pinned(0));
    for (int i = 0; i < 10; ++i) yield();
    other.join();
  };
  const nanoseconds took = time_of(sim, body);
  EXPECT_EQ(took % 3us, 0ns);
  EXPECT_GE(took, 20 * 3us);
  EXPECT_LE(took, 24 * 3us);
}

TEST(SimCost, AWakeupIsPaidByTheWaker) {
  SimOptions sim;
  sim.cpus = 2;
  sim.wakeup_cost = 5us;
  nanoseconds other_ran{0};
  const nanoseconds took = time_of(sim, [&] {
    Semaphore go;
    auto other = spawn(
        [&] {
          go.acquire();
          other_ran = now().time_since_epoch();
        },
        pinned(1));
    consume(100us);
    const nanoseconds woken = now().time_since_epoch();
    go.release();
    consume(1us);
    EXPECT_EQ(now().time_since_epoch() - woken, 6us) << "what was owed passes first";
    other.join();
    EXPECT_EQ(other_ran, woken) << "the other Cpu does not wait for it";
  });
  EXPECT_GE(took, 106us);
}

TEST(SimCost, AnInterruptTakesItsTimeBeforeItsHandler) {
  SimOptions sim;
  sim.interrupt_cost = 2us;
  SimWorld world(Options{.cpus = 1}, sim);
  nanoseconds handled{0};
  auto busy = world.spawn(SimWorld::kernel("busy"), [] { consume(1ms); });
  const nanoseconds start = world.time();
  world.interrupt_at(start + 100us, 0, [&] { handled = world.time(); });
  busy.join();
  EXPECT_EQ(handled - start, 102us);
  EXPECT_GE(world.time() - start, 1002us) << "the fiber's own time is as long as it said";
}

TEST(SimCost, AnOffloadRunsInlineAndTakesItsTime) {
  SimOptions sim;
  sim.offload_cost = 30us;
  EXPECT_EQ(time_of(sim, [] { EXPECT_EQ(offload([] { return 7; }), 7); }), 30us);
}

// --- Delays.

// From a wakeup on Cpu 0 to the run on Cpu 1, which computes.
nanoseconds ipi_delay(uint64_t seed, const SimDelay& delay) {
  SimOptions sim;
  sim.cpus = 2;
  sim.seed = seed;
  sim.ipi_latency = delay;
  nanoseconds ran{0}, woken{0};
  (void)time_of(sim, [&] {
    Semaphore go;
    SpawnOptions urgent = pinned(1);
    urgent.policy = Policy::kFifo;
    auto other = spawn(
        [&] {
          go.acquire();
          ran = now().time_since_epoch();
        },
        urgent);
    consume(10us);
    auto busy = spawn([] { consume(1ms); }, pinned(1));
    consume(100us);
    woken = now().time_since_epoch();
    go.release();
    other.join();
    busy.join();
  });
  return ran - woken;
}

TEST(SimDelays, StayInTheirRangeAndAreTheSeeds) {
  std::set<nanoseconds> seen;
  for_seeds(200, [&](uint64_t seed) {
    const SimDelay range(1us, 4us);
    const nanoseconds delay = ipi_delay(seed, range);
    EXPECT_GE(delay, 1us);
    EXPECT_LE(delay, 4us);
    EXPECT_EQ(ipi_delay(seed, range), delay) << "the same seed, the same delay";
    seen.insert(delay);
  });
  EXPECT_GT(seen.size(), 100u);
  EXPECT_EQ(ipi_delay(1, 3us), 3us);
}

// Fibers that wait for the same event, none exclusively: which of them goes on first is open.
TEST(SimChoices, TheSeedChoosesAmongThoseWhoWaitTogether) {
  std::set<std::string> orders;
  for_seeds(50, [&](uint64_t seed) {
    std::string order;
    SimOptions sim;
    sim.seed = seed;
    (void)time_of(sim, [&order] {
      WaitQueue queue;
      bool open = false;
      const auto waiter = [&](char name) {
        return spawn(
            [&, name] {
              (void)queue.wait([&] { return open; });
              order += name;
            },
            pinned(0));
      };
      auto a = waiter('a'), b = waiter('b'), c = waiter('c');
      (void)sleep_for(1ms);
      open = true;
      queue.wake(WaitQueue::kAll);
      a.join();
      b.join();
      c.join();
    });
    if (seed == 1) {
      EXPECT_EQ(order, "cba") << "the default seed keeps the plain order";
    }
    orders.insert(order);
  });
  EXPECT_GT(orders.size(), 2u);
}

// --- The end of what cannot go on.

class SimReportDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(SimReportDeathTest, ADeadlockNamesWhatEachWaitsForAndSinceWhen) {
  const auto deadlock = [] {
    Runtime rt(sim_options(1, 7));
    (void)rt.start();
    Mutex a, b;
    auto first = rt.spawn(
        [&] {
          a.lock();
          (void)sleep_for(2ms);
          b.lock();
        },
        SpawnOptions{.name = "first"});
    auto second = rt.spawn(
        [&] {
          b.lock();
          (void)sleep_for(3ms);
          a.lock();
        },
        SpawnOptions{.name = "second"});
    first.join();
  };
  EXPECT_DEATH(deadlock(),
               "deadlock.*JIFFY_SIM_SEED=7 shows it again(.|\n)*first .*waits for mutex "
               "since 2[.]0+ ms(.|\n)*second .*waits for mutex since 3[.]0+ ms");
}

TEST_F(SimReportDeathTest, ALivelockIsEndedThoughNoEventIsMissing) {
  const auto livelock = [] {
    SimOptions sim;
    sim.most_switches_at_once = 1000;
    (void)time_of(sim, [] {
      Semaphore ping, pong;
      auto other = spawn([&] {
        for (;;) {
          ping.acquire();
          pong.release();
        }
      });
      for (;;) {
        ping.release();
        pong.acquire();
      }
    });
  };
  EXPECT_DEATH(livelock(), "1001 switches without time passing.*livelock.*JIFFY_SIM_SEED=1 ");
}

TEST_F(SimReportDeathTest, AFiberThatBlocksItsThreadIsNamed) {
  if (kThreadSanitizer)
    GTEST_SKIP() << "the report reads what a thread has written that stands still";
  const auto blocked = [] {
    SimOptions sim;
    sim.most_blocked = 300ms;
    (void)time_of(sim, [] {
      auto reader = spawn(
          [] {
            int ends[2];
            char byte;
            (void)!pipe(ends);
            (void)!read(ends[0], &byte, 1);
          },
          SpawnOptions{.name = "reader"});
      reader.join();
    });
  };
  EXPECT_DEATH(blocked(), "fiber 'reader' has been blocked in real time.*JIFFY_SIM_SEED=1 ");
}

TEST(SimReport, AFiberThatComputesForLongIsNotBlocked) {
  SimOptions sim;
  sim.most_blocked = 300ms;
  (void)time_of(sim, [] {
    const auto end = std::chrono::steady_clock::now() + 1s;
    while (std::chrono::steady_clock::now() < end) {
    }
  });
}

TEST_F(SimReportDeathTest, AnotherThreadIsRefused) {
  const auto from_thread = [](const std::function<void(Runtime&)>& call) {
    Runtime rt(sim_options(1));
    (void)rt.start();
    std::thread([&] { call(rt); }).join();
  };
  EXPECT_DEATH(from_thread([](Runtime& rt) { (void)rt.spawn([] {}); }),
               "a spawn from a thread that did not start the simulation");
  EXPECT_DEATH(from_thread([](Runtime& rt) { rt.run([] {}); }), "did not start the simulation");

  const auto with_sleeper = [](const std::function<void(Semaphore&)>& call) {
    Runtime rt(sim_options(1));
    (void)rt.start();
    Semaphore go;
    auto sleeper = rt.spawn([&] { go.acquire(); });
    EXPECT_EQ(sleeper.wait(1ms), WaitResult::kTimeout);
    std::thread([&] { call(go); }).join();
  };
  EXPECT_DEATH(with_sleeper([](Semaphore& go) { go.release(); }),
               "a wakeup from a thread that did not start the simulation");
}

TEST_F(SimReportDeathTest, AnotherThreadsWorkIsRefused) {
  const auto from_thread = [] {
    Runtime rt(sim_options(1));
    (void)rt.start();
    WorkQueue& wq = system_percpu_wq(rt);
    WorkItem work([] {});
    std::thread([&] { (void)wq.queue(work); }).join();
  };
  EXPECT_DEATH(from_thread(), "a queued work item from a thread that did not start");
}

TEST(SimReport, ManySwitchesThatTakeTimeAreNoLivelock) {
  SimOptions sim;
  sim.most_switches_at_once = 1000;
  sim.switch_cost = 1ns;
  EXPECT_GE(time_of(sim,
                    [] {
                      auto other = spawn([] {
                        for (int i = 0; i < 5000; ++i) yield();
                      });
                      for (int i = 0; i < 5000; ++i) yield();
                      other.join();
                    }),
            10'000ns);
}

}  // namespace
}  // namespace jiffy
