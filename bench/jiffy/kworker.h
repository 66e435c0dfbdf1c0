// `jiffy kworker`: P1 on this machine. What it is asked, and what it finds.
#pragma once

#include <jiffy/counters.h>
#include <jiffy/options.h>
#include <jiffy/status.h>

#include <array>
#include <string>
#include <vector>

#include "guest_ring.h"
#include "summary.h"

namespace jiffy {

// Who runs the work that injects the guest's interrupt.
enum class Pool : uint8_t {
  kPerCpu,    // a kworker bound to the producer's Cpu
  kUnbound,   // a kworker that is placed at each wakeup
  kInAtomic,  // nobody: the signaller injects in its own context
};
const char* pool_name(Pool pool);

struct KworkerOptions {
  std::vector<Preemption> modes = {Preemption::kNone, Preemption::kVoluntary, Preemption::kLazy,
                                   Preemption::kFull};
  std::vector<Pool> pools = {Pool::kPerCpu, Pool::kUnbound, Pool::kInAtomic};
  Delivery delivery = Delivery::kSignals;
  int hz = 250;
  bool hrtick = false;
  int ring_entries = 256;
  bool mergeable = true;
  int packet_bytes = 65536;
  bool block_when_full = false;
  int block_every_us = 0;  // how long the producer runs between two sleeps of 20 us; 0: none
  int queues = 1;
  bool busy = false;
  double seconds = 1;
  int runs = 3;
  bool ring_sweep = false;
  bool sim = false;   // on the simulated machine; see kworker_sim.h
  uint64_t seed = 1;  // of a simulation
  bool json = false;
  std::string trace_file;
  std::string plot_file;
  std::string command_line;
};

struct CellSpec {
  Preemption mode;
  Pool pool;
  RingShape ring;
};

// The ring that the options ask for.
RingShape ring_shape(const KworkerOptions& options);

// One run of a cell.
struct CellRun {
  double seconds = 0;
  double throughput_gbit_s = 0;  // what the consumers took out
  double offered_gbit_s = 0;     // what the producers made, dropped packets included
  uint64_t offered = 0, received = 0, dropped = 0;  // packets
  LatencySummary kworker;                           // queue to run; count 0 without a kworker
  LatencySummary signal_to_run;                     // first signal to the consumer running
  std::array<LatencySummary, kLatencyKinds> queue_latency;
  double consumer_busy_percent = 0;     // of the time, mean of the consumers
  double work_on_producer_percent = 0;  // of the works, on a Cpu of a producer
  double host_wait_percent = 0;         // of the time, the Cpus' threads waited for a host CPU
  CounterSnapshot counts;
  uint64_t checksum_errors = 0, sequence_errors = 0;
};

struct Cell {
  CellSpec spec;
  std::vector<CellRun> runs;
};

// What this machine can do at best, measured first.
struct Baseline {
  double producer_gbit_s = 0;  // filling a ring that the other CPU has read out
  double consumer_gbit_s = 0;  // reading out what the other CPU has filled
  double wake_parked_ns = 0;   // from a signal to the fiber running on another Cpu: it slept,
  double wake_polling_ns = 0;  // or it had just become idle
  bool consumer_is_faster() const { return consumer_gbit_s > producer_gbit_s; }
};

struct KworkerReport {
  KworkerOptions options;
  int cpus = 0;
  bool pinned = false;                     // each Cpu to a CPU of its own
  Delivery delivery = Delivery::kSignals;  // as it is in effect
  Baseline baseline;
  std::vector<Cell> cells;
  bool interrupted = false;
  std::string error;  // the first thing that went wrong
};

int run_kworker(const KworkerOptions& options);

// kworker_report.cc
std::vector<std::string> kworker_warnings(const KworkerReport& report);
std::string kworker_text(const KworkerReport& report);

// kworker_plot.cc
// What is wrong with the name of a file to draw; empty if nothing.
std::string plot_problem(const std::string& file);
bool gnuplot_missing();
Status write_plot(const KworkerReport& report, const std::string& file);

// Over the runs of a cell.
Range throughput_of(const Cell& cell);
// Medians of the runs' figures; the largest maximum. `which` is a member of CellRun.
LatencySummary latency_of(const Cell& cell, LatencySummary CellRun::*which);
double median_of(const Cell& cell, double CellRun::*which);
CounterSnapshot counts_of(const Cell& cell);  // summed
double seconds_of(const Cell& cell);          // summed
// The cell of full preemption and the per-CPU pool with the same ring; null if it was not run.
const Cell* reference_cell(const KworkerReport& report, const Cell& cell);

}  // namespace jiffy
