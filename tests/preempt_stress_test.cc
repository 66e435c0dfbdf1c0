// Fibers that are preempted at any instruction, ten thousand times a second, in code that belongs
// to threads: nothing of it breaks, and everybody goes on.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/time.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "fiber/tcb.h"
#include "sched/runtime_state.h"
#include "support/hostile.h"
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

struct Case {
  int cpus;
  bool storm;
  double share;
};

void run_all(Policy policy, const Case& c) {
  Runtime rt(hostile_options(c.cpus));
  ASSERT_TRUE(rt.start().ok());
  Watchdog watchdog([&] { return rt.dump(); });
  const std::string file = testing::TempDir() + "jiffy_hostile_" + std::to_string(getpid());
  std::remove(file.c_str());
  const auto& workloads = hostile_workloads();
  std::vector<std::unique_ptr<HostileRun>> runs;
  std::vector<JoinHandle<void>> fibers;
  SpawnOptions options;
  for (size_t i = 0; i < 2 * workloads.size(); ++i) {
    const Hostile& workload = workloads[i % workloads.size()];
    runs.push_back(std::make_unique<HostileRun>());
    HostileRun& run = *runs.back();
    run.file = file + "." + std::to_string(i);
    options.name = workload.name;
    fibers.push_back(rt.spawn([&run, &workload, i] { workload.run(run, i + 1); }, options));
    ASSERT_TRUE(fibers.back().valid()) << fibers.back().error();
  }
  {
    std::unique_ptr<IpiStorm> storm;
    if (c.storm) storm = std::make_unique<IpiStorm>(rt);
    std::unique_ptr<Shuffler> shuffler;
    if (policy == Policy::kFifo) shuffler = std::make_unique<Shuffler>(rt, fibers);
    uint64_t before = 0;
    bool all_ran = false;
    for (Budget budget(c.share); budget.left() || !all_ran;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      uint64_t rounds = 0;
      all_ran = true;
      for (auto& run : runs) {
        const uint64_t own = run->rounds.load(std::memory_order_relaxed);
        all_ran = all_ran && (own > 1 || run->error.load() != nullptr);
        rounds += own;
      }
      if (rounds != before) watchdog.progress();
      before = rounds;
    }
  }
  for (auto& run : runs) run->stop = true;
  for (size_t i = 0; i < fibers.size(); ++i) {
    fibers[i].join();
    watchdog.progress();
    const char* error = runs[i]->error.load();
    EXPECT_EQ(error, nullptr) << error;
    uint64_t lines = 0;
    if (std::string(workloads[i % workloads.size()].name) == "printf") {
      EXPECT_TRUE(file_is_intact(runs[i]->file, &lines)) << runs[i]->file << " line " << lines;
      std::remove(runs[i]->file.c_str());
    }
    EXPECT_GT(runs[i]->rounds.load(), 1u) << workloads[i % workloads.size()].name;
  }
  const CounterSnapshot counts = rt.counters();
  EXPECT_GT(counts.at(Counter::kForcedSwitches), 0u);
}

TEST_P(Preempt, HostileWorkloadsSurviveOnOneCpu) { run_all(GetParam(), {1, false, 0.25}); }
TEST_P(Preempt, HostileWorkloadsSurviveWithStealing) { run_all(GetParam(), {2, false, 0.25}); }
TEST_P(Preempt, HostileWorkloadsSurviveAnIpiStorm) { run_all(GetParam(), {1, true, 0.25}); }
TEST_P(Preempt, HostileWorkloadsSurviveAnIpiStormWithStealing) {
  run_all(GetParam(), {2, true, 0.25});
}

INSTANTIATE_TEST_SUITE_P(, Preempt, testing::Values(Policy::kNormal, Policy::kFifo),
                         [](const testing::TestParamInfo<Policy>& test) {
                           return test.param == Policy::kFifo ? "Fifo" : "Fair";
                         });

}  // namespace
}  // namespace jiffy
