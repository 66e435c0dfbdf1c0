// Preemptible fibers as their users see them: kinds, errors, signals that stay the application's
// own.
#include <gtest/gtest.h>
#include <jiffy/blocking.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/time.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "fiber/tcb.h"
#include "sched/runtime_state.h"
#include "support/runtimes.h"
#include "support/stress.h"

namespace jiffy {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""us;

Options preemptible(int cpus) {
  Options options = Options::preemptible();
  options.cpus = cpus;
  options.spin_us = 0;
  return options;
}

class PreemptTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status support = tcb_support(); !support.ok()) GTEST_SKIP() << support.message();
  }
};

// --- Kinds: what was asked for, or an error.

TEST(PreemptKinds, WithoutControlBlocksStartFailsAndNamesWhatIsMissing) {
  const Status support = tcb_support();
  if (support.ok()) GTEST_SKIP() << "they can be had here";
  Runtime rt(preemptible(1));
  const Status status = rt.start();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("preemptible fibers need"), std::string::npos);
  EXPECT_NE(status.message().find("allow_shared_tls"), std::string::npos);
}

TEST(PreemptKinds, SharedTlsIsUsedOnlyWhereItWasAllowedAndIsSaid) {
  Options options = preemptible(1);
  options.allow_shared_tls = true;
  Runtime rt(options);
  ASSERT_TRUE(rt.start().ok());
  const bool shared = !tcb_support().ok();
  EXPECT_EQ(rt.options().delivery, shared ? Delivery::kSafePoints : Delivery::kSignals);
  EXPECT_EQ(rt.dump().find("share their thread's locals") != std::string::npos, shared);
  EXPECT_EQ(rt.run([] { return 1; }), 1);
}

TEST(PreemptKinds, NeedSignals) {
  Options options = preemptible(1);
  options.delivery = Delivery::kSafePoints;
  Runtime rt(options);
  EXPECT_NE(rt.start().message().find("kSignals"), std::string::npos);

  Runtime cooperative(host_options(1));
  ASSERT_TRUE(cooperative.start().ok());
  SpawnOptions one;
  one.fiber_kind = FiberKind::kPreemptible;
  auto handle = cooperative.spawn([] {}, one);
  EXPECT_FALSE(handle.valid());
  EXPECT_NE(handle.error().find("preemptible fiber"), std::string::npos) << handle.error();
}

TEST_F(PreemptTest, BothKindsLiveInOneRuntime) {
  CheckedRuntime rt(preemptible(2));
  SpawnOptions cooperative;
  cooperative.fiber_kind = FiberKind::kCooperative;
  std::atomic<int> sum{0};
  rt->run([&] {
    for (int i = 0; i < 100; ++i) {
      auto a = spawn(
          [&] {
            yield();
            sum += 1;
          },
          cooperative);
      auto b = spawn([&] {
        yield();
        sum += 2;
      });
      a.join();
      b.join();
    }
  });
  EXPECT_EQ(sum, 300);
}

std::atomic<int> made{0}, ended{0};
struct Local {
  Local() { ++made; }
  ~Local() { ++ended; }
  int value = 0;
};
Local& local() {
  thread_local Local mine;
  return mine;
}

TEST_F(PreemptTest, ThreadLocalsAreTheFibersOwnAndEndWithItsUnit) {
  {
    CheckedRuntime rt(preemptible(1));
    std::vector<JoinHandle<int>> fibers;
    for (int i = 0; i < 8; ++i) {
      fibers.push_back(rt->spawn([i] {
        local().value = i;
        for (int k = 0; k < 10; ++k) yield();
        return local().value;
      }));
    }
    for (int i = 0; i < 8; ++i) EXPECT_EQ(fibers[static_cast<size_t>(i)].join(), i);
    EXPECT_GE(made, 8);
  }
  EXPECT_EQ(made, ended) << "destructors run when the units are given up";
}

// --- for(;;) and others.

// A timer of a busy Cpu is not late for as long as somebody computes.
TEST_F(PreemptTest, ASleeperBesideAHogThatMakesNoCallIsWoken) {
  for (const Preemption mode : {Preemption::kNone, Preemption::kLazy, Preemption::kFull}) {
    Options options = preemptible(1);
    options.preemption = mode;
    CheckedRuntime rt(options);
    Watchdog watchdog([&] { return rt->dump(); });
    std::atomic<bool> stop{false};
    auto hog = rt->spawn([&stop] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
    rt->run([&] {
      for (int i = 0; i < 20; ++i) {
        (void)sleep_for(500us);
        watchdog.progress();
      }
    });
    stop = true;
    hog.join();
  }
}

// Two that compute share Cpu 0 while another one has Cpu 1; when that ends, Cpu 1 takes one of
// them, in the middle of what it does.
TEST_F(PreemptTest, AnIdleCpuTakesOverAFiberThatWasPreempted) {
  CheckedRuntime rt(preemptible(2));
  Watchdog watchdog([&] { return rt->dump(); });
  std::atomic<bool> stop{false}, stop_other{false};
  auto other = rt->spawn(
      [&] {
        while (!stop_other.load(std::memory_order_relaxed)) {
        }
      },
      pinned(1));
  std::atomic<uint64_t> turns[2] = {};
  std::vector<JoinHandle<void>> hogs;
  rt->run(
      [&] {
        for (auto& mine : turns) {
          hogs.push_back(spawn([&] {
            while (!stop.load(std::memory_order_relaxed)) {
              mine.fetch_add(1, std::memory_order_relaxed);
            }
          }));
        }
      },
      pinned(0));
  while (turns[0] == 0 || turns[1] == 0) std::this_thread::sleep_for(1ms);
  const uint64_t before = rt->counters().at(Counter::kSteals);
  stop_other = true;
  while (rt->counters().at(Counter::kSteals) == before) std::this_thread::sleep_for(1ms);
  stop = true;
  for (auto& hog : hogs) hog.join();
  other.join();
}

// A sleeping system call of a fiber beside a hog: the tick would end it by EINTR.
TEST_F(PreemptTest, ASystemCallInABlockingRegionIsNotInterrupted) {
  Options options = preemptible(1);
  options.hz = 1000;
  CheckedRuntime rt(options);
  std::atomic<bool> stop{false};
  auto hog = rt->spawn([&stop] {
    while (!stop.load(std::memory_order_relaxed)) {
    }
  });
  for (int i = 0; i < 5; ++i) {
    const int result = rt->run([] { return blocking([] { return poll(nullptr, 0, 20); }); });
    EXPECT_EQ(result, 0);
  }
  stop = true;
  hog.join();
}

// --- Signals are the process's.

std::atomic<int> urgent{0};
void on_urgent(int) { ++urgent; }

TEST_F(PreemptTest, AnApplicationsOwnHandlerKeepsItsSignals) {
  struct sigaction mine = {}, before = {}, after = {};
  mine.sa_handler = on_urgent;
  ASSERT_EQ(sigaction(SIGURG, &mine, &before), 0);
  urgent = 0;
  {
    Options options = preemptible(2);
    options.preemption = Preemption::kFull;
    CheckedRuntime rt(options);
    SpawnOptions fifo;
    fifo.policy = Policy::kFifo;
    std::atomic<bool> stop{false};
    auto hog = rt->spawn([&] {
      while (!stop) {
      }
    });
    for (int i = 0; i < 50; ++i) rt->spawn([] {}, fifo).join();
    EXPECT_EQ(urgent, 0) << "the runtime's own signals are not the application's";
    raise(SIGURG);
    EXPECT_EQ(urgent, 1) << "one on another thread is";
    stop = true;
    hog.join();
  }
  ASSERT_EQ(sigaction(SIGURG, &before, &after), 0);
  EXPECT_EQ(after.sa_handler, on_urgent) << "and it is there again at the end";
}

std::string signals_of_a_child() {
  std::FILE* pipe = popen("grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status", "r");
  std::string text;
  char line[128];
  while (pipe != nullptr && std::fgets(line, sizeof line, pipe) != nullptr) text += line;
  if (pipe != nullptr) pclose(pipe);
  return text;
}

TEST_F(PreemptTest, AChildProcessGetsCleanMasksAndDispositions) {
  const std::string outside = signals_of_a_child();
  ASSERT_NE(outside, "");
  CheckedRuntime rt(preemptible(1));
  std::string inside;
  auto hog_stop = std::make_shared<std::atomic<bool>>(false);
  auto hog = rt->spawn([hog_stop] {
    while (!*hog_stop) {
    }
  });
  rt->run([&] { inside = signals_of_a_child(); });
  *hog_stop = true;
  hog.join();
  EXPECT_EQ(inside, outside);
}

// Ticks, interrupts and a handler of the application with its frames, on stacks of 16 KiB.
TEST_F(PreemptTest, AStormOfSignalsFitsOnSmallStacks) {
  struct sigaction action = {}, before = {};
  action.sa_handler = on_urgent;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  {
    Options options = preemptible(2);
    options.hz = 10'000;
    options.stack_size = 16 * 1024;
    CheckedRuntime rt(options);
    std::atomic<bool> stop{false};
    std::vector<JoinHandle<void>> fibers;
    for (int i = 0; i < 6; ++i) {
      fibers.push_back(rt->spawn([&] {
        while (!stop.load(std::memory_order_relaxed)) {
        }
      }));
    }
    for (Budget budget(0.1); budget.left();) {
      for (Cpu* cpu : rt->state().cpus) cpu->raise(kRescheduleVector);
      kill(getpid(), SIGUSR1);
      std::this_thread::sleep_for(100us);
    }
    stop = true;
    for (auto& fiber : fibers) fiber.join();
    EXPECT_GT(rt->counters().at(Counter::kForcedSwitches), 0u);
  }
  sigaction(SIGUSR1, &before, nullptr);
}

// --- The watchdog.

std::atomic<int> lockups{0};
std::atomic<uint64_t> locked_up{0};

TEST(SoftLockup, ACooperativeHogIsNamedOnce) {
  Options options = host_options(1);
  options.soft_lockup = 50ms;
  options.on_soft_lockup = [](const SoftLockup& lockup) {
    locked_up = lockup.id;
    ++lockups;
  };
  lockups = 0;
  CheckedRuntime rt(options);
  auto waiting = rt->spawn([] {
    for (int i = 0; i < 3; ++i) yield();
  });
  waiting.join();
  std::atomic<bool> stop{false};
  auto hog = rt->spawn([&stop] {
    while (!stop.load(std::memory_order_relaxed)) {
    }
  });
  auto other = rt->spawn([] {});  // somebody who waits: alone it may compute for ever
  Watchdog watchdog([&] { return rt->dump(); });
  while (lockups == 0) std::this_thread::sleep_for(5ms);
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(lockups, 1);
  EXPECT_EQ(locked_up, reinterpret_cast<const Fiber*>(hog.native())->id);
  stop = true;
  hog.join();
  other.join();
  EXPECT_EQ(rt->counters().at(Counter::kSoftLockups), 1u);
}

TEST_F(PreemptTest, APreemptibleHogIsNoLockup) {
  Options options = preemptible(1);
  options.soft_lockup = 50ms;
  options.on_soft_lockup = [](const SoftLockup&) { ++lockups; };
  lockups = 0;
  CheckedRuntime rt(options);
  std::atomic<bool> stop{false};
  auto a = rt->spawn([&] {
    while (!stop) {
    }
  });
  auto b = rt->spawn([&] {
    while (!stop) {
    }
  });
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(lockups, 0);
  stop = true;
  a.join();
  b.join();
}

}  // namespace
}  // namespace jiffy
