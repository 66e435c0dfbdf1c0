#include "kworker.h"

#include <jiffy/runtime.h>
#include <jiffy/topology.h>
#include <jiffy/trace.h>

#include <cstdio>

#include "delivery.h"
#include "exit_codes.h"
#include "interrupted.h"
#include "json_report.h"
#include "kworker_cell.h"
#include "progress.h"
#include "text_table.h"

namespace jiffy {

const char* pool_name(Pool pool) {
  static constexpr const char* kNames[] = {"percpu", "unbound", "inatomic"};
  return kNames[static_cast<size_t>(pool)];
}

RingShape ring_shape(const KworkerOptions& options) {
  constexpr size_t kPage = 4096;
  RingShape ring;
  ring.packet_bytes = static_cast<size_t>(options.packet_bytes);
  ring.entry_bytes = options.mergeable ? kPage : (ring.packet_bytes + kPage - 1) / kPage * kPage;
  ring.entries = static_cast<size_t>(options.ring_entries);
  return ring;
}

namespace {

// A run that an interrupt cut shorter than this share is not counted.
constexpr double kShortestShare = 0.1;

std::vector<CellSpec> matrix(const KworkerOptions& options) {
  std::vector<CellSpec> specs;
  for (const Preemption mode : options.modes) {
    for (const Pool pool : options.pools) specs.push_back({mode, pool, ring_shape(options)});
  }
  return specs;
}

// The two cells that differ most, over rings from a quarter of a megabyte to 16.
std::vector<CellSpec> ring_sweep(const KworkerOptions& options) {
  constexpr size_t kSmallest = size_t{256} << 10;
  constexpr size_t kLargest = size_t{16} << 20;
  std::vector<CellSpec> specs;
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    RingShape ring = ring_shape(options);
    ring.entries = std::max(bytes / ring.entry_bytes, ring.entries_per_packet());
    specs.push_back({Preemption::kFull, Pool::kPerCpu, ring});
    specs.push_back({Preemption::kLazy, Pool::kPerCpu, ring});
  }
  return specs;
}

std::string cell_name(const CellSpec& spec) {
  return std::string(preemption_name(spec.mode)) + "-" + pool_name(spec.pool);
}

// One cell: the file as named. Several: with the cell's name before its ending.
std::string trace_path(const KworkerReport& report, const CellSpec& spec) {
  const std::string& file = report.options.trace_file;
  if (report.cells.size() == 1) return file;
  std::string name = format("-%s", cell_name(spec).c_str());
  if (report.options.ring_sweep) name += format("-%zu", spec.ring.entries);
  const size_t dot = file.rfind('.');
  const size_t slash = file.rfind('/');
  const bool has_ending =
      dot != std::string::npos && (slash == std::string::npos || dot > slash + 1);
  return has_ending ? file.substr(0, dot) + name + file.substr(dot) : file + name;
}

bool write_trace(const std::string& path, const CellTrace& trace) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return false;
  const std::string text = trace_to_chrome_json(trace.records, [&trace](uint64_t id) {
    const auto it = trace.names.find(id);
    return it == trace.names.end() ? std::string() : it->second;
  });
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written;
}

// Found out before minutes of measuring, not after.
bool can_write_traces(const KworkerReport& report) {
  const std::string path = trace_path(report, report.cells.front().spec);
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) return false;
  std::fclose(file);
  return true;
}

// False if it cannot go on.
bool measure_cell(KworkerReport* report, Cell& cell, bool last_run) {
  CellRun run;
  CellTrace trace;
  const bool traced = last_run && !report->options.trace_file.empty();
  const Status status = run_cell(report->options, cell.spec, &run, traced ? &trace : nullptr);
  if (!status.ok()) {
    report->error = status.message();
    return false;
  }
  if (traced) {
    const std::string path = trace_path(*report, cell.spec);
    if (!write_trace(path, trace)) {
      report->error = "cannot write the trace to " + path;
      return false;
    }
  }
  if (run.sequence_errors + run.checksum_errors != 0) {
    report->error =
        format("%s: %llu packets out of order or lost, %llu with a wrong checksum",
               cell_name(cell.spec).c_str(), static_cast<unsigned long long>(run.sequence_errors),
               static_cast<unsigned long long>(run.checksum_errors));
  }
  if (run.seconds >= kShortestShare * report->options.seconds) cell.runs.push_back(run);
  return report->error.empty();
}

// Interleaved: what disturbs this machine for a while hits a run of each cell, not all of one.
void measure_cells(KworkerReport* report) {
  const Progress progress;
  const int runs = report->options.runs;
  for (int run = 0; run < runs; ++run) {
    for (Cell& cell : report->cells) {
      if (interrupted()) return;
      progress.show(format("run %d of %d: %s, %zu entries", run + 1, runs,
                           cell_name(cell.spec).c_str(), cell.spec.ring.entries));
      if (!measure_cell(report, cell, run + 1 == runs)) return;
    }
  }
}

}  // namespace

namespace {

// A runtime says whether it could be had.
Delivery effective_delivery(Delivery asked) {
  Options options = delivery_options(asked);
  options.cpus = 1;
  Runtime probe(options);
  return probe.start().ok() ? probe.options().delivery : Delivery::kSafePoints;
}

}  // namespace

int run_kworker(const KworkerOptions& options) {
  KworkerReport report;
  report.options = options;
  report.cpus = cpus_for(options);
  report.pinned = pinned(report.cpus);
  report.delivery = effective_delivery(options.delivery);
  for (CellSpec& spec : options.ring_sweep ? ring_sweep(options) : matrix(options)) {
    report.cells.push_back({spec, {}});
  }
  if (!options.trace_file.empty() && !can_write_traces(report)) {
    std::fprintf(stderr, "jiffy kworker: cannot write to %s\n", options.trace_file.c_str());
    return kExitFailed;
  }
  if (!options.plot_file.empty() && gnuplot_missing()) {
    std::fprintf(stderr,
                 "jiffy kworker: --plot needs gnuplot, which is not installed (gnuplot-nox)\n");
    return kExitMissing;
  }
  const Status status = measure_baseline(options, ring_shape(options), &report.baseline);
  if (!status.ok()) {
    std::fprintf(stderr, "jiffy kworker: %s\n", status.message().c_str());
    return kExitMissing;
  }
  measure_cells(&report);
  report.interrupted = interrupted();
  const std::string out = options.json ? kworker_json(report) : kworker_text(report);
  std::fputs(out.c_str(), stdout);
  if (!options.plot_file.empty()) {
    const Status drawn = write_plot(report, options.plot_file);
    if (!drawn.ok() && report.error.empty()) report.error = drawn.message();
  }
  if (report.error.empty()) return kExitOk;
  std::fprintf(stderr, "jiffy kworker: %s\n", report.error.c_str());
  return kExitFailed;
}

}  // namespace jiffy
