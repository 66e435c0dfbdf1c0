// What many samples, or a few runs, come to.
#pragma once

#include <jiffy/histogram.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace jiffy {

// Of several runs: never one number without its range.
struct Range {
  double median = 0, min = 0, max = 0;
};

inline Range range_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const double median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  return {median, values.front(), values.back()};
}

// Of a histogram of nanoseconds.
struct LatencySummary {
  uint64_t count = 0;
  double mean_ns = 0, p50_ns = 0, p99_ns = 0, max_ns = 0;
};

inline LatencySummary summarize(const HistogramSnapshot& h) {
  return {h.count(), h.mean(), static_cast<double>(h.percentile(50)),
          static_cast<double>(h.percentile(99)), static_cast<double>(h.max())};
}

}  // namespace jiffy
