// What `jiffy kworker` found, for people.
#include <algorithm>

#include "delivery.h"
#include "kworker.h"
#include "published/p1.h"
#include "text_table.h"

namespace jiffy {

Range throughput_of(const Cell& cell) {
  std::vector<double> values;
  for (const CellRun& run : cell.runs) values.push_back(run.throughput_gbit_s);
  return range_of(std::move(values));
}

LatencySummary latency_of(const Cell& cell, LatencySummary CellRun::*which) {
  std::vector<double> mean, p50, p99;
  LatencySummary all;
  for (const CellRun& run : cell.runs) {
    const LatencySummary& one = run.*which;
    if (one.count == 0) continue;
    all.count += one.count;
    all.max_ns = std::max(all.max_ns, one.max_ns);
    mean.push_back(one.mean_ns);
    p50.push_back(one.p50_ns);
    p99.push_back(one.p99_ns);
  }
  all.mean_ns = range_of(std::move(mean)).median;
  all.p50_ns = range_of(std::move(p50)).median;
  all.p99_ns = range_of(std::move(p99)).median;
  return all;
}

double median_of(const Cell& cell, double CellRun::*which) {
  std::vector<double> values;
  for (const CellRun& run : cell.runs) values.push_back(run.*which);
  return range_of(std::move(values)).median;
}

CounterSnapshot counts_of(const Cell& cell) {
  CounterSnapshot sum;
  for (const CellRun& run : cell.runs) sum += run.counts;
  return sum;
}

double seconds_of(const Cell& cell) {
  double sum = 0;
  for (const CellRun& run : cell.runs) sum += run.seconds;
  return sum;
}

const Cell* reference_cell(const KworkerReport& report, const Cell& cell) {
  for (const Cell& other : report.cells) {
    if (other.spec.mode == Preemption::kFull && other.spec.pool == Pool::kPerCpu &&
        other.spec.ring.entries == cell.spec.ring.entries && !other.runs.empty()) {
      return &other;
    }
  }
  return nullptr;
}

std::vector<std::string> kworker_warnings(const KworkerReport& report) {
  std::vector<std::string> warnings;
  if (!report.baseline.consumer_is_faster()) {
    warnings.push_back(
        "The table proves nothing: the consumer alone is not faster than the producer alone, so "
        "the ring never empties and hides the latency.");
  }
  if (!report.pinned) {
    warnings.push_back(
        format("The table proves nothing: this process has fewer than %d CPUs.", report.cpus));
  }
  double worst = 0;
  for (const Cell& cell : report.cells) {
    worst = std::max(worst, median_of(cell, &CellRun::host_wait_percent));
  }
  constexpr double kDisturbedPercent = 5;
  if (worst > kDisturbedPercent) {
    warnings.push_back(
        format("Others use this machine: in a cell the Cpus' threads waited %.0f %% "
               "of the time for a CPU of the host.",
               worst));
  }
  if (report.interrupted) warnings.push_back("Interrupted: only what was measured so far.");
  return warnings;
}

namespace {

std::string head_text(const KworkerReport& report) {
  const KworkerOptions& o = report.options;
  const CellSpec& first = report.cells.front().spec;
  std::string out =
      format("A kworker behind a producer (P1), on %d Cpus: HZ %d%s, %d queue%s, packets of %s.\n",
             report.cpus, o.hz, o.hrtick ? " and HRTICK" : "", o.queues, o.queues == 1 ? "" : "s",
             format_bytes(o.packet_bytes).c_str());
  if (!o.ring_sweep) {
    out += format("Ring: %zu entries of %s, %s in all; when it is full the producer %s.\n",
                  first.ring.entries, format_bytes(double(first.ring.entry_bytes)).c_str(),
                  format_bytes(double(first.ring.bytes())).c_str(),
                  o.block_when_full ? "blocks" : "drops");
  }
  out += format("Fibers: %s%s.\n",
                report.delivery == Delivery::kSignals ? "preemptible, requests delivered by signals"
                                                      : "switched at safe points",
                delivery_note(o.delivery, report.delivery));
  if (o.block_every_us > 0) {
    out += format("The producer sleeps 20 us after each %d us.\n", o.block_every_us);
  }
  if (o.busy) out += "No Cpu is idle: a user-mode fiber spins on each but the producer's.\n";
  const Baseline& b = report.baseline;
  out += format(
      "Alone, the producer makes %.1f Gb/s and the consumer takes %.1f Gb/s.\n"
      "A wakeup on another Cpu takes %s if that Cpu sleeps, %s if it has just become idle.\n",
      b.producer_gbit_s, b.consumer_gbit_s, format_ns(b.wake_parked_ns).c_str(),
      format_ns(b.wake_polling_ns).c_str());
  return out;
}

std::vector<std::string> name_columns(const KworkerReport& report, const Cell& cell) {
  std::vector<std::string> row = {preemption_name(cell.spec.mode), pool_name(cell.spec.pool)};
  if (report.options.ring_sweep) {
    row.push_back(format("%zu", cell.spec.ring.entries));
    row.push_back(format_bytes(double(cell.spec.ring.bytes())));
  }
  return row;
}

TextTable table_with(const KworkerReport& report, std::vector<std::string> columns) {
  std::vector<std::string> header = {"preemption", "pool"};
  if (report.options.ring_sweep) header.insert(header.end(), {"entries", "ring"});
  header.insert(header.end(), columns.begin(), columns.end());
  return TextTable(std::move(header), 2);
}

std::string ratio_text(double value, double reference) {
  return reference > 0 ? format("%.2f", value / reference) : "-";
}

// P1 measured its table with one queue; its first report, with four, has only throughputs.
std::string published_throughput(const KworkerReport& report, const Cell& cell) {
  const char* mode = preemption_name(cell.spec.mode);
  if (report.options.queues == 1) {
    const auto* p1 = published::p1_cell(mode, pool_name(cell.spec.pool));
    const auto* full = published::p1_cell("full", "percpu");
    if (p1 == nullptr) return "-";
    return format("%.0f (%.2f)", p1->throughput_gbit_s,
                  p1->throughput_gbit_s / full->throughput_gbit_s);
  }
  const auto* p1 = published::p1_four_queues(mode);
  const auto* full = published::p1_four_queues("full");
  if (p1 == nullptr || cell.spec.pool != Pool::kPerCpu) return "-";
  const auto figure = report.options.mergeable ? &published::P1FourQueues::mergeable_gbit_s
                                               : &published::P1FourQueues::no_mergeable_gbit_s;
  return format("%.0f (%.2f)", p1->*figure, p1->*figure / full->*figure);
}

std::string published_latency(const KworkerReport& report, const Cell& cell) {
  if (report.options.queues != 1) return "-";
  const auto* p1 = published::p1_cell(preemption_name(cell.spec.mode), pool_name(cell.spec.pool));
  return p1 == nullptr ? "-" : format_ns(p1->kworker_mean_ns);
}

std::string results_text(const KworkerReport& report) {
  TextTable table =
      table_with(report, {"Gb/s", "min-max", "ratio", "P1 (ratio)", "dropped", "B busy"});
  for (const Cell& cell : report.cells) {
    if (cell.runs.empty()) continue;
    const Range gbit = throughput_of(cell);
    const Cell* reference = reference_cell(report, cell);
    double offered = 0, dropped = 0;
    for (const CellRun& run : cell.runs) {
      offered += static_cast<double>(run.offered);
      dropped += static_cast<double>(run.dropped);
    }
    std::vector<std::string> row = name_columns(report, cell);
    row.insert(row.end(),
               {format("%.1f", gbit.median), format("%.1f-%.1f", gbit.min, gbit.max),
                reference ? ratio_text(gbit.median, throughput_of(*reference).median) : "-",
                published_throughput(report, cell),
                format("%.1f %%", offered > 0 ? 100 * dropped / offered : 0),
                format("%.0f %%", median_of(cell, &CellRun::consumer_busy_percent))});
    table.add(std::move(row));
  }
  return table.to_string();
}

std::string latencies_text(const KworkerReport& report) {
  TextTable table = table_with(report, {"kworker mean", "p50", "p99", "max", "ratio", "P1 mean",
                                        "B mean", "p50", "p99", "max"});
  for (const Cell& cell : report.cells) {
    if (cell.runs.empty()) continue;
    const LatencySummary k = latency_of(cell, &CellRun::kworker);
    const LatencySummary b = latency_of(cell, &CellRun::signal_to_run);
    const Cell* reference = reference_cell(report, cell);
    std::vector<std::string> row = name_columns(report, cell);
    if (k.count == 0) {
      row.insert(row.end(), 6, "-");
    } else {
      const double of = reference ? latency_of(*reference, &CellRun::kworker).mean_ns : 0;
      row.insert(row.end(),
                 {format_ns(k.mean_ns), format_ns(k.p50_ns), format_ns(k.p99_ns),
                  format_ns(k.max_ns), ratio_text(k.mean_ns, of), published_latency(report, cell)});
    }
    row.insert(row.end(), {format_ns(b.mean_ns), format_ns(b.p50_ns), format_ns(b.p99_ns),
                           format_ns(b.max_ns)});
    table.add(std::move(row));
  }
  return table.to_string();
}

struct CountColumn {
  const char* title;
  Counter counter;
};
constexpr CountColumn kCountColumns[] = {
    {"signals", Counter::kEventfdSignals},
    {"coalesced", Counter::kWorksCoalesced},
    {"by work", Counter::kIrqfdInjectionsWork},
    {"atomic", Counter::kIrqfdInjectionsAtomic},
    {"lazy", Counter::kLazyRequests},
    {"hard", Counter::kHardRequests},
    {"promoted", Counter::kPromotions},
    {"ticks", Counter::kTicks},
    {"IPIs", Counter::kIpisSent},
    {"unparks", Counter::kUnparks},
    {"woken", Counter::kWakeupsReal},
    {"no-op", Counter::kWakeupsNoop},
    {"voluntary", Counter::kVoluntarySwitches},
    {"forced", Counter::kForcedSwitches},
};

std::string counts_text(const KworkerReport& report) {
  std::vector<std::string> titles;
  for (const CountColumn& column : kCountColumns) titles.push_back(column.title);
  TextTable table = table_with(report, titles);
  for (const Cell& cell : report.cells) {
    if (cell.runs.empty()) continue;
    const CounterSnapshot counts = counts_of(cell);
    const double seconds = seconds_of(cell);
    std::vector<std::string> row = name_columns(report, cell);
    for (const CountColumn& column : kCountColumns) {
      row.push_back(format_count(double(counts.at(column.counter)) / seconds));
    }
    table.add(std::move(row));
  }
  return table.to_string();
}

std::string queue_latency_text(const KworkerReport& report) {
  TextTable table = table_with(report, {"A mean", "p99", "B mean", "p99", "kworker mean", "p99",
                                        "K on A's Cpu", "host wait"});
  constexpr LatencyKind kOrder[] = {LatencyKind::kKernel, LatencyKind::kUser, LatencyKind::kWorker};
  for (const Cell& cell : report.cells) {
    if (cell.runs.empty()) continue;
    std::vector<std::string> row = name_columns(report, cell);
    for (const LatencyKind kind : kOrder) {
      std::vector<double> mean, p99;
      for (const CellRun& run : cell.runs) {
        const LatencySummary& one = run.queue_latency[static_cast<size_t>(kind)];
        if (one.count == 0) continue;
        mean.push_back(one.mean_ns);
        p99.push_back(one.p99_ns);
      }
      const bool none = mean.empty();
      row.push_back(none ? "-" : format_ns(range_of(std::move(mean)).median));
      row.push_back(none ? "-" : format_ns(range_of(std::move(p99)).median));
    }
    row.push_back(cell.spec.pool == Pool::kInAtomic
                      ? "-"
                      : format("%.0f %%", median_of(cell, &CellRun::work_on_producer_percent)));
    row.push_back(format("%.1f %%", median_of(cell, &CellRun::host_wait_percent)));
    table.add(std::move(row));
  }
  return table.to_string();
}

}  // namespace

std::string kworker_text(const KworkerReport& report) {
  std::string out = head_text(report);
  for (const std::string& warning : kworker_warnings(report)) out += "! " + warning + "\n";
  out += format(
      "\nThroughput: median of %d runs of %g s, interleaved, and their range; ratio to "
      "full/percpu\n",
      report.options.runs, report.options.seconds);
  out += results_text(report);
  out +=
      "\nLatency of the kworker from being queued to running, and of B from the first signal "
      "to running\n";
  out += latencies_text(report);
  out += "\nWhy: events per second\n";
  out += counts_text(report);
  out += "\nTime on the run queue, preemptions included; where the work ran; what others took\n";
  out += queue_latency_text(report);
  out += format("\nP1: \"%.*s\". A is the producer (vhost), B the consumer (a guest's CPU).\n",
                static_cast<int>(published::kP1Thread.size()), published::kP1Thread.data());
  return out;
}

}  // namespace jiffy
