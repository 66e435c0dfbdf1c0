// A runtime as a part of its process: how it ends it, and several of them in it.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>
#include <jiffy/mutex.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/time.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/process.h"
#include "support/sanitizer.h"

namespace jiffy {
namespace {

using std::chrono_literals::operator""ms;

Options with_cpus(int cpus) {
  Options options;
  options.cpus = cpus;
  return options;
}

// --- Broken invariants end the process with a sentence.

class RuntimeDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(RuntimeDeathTest, ExceptionOfADetachedFiberAbortsWithItsText) {
  const auto die = [] {
    Runtime rt(with_cpus(1));
    (void)rt.start();
    rt.spawn([] { throw std::runtime_error("the barn is on fire"); }).detach();
    rt.run([] { (void)sleep_for(std::chrono::seconds(10)); });
  };
  EXPECT_DEATH(die(), "that nobody joined: the barn is on fire");
}

TEST_F(RuntimeDeathTest, ExceptionOfADroppedHandleAbortsWithItsText) {
  const auto die = [] {
    Runtime rt(with_cpus(1));
    (void)rt.start();
    {
      auto handle = rt.spawn([] { throw std::runtime_error("the well is dry"); });
    }
  };
  EXPECT_DEATH(die(), "that nobody joined: the well is dry");
}

TEST_F(RuntimeDeathTest, ExceptionThatIsNoStdExceptionAbortsToo) {
  const auto die = [] {
    Runtime rt(with_cpus(1));
    (void)rt.start();
    rt.spawn([] { throw 42; }).detach();
    rt.run([] { (void)sleep_for(std::chrono::seconds(10)); });
  };
  EXPECT_DEATH(die(), "that nobody joined: an exception that is no std::exception");
}

TEST_F(RuntimeDeathTest, JoinOfAHandleThatHoldsNoFiberAborts) {
  EXPECT_DEATH(JoinHandle<void>().join(), "join\\(\\) of a handle that holds no fiber");
  const auto join_twice = [] {
    Runtime rt(with_cpus(1));
    (void)rt.start();
    auto handle = rt.spawn([] { return 1; });
    (void)handle.join();
    (void)handle.join();
  };
  EXPECT_DEATH(join_twice(), "holds no fiber \\(joined, detached or moved from\\)");
}

TEST_F(RuntimeDeathTest, SpawnBeforeTheStartSaysSo) {
  const auto early = [] {
    Runtime rt(with_cpus(1));
    rt.spawn([] {}).join();
  };
  EXPECT_DEATH(early(), "its spawn failed: the runtime takes no new fibers");
}

TEST_F(RuntimeDeathTest, BlockingWithPreemptionOffAbortsNamingTheFiber) {
  const auto block_by = [](const std::function<void()>& call) {
    Runtime rt(with_cpus(1));
    SpawnOptions options;
    options.name = "cowherd";
    rt.run(
        [&] {
          const PreemptDisabled guard;
          call();
        },
        options);
  };
  const char* message = "fiber 'cowherd' \\([0-9]+\\) on Cpu 0 would sleep where it may not";
  EXPECT_DEATH(block_by([] { (void)sleep_for(1ms); }), message);
  EXPECT_DEATH(block_by([] { Semaphore().acquire(); }), message);
  EXPECT_DEATH(block_by([] { yield(); }), message);
  EXPECT_DEATH(block_by([] { might_sleep(); }), message);
}

// --- Several runtimes.

TEST(Runtimes, TwoAtOnceWakeEachOthersFibers) {
  Runtime a(with_cpus(1)), b(with_cpus(2));
  (void)a.start();
  (void)b.start();
  Semaphore ping, pong;
  Mutex mutex;
  int shared = 0;
  auto echo = b.spawn([&] {
    for (int i = 0; i < 2000; ++i) {
      ping.acquire();
      mutex.lock();
      ++shared;
      mutex.unlock();
      pong.release();
    }
  });
  a.run([&] {
    for (int i = 0; i < 2000; ++i) {
      ping.release();
      pong.acquire();
      mutex.lock();
      ++shared;
      mutex.unlock();
    }
  });
  echo.join();
  EXPECT_EQ(shared, 4000);
}

TEST(Runtimes, AFiberOfOneMaySpawnInAndJoinFromAnother) {
  Runtime a(with_cpus(1)), b(with_cpus(1));
  (void)b.start();
  EXPECT_EQ(a.run([&b] { return b.spawn([] { return 7; }).join() + 1; }), 8);
}

TEST(Runtimes, OneMayEndWhileTheOtherRuns) {
  Runtime stays(with_cpus(1));
  (void)stays.start();
  Semaphore leave;
  auto waits = stays.spawn([&] { leave.acquire(); });
  for (int i = 0; i < 10; ++i) {
    Runtime goes(with_cpus(1));
    goes.run([] { (void)sleep_for(1ms); });
  }
  // Its tick and its timers still come: the signal handlers are still there.
  stays.run([] { (void)sleep_for(5ms); });
  leave.release();
  waits.join();
}

TEST(Runtimes, AHundredTimesLeavesNoThreadAndNoDescriptor) {
  const auto once = [] {
    Runtime rt(with_cpus(2));
    std::atomic<int> sum{0};
    rt.run([&] {
      std::vector<JoinHandle<void>> fibers;
      for (int i = 0; i < 20; ++i) fibers.push_back(spawn([&sum] { sum += 1; }));
      (void)sleep_for(std::chrono::microseconds(100));
      for (auto& fiber : fibers) fiber.join();
    });
    EXPECT_EQ(sum.load(), 20);
  };
  once();  // a sanitizer may start a thread of its own
  const int threads = count_entries("/proc/self/task");
  const int descriptors = count_entries("/proc/self/fd");
  for (int i = 0; i < 100; ++i) once();
  EXPECT_EQ(count_entries("/proc/self/task"), threads);
  EXPECT_EQ(count_entries("/proc/self/fd"), descriptors);
}

TEST(Runtimes, OneObjectStartsAndStopsAHundredTimes) {
  Runtime rt(with_cpus(2));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(rt.start().ok());
    EXPECT_EQ(rt.run([i] { return i; }), i);
    rt.stop();
    EXPECT_FALSE(rt.started());
  }
}

TEST(Runtimes, SignalHandlersAreRestored) {
  struct sigaction before[4], after[4];
  const int signals[] = {SIGSEGV, SIGBUS, SIGURG, SIGRTMIN + 5};
  for (int i = 0; i < 4; ++i) sigaction(signals[i], nullptr, &before[i]);
  {
    Runtime rt(with_cpus(1));
    rt.run([] {});
  }
  for (int i = 0; i < 4; ++i) {
    sigaction(signals[i], nullptr, &after[i]);
    EXPECT_EQ(before[i].sa_handler, after[i].sa_handler) << "signal " << signals[i];
    EXPECT_EQ(before[i].sa_flags, after[i].sa_flags) << "signal " << signals[i];
  }
}

// What the linker placed where a process can write, and whose it is.
TEST(Runtimes, NothingThatCanBeWrittenLiesOutsideThem) {
  if (kAddressSanitizer || kThreadSanitizer) GTEST_SKIP() << "the sanitizer adds words of its own";
  // The registration of signals; what is measured or looked up once and is the same for all; a
  // count that makes numbers unique in the process; what a thread's checked locks are; and
  // constants that the linker cannot know to be ones.
  const char* const known[] = {"registration()::instance",
                               "Clock::host()::calibration",
                               "measured_wake_ns()::measured",
                               "machine_waiter()::instance",
                               "probed()::instance",
                               "unique_tid()::next",
                               "thread_held",
                               "jiffy_xsave_size",
                               "jiffy_this_cpu_words",
                               "detail::kDefaultSpawn",
                               "Status::message"};
  const std::string command = "objdump -tC /proc/" + std::to_string(getpid()) + "/exe 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  int found = 0;
  char text[4096];
  while (std::fgets(text, sizeof text, pipe) != nullptr) {
    const std::string line = text;
    bool writable = false;
    for (const char* section : {" .data\t", " .bss\t", " .tdata\t", " .tbss\t"}) {
      writable = writable || line.find(section) != std::string::npos;
    }
    if (!writable || line.find("jiffy") == std::string::npos) continue;
    if (line.find("::test_info_") != std::string::npos ||  // this file's tests
        line.find("testing::") != std::string::npos) {
      continue;
    }
    bool is_known = false;
    for (const char* name : known) is_known = is_known || line.find(name) != std::string::npos;
    EXPECT_TRUE(is_known) << line;
    found += is_known ? 1 : 0;
  }
  pclose(pipe);
  if (found == 0) GTEST_SKIP() << "no symbols, or jiffy is a shared library";
}

}  // namespace
}  // namespace jiffy
