// Fibers that are preempted at any instruction, ten thousand times a second, in code that belongs
// to threads: nothing of it breaks, and everybody goes on.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/time.h>
#include <malloc.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fiber/tcb.h"
#include "sched/runtime_state.h"
#include "support/hostile.h"
#include "support/runtimes.h"
#include "support/stress.h"

namespace jiffy {
namespace {

Options hostile_options(int cpus) {
  Options options = Options::preemptible();
  options.cpus = cpus;
  options.hz = 10'000;
  options.spin_us = 0;
  return options;
}

class Preempt : public testing::TestWithParam<Policy> {
 protected:
  void SetUp() override {
    if (const Status support = tcb_support(); !support.ok()) GTEST_SKIP() << support.message();
  }
};

// A thread that interrupts each Cpu some thousand times a second.
class IpiStorm {
 public:
  explicit IpiStorm(Runtime& rt)
      : thread_([this, &rt] {
          while (!stop_.load(std::memory_order_relaxed)) {
            for (Cpu* cpu : rt.state().cpus) cpu->raise(kRescheduleVector);
            std::this_thread::sleep_for(std::chrono::microseconds(150));
          }
        }) {}
  ~IpiStorm() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// A fiber above all others that makes one of them after the other a FIFO fiber for some time, and
// none for as long: each is stopped and resumed in the middle of what it does, above fair fibers
// whose locks it may want.
class Shuffler {
 public:
  Shuffler(Runtime& rt, const std::vector<JoinHandle<void>>& fibers) {
    SpawnOptions options;
    options.policy = Policy::kFifo;
    options.priority = 90;
    options.name = "shuffler";
    fiber_ = rt.spawn([this, &fibers] { shuffle(fibers); }, options);
  }
  ~Shuffler() {
    stop_ = true;
    fiber_.join();
  }

 private:
  void shuffle(const std::vector<JoinHandle<void>>& fibers) {
    SpawnOptions fifo, fair;
    fifo.policy = Policy::kFifo;
    fifo.priority = 20;
    for (size_t i = 0; !stop_; i = (i + 1) % fibers.size()) {
      ASSERT_TRUE(set_attributes(*fibers[i].native(), fifo).ok());
      (void)sleep_for(std::chrono::microseconds(300));
      ASSERT_TRUE(set_attributes(*fibers[i].native(), fair).ok());
      (void)sleep_for(std::chrono::microseconds(300));
    }
  }

  std::atomic<bool> stop_{false};
  JoinHandle<void> fiber_;
};

// What a sampling profiler does to each thread: a handler on the stack of whoever runs, a thousand
// times a second of processor time.
class Profiler {
 public:
  Profiler() {
    struct sigaction action = {};
    action.sa_handler = sample;
    action.sa_flags = SA_RESTART;
    sigaction(SIGPROF, &action, &before_);
    set_timer(1000);
  }
  ~Profiler() {
    set_timer(0);
    EXPECT_GT(samples.load(), 0);
    // One may be on its way.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    sigaction(SIGPROF, &before_, nullptr);
  }

 private:
  static inline std::atomic<int> samples{0};
  static void sample(int) { samples.fetch_add(1, std::memory_order_relaxed); }
  static void set_timer(int us) {
    itimerval timer = {};
    timer.it_interval.tv_usec = timer.it_value.tv_usec = us;
    setitimer(ITIMER_PROF, &timer, nullptr);
  }

  struct sigaction before_ = {};
};

struct Case {
  int cpus;
  bool storm = false;
  bool profiler = false;
};

// Two fibers of each workload, until the budget is over and each has done something.
class HostileFibers {
 public:
  HostileFibers(Runtime& rt, const std::vector<Hostile>& workloads) : workloads_(workloads) {
    const std::string file = testing::TempDir() + "jiffy_hostile_" + std::to_string(getpid());
    SpawnOptions options;
    for (size_t i = 0; i < 2 * workloads.size(); ++i) {
      const Hostile& workload = of(i);
      runs_.push_back(std::make_unique<HostileRun>());
      HostileRun& run = *runs_.back();
      run.file = file + "." + std::to_string(i);
      std::remove(run.file.c_str());
      options.name = workload.name;
      fibers_.push_back(rt.spawn([&run, &workload, i] { workload.run(run, i + 1); }, options));
      EXPECT_TRUE(fibers_.back().valid()) << fibers_.back().error();
    }
  }

  void run_for(double share, Watchdog& watchdog) {
    uint64_t before = 0;
    bool all_ran = false;
    for (Budget budget(share); budget.left() || !all_ran;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      uint64_t rounds = 0;
      all_ran = true;
      for (auto& run : runs_) {
        const uint64_t own = run->rounds.load(std::memory_order_relaxed);
        all_ran = all_ran && (own > 1 || run->error.load() != nullptr);
        rounds += own;
      }
      if (rounds != before) watchdog.progress();
      before = rounds;
    }
  }

  void stop_and_check(Watchdog& watchdog) {
    for (auto& run : runs_) run->stop = true;
    for (size_t i = 0; i < fibers_.size(); ++i) {
      fibers_[i].join();
      watchdog.progress();
      const char* error = runs_[i]->error.load();
      EXPECT_EQ(error, nullptr) << of(i).name << ": " << error;
      uint64_t lines = 0;
      if (std::string(of(i).name) == "printf") {
        EXPECT_TRUE(file_is_intact(runs_[i]->file, &lines)) << runs_[i]->file << " line " << lines;
        std::remove(runs_[i]->file.c_str());
      }
    }
  }

  const std::vector<JoinHandle<void>>& fibers() const { return fibers_; }

 private:
  const Hostile& of(size_t i) const { return workloads_[i % workloads_.size()]; }

  const std::vector<Hostile>& workloads_;
  std::vector<std::unique_ptr<HostileRun>> runs_;
  std::vector<JoinHandle<void>> fibers_;
};

constexpr double kShare = 0.5;

void run_all(Policy policy, const Case& c, const std::vector<Hostile>& workloads) {
  CheckedRuntime rt(hostile_options(c.cpus));
  Watchdog watchdog([&] { return rt->dump(); });
  HostileFibers fibers(*rt, workloads);
  {
    std::unique_ptr<IpiStorm> storm;
    if (c.storm) storm = std::make_unique<IpiStorm>(*rt);
    std::unique_ptr<Profiler> profiler;
    if (c.profiler) profiler = std::make_unique<Profiler>();
    std::unique_ptr<Shuffler> shuffler;
    if (policy == Policy::kFifo) shuffler = std::make_unique<Shuffler>(*rt, fibers.fibers());
    fibers.run_for(kShare, watchdog);
  }
  fibers.stop_and_check(watchdog);
  EXPECT_GT(rt->counters().at(Counter::kForcedSwitches), 0u);
}

TEST_P(Preempt, HostileWorkloadsSurviveOnOneCpu) {
  run_all(GetParam(), {.cpus = 1}, hostile_workloads());
}
TEST_P(Preempt, HostileWorkloadsSurviveWithStealing) {
  run_all(GetParam(), {.cpus = 2}, hostile_workloads());
}
TEST_P(Preempt, HostileWorkloadsSurviveAnIpiStorm) {
  run_all(GetParam(), {.cpus = 1, .storm = true}, hostile_workloads());
}
TEST_P(Preempt, HostileWorkloadsSurviveAnIpiStormWithStealing) {
  run_all(GetParam(), {.cpus = 2, .storm = true}, hostile_workloads());
}
TEST_P(Preempt, HostileWorkloadsSurviveAProfiler) {
  run_all(GetParam(), {.cpus = 2, .profiler = true}, hostile_workloads());
}
// Interrupted in the middle of jiffy itself: locks, waits with deadlines and stop tokens, spawns.
TEST_P(Preempt, CallsOfJiffySurviveAnIpiStormWithStealing) {
  run_all(GetParam(), {.cpus = 2, .storm = true, .profiler = true}, hostile_calls());
}

// What the library keeps for a fiber's thread stays with the pooled unit, and ends with it but for
// one record of malloc's (some 700 bytes a control block).
TEST(PreemptLeak, RuntimesThatComeAndGoKeepNoMemory) {
  if (const Status support = tcb_support(); !support.ok()) GTEST_SKIP() << support.message();
  constexpr size_t kPerBlock = 1024;
  const auto in_use = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const auto once = [] {
    CheckedRuntime rt(hostile_options(2));
    Watchdog watchdog([&] { return rt->dump(); });
    HostileFibers fibers(*rt, hostile_workloads());
    fibers.run_for(0, watchdog);
    fibers.stop_and_check(watchdog);
  };
  once();
  const size_t before = in_use();
  constexpr int kTimes = 5;
  for (int i = 0; i < kTimes; ++i) once();
  const size_t blocks = kTimes * (2 * hostile_workloads().size() + 16);
  EXPECT_LT(in_use(), before + blocks * kPerBlock);
}

INSTANTIATE_TEST_SUITE_P(, Preempt, testing::Values(Policy::kNormal, Policy::kFifo),
                         [](const testing::TestParamInfo<Policy>& test) {
                           return test.param == Policy::kFifo ? "Fifo" : "Fair";
                         });

}  // namespace
}  // namespace jiffy
