// The clock of a Cpu: it is CLOCK_MONOTONIC, also when the TSC and that one part company.
//
// This program has a clock_gettime() of its own, which the library calls too: it can move either
// clock. Under the thread sanitizer, which hands out signals in its own one, the tests are skipped.
#include "machine/clock.h"

#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/timer.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <thread>

#include "support/runtimes.h"
#include "support/sanitizer.h"

namespace {

constexpr int64_t kHour = 3'600'000'000'000;
std::atomic<int64_t> monotonic_shift{0};
std::atomic<uint64_t> wall_reads{0};

int read_shifted(clockid_t id, timespec* time, int64_t shift) {
  const long rc = syscall(SYS_clock_gettime, id, time);
  const int64_t ns = int64_t{time->tv_sec} * 1'000'000'000 + time->tv_nsec + shift;
  time->tv_sec = ns / 1'000'000'000;
  time->tv_nsec = ns % 1'000'000'000;
  return static_cast<int>(rc);
}

// An hour ahead and an hour behind, in turn.
int64_t wall_shift() { return wall_reads.fetch_add(1) % 2 == 0 ? kHour : -kHour; }

}  // namespace

extern "C" int clock_gettime(clockid_t id, timespec* time) noexcept {
  if (id == CLOCK_MONOTONIC) return read_shifted(id, time, monotonic_shift);
  if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
    return read_shifted(id, time, wall_shift());
  return static_cast<int>(syscall(SYS_clock_gettime, id, time));
}
extern "C" int gettimeofday(timeval* time, void*) noexcept {
  timespec now;
  (void)clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

namespace jiffy {
namespace {

using namespace std::chrono_literals;

class ClockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kThreadSanitizer) GTEST_SKIP() << "clock_gettime() is the sanitizer's";
    if (!clock_.uses_tsc()) GTEST_SKIP() << "no usable TSC: the clock is CLOCK_MONOTONIC itself";
  }
  void TearDown() override { monotonic_shift = 0; }

  // By how much the clock is ahead; 0 within what a reading takes.
  int64_t ahead() const {
    int64_t least = INT64_MAX;
    for (int i = 0; i < 20; ++i) {
      const int64_t before = monotonic_ns();
      const int64_t ours = clock_.now();
      const int64_t after = monotonic_ns();
      const int64_t off = ours < before ? ours - before : ours > after ? ours - after : 0;
      if (std::abs(off) < std::abs(least)) least = off;
    }
    return least;
  }
  static constexpr int64_t kNear = 1'000'000;

  Clock clock_ = Clock::host();
};

TEST_F(ClockTest, FollowsTheMonotonicClockAndNeverRunsBackwards) {
  int64_t last = clock_.now();
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(10ms);
    if (i % 3 == 0) clock_.resync();
    const int64_t now = clock_.now();
    EXPECT_GE(now, last);
    last = now;
    EXPECT_LT(std::abs(ahead()), kNear);
  }
}

// The TSC stood still, or was set back to a smaller value, while the other clock went on.
TEST_F(ClockTest, StepForwardIsFollowedAndDoesNotBendTheRate) {
  std::this_thread::sleep_for(20ms);
  monotonic_shift = kHour;
  clock_.resync();
  EXPECT_LT(std::abs(ahead()), kNear);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(20ms);
    EXPECT_LT(std::abs(ahead()), 10 * kNear) << "twenty milliseconds are twenty milliseconds";
    clock_.resync();
  }
}

// A machine that was suspended while its TSC went on: deadlines are kept by the kernel's clock, so
// one that is made an hour too late is waited for.
TEST_F(ClockTest, SuspendedTimeThatOnlyTheTscSawIsGivenBack) {
  std::this_thread::sleep_for(20ms);
  monotonic_shift = -kHour / 360;  // ten seconds: the clock has to begin above zero
  for (int i = 0; i < 3; ++i) {
    clock_.resync();
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_LT(std::abs(ahead()), 100 * kNear);
}

// Somebody sets the wall clock, an hour forth and an hour back between any two readings.
TEST(WallClock, JumpsEndNoWaitEarlyOrLate) {
  if (kThreadSanitizer) GTEST_SKIP() << "clock_gettime() is the sanitizer's";
  CheckedRuntime rt(MachineKind::kHost, 2);
  (void)std::chrono::system_clock::now();
  ASSERT_GT(wall_reads, 0u) << "the program's own clock_gettime() is the one that is called";
  wall_reads = 0;
  const auto waits = [&rt] {
    Semaphore semaphore, fired;
    Timer timer(*rt, [&fired] { fired.release(); });
    for (int i = 0; i < 10; ++i) {
      const auto start = std::chrono::steady_clock::now();
      (void)sleep_for(1ms);
      EXPECT_EQ(semaphore.acquire(now() + 1ms), WaitResult::kTimeout);
      timer.start(now() + 1ms);
      EXPECT_EQ(fired.acquire(now() + 30s), WaitResult::kReady);
      EXPECT_GE(std::chrono::steady_clock::now() - start, 3ms - 100us);
      EXPECT_LT(std::chrono::steady_clock::now() - start, 60s);
    }
  };
  rt->run(waits);
  waits();
  EXPECT_EQ(wall_reads, 0u) << "nobody asks it";
}

}  // namespace
}  // namespace jiffy
