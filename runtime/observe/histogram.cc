#include <jiffy/histogram.h>

#include <cmath>

namespace jiffy {
namespace {

using Layout = HistogramLayout;

static_assert(Layout::index_of(0) == 0);
static_assert(Layout::index_of(UINT64_MAX) == Layout::kBuckets - 1);
static_assert(Layout::highest(Layout::kBuckets - 1) == UINT64_MAX);
static_assert(sizeof(Histogram) <= 15 * 1024 + 64);

// Which of `count` values in ascending order (the first is 1) is the p-th percentile; p > 0.
std::uint64_t rank_of(double p, std::uint64_t count) {
  if (p >= 100) return count;
  // 99.9 is not a binary fraction: 99.9 % of 1000 must be the 999th value, not the 1000th because
  // the product is a few 1e-16 too large. The slack is larger than the three roundings and far
  // smaller than any real fraction.
  constexpr double kSlack = 1 - 1e-15;
  const double rank = std::ceil(p * static_cast<double>(count) / 100 * kSlack);
  if (rank <= 1) return 1;
  if (rank >= static_cast<double>(count)) return count;
  return static_cast<std::uint64_t>(rank);
}

// For both classes; `bucket(i)` reads a bucket. A histogram is read in place, twice, and not
// copied, as a copy would not fit a fiber's stack. Values that arrive between the two passes only
// make the walk end a bucket earlier.
template <typename Bucket>
std::uint64_t count_of(Bucket bucket) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < Layout::kBuckets; ++i) count += bucket(i);
  return count;
}

template <typename Bucket>
std::uint64_t percentile_of(double p, std::uint64_t min, std::uint64_t max, Bucket bucket) {
  const std::uint64_t count = count_of(bucket);
  if (count == 0) return 0;
  if (!(p > 0)) return min;  // NaN too.
  const std::uint64_t rank = rank_of(p, count);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < Layout::kBuckets; ++i) {
    seen += bucket(i);
    // A writer stores the bucket before the maximum, so the maximum may lag behind: never below the
    // bucket.
    if (seen >= rank) return std::max(Layout::lowest(i), std::min(Layout::highest(i), max));
  }
  return max;  // Cleared between the passes.
}

double mean_of(std::uint64_t sum, std::uint64_t count) {
  return count == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(count);
}

// An empty histogram holds the neutral element of min().
std::uint64_t min_or_zero(std::uint64_t min) { return min == UINT64_MAX ? 0 : min; }

}  // namespace

std::uint64_t HistogramSnapshot::count() const {
  return count_of([this](std::size_t i) { return buckets_[i]; });
}

double HistogramSnapshot::mean() const { return mean_of(sum_, count()); }

std::uint64_t HistogramSnapshot::min() const {
  // All values may really be 2^64 - 1: then the maximum says so.
  return max_ == UINT64_MAX ? min_ : min_or_zero(min_);
}

std::uint64_t HistogramSnapshot::percentile(double p) const {
  return percentile_of(p, min(), max(), [this](std::size_t i) { return buckets_[i]; });
}

void HistogramSnapshot::merge_from(const HistogramSnapshot& other) {
  for (std::size_t i = 0; i < Layout::kBuckets; ++i) buckets_[i] += other.buckets_[i];
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

std::uint64_t Histogram::count() const {
  return count_of([this](std::size_t i) { return buckets_[i].load(std::memory_order_relaxed); });
}

double Histogram::mean() const { return mean_of(sum(), count()); }

std::uint64_t Histogram::min() const {
  const std::uint64_t min = min_.load(std::memory_order_relaxed);
  return max() == UINT64_MAX ? min : min_or_zero(min);
}

std::uint64_t Histogram::percentile(double p) const {
  return percentile_of(p, min(), max(), [this](std::size_t i) {
    return buckets_[i].load(std::memory_order_relaxed);
  });
}

void Histogram::merge_from(const Histogram& other) {
  for (std::size_t i = 0; i < Layout::kBuckets; ++i) {
    const std::uint64_t n = other.buckets_[i].load(std::memory_order_relaxed);
    if (n != 0) bump(buckets_[i], n);
  }
  bump(sum_, other.sum_.load(std::memory_order_relaxed));
  const std::uint64_t other_min = other.min_.load(std::memory_order_relaxed);
  const std::uint64_t other_max = other.max_.load(std::memory_order_relaxed);
  min_.store(std::min(min_.load(std::memory_order_relaxed), other_min), std::memory_order_relaxed);
  max_.store(std::max(max_.load(std::memory_order_relaxed), other_max), std::memory_order_relaxed);
}

void Histogram::clear() {
  for (Word& bucket : buckets_) bucket.store(0, std::memory_order_relaxed);
  sum_.store(0, std::memory_order_relaxed);
  min_.store(UINT64_MAX, std::memory_order_relaxed);
  max_.store(0, std::memory_order_relaxed);
}

HistogramSnapshot Histogram::snapshot() const {
  HistogramSnapshot copy;
  std::uint64_t lowest = UINT64_MAX;
  std::uint64_t highest = 0;
  for (std::size_t i = 0; i < Layout::kBuckets; ++i) {
    copy.buckets_[i] = buckets_[i].load(std::memory_order_relaxed);
    if (copy.buckets_[i] == 0) continue;
    lowest = std::min(lowest, Layout::highest(i));
    highest = Layout::lowest(i);
  }
  copy.sum_ = sum_.load(std::memory_order_relaxed);
  // Extremes that lag behind the buckets (a writer is in between) are moved to the nearest value
  // that can be true.
  copy.min_ = std::min(min_.load(std::memory_order_relaxed), lowest);
  copy.max_ = std::max(max_.load(std::memory_order_relaxed), highest);
  return copy;
}

}  // namespace jiffy
