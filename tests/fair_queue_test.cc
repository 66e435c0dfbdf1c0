#include "sched/fair_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace jiffy {
namespace {

constexpr int64_t kUs = 1'000;
constexpr int64_t kMs = 1'000'000;
constexpr int64_t kTick = 4 * kMs;
constexpr uint64_t kSlice = 3 * kMs;

// A queue and a few entities of equal weight, at time zero.
class FairQueueTest : public ::testing::Test {
 protected:
  FairQueueTest() {
    configure([](SchedFeatures&) {});
  }

  template <class Fn>
  void configure(Fn&& change) {
    SchedFeatures features;
    change(features);
    queue_.configure(features, kSlice, kTick);
  }
  FairEntity& run(FairEntity& e) {
    if (queue_.current() != nullptr) queue_.put_prev();
    queue_.set_next(e, now_);
    return e;
  }
  bool pass(int64_t ns) { return queue_.update_current(now_ += ns); }
  bool wakes_over_current(FairEntity& e) {
    queue_.enqueue(e, FairQueue::kWakeup);
    FairEntity* found = nullptr;
    const bool preempts = queue_.wakeup_preempts(e, /*may_preempt=*/true, &found);
    EXPECT_EQ(found, nullptr);
    return preempts;
  }
  int64_t lag(const FairEntity& e) const { return queue_.average() - e.vruntime; }

  FairQueue queue_;
  FairEntity a_, b_, c_;
  int64_t now_ = 0;
};

// --- Quantities.

TEST(FairWeights, EachStepOfNiceIsAFactorOfFiveQuarters) {
  EXPECT_EQ(weight_of_nice(0), 1024u);
  EXPECT_EQ(weight_of_nice(19), 15u);
  EXPECT_EQ(weight_of_nice(5), 336u);
  EXPECT_EQ(weight_of_nice(10), 110u);
  EXPECT_NEAR(weight_of_nice(-20), 88761, 88761 * 0.001);
  for (int nice = -20; nice < 14; ++nice) {
    const double ratio = static_cast<double>(weight_of_nice(nice)) / weight_of_nice(nice + 1);
    EXPECT_NEAR(ratio, 1.25, 0.05) << nice;
  }
  EXPECT_EQ(kIdlePolicyWeight, 3u);
}

TEST(FairWeights, BaseSliceGrowsWithTheLogarithmOfTheCpus) {
  EXPECT_EQ(base_slice_ns(1), 700'000u);
  EXPECT_EQ(base_slice_ns(2), 1'400'000u);
  EXPECT_EQ(base_slice_ns(3), 1'400'000u);
  EXPECT_EQ(base_slice_ns(4), 2'100'000u);
  EXPECT_EQ(base_slice_ns(7), 2'100'000u);
  EXPECT_EQ(base_slice_ns(8), 2'800'000u);
  EXPECT_EQ(base_slice_ns(1000), 2'800'000u);
}

TEST_F(FairQueueTest, VirtualTimeRunsInverselyToTheWeight) {
  a_.weight = 512;
  queue_.enqueue(a_, 0);
  run(a_);
  (void)pass(1 * kMs);
  EXPECT_EQ(a_.vruntime, 2 * kMs);
  EXPECT_EQ(a_.sum_exec, 1u * kMs);
}

// --- The average.

TEST_F(FairQueueTest, AverageCountsTheRunningEntity) {
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  (void)pass(2 * kMs);
  EXPECT_EQ(queue_.average(), 1 * kMs);
  EXPECT_FALSE(queue_.eligible(a_));
  EXPECT_TRUE(queue_.eligible(b_));
}

TEST_F(FairQueueTest, WithoutTheRunningEntityAnyRunMakesItIneligible) {
  configure([](SchedFeatures& f) { f.average_with_current = false; });
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  (void)pass(2 * kMs);
  EXPECT_EQ(queue_.average(), 0) << "off by one entity";
}

TEST_F(FairQueueTest, AverageIsRoundedDownAlsoBelowZero) {
  queue_.enqueue(a_, 0);
  b_.vlag = 1;  // placed at -2, which makes the average of the two -1
  queue_.enqueue(b_, 0);
  EXPECT_EQ(b_.vruntime, -2);
  c_.weight = 335;
  queue_.enqueue(c_, 0);
  EXPECT_TRUE(queue_.eligible(b_));
  EXPECT_FALSE(queue_.eligible(a_));
  EXPECT_EQ(queue_.average(), -1);
}

// --- Placement.

TEST_F(FairQueueTest, NewEntityGetsHalfASlice) {
  queue_.enqueue(a_, FairQueue::kInitial);
  queue_.enqueue(b_, FairQueue::kWakeup);
  EXPECT_EQ(a_.deadline - a_.vruntime, static_cast<int64_t>(kSlice) / 2);
  EXPECT_EQ(b_.deadline - b_.vruntime, static_cast<int64_t>(kSlice));
}

TEST_F(FairQueueTest, LagIsTheSameBeforeTheSleepAndAfterTheWakeup) {
  for (FairEntity* e : {&a_, &b_, &c_}) queue_.enqueue(*e, 0);
  run(a_);
  (void)pass(3 * kMs);
  EXPECT_EQ(lag(b_), 1 * kMs);
  ASSERT_TRUE(queue_.dequeue(b_, /*sleep=*/true));
  EXPECT_EQ(b_.vlag, 1 * kMs);
  (void)pass(1 * kMs);
  queue_.enqueue(b_, FairQueue::kWakeup);
  EXPECT_EQ(lag(b_), 1 * kMs);
}

TEST_F(FairQueueTest, WithoutInflationThePlacementDilutesTheLag) {
  configure([](SchedFeatures& f) { f.inflate_lag = false; });
  queue_.enqueue(a_, 0);
  b_.vlag = 1 * kMs;
  queue_.enqueue(b_, FairQueue::kWakeup);
  EXPECT_EQ(lag(b_), kMs / 2);
}

TEST_F(FairQueueTest, WithoutPlaceLagTheSleeperStartsFromZero) {
  configure([](SchedFeatures& f) { f.place_lag = false; });
  queue_.enqueue(a_, 0);
  b_.vlag = 1 * kMs;
  queue_.enqueue(b_, FairQueue::kWakeup);
  EXPECT_EQ(lag(b_), 0);
}

TEST_F(FairQueueTest, AnEmptyQueueDropsTheLag) {
  b_.vlag = 1 * kMs;
  queue_.enqueue(b_, FairQueue::kWakeup);
  queue_.enqueue(a_, FairQueue::kWakeup);
  EXPECT_EQ(lag(b_), 0);
}

TEST_F(FairQueueTest, LagIsBoundedByTheLargestSliceAndATick) {
  b_.custom_slice = true;
  b_.slice = 10 * kMs;
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  (void)pass(100 * kMs);
  EXPECT_EQ(lag(b_), 50 * kMs);
  ASSERT_TRUE(queue_.dequeue(b_, /*sleep=*/true));
  EXPECT_EQ(b_.vlag, 14 * kMs);
  // The largest slice is whoever's: the bound of `a`, not eligible now, is the same.
  queue_.enqueue(b_, 0);
  (void)pass(100 * kMs);
  ASSERT_FALSE(queue_.dequeue(a_, /*sleep=*/true));
  EXPECT_EQ(a_.vlag, -14 * kMs);
}

TEST_F(FairQueueTest, WithoutTheClampLagGrowsWithoutBound) {
  configure([](SchedFeatures& f) { f.clamp_lag = false; });
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  (void)pass(100 * kMs);
  ASSERT_TRUE(queue_.dequeue(b_, /*sleep=*/true));
  EXPECT_EQ(b_.vlag, 50 * kMs);
}

TEST_F(FairQueueTest, MigrationKeepsLagAndRelativeDeadline) {
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, FairQueue::kInitial);  // half a slice, and half a slice it stays
  run(a_);
  (void)pass(2 * kMs);
  const int64_t distance = b_.deadline - b_.vruntime;
  ASSERT_TRUE(queue_.dequeue(b_, /*sleep=*/false));

  FairQueue other;
  other.configure(SchedFeatures(), kSlice, kTick);
  c_.vlag = 0;
  other.enqueue(c_, 0);
  other.set_next(c_, 0);
  (void)other.update_current(500 * kMs);  // its virtual time is elsewhere
  other.enqueue(b_, FairQueue::kMigrated);
  EXPECT_EQ(other.average() - b_.vruntime, 1 * kMs);
  EXPECT_EQ(b_.deadline - b_.vruntime, distance);
  EXPECT_GT(b_.vruntime, 400 * kMs);
}

// --- Leaving.

TEST_F(FairQueueTest, ASleeperInDebtStaysQueuedToBurnIt) {
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  (void)pass(2 * kMs);
  EXPECT_FALSE(queue_.dequeue(a_, /*sleep=*/true));
  EXPECT_TRUE(a_.delayed);
  EXPECT_EQ(queue_.nr_queued(), 2);
  EXPECT_EQ(queue_.nr_delayed(), 1);
  run(b_);
  (void)pass(1 * kMs);
  EXPECT_EQ(lag(a_), -kMs / 2) << "the debt was 1 ms, and the average moves on";
  queue_.requeue_delayed(a_);
  EXPECT_FALSE(a_.delayed);
  EXPECT_EQ(lag(a_), -kMs / 2);
}

TEST_F(FairQueueTest, ThePickFindsTheBurntDebtAndNoCredit) {
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  (void)pass(2 * kMs);
  ASSERT_FALSE(queue_.dequeue(a_, /*sleep=*/true));
  run(b_);
  (void)pass(8 * kMs);
  ASSERT_EQ(queue_.pick(true), &a_);
  queue_.finish_delayed(a_);
  EXPECT_EQ(a_.vlag, 0);
  EXPECT_FALSE(a_.on_queue);
  EXPECT_EQ(queue_.nr_queued(), 1);
  EXPECT_EQ(queue_.nr_delayed(), 0);
  EXPECT_EQ(queue_.pick(true), &b_);
}

TEST_F(FairQueueTest, ADelayedEntityCanBeTakenOffBeforeItsDebtIsBurnt) {
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  (void)pass(2 * kMs);
  ASSERT_FALSE(queue_.dequeue(a_, /*sleep=*/true));
  run(b_);
  queue_.finish_delayed(a_);
  EXPECT_FALSE(a_.on_queue);
  EXPECT_EQ(a_.vlag, -1 * kMs);
  EXPECT_EQ(queue_.nr_queued(), 1);
  EXPECT_EQ(queue_.nr_delayed(), 0);
}

TEST_F(FairQueueTest, WithoutDelayZeroSleepTurnsDebtIntoCredit) {
  configure([](SchedFeatures& f) { f.delay_zero = false; });
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  (void)pass(2 * kMs);
  ASSERT_FALSE(queue_.dequeue(a_, /*sleep=*/true));
  run(b_);
  (void)pass(8 * kMs);
  ASSERT_EQ(queue_.pick(true), &a_);
  queue_.finish_delayed(a_);
  EXPECT_EQ(a_.vlag, 3 * kMs);
}

TEST_F(FairQueueTest, WithoutDelayedDequeueTheDebtIsKeptHoweverLongTheSleep) {
  configure([](SchedFeatures& f) { f.delay_dequeue = false; });
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  (void)pass(2 * kMs);
  EXPECT_TRUE(queue_.dequeue(a_, /*sleep=*/true));
  run(b_);
  (void)pass(1000 * kMs);
  queue_.enqueue(a_, FairQueue::kWakeup);
  EXPECT_EQ(lag(a_), -1 * kMs);
}

TEST_F(FairQueueTest, LeavingWithoutSleepIsNeverDelayed) {
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  (void)pass(2 * kMs);
  EXPECT_TRUE(queue_.dequeue(a_, /*sleep=*/false));
  EXPECT_EQ(a_.vlag, -1 * kMs);
}

// --- The pick, and protection.

TEST_F(FairQueueTest, TheEarliestDeadlineOfTheEligibleWins) {
  b_.custom_slice = c_.custom_slice = true;
  b_.slice = 2 * kMs;
  c_.slice = 1 * kMs;
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  c_.vlag = -1 * kMs;
  queue_.enqueue(c_, 0);  // the earliest but one, and not eligible
  EXPECT_EQ(queue_.pick(true), &b_);
}

TEST_F(FairQueueTest, CurrentIsProtectedUntilItsDeadline) {
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, FairQueue::kInitial);  // an earlier deadline
  c_.vlag = -10 * kMs;                      // holds the average up: `a` stays eligible
  queue_.enqueue(c_, 0);
  run(a_);
  EXPECT_FALSE(pass(2 * kMs));
  ASSERT_TRUE(queue_.eligible(a_));
  EXPECT_EQ(queue_.pick(true), &a_);
  EXPECT_EQ(queue_.pick(false), &b_);
  EXPECT_TRUE(pass(2 * kMs)) << "its slice is over";
  EXPECT_EQ(queue_.pick(true), &b_);
}

TEST_F(FairQueueTest, WithoutRunToParityAnEarlierDeadlineTakesOverAtOnce) {
  configure([](SchedFeatures& f) { f.run_to_parity = false; });
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, FairQueue::kInitial);
  c_.vlag = -10 * kMs;
  queue_.enqueue(c_, 0);
  run(a_);
  EXPECT_TRUE(pass(10 * kUs)) << "each update asks for a reschedule";
  EXPECT_EQ(queue_.pick(true), &b_);
}

TEST_F(FairQueueTest, AnIneligibleCurrentIsNotSavedByItsProtection) {
  queue_.enqueue(a_, 0);
  run(a_);
  (void)pass(1 * kMs);
  b_.vlag = 10 * kUs;
  EXPECT_TRUE(wakes_over_current(b_)) << "a wakee with any positive lag preempts";
}

TEST_F(FairQueueTest, AWakeeWithoutLagDoesNotPreempt) {
  queue_.enqueue(a_, 0);
  run(a_);
  (void)pass(1 * kMs);
  EXPECT_FALSE(wakes_over_current(b_));
}

TEST_F(FairQueueTest, ProtectionIsShortenedToTheSmallestSliceThatWaits) {
  c_.custom_slice = true;
  c_.slice = 100 * kUs;
  queue_.enqueue(a_, 0);
  queue_.enqueue(c_, 0);
  run(a_);
  EXPECT_EQ(a_.vprot, 100 * kUs);
  EXPECT_FALSE(pass(99 * kUs));
  EXPECT_TRUE(pass(1 * kUs));
}

TEST_F(FairQueueTest, AShorterSliceOverridesTheProtection) {
  b_.custom_slice = true;
  b_.slice = 100 * kUs;
  queue_.enqueue(a_, 0);
  run(a_);
  (void)pass(1 * kMs);
  EXPECT_TRUE(wakes_over_current(b_));
  EXPECT_EQ(a_.vprot, a_.vruntime) << "and cancels it";
}

TEST_F(FairQueueTest, WithoutPreemptShortACustomSliceChangesNothingAtWakeup) {
  configure([](SchedFeatures& f) { f.preempt_short = false; });
  b_.custom_slice = true;
  b_.slice = 100 * kUs;
  queue_.enqueue(a_, 0);
  run(a_);
  (void)pass(1 * kMs);
  EXPECT_FALSE(wakes_over_current(b_));
}

TEST_F(FairQueueTest, WithoutTheSliceCheckNobodyIsAskedToLeave) {
  configure([](SchedFeatures& f) { f.slice_check = false; });
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  EXPECT_FALSE(pass(100 * kMs));
}

TEST_F(FairQueueTest, OneAloneIsNeverAskedToLeave) {
  queue_.enqueue(a_, 0);
  run(a_);
  EXPECT_FALSE(pass(100 * kMs));
  EXPECT_EQ(a_.deadline, 103 * kMs) << "it gets a new deadline all the same";
  EXPECT_EQ(a_.vprot, 3 * kMs) << "but no new protection";
}

// --- Other operations.

TEST_F(FairQueueTest, YieldSpendsTheRestOfTheSlice) {
  queue_.enqueue(a_, 0);
  queue_.enqueue(b_, 0);
  run(a_);
  queue_.yield_current();
  EXPECT_EQ(a_.vruntime, 3 * kMs);
  EXPECT_EQ(a_.deadline, 6 * kMs);
  EXPECT_FALSE(queue_.eligible(a_));
  EXPECT_EQ(queue_.pick(false), &b_);
  queue_.yield_current();
  EXPECT_EQ(a_.vruntime, 3 * kMs) << "one that is not eligible has nothing to give";
}

TEST_F(FairQueueTest, AloneAYieldGivesNothingAway) {
  queue_.enqueue(a_, 0);
  run(a_);
  queue_.yield_current();
  EXPECT_EQ(a_.vruntime, 0);
  EXPECT_EQ(a_.deadline, 3 * kMs);
}

TEST_F(FairQueueTest, ReweightKeepsTheServiceThatIsOwed) {
  for (FairEntity* e : {&a_, &b_, &c_}) queue_.enqueue(*e, 0);
  run(a_);
  (void)pass(3 * kMs);
  const int64_t distance = b_.deadline - b_.vruntime;
  ASSERT_EQ(lag(b_), 1 * kMs);
  queue_.reweight(b_, 512);
  EXPECT_NEAR(lag(b_), 2 * kMs, 2) << "the same service, in a unit of half the size";
  EXPECT_EQ(b_.deadline - b_.vruntime, 2 * distance);
  queue_.reweight(a_, 2048);
  EXPECT_EQ(queue_.current(), &a_);
}

TEST_F(FairQueueTest, AChangedSliceReachesTheSummaries) {
  for (FairEntity* e : {&a_, &b_, &c_}) queue_.enqueue(*e, 0);
  queue_.set_slice(c_, 200 * kUs);
  run(a_);
  EXPECT_EQ(a_.vprot, 200 * kUs) << "the smallest slice that waits";
  queue_.set_slice(c_, 0);
  run(b_);
  EXPECT_EQ(b_.vprot, b_.deadline) << "the base slice again";
}

TEST_F(FairQueueTest, RemainingTimeIsRealTime) {
  a_.weight = 512;
  queue_.enqueue(a_, 0);
  run(a_);
  (void)pass(1 * kMs);
  EXPECT_EQ(queue_.current_remaining(), 2 * kMs);
}

}  // namespace
}  // namespace jiffy
