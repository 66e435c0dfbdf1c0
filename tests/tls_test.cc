// What a thread keeps for itself, and a fiber that changes threads: the Cpu words, errno, the
// floating-point environment.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <xmmintrin.h>

#include <atomic>
#include <cerrno>
#include <cfenv>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "cpu/cpu.h"
#include "sched/runtime_state.h"
#include "support/migrate.h"
#include "support/runtimes.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

// --- The Cpu words after a migration, in one function, at each level of optimisation. The whole
// program is also built with link-time optimisation, which sees through the accessors.

struct Hop {
  int cpu_before, cpu_after;
  const Cpu *words_before, *words_after;
  bool moved;
};

// The compiler would like to keep the address of a thread's words in a register from the first half
// to the second.
[[gnu::always_inline]] inline Hop hop_body() {
  Hop hop{};
  hop.cpu_before = this_fiber::cpu();
  hop.words_before = this_cpu();
  hop.moved = migrate();
  hop.cpu_after = this_fiber::cpu();
  hop.words_after = this_cpu();
  return hop;
}

#if defined(__clang__)
#define JIFFY_AT_O0 [[clang::optnone, gnu::noinline]]
#define JIFFY_AT_O2 [[gnu::noinline]]
#define JIFFY_AT_O3 [[gnu::noinline]]
#else
#define JIFFY_AT_O0 [[gnu::optimize("O0"), gnu::noinline]]
#define JIFFY_AT_O2 [[gnu::optimize("O2"), gnu::noinline]]
#define JIFFY_AT_O3 [[gnu::optimize("O3"), gnu::noinline]]
#endif

JIFFY_AT_O0 Hop hop_at_o0() {
  Hop hop{};
  hop.cpu_before = this_fiber::cpu();
  hop.words_before = this_cpu();
  hop.moved = migrate();
  hop.cpu_after = this_fiber::cpu();
  hop.words_after = this_cpu();
  return hop;
}
JIFFY_AT_O2 Hop hop_at_o2() {
  Hop hop{};
  hop.cpu_before = this_fiber::cpu();
  hop.words_before = this_cpu();
  hop.moved = migrate();
  hop.cpu_after = this_fiber::cpu();
  hop.words_after = this_cpu();
  return hop;
}
JIFFY_AT_O3 Hop hop_at_o3() {
  Hop hop{};
  hop.cpu_before = this_fiber::cpu();
  hop.words_before = this_cpu();
  hop.moved = migrate();
  hop.cpu_after = this_fiber::cpu();
  hop.words_after = this_cpu();
  return hop;
}
// As the program itself is built, in a loop that invites hoisting.
Hop hop_as_built() {
  Hop last{};
  for (int i = 0; i < 8; ++i) {
    last = hop_body();
    if (!last.moved || last.words_after != this_cpu()) break;
  }
  return last;
}

class TlsTest : public ::testing::TestWithParam<MachineKind> {
 protected:
  CheckedRuntime rt_{migrating_options(options_for(GetParam(), 2))};
};
INSTANTIATE_TEST_SUITE_P(, TlsTest, kBothMachines, kMachineNames);

TEST_P(TlsTest, CpuWordsAreRightAfterAMigrationAtEachLevelOfOptimisation) {
  const std::pair<const char*, Hop (*)()> levels[] = {
      {"-O0", hop_at_o0}, {"-O2", hop_at_o2}, {"-O3", hop_at_o3}, {"as built", hop_as_built}};
  for (const auto& [name, hop_once] : levels) {
    SCOPED_TRACE(name);
    rt_->run(
        [&, hop = hop_once] {
          for (int i = 0; i < 20; ++i) {
            const Hop h = hop();
            ASSERT_TRUE(h.moved);
            EXPECT_NE(h.cpu_before, h.cpu_after);
            EXPECT_EQ(h.words_before, rt_->state().cpus[static_cast<size_t>(h.cpu_before)]);
            EXPECT_EQ(h.words_after, rt_->state().cpus[static_cast<size_t>(h.cpu_after)]);
          }
        },
        migratable());
  }
}

TEST_P(TlsTest, CountWordIsZeroAfterAMigration) {
  rt_->run(
      [] {
        for (int i = 0; i < 10; ++i) {
          EXPECT_EQ(preempt_count(), 0u);
          ASSERT_TRUE(migrate());
          EXPECT_EQ(preempt_count(), 0u);
        }
      },
      migratable());
}

// --- errno: the thread's, as SpawnOptions::migratable says, and no channel of jiffy's own.

TEST(TlsHost, ErrnoIsTheThreadsNotTheFibers) {
  CheckedRuntime rt(migrating_options(host_options(2)));
  std::set<void*> per_cpu[2];
  for (int i = 0; i < 4; ++i) {
    for (int cpu = 0; cpu < 2; ++cpu) {
      per_cpu[cpu].insert(rt->run([] { return errno_address(); }, pinned(cpu)));
    }
  }
  EXPECT_EQ(per_cpu[0].size(), 1u) << "the fibers of one Cpu share it";
  EXPECT_EQ(per_cpu[1].size(), 1u);
  EXPECT_NE(*per_cpu[0].begin(), *per_cpu[1].begin());
  rt->run(
      [&per_cpu] {
        for (int i = 0; i < 10; ++i) {
          EXPECT_EQ(errno_address(), *per_cpu[this_fiber::cpu()].begin());
          ASSERT_TRUE(migrate());
          EXPECT_EQ(errno_address(), *per_cpu[this_fiber::cpu()].begin()) << "of the new thread";
        }
      },
      migratable());
}

TEST_P(TlsTest, ErrnoOfAFiberIsOverwrittenByItsNeighbours) {
  rt_->run(
      [] {
        auto neighbour =
            spawn([] { *static_cast<int*>(errno_address()) = ENOENT; }, pinned(this_fiber::cpu()));
        *static_cast<int*>(errno_address()) = EPERM;
        neighbour.join();
        EXPECT_NE(*static_cast<int*>(errno_address()), EPERM)
            << "whoever wants to keep it copies it before it suspends";
      },
      pinned(0));
}

// A result in errno would be that of whoever ran last, or of another thread: no room whose calls
// suspend may use it.
TEST(TlsSources, ErrnoIsReadOnlyWhereNothingSuspends) {
  namespace fs = std::filesystem;
  const fs::path runtime = fs::path(__FILE__).parent_path().parent_path() / "runtime";
  if (!fs::exists(runtime)) GTEST_SKIP() << "the sources are not at " << runtime;
  int reads = 0;
  for (const auto& entry : fs::recursive_directory_iterator(runtime)) {
    const std::string path = fs::relative(entry.path(), runtime).string();
    const bool allowed = path.rfind("machine/", 0) == 0 || path == "fiber/stack_pool.cc" ||
                         path == "sched/wakeup.cc";  // there a plain thread's own system call
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      line.resize(std::min(line.size(), line.find("//")));
      if (line.find("errno") == std::string::npos || line.find("#include") == 0) continue;
      ++reads;
      EXPECT_TRUE(allowed) << path << ": " << line;
    }
  }
  EXPECT_GT(reads, 10);
}

// --- Floating point.

// Computed at run time, with the rounding mode of the fiber.
[[gnu::noinline]] double divide(double a, double b) {
  volatile double x = a, y = b;
  return x / y;
}

TEST_P(TlsTest, RoundingModeBelongsToTheFiber) {
  const double down = [] {
    std::fesetround(FE_DOWNWARD);
    const double result = divide(1, 3);
    std::fesetround(FE_UPWARD);
    EXPECT_LT(result, divide(1, 3));
    std::fesetround(FE_TONEAREST);
    return result;
  }();
  const int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
  std::vector<JoinHandle<void>> fibers;
  fibers.push_back(rt_->spawn(
      [] {
        std::fesetround(FE_DOWNWARD);
        for (int n = 0; n < 20; ++n) {
          ASSERT_TRUE(migrate());
          ASSERT_EQ(std::fegetround(), FE_DOWNWARD);
        }
      },
      migratable()));
  for (auto& fiber : fibers) fiber.join();
  fibers.clear();
  for (int i = 0; i < 8; ++i) {
    fibers.push_back(rt_->spawn(
        [mode = modes[i % 4], down] {
          std::fesetround(mode);
          for (int n = 0; n < 20; ++n) {
            if (n % 2 == 0) {
              yield();
            } else {
              (void)sleep_for(10us);
            }
            ASSERT_EQ(std::fegetround(), mode);
            const double third = divide(1, 3);
            if (mode == FE_DOWNWARD || mode == FE_TOWARDZERO) {
              ASSERT_EQ(third, down);
            } else if (mode == FE_UPWARD) {
              ASSERT_GT(third, down);
            }
          }
        },
        migratable()));
  }
  for (auto& fiber : fibers) fiber.join();
  EXPECT_EQ(std::fegetround(), FE_TONEAREST) << "of the thread that waited";
}

TEST_P(TlsTest, RoundingModeMayBeSetBack) {
  rt_->run(
      [] {
        const double nearest = divide(1, 10);
        for (int i = 0; i < 3; ++i) {
          std::fesetround(FE_DOWNWARD);
          yield();
          (void)sleep_for(10us);
          EXPECT_LT(divide(1, 10), nearest);
          std::fesetround(FE_TONEAREST);
          (void)sleep_for(10us);
          spawn([] { EXPECT_EQ(std::fegetround(), FE_TONEAREST); }, pinned(0)).join();
          EXPECT_EQ(divide(1, 10), nearest);
        }
      },
      pinned(0));
}

TEST_P(TlsTest, RoundingModeOfAFiberDoesNotReachThoseThatFollowOnItsCpu) {
  rt_->run([] { std::fesetround(FE_UPWARD); }, pinned(0));
  rt_->run([] { EXPECT_EQ(std::fegetround(), FE_TONEAREST); }, pinned(0));
}

constexpr unsigned kStickyFlags = 0x3f;

TEST_P(TlsTest, StickyFlagsOfAFiberSurviveASwitchAndAreItsOwn) {
  rt_->run(
      [] {
        auto other = spawn(
            [] {
              EXPECT_EQ(_mm_getcsr() & kStickyFlags, 0u);
              yield();
              EXPECT_EQ(_mm_getcsr() & kStickyFlags, 0u);
            },
            pinned(0));
        (void)divide(1, 3);
        EXPECT_NE(_mm_getcsr() & kStickyFlags, 0u) << "an inexact division raises a flag";
        other.join();
        EXPECT_NE(_mm_getcsr() & kStickyFlags, 0u);
      },
      pinned(0));
}

TEST_P(TlsTest, StickyFlagsOfTheSpawnerDoNotReachTheChild) {
  rt_->run(
      [] {
        (void)divide(1, 3);
        spawn([] { EXPECT_EQ(_mm_getcsr() & kStickyFlags, 0u); }, pinned(0)).join();
      },
      pinned(0));
}

// --- Who may move.

TEST_P(TlsTest, StartedCooperativeFiberIsNeverStolen) {
  std::vector<JoinHandle<void>> fibers;
  std::atomic<int> stays{0};
  for (int i = 0; i < 40; ++i) {
    fibers.push_back(rt_->spawn([&stays] {
      const int home = this_fiber::cpu();
      const Cpu* words = this_cpu();
      for (int n = 0; n < 40; ++n) {
        // One Cpu has much to do, the other idles: all that may move does.
        if (home == 0) consume(20us);
        if (n % 3 == 0) {
          (void)sleep_for(30us);
        } else {
          yield();
        }
        ASSERT_EQ(this_fiber::cpu(), home);
        ASSERT_EQ(this_cpu(), words);
      }
      ++stays;
    }));
  }
  for (auto& fiber : fibers) fiber.join();
  EXPECT_EQ(stays, 40);
}

TEST_P(TlsTest, PinnedFiberStaysWhereverItIsWokenFrom) {
  Semaphore ping, pong;
  auto fiber = rt_->spawn(
      [&] {
        for (int i = 0; i < 50; ++i) {
          ping.acquire();
          ASSERT_EQ(this_fiber::cpu(), 1);
          pong.release();
        }
      },
      pinned(1));
  rt_->run(
      [&] {
        for (int i = 0; i < 50; ++i) {
          if (i % 10 == 0) (void)migrate();
          ping.release();
          pong.acquire();
        }
      },
      migratable());
  fiber.join();
}

}  // namespace
}  // namespace jiffy
