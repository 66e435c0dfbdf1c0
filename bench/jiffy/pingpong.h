// `jiffy pingpong`: the two ramifications of lazy preemption that P1 names, as counts.
#pragma once

#include <jiffy/options.h>

#include <cstdint>
#include <string>
#include <vector>

namespace jiffy {

struct PingpongOptions {
  int exchanges = 500;
  Delivery delivery = Delivery::kSignals;  // on the host
  bool json = false;
  std::string command_line;
};

// 1. A runs in kernel mode, an interrupt wakes B, and A needs something of B later on.
struct BlockWakeupCounts {
  std::string machine;  // "sim", "host"
  Preemption mode;
  int exchanges = 0;
  uint64_t real_wakeups = 0;  // whom they were for was blocked
  uint64_t noop_wakeups = 0;  // ... was not
  uint64_t voluntary_switches = 0, forced_switches = 0;
  uint64_t promotions = 0;
};

// 2. The same, and C is woken after B with an earlier deadline.
struct DetourCounts {
  std::string machine;
  Preemption mode;
  int exchanges = 0;
  uint64_t b_first = 0;  // who was woken first ran first
  uint64_t c_first = 0;  // the detour
  double b_wait_ns = 0;  // mean, from B's wakeup to its run
  uint64_t promotions = 0;
};

struct PingpongReport {
  PingpongOptions options;
  std::vector<BlockWakeupCounts> block_wakeup;
  std::vector<DetourCounts> detour;
  bool interrupted = false;
};

int run_pingpong(const PingpongOptions& options);

}  // namespace jiffy
