// Scopes: children that do not outlive them.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>
#include <jiffy/semaphore.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "support/runtimes.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

class ScopeTest : public ::testing::TestWithParam<MachineKind> {
 protected:
  CheckedRuntime rt_{GetParam(), 2};
};
INSTANTIATE_TEST_SUITE_P(, ScopeTest, kBothMachines, kMachineNames);

TEST_P(ScopeTest, JoinWaitsForAllChildren) {
  rt_->run([] {
    std::atomic<int> ended{0};
    Scope scope;
    scope.join();  // of none
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(scope
                      .spawn([&ended, i] {
                        (void)sleep_for(std::chrono::microseconds(i));
                        ++ended;
                      })
                      .ok());
    }
    scope.join();
    EXPECT_EQ(ended, 50);
  });
}

TEST_P(ScopeTest, FirstExceptionStopsTheOthersAndComesOutOfJoin) {
  rt_->run([] {
    std::atomic<int> stopped{0};
    Scope scope;
    for (int i = 0; i < 8; ++i) {
      (void)scope.spawn([&stopped](std::stop_token stop) {
        Semaphore never;
        if (never.acquire(stop) == WaitResult::kStopped) ++stopped;
        throw std::logic_error("second");
      });
    }
    (void)scope.spawn([] {
      (void)sleep_for(1ms);
      throw std::runtime_error("first");
    });
    EXPECT_THROW(scope.join(), std::runtime_error);
    EXPECT_EQ(stopped, 8);
    EXPECT_TRUE(scope.stop_token().stop_requested());
    scope.join();  // the exception has been collected
  });
}

TEST_P(ScopeTest, RequestedStopReachesChildrenThatComeLater) {
  rt_->run([] {
    Scope scope;
    scope.request_stop();
    WaitResult result = WaitResult::kReady;
    (void)scope.spawn([&result](std::stop_token stop) { result = sleep_for(1h, stop); });
    scope.join();
    EXPECT_EQ(result, WaitResult::kStopped);
  });
}

TEST_P(ScopeTest, DestructorStopsTheChildrenAndWaits) {
  rt_->run([] {
    bool ended = false;
    {
      Scope scope;
      (void)scope.spawn([&ended](std::stop_token stop) {
        EXPECT_EQ(sleep_for(1h, stop), WaitResult::kStopped);
        ended = true;
      });
    }
    EXPECT_TRUE(ended);
  });
}

TEST_P(ScopeTest, WhatAChildCapturedEndsBeforeJoinReturns) {
  struct Guard {
    explicit Guard(std::atomic<int>& c) : live(&c) { ++*live; }
    Guard(Guard&& other) noexcept : live(std::exchange(other.live, nullptr)) {}
    // The scheduler is given every chance to let the parent run first.
    ~Guard() {
      if (live == nullptr) return;
      yield();
      --*live;
    }
    std::atomic<int>* live;
  };
  rt_->run([] {
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> live{0};
      Scope scope;
      for (int i = 0; i < 4; ++i) (void)scope.spawn([guard = Guard(live)] { yield(); });
      scope.join();
      ASSERT_EQ(live, 0);
    }
  });
}

TEST_P(ScopeTest, ChildrenMaySpawnIntoTheirScope) {
  rt_->run([] {
    std::atomic<int> leaves{0};
    Scope scope;
    struct Node {
      static void grow(Scope& s, std::atomic<int>& n, int depth) {
        if (depth == 0) {
          ++n;
          return;
        }
        for (int i = 0; i < 2; ++i) (void)s.spawn([&s, &n, depth] { grow(s, n, depth - 1); });
      }
    };
    Node::grow(scope, leaves, 7);
    scope.join();
    EXPECT_EQ(leaves, 128);
  });
}

TEST_P(ScopeTest, WaitHasLimits) {
  rt_->run([] {
    Semaphore go;
    Scope scope;
    (void)scope.spawn([&go] { go.acquire(); });
    EXPECT_EQ(scope.wait(now() + 100us), WaitResult::kTimeout);
    std::stop_source stop;
    stop.request_stop();
    EXPECT_EQ(scope.wait(stop.get_token()), WaitResult::kStopped);
    EXPECT_FALSE(scope.stop_token().stop_requested()) << "the children were not asked to stop";
    go.release();
    EXPECT_EQ(scope.wait(Until()), WaitResult::kReady);
  });
}

TEST_P(ScopeTest, FailedSpawnLeavesTheScopeJoinable) {
  struct Explosive {
    Explosive() = default;
    Explosive(const Explosive&) { throw std::runtime_error("copy"); }
    void operator()() const {}
  };
  rt_->run([] {
    Scope scope;
    SpawnOptions bad;
    bad.cpu = 99;
    EXPECT_FALSE(scope.spawn([] {}, bad).ok());
    const Explosive closure;
    EXPECT_THROW((void)scope.spawn(closure), std::runtime_error);
    scope.join();
  });
}

TEST(ScopeHost, PlainThreadMayOwnAScope) {
  CheckedRuntime rt(MachineKind::kHost, 2);
  std::atomic<int> ended{0};
  Scope scope(rt->state());
  for (int i = 0; i < 20; ++i) (void)scope.spawn([&ended] { ++ended; });
  scope.join();
  EXPECT_EQ(ended, 20);
}

TEST(ScopeDeathTest, ExceptionThatNobodyCollectedAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  CheckedRuntime rt(MachineKind::kHost, 1);
  EXPECT_DEATH(rt->run([] {
    Scope scope;
    (void)scope.spawn([] { throw std::runtime_error("uncollected"); });
  }),
               "uncollected");
}

}  // namespace
}  // namespace jiffy
