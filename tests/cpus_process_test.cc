// How many Cpus a runtime takes of its machine, where they run, and what they cost when idle.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/time.h>
#include <jiffy/topology.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sched/runtime_state.h"
#include "support/process.h"

namespace jiffy {
namespace {

using std::chrono_literals::operator""ms;

Options with_cpus(int cpus) {
  Options options;
  options.cpus = cpus;
  return options;
}

// --- How many Cpus.

int allowed_here() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

TEST(RuntimeCpus, AreAsManyAsAllowedAndEachHasAThread) {
  const unsigned expected = read_topology().default_cpu_count();
  EXPECT_LE(expected, static_cast<unsigned>(allowed_here()));
  std::thread([] {}).join();  // a sanitizer may start a thread of its own with the first one
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

CpuSet affinity_here() {
  CpuSet cpus;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (unsigned id = 0; id < CPU_SETSIZE; ++id) {
    if (CPU_ISSET(id, &set)) cpus.set(id);
  }
  return cpus;
}

// The affinity of each Cpu's thread.
std::vector<CpuSet> affinities_of_cpus(Options options) {
  std::mutex mutex;
  std::vector<CpuSet> seen;
  options.on_cpu_start = [&](int) {
    const std::lock_guard lock(mutex);
    seen.push_back(affinity_here());
  };
  Runtime rt(options);
  rt.run([] {});
  rt.stop();
  return seen;
}

// On a machine that others use too, a pinned Cpu stands still behind whoever has its CPU.
TEST(RuntimeCpus, AreNotPinnedUnlessThatIsAskedFor) {
  if (allowed_here() < 2) GTEST_SKIP() << "with one CPU there is no difference";
  const std::vector<CpuSet> seen = affinities_of_cpus(with_cpus(2));
  EXPECT_EQ(seen, (std::vector<CpuSet>{affinity_here(), affinity_here()}));
}

// "CPU i for Cpu i" would leave the set: the last one that is allowed has no small number.
TEST(RuntimeCpus, PinnedOnesTakeEachAnAllowedCpuOfItsOwn) {
  const std::vector<unsigned> allowed = affinity_here().ids();
  std::thread([last = allowed.back()] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(last, &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
    Options options;
    options.pin = true;
    EXPECT_EQ(affinities_of_cpus(options), std::vector<CpuSet>{CpuSet{last}});
  }).join();
  Options options = with_cpus(static_cast<int>(allowed.size()));
  options.pin = true;
  CpuSet all;
  for (const CpuSet& one : affinities_of_cpus(options)) {
    EXPECT_EQ(one.count(), 1u);
    all |= one;
  }
  EXPECT_EQ(all.ids(), allowed);
}

// Of a file that exists.
bool write_file(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  return close(file) == 0 && written;
}

// A cgroup with a quota of one CPU, of version 2 or 1; removed at the end.
class QuotaOfOneCpu {
 public:
  QuotaOfOneCpu() {
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/cpu"}) {
      path_ = std::string(root) + "/jiffy-test-" + std::to_string(getpid());
      if (mkdir(path_.c_str(), 0755) != 0) continue;
      if (write_file(path_ + "/cpu.max", "100000 100000") ||
          (write_file(path_ + "/cpu.cfs_period_us", "100000") &&
           write_file(path_ + "/cpu.cfs_quota_us", "100000"))) {
        return;
      }
      rmdir(path_.c_str());
    }
    path_.clear();
  }
  ~QuotaOfOneCpu() {
    if (made()) rmdir(path_.c_str());
  }
  bool made() const { return !path_.empty(); }
  bool enter() const { return write_file(path_ + "/cgroup.procs", std::to_string(getpid())); }

 private:
  std::string path_;
};

// A child in such a group.
TEST(RuntimeCpus, AreNoMoreThanTheCgroupsQuota) {
  if (read_topology().default_cpu_count() < 2) GTEST_SKIP() << "there is one CPU anyway";
  const QuotaOfOneCpu quota;
  if (!quota.made()) GTEST_SKIP() << "cannot make a cgroup with a CPU quota";
  const pid_t child = fork();
  if (child == 0) {
    if (!quota.enter()) _exit(100);
    int cpus = 0;
    {
      Runtime rt;
      rt.run([] { (void)sleep_for(1ms); });
      cpus = rt.cpus();
    }
    _exit(cpus);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 100) GTEST_SKIP() << "cannot enter the cgroup";
  EXPECT_EQ(WEXITSTATUS(status), 1);
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

// No period hides a wakeup that was lost, or wakes a CPU that could sleep: who parks stays parked.
TEST(RuntimeIdle, ParksAndStaysParked) {
  Runtime rt(with_cpus(2));
  rt.run([] {});
  Semaphore leave;
  auto waits = rt.spawn([&] { leave.acquire(); });
  std::stop_source stop;
  auto sleeps = rt.spawn([&] { (void)sleep_for(std::chrono::hours(1), stop.get_token()); });
  for (Cpu* cpu : rt.state().cpus) {
    while (cpu->idle_state.load() != IdleState::kParked) std::this_thread::sleep_for(1ms);
  }
  std::this_thread::sleep_for(20ms);
  const CounterSnapshot before = rt.counters();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const CounterSnapshot idle = rt.counters() - before;
  EXPECT_LE(idle.at(Counter::kParks), 2u * 3) << "three a second and Cpu";
  EXPECT_EQ(idle.at(Counter::kTicks), 0u);
  leave.release();
  stop.request_stop();
  waits.join();
  sleeps.join();
}

}  // namespace
}  // namespace jiffy
