#pragma once
// A histogram of unsigned 64-bit values (nanoseconds by convention), for latencies.
//
// Buckets are log-linear, as in HdrHistogram: each power of two is cut into 32 equal sub-buckets,
// so a value is known to within 1/32 (3.125 %) of itself, from 0 (exact up to 63) to 2^64 - 1,
// without saturation. The largest and the smallest value are kept exactly. The storage is one fixed
// array: nothing allocates after construction.
//
// Writers: record() has ONE writer at a time (a Cpu's thread, or whoever holds a lock) and costs
// loads and stores, no locked instruction. record_shared() may be called by any number of threads.
// The two must not run at the same time on one histogram: the plain store of record() would erase
// what record_shared() added. Readers: any thread at any time. What is read while a writer runs may
// miss the last few values, in count and sum differently, but percentiles stay within [min, max] of
// what was recorded. Nothing here blocks.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace jiffy {

// Which values share a bucket. Buckets are numbered in order of their values, without gaps.
struct HistogramLayout {
  static constexpr unsigned kSubBucketBits = 5;
  static constexpr std::size_t kSubBuckets = std::size_t{1} << kSubBucketBits;
  // Values below 2^5 fill the first group; then one group for each power of two from 2^5 to 2^63.
  static constexpr std::size_t kBuckets = (1 + 64 - kSubBucketBits) * kSubBuckets;

  // The shift leaves the top six bits: a leading one and the five that pick the sub-bucket. OR-ing
  // that leading bit in makes small values (shift 0) the same case as all others, so there is no
  // branch.
  static constexpr std::size_t index_of(std::uint64_t value) {
    const auto shift =
        static_cast<unsigned>(std::bit_width(value | kSubBuckets)) - 1 - kSubBucketBits;
    return shift * kSubBuckets + static_cast<std::size_t>(value >> shift);
  }
  // The smallest and the largest value of bucket `index` (both belong to it).
  static constexpr std::uint64_t lowest(std::size_t index) {
    return static_cast<std::uint64_t>(index - shift_of(index) * kSubBuckets) << shift_of(index);
  }
  static constexpr std::uint64_t highest(std::size_t index) {
    return lowest(index) + ((std::uint64_t{1} << shift_of(index)) - 1);
  }

 private:
  static constexpr unsigned shift_of(std::size_t index) {
    return index < kSubBuckets ? 0 : static_cast<unsigned>(index / kSubBuckets) - 1;
  }
};

// A copy of a histogram at one moment: plain integers, copyable, to be kept, merged and printed.
// Its buckets are on the heap because 15 KiB are too many for a fiber's stack. Not thread-safe, as
// any plain object.
class HistogramSnapshot {
 public:
  // The same meaning as in Histogram below.
  std::uint64_t count() const;
  std::uint64_t sum() const { return sum_; }
  double mean() const;
  std::uint64_t min() const;
  std::uint64_t max() const { return max_; }
  std::uint64_t percentile(double p) const;
  void merge_from(const HistogramSnapshot& other);

  template <typename Fn>
  void for_each_bucket(Fn&& fn) const {
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i] != 0)
        fn(HistogramLayout::lowest(i), HistogramLayout::highest(i), buckets_[i]);
    }
  }

 private:
  friend class Histogram;
  std::vector<std::uint64_t> buckets_ = std::vector<std::uint64_t>(HistogramLayout::kBuckets);
  std::uint64_t sum_ = 0;
  std::uint64_t min_ = UINT64_MAX;
  std::uint64_t max_ = 0;
};

class Histogram {
 public:
  Histogram() = default;
  Histogram(const Histogram&) = delete;
  Histogram& operator=(const Histogram&) = delete;

  // Adds a value. One writer at a time (see the top of the file), and not re-entrant: an interrupt
  // of the same Cpu that records into the same histogram between the load and the store loses a
  // value.
  void record(std::uint64_t value) {
    bump(buckets_[HistogramLayout::index_of(value)], 1);
    bump(sum_, value);
    if (value < min_.load(std::memory_order_relaxed)) min_.store(value, std::memory_order_relaxed);
    if (value > max_.load(std::memory_order_relaxed)) max_.store(value, std::memory_order_relaxed);
  }

  // Adds a value; any number of threads at once, and safe in a signal handler. Two locked
  // instructions.
  void record_shared(std::uint64_t value) {
    buckets_[HistogramLayout::index_of(value)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
    std::uint64_t seen = min_.load(std::memory_order_relaxed);
    while (value < seen && !min_.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
    seen = max_.load(std::memory_order_relaxed);
    while (value > seen && !max_.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }

  // The number of values: the sum of all buckets, so that it agrees with the percentiles (about a
  // microsecond).
  std::uint64_t count() const;
  // The sum of the values, modulo 2^64 (584 years in nanoseconds).
  std::uint64_t sum() const { return sum_.load(std::memory_order_relaxed); }
  // sum() / count(); 0 if empty.
  double mean() const;
  // Exact; 0 if empty.
  std::uint64_t min() const;
  std::uint64_t max() const { return max_.load(std::memory_order_relaxed); }
  // The value that p percent of the values do not exceed, rounded up to the end of its bucket
  // (never below the true one, at most 3.125 % above) and limited to [min(), max()]; so
  // percentile(0) is min() and percentile(100) is max(). p is clamped to [0, 100], NaN counts as 0.
  // Returns 0 if empty.
  std::uint64_t percentile(double p) const;

  // Calls fn(lo, hi, count) for each bucket that is not empty, in ascending order; hi belongs to
  // the bucket.
  template <typename Fn>
  void for_each_bucket(Fn&& fn) const {
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      const std::uint64_t n = buckets_[i].load(std::memory_order_relaxed);
      if (n != 0) fn(HistogramLayout::lowest(i), HistogramLayout::highest(i), n);
    }
  }

  // Adds all values of `other`, which may be written meanwhile. The caller is this histogram's
  // writer (as in record()).
  void merge_from(const Histogram& other);
  // Forgets all values. The caller is the writer; a reader meanwhile sees some values gone and
  // others not yet.
  void clear();
  // Allocates (15 KiB).
  HistogramSnapshot snapshot() const;

 private:
  using Word = std::atomic<std::uint64_t>;
  static void bump(Word& word, std::uint64_t n) {
    word.store(word.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }

  // All A: atomic, relaxed. No ordering is needed between them: readers repair what they may see
  // out of order.
  alignas(64) std::array<Word, HistogramLayout::kBuckets> buckets_{};
  Word sum_{0};
  Word min_{UINT64_MAX};
  Word max_{0};
};

}  // namespace jiffy
