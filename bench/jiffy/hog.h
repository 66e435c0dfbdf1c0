// `jiffy hog`: fibers that compute without end beside one that sleeps. Who gets how much, how late
// is the sleeper, and what does the watchdog say?
#pragma once

#include <jiffy/counters.h>
#include <jiffy/options.h>

#include <string>
#include <vector>

#include "summary.h"

namespace jiffy {

struct HogOptions {
  std::vector<Preemption> modes = {Preemption::kNone, Preemption::kVoluntary, Preemption::kLazy,
                                   Preemption::kFull};
  std::vector<int> nice = {0, 0, 5};  // of the hogs
  int hz = 250;
  double seconds = 0.5;
  bool json = false;
  std::string command_line;
};

struct HogCell {
  Preemption mode;
  FiberKind kind;
  bool kernel_mode = false;
  std::vector<double> share_percent;  // of the hogs, by loops counted
  std::vector<double> fair_percent;   // by weight
  LatencySummary delay;               // of the sleeper: from the end of its sleep to running
  CounterSnapshot counts;
  double seconds = 0;
  std::string named;  // by the watchdog; empty if it said nothing
  double named_after_ms = 0;
};

struct HogReport {
  HogOptions options;
  Delivery delivery = Delivery::kSignals;  // as it is in effect
  std::vector<HogCell> cells;
  bool interrupted = false;
  std::string error;
};

int run_hog(const HogOptions& options);

}  // namespace jiffy
