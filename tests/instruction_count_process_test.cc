// What the paths that every program uses cost, in instructions: they do not depend on the machine's
// speed or load, so a growth that a clock would not show is seen. Counted by valgrind's callgrind,
// of cooperative fibers on the host machine, by compiler.
//
// After a change that is meant: take over the counts that the test prints.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/work.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/runtimes.h"
#include "support/sanitizer.h"

namespace jiffy {
namespace {

constexpr double kMargin = 0.05;

// --- The paths. Each is run for two numbers of rounds, and the difference counts.

const int kRounds = [] {
  const char* text = std::getenv("JIFFY_ROUNDS");
  return text == nullptr ? 1 : std::atoi(text);
}();

template <class Body>
void on_one_cpu(Policy policy, Body body, bool kernel_mode = false) {
  Options options = host_options(1);
  options.hz = 100;
  Runtime rt(options);
  ASSERT_TRUE(rt.start().ok());
  SpawnOptions spawn_options;
  spawn_options.policy = policy;
  spawn_options.kernel_mode = kernel_mode;
  rt.run([&] { body(rt, spawn_options); }, spawn_options);
  rt.stop();
}

void yields(Policy policy) {
  on_one_cpu(policy, [](Runtime&, const SpawnOptions& options) {
    auto other = spawn(
        [] {
          for (int i = 0; i < kRounds; ++i) yield();
        },
        options);
    for (int i = 0; i < kRounds; ++i) yield();
    other.join();
  });
}

// Two wakeups, two blocks and two switches. In the FIFO class: what the fair one does depends on
// the time that passed.
void wakes(Policy policy) {
  on_one_cpu(policy, [](Runtime&, const SpawnOptions& options) {
    Semaphore ping, pong;
    auto other = spawn(
        [&] {
          for (int i = 0; i < kRounds; ++i) {
            ping.acquire();
            pong.release();
          }
        },
        options);
    for (int i = 0; i < kRounds; ++i) {
      ping.release();
      pong.acquire();
    }
    other.join();
  });
}

void spawns(Policy policy) {
  on_one_cpu(policy, [](Runtime&, const SpawnOptions& options) {
    for (int i = 0; i < kRounds; ++i) spawn([] {}, options).join();
  });
}

// Queued, and taken back: when a worker runs is the clock's business. By kernel code, which the
// woken worker does not preempt.
void queues_work(Policy policy) {
  on_one_cpu(
      policy,
      [](Runtime& rt, const SpawnOptions&) {
        WorkItem item([] {});
        for (int i = 0; i < kRounds; ++i) {
          (void)system_percpu_wq(rt).queue(item);
          (void)system_percpu_wq(rt).cancel(item);
        }
      },
      /*kernel_mode=*/true);
}

TEST(Path, DISABLED_yield_fifo) { yields(Policy::kFifo); }
TEST(Path, DISABLED_yield_fair) { yields(Policy::kNormal); }
TEST(Path, DISABLED_wake_fifo) { wakes(Policy::kFifo); }
TEST(Path, DISABLED_spawn_fifo) { spawns(Policy::kFifo); }
TEST(Path, DISABLED_spawn_fair) { spawns(Policy::kNormal); }
TEST(Path, DISABLED_queue_work) { queues_work(Policy::kNormal); }

// --- What they cost, a round, by the compiler's version.

struct Count {
  const char* path;
  double instructions;
};
struct Counts {
  const char* compiler;
  Count paths[6];
};
constexpr Counts kCounts[] = {
    {"g++ 12.2",
     {{"yield_fifo", 476},
      {"yield_fair", 1191},
      {"wake_fifo", 1197},
      {"spawn_fifo", 1568},
      {"spawn_fair", 2911},
      {"queue_work", 499}}},
};

std::string compiler() {
#ifdef __clang__
  return "clang++ " + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__);
#else
  return "g++ " + std::to_string(__GNUC__) + "." + std::to_string(__GNUC_MINOR__);
#endif
}

const Counts* counts_of_this_compiler() {
  for (const Counts& counts : kCounts) {
    if (compiler() == counts.compiler) return &counts;
  }
  return nullptr;
}

std::string own_path() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  return std::string(path, static_cast<size_t>(n < 0 ? 0 : n));
}

// 0: it could not be counted.
double instructions_of(const std::string& path, int count) {
  const std::string command =
      "JIFFY_ROUNDS=" + std::to_string(count) +
      " LD_BIND_NOW=1 valgrind --tool=callgrind --callgrind-out-file=/dev/null '" + own_path() +
      "' --gtest_also_run_disabled_tests --gtest_filter=Path.DISABLED_" + path + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return 0;
  double instructions = 0;
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    const std::string text(line);
    const size_t at = text.find("Collected : ");
    if (at != std::string::npos) instructions = std::atof(line + at + 12);
  }
  return pclose(pipe) == 0 ? instructions : 0;
}

double instructions_a_round(const std::string& path) {
  constexpr int kFew = 1'000, kMany = 31'000;  // start and stop differ by a million
  const double few = instructions_of(path, kFew), many = instructions_of(path, kMany);
  return few == 0 || many == 0 ? 0 : (many - few) / (kMany - kFew);
}

TEST(InstructionCount, ThePathsOfEveryProgramDoNotGrow) {
  if (kAddressSanitizer || kThreadSanitizer) GTEST_SKIP() << "a sanitizer adds its own";
#ifdef JIFFY_CHECK_LOCKS
  GTEST_SKIP() << "the lock checker adds its own";
#endif
  if (std::system("valgrind --version > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "valgrind is not installed";
  }
  const Counts* expected = counts_of_this_compiler();
  if (expected == nullptr) GTEST_SKIP() << "no counts are kept for " << compiler();
  for (const Count& path : expected->paths) {
    // The host's ticks come by the clock, and add some on a loaded machine: the best of three.
    double counted = instructions_a_round(path.path);
    for (int more = 0; more < 2 && counted > path.instructions * (1 + kMargin); ++more) {
      counted = std::min(counted, instructions_a_round(path.path));
    }
    std::printf("%-12s %7.0f instructions a round, kept %7.0f\n", path.path, counted,
                path.instructions);
    ASSERT_GT(counted, 0) << path.path;
    EXPECT_LT(counted, path.instructions * (1 + kMargin)) << path.path;
    EXPECT_GT(counted, path.instructions * (1 - kMargin))
        << path.path << " has become cheaper: keep the new count";
  }
}

}  // namespace
}  // namespace jiffy
