// One run of one cell of the matrix, and what the machine can do at best.
#pragma once

#include <jiffy/status.h>
#include <jiffy/trace.h>

#include <map>
#include <vector>

#include "kworker.h"

namespace jiffy {

// The Cpus that the options' queues use: one for each producer and each consumer and two
// that idle, as far as the machine has them; but two at least.
int cpus_for(const KworkerOptions& options);

// Whether each of them has a CPU of the host to itself, and is pinned to it. Two on one CPU would
// measure the host's scheduler.
bool pinned(int cpus);

struct CellTrace {
  std::vector<TraceRecord> records;
  std::map<uint64_t, std::string> names;  // of the fibers
};

// Plain thread only; blocks for about options.seconds, less if interrupted. In a Runtime of its
// own. `trace` may be null. Errors: what kept the runtime from starting.
Status run_cell(const KworkerOptions& options, const CellSpec& spec, CellRun* run,
                CellTrace* trace);

Status measure_baseline(const KworkerOptions& options, const RingShape& ring, Baseline* baseline);

}  // namespace jiffy
