// The published figures that `jiffy kworker` and `jiffy pingpong` print beside their own.
//
// Source (P1): the mailing-list thread "sched: Further restrict the preemption modes", February to
// June 2026. Two guests on one host, joined by a virtual switch; uperf streaming read, 50
// connections. Absolute values belong to that machine: what can be compared are order and ratios.
// Names are those that the program prints.
#pragma once

#include <array>
#include <string_view>

namespace jiffy::published {

inline constexpr std::string_view kP1Thread =
    "sched: Further restrict the preemption modes (Feb-Jun 2026)";

// One guest queue. The pool is that of the work item which injects the guest's interrupt.
struct P1Cell {
  std::string_view preemption;
  std::string_view pool;
  double throughput_gbit_s;
  double kworker_mean_ns;  // from being queued to running
};
inline constexpr std::array<P1Cell, 3> kP1Cells = {{
    {"full", "percpu", 50, 2'000},
    {"lazy", "percpu", 13, 721'000},
    {"lazy", "unbound", 50, 5'000},
}};

// The earlier report: four vhost queues.
struct P1FourQueues {
  std::string_view preemption;
  double mergeable_gbit_s;
  double no_mergeable_gbit_s;
  double guest_busy_percent;
  // Time on the run queue, mean: of all tasks, and by kind of task.
  double all_ns, kworker_ns, vhost_ns, vcpu_ns;
};
inline constexpr std::array<P1FourQueues, 2> kP1FourQueues = {{
    {"full", 55, 60, 16, 4'000, 2'000, 5'000, 8'000},
    {"lazy", 40, 60, 9, 18'000, 60'000, 2'000, 2'000},
}};

// Null where P1 has no such cell.
constexpr const P1Cell* p1_cell(std::string_view preemption, std::string_view pool) {
  for (const P1Cell& cell : kP1Cells) {
    if (cell.preemption == preemption && cell.pool == pool) return &cell;
  }
  return nullptr;
}

constexpr const P1FourQueues* p1_four_queues(std::string_view preemption) {
  for (const P1FourQueues& row : kP1FourQueues) {
    if (row.preemption == preemption) return &row;
  }
  return nullptr;
}

}  // namespace jiffy::published
