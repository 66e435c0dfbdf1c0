// Blocking calls on a pool of plain threads.
#include <gtest/gtest.h>
#include <jiffy/offload.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>
#include <jiffy/semaphore.h>

#include <atomic>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>

#include "support/runtimes.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

class OffloadTest : public ::testing::TestWithParam<MachineKind> {
 protected:
  CheckedRuntime rt_{GetParam(), 2};
};
INSTANTIATE_TEST_SUITE_P(, OffloadTest, kBothMachines, kMachineNames);

TEST_P(OffloadTest, GivesTheResultOrTheException) {
  rt_->run([] {
    EXPECT_EQ(offload([] { return 6 * 7; }), 42);
    EXPECT_EQ(*offload([] { return std::make_unique<int>(3); }), 3);
    bool ran = false;
    offload([&ran] { ran = true; });
    EXPECT_TRUE(ran);
    EXPECT_THROW(offload([]() -> int { throw std::range_error("there"); }), std::range_error);
    // The exception state of the fiber is its own.
    try {
      throw 1;
    } catch (int) {
      EXPECT_THROW(offload([] { throw 2L; }), long);
      EXPECT_THROW(throw, int);
    }
  });
}

TEST(Offload, RunsInPlaceOnAPlainThread) {
  const auto here = std::this_thread::get_id();
  EXPECT_EQ(offload([] { return std::this_thread::get_id(); }), here);
}

TEST(OffloadHost, CallIsOnAPlainThreadAndTheCpuRunsOthers) {
  CheckedRuntime rt(MachineKind::kHost, 1);
  rt->run([] {
    std::atomic<bool> others_ran{false};
    auto other = spawn([&others_ran] { others_ran = true; });
    const auto cpu_thread = std::this_thread::get_id();
    offload([&] {
      EXPECT_FALSE(this_fiber::on_fiber());
      EXPECT_EQ(this_fiber::cpu(), -1);
      EXPECT_NE(std::this_thread::get_id(), cpu_thread);
      while (!others_ran) std::this_thread::yield();
    });
    other.join();
  });
}

TEST(OffloadHost, MoreCallsThanThreadsAllEnd) {
  CheckedRuntime rt(MachineKind::kHost, 2);
  rt->run([] {
    constexpr int kCalls = 300;
    std::atomic<int> running{0}, most{0}, sum{0};
    Scope scope;
    for (int i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(scope
                      .spawn([&, i] {
                        sum += offload([&, i] {
                          const int now_running = ++running;
                          int seen = most;
                          while (now_running > seen &&
                                 !most.compare_exchange_weak(seen, now_running)) {
                          }
                          std::this_thread::sleep_for(1ms);
                          --running;
                          return i;
                        });
                      })
                      .ok());
    }
    scope.join();
    EXPECT_EQ(sum, kCalls * (kCalls - 1) / 2);
    EXPECT_GT(most, 1) << "calls wait beside each other, not one behind the other";
    EXPECT_LE(most, 64);
  });
}

TEST(OffloadHost, CallMayUseTheRuntimeAsAPlainThreadDoes) {
  CheckedRuntime rt(MachineKind::kHost, 1);
  rt->run([&rt] {
    Semaphore done;
    const int answer = offload([&] {
      const int got = rt->spawn([] { return 5; }).join();
      done.release();
      return got;
    });
    done.acquire();
    EXPECT_EQ(answer, 5);
  });
}

TEST(OffloadHost, PoolEndsWithTheRuntime) {
  for (int i = 0; i < 20; ++i) {
    CheckedRuntime rt(MachineKind::kHost, 1);
    rt->run([] { offload([] {}); });
  }
}

}  // namespace
}  // namespace jiffy
