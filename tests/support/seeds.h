// A test's body for each of many seeds of the simulated machine.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>

namespace jiffy {

// Runs `body` for the seeds 1 ... `seeds`, or only for JIFFY_SIM_SEED where that is set, and stops
// at the first that fails, whose seed it prints.
inline void for_seeds(uint64_t seeds, const std::function<void(uint64_t seed)>& body) {
  const char* only = std::getenv("JIFFY_SIM_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const uint64_t last = only != nullptr ? first : seeds;
  for (uint64_t seed = first; seed <= last; ++seed) {
    body(seed);
    if (!testing::Test::HasFailure()) continue;
    std::printf("JIFFY_SIM_SEED=%llu shows it again\n", static_cast<unsigned long long>(seed));
    return;
  }
}

}  // namespace jiffy
