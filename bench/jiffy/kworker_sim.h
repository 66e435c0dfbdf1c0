// `jiffy kworker --machine=sim`: P1 in virtual time, on a machine whose costs are stated.
#pragma once

#include <jiffy/sim.h>

#include <string>
#include <vector>

#include "kworker.h"
#include "kworker_chain.h"

namespace jiffy {

// The costs were chosen before the first run, from what is known of the machines of P1's kind:
// - a packet of 64 KiB comes in 10.5 us, since the best that P1 saw was 50 Gb/s;
// - the guest reads it out in half of that: its CPU was busy for some 16 % of the time of four;
// - the injection of an interrupt, which is all that the kworker does, takes 3 us.
inline constexpr ChainCosts kSimChainCosts = {.produce = std::chrono::nanoseconds(10'500),
                                              .consume = std::chrono::nanoseconds(5'250),
                                              .inject = std::chrono::nanoseconds(3'000)};
// And of the kernel's own steps: half a microsecond each for a wakeup and for the entry of an
// interrupt, one for a switch with the cache misses that follow it, one or two for an interrupt to
// another CPU, one to three until an idle CPU runs its first instruction.
SimOptions sim_machine_options(uint64_t seed);

// How long the producer runs between two sleeps, in the mean, in the second table.
inline constexpr int kSimBlockEveryUs = 900;

struct SimCell {
  Cell cell;
  int hz = 250;
  bool hrtick = false;
};

struct SimTable {
  int block_every_us = 0;  // 0: the producer never blocks
  std::vector<SimCell> cells;
};

struct KworkerSimReport {
  KworkerOptions options;
  int cpus = 0;
  std::vector<SimTable> tables;
  bool interrupted = false;
  std::string error;
};

// The modes, pools, queues and seed of the options, at each HZ, with and without HRTICK.
int run_kworker_sim(const KworkerOptions& options);

// Null if it was not run.
const SimCell* find_cell(const SimTable& table, Preemption mode, Pool pool, int hz, bool hrtick);

}  // namespace jiffy
