#include <gtest/gtest.h>
#include <jiffy/histogram.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace jiffy {
namespace {

// Values that lie on, just below and just above each bucket border of the layout, and some more.
std::vector<std::uint64_t> awkward_values() {
  std::vector<std::uint64_t> values{0, 1, UINT64_MAX};
  for (unsigned bit = 0; bit < 64; ++bit) {
    const std::uint64_t power = std::uint64_t{1} << bit;
    for (const std::uint64_t v :
         {power - 1, power, power + 1, power + power / 32, power + power / 3}) {
      values.push_back(v);
    }
  }
  return values;
}

TEST(HistogramLayout, BucketsAreContiguousAndCoverAllValues) {
  EXPECT_EQ(HistogramLayout::lowest(0), 0u);
  for (std::size_t i = 1; i < HistogramLayout::kBuckets; ++i) {
    ASSERT_EQ(HistogramLayout::lowest(i), HistogramLayout::highest(i - 1) + 1) << i;
  }
  EXPECT_EQ(HistogramLayout::highest(HistogramLayout::kBuckets - 1), UINT64_MAX);
}

TEST(HistogramLayout, EachValueLiesInItsBucket) {
  for (const std::uint64_t v : awkward_values()) {
    const std::size_t i = HistogramLayout::index_of(v);
    ASSERT_LT(i, HistogramLayout::kBuckets);
    ASSERT_LE(HistogramLayout::lowest(i), v);
    ASSERT_GE(HistogramLayout::highest(i), v);
  }
}

TEST(HistogramLayout, WidthIsAtMostOneThirtySecondOfTheValue) {
  for (std::size_t i = 0; i < HistogramLayout::kBuckets; ++i) {
    const std::uint64_t width = HistogramLayout::highest(i) - HistogramLayout::lowest(i) + 1;
    ASSERT_TRUE(width == 1 || width <= HistogramLayout::lowest(i) / 32) << i;
  }
}

TEST(Histogram, EmptyOneAnswersZero) {
  const Histogram h;
  EXPECT_EQ(h.count(), 0u);
  EXPECT_EQ(h.sum(), 0u);
  EXPECT_EQ(h.mean(), 0);
  EXPECT_EQ(h.min(), 0u);
  EXPECT_EQ(h.max(), 0u);
  EXPECT_EQ(h.percentile(50), 0u);
  EXPECT_EQ(h.snapshot().min(), 0u);
  h.for_each_bucket([](auto, auto, auto) { FAIL(); });
}

TEST(Histogram, CountSumMinMaxAndMeanAreExact) {
  Histogram h;
  for (const std::uint64_t v : {1'000'003u, 17u, 123'456'789u, 17u}) h.record(v);
  EXPECT_EQ(h.count(), 4u);
  EXPECT_EQ(h.sum(), 124'456'826u);
  EXPECT_EQ(h.mean(), 124'456'826 / 4.0);
  EXPECT_EQ(h.min(), 17u);
  EXPECT_EQ(h.max(), 123'456'789u);
}

TEST(Histogram, LargestValueIsNotSaturated) {
  Histogram h;
  h.record(UINT64_MAX);
  EXPECT_EQ(h.min(), UINT64_MAX);
  EXPECT_EQ(h.max(), UINT64_MAX);
  EXPECT_EQ(h.percentile(50), UINT64_MAX);
  EXPECT_EQ(h.snapshot().min(), UINT64_MAX);
  h.record(0);
  EXPECT_EQ(h.min(), 0u);
  EXPECT_EQ(h.percentile(50), 0u);
}

TEST(Histogram, PercentileNeverBelowBucketOfSample) {
  for (const std::uint64_t v : awkward_values()) {
    Histogram h;
    h.record(v);
    ASSERT_EQ(h.percentile(50), v);  // One value: the limits make it exact.
    h.record(0);
    h.record(UINT64_MAX);
    const std::uint64_t median = h.percentile(50);
    ASSERT_GE(median, v);
    ASSERT_LE(median - v, v / 32);
  }
}

TEST(Histogram, PercentilesOfRandomValuesAgreeWithASortedList) {
  std::mt19937_64 random(1);
  Histogram h;
  std::vector<std::uint64_t> values;
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t v = random() >> (random() % 64);
    values.push_back(v);
    h.record(v);
  }
  std::sort(values.begin(), values.end());
  for (const int per_mille : {1, 10, 250, 500, 900, 990, 999, 1000}) {
    const std::uint64_t exact =
        values[values.size() * static_cast<std::size_t>(per_mille) / 1000 - 1];
    const std::uint64_t found = h.percentile(per_mille / 10.0);
    EXPECT_GE(found, exact) << per_mille;
    EXPECT_LE(found - exact, exact / 32) << per_mille;
  }
}

TEST(Histogram, PercentileIsNotPushedToTheNextValueByRounding) {
  Histogram h;
  for (int i = 0; i < 999; ++i) h.record(1);
  h.record(60);
  EXPECT_EQ(h.percentile(99.9), 1u);
  EXPECT_EQ(h.percentile(99.91), 60u);
}

TEST(Histogram, PercentileArgumentIsClamped) {
  Histogram h;
  for (std::uint64_t v = 1; v <= 10; ++v) h.record(v);
  EXPECT_EQ(h.percentile(-5), 1u);
  EXPECT_EQ(h.percentile(0), 1u);
  EXPECT_EQ(h.percentile(std::nan("")), 1u);
  EXPECT_EQ(h.percentile(100), 10u);
  EXPECT_EQ(h.percentile(1e9), 10u);
  EXPECT_EQ(h.percentile(std::numeric_limits<double>::infinity()), 10u);
}

TEST(Histogram, MergeEqualsRecordingAllInOne) {
  Histogram a, b, all;
  HistogramSnapshot kept;
  for (const std::uint64_t v : awkward_values()) {
    (v % 2 == 0 ? a : b).record(v);
    all.record(v);
  }
  kept.merge_from(a.snapshot());
  kept.merge_from(b.snapshot());
  a.merge_from(b);
  EXPECT_EQ(a.count(), all.count());
  EXPECT_EQ(a.sum(), all.sum());
  EXPECT_EQ(a.min(), all.min());
  EXPECT_EQ(a.max(), all.max());
  EXPECT_EQ(kept.count(), all.count());
  for (double p = 0; p <= 100; p += 0.5) {
    ASSERT_EQ(a.percentile(p), all.percentile(p));
    ASSERT_EQ(kept.percentile(p), all.percentile(p));
  }
}

TEST(Histogram, MergingAnEmptyOneChangesNothing) {
  Histogram h;
  const Histogram empty;
  h.record(5);
  h.merge_from(empty);
  EXPECT_EQ(h.count(), 1u);
  EXPECT_EQ(h.min(), 5u);
  EXPECT_EQ(h.max(), 5u);
}

TEST(Histogram, ClearForgetsTheExtremesToo) {
  Histogram h;
  h.record(1);
  h.record(UINT64_MAX);
  h.clear();
  EXPECT_EQ(h.count(), 0u);
  EXPECT_EQ(h.max(), 0u);
  h.record(7);
  EXPECT_EQ(h.min(), 7u);
  EXPECT_EQ(h.max(), 7u);
  EXPECT_EQ(h.sum(), 7u);
}

TEST(Histogram, BucketsAreVisitedInOrderWithTheirValues) {
  Histogram h;
  for (const std::uint64_t v : {1000u, 3u, 1000u}) h.record(v);
  std::vector<std::uint64_t> seen;
  h.for_each_bucket([&](std::uint64_t lo, std::uint64_t hi, std::uint64_t n) {
    seen.insert(seen.end(), {lo, hi, n});
  });
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{3, 3, 1, 992, 1007, 2}));
}

TEST(Histogram, SharedWritersLoseNothing) {
  constexpr int kThreads = 4;
  constexpr std::uint64_t kEach = 20'000;
  Histogram h;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&h, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) h.record_shared(1 + t * kEach + i);
    });
  }
  for (std::thread& t : threads) t.join();
  constexpr std::uint64_t kAll = kThreads * kEach;
  EXPECT_EQ(h.count(), kAll);
  EXPECT_EQ(h.sum(), kAll * (kAll + 1) / 2);
  EXPECT_EQ(h.min(), 1u);
  EXPECT_EQ(h.max(), kAll);
}

TEST(Histogram, ReaderBesideAWriterSeesOnlyWhatWasRecorded) {
  Histogram h;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) h.record(100 + i % 900);
  });
  std::uint64_t last_count = 0;
  for (int i = 0; i < 300; ++i) {
    const HistogramSnapshot s = h.snapshot();
    EXPECT_GE(s.count(), last_count);
    last_count = s.count();
    if (last_count == 0) continue;
    EXPECT_GE(s.percentile(0), 100u);
    EXPECT_LE(s.percentile(0), s.percentile(50));
    EXPECT_LE(s.percentile(50), s.percentile(100));
    EXPECT_LE(h.percentile(100), 999u);
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace jiffy
