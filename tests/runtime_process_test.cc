// A runtime as a part of its process: how it ends it, how many Cpus it takes, several of them, what
// it costs when idle.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>
#include <jiffy/mutex.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/time.h>
#include <jiffy/topology.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

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

int count_entries(const char* directory) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
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

// --- How many Cpus.

int allowed_here() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

TEST(RuntimeCpus, AreAsManyAsAllowedAndEachHasAThread) {
  const unsigned expected = read_topology().default_cpu_count();
  EXPECT_LE(expected, static_cast<unsigned>(allowed_here()));
  const int threads = count_entries("/proc/self/task");
  Runtime rt;
  (void)rt.start();
  EXPECT_EQ(rt.cpus(), static_cast<int>(expected));
  EXPECT_EQ(count_entries("/proc/self/task"), threads + static_cast<int>(expected));
}

// In a thread of its own, whose affinity the runtime's threads inherit.
TEST(RuntimeCpus, OneAllowedCpuIsEnough) {
  std::thread([] {
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    int first = 0;
    while (!CPU_ISSET(first, &set)) ++first;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
    {
      Runtime rt;
      rt.run([] { (void)sleep_for(1ms); });
      EXPECT_EQ(rt.cpus(), 1);
    }
    // More Cpus than CPUs: they take turns.
    Runtime rt(with_cpus(3));
    (void)rt.start();
    Semaphore ping, pong;
    SpawnOptions on_two;
    on_two.cpu = 2;
    auto echo = rt.spawn(
        [&] {
          for (int i = 0; i < 300; ++i) {
            ping.acquire();
            pong.release();
          }
        },
        on_two);
    SpawnOptions on_zero;
    on_zero.cpu = 0;
    rt.run(
        [&] {
          for (int i = 0; i < 300; ++i) {
            ping.release();
            pong.acquire();
          }
        },
        on_zero);
    echo.join();
  }).join();
}

TEST(RuntimeCpus, PinningMoreThanAllowedIsRefusedWithTheNumbers) {
  Options options = with_cpus(allowed_here() + 1);
  options.pin = true;
  Runtime rt(options);
  const Status status = rt.start();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("may run on " + std::to_string(allowed_here())),
            std::string::npos)
      << status.message();
}

// --- Idle.

double process_cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// A share with a wide margin: what is measured is far below a thousandth.
TEST(RuntimeIdle, TakesLessThanATwentiethOfACpu) {
  Runtime rt;
  rt.run([] {});
  // A fiber that waits for ever, and one with a timer far away, change nothing.
  Semaphore leave;
  auto waits = rt.spawn([&] { leave.acquire(); });
  std::stop_source stop;
  auto sleeps = rt.spawn([&] { (void)sleep_for(std::chrono::hours(1), stop.get_token()); });
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(process_cpu_seconds() - before, 0.05);
  leave.release();
  stop.request_stop();
  waits.join();
  sleeps.join();
}

}  // namespace
}  // namespace jiffy
