#include "kworker_sim.h"

#include <cstdio>

#include "exit_codes.h"
#include "interrupted.h"
#include "json_report.h"
#include "kworker_cell.h"
#include "progress.h"
#include "published/p1.h"
#include "text_table.h"

namespace jiffy {

namespace {

constexpr int kHz[] = {100, 250, 1000};
constexpr bool kHrtick[] = {false, true};

// Real packets are only as large as the chain's counting needs: their time is a stated cost. As
// many entries a packet as in the ring that the options ask for.
RingShape shrunk(RingShape ring) {
  const size_t per_packet = ring.entries_per_packet();
  ring.entry_bytes = 8;
  ring.packet_bytes = 8 * per_packet;
  return ring;
}

SimTable empty_table(const KworkerOptions& options, int block_every_us) {
  SimTable table{block_every_us, {}};
  const RingShape ring = shrunk(ring_shape(options));
  for (const Preemption mode : options.modes) {
    for (const Pool pool : options.pools) {
      for (const int hz : kHz) {
        for (const bool hrtick : kHrtick) {
          table.cells.push_back({{{mode, pool, ring}, {}}, hz, hrtick});
        }
      }
    }
  }
  return table;
}

// One run a seed, from the options' on.
Status run_sim_cell(const KworkerSimReport& report, int block_every_us, SimCell& sim) {
  for (int run = 0; run < report.options.runs; ++run) {
    KworkerOptions options = report.options;
    options.hz = sim.hz;
    options.hrtick = sim.hrtick;
    options.block_every_us = block_every_us;
    options.seed = report.options.seed + static_cast<uint64_t>(run);
    CellRun result;
    if (Status status = run_cell(options, sim.cell.spec, &result, nullptr); !status.ok()) {
      return status;
    }
    if (result.sequence_errors + result.checksum_errors != 0) {
      return Status::error("a packet was lost, or came out of order");
    }
    sim.cell.runs.push_back(result);
  }
  return Status();
}

void run_tables(KworkerSimReport* report) {
  const Progress progress;
  for (const int block_every_us : {0, kSimBlockEveryUs}) {
    report->tables.push_back(empty_table(report->options, block_every_us));
    SimTable& table = report->tables.back();
    for (size_t i = 0; i < table.cells.size(); ++i) {
      if (interrupted()) return;
      progress.show(
          format("table %zu, cell %zu of %zu", report->tables.size(), i + 1, table.cells.size()));
      const Status status = run_sim_cell(*report, block_every_us, table.cells[i]);
      if (status.ok()) continue;
      report->error = status.message();
      return;
    }
  }
}

// --- For people.

std::string us(const SimDelay& delay) {
  const auto text = [](std::chrono::nanoseconds ns) {
    return format("%g", double(ns.count()) / 1e3);
  };
  return delay.least == delay.most ? text(delay.least) : text(delay.least) + "-" + text(delay.most);
}

std::string head_text(const KworkerSimReport& report) {
  const KworkerOptions& o = report.options;
  const SimOptions m = sim_machine_options(o.seed);
  std::string out = format(
      "A kworker behind a producer (P1), simulated: %d Cpus, %d queue%s, %g s of virtual time a "
      "cell, "
      "%d seed%s from %llu.\n",
      report.cpus, o.queues, o.queues == 1 ? "" : "s", o.seconds, o.runs, o.runs == 1 ? "" : "s",
      static_cast<unsigned long long>(o.seed));
  out += format(
      "Costs, us: a packet in %g, out %g; an injection %g; a wakeup %g, a switch %g, an "
      "interrupt's entry %g; an IPI "
      "%s, out of idleness %s.\n",
      double(kSimChainCosts.produce.count()) / 1e3, double(kSimChainCosts.consume.count()) / 1e3,
      double(kSimChainCosts.inject.count()) / 1e3, double(m.wakeup_cost.count()) / 1e3,
      double(m.switch_cost.count()) / 1e3, double(m.interrupt_cost.count()) / 1e3,
      us(m.ipi_latency).c_str(), us(m.wake_latency).c_str());
  if (o.busy) out += "No Cpu is idle: a user-mode fiber spins on each but the producer's.\n";
  return out;
}

// One row a mode and pool, one column a tick.
template <class Figure>
std::string matrix_text(const KworkerSimReport& report, const SimTable& table, Figure figure) {
  std::vector<std::string> header = {"preemption", "pool"};
  for (const int hz : kHz) {
    for (const bool hrtick : kHrtick) header.push_back(format(hrtick ? "+ HRTICK" : "HZ %d", hz));
  }
  TextTable text(header, 2);
  for (const Preemption mode : report.options.modes) {
    for (const Pool pool : report.options.pools) {
      std::vector<std::string> row = {preemption_name(mode), pool_name(pool)};
      for (const int hz : kHz) {
        for (const bool hrtick : kHrtick) {
          const SimCell* cell = find_cell(table, mode, pool, hz, hrtick);
          row.push_back(cell == nullptr ? "-" : figure(cell->cell));
        }
      }
      text.add(std::move(row));
    }
  }
  return text.to_string();
}

std::string latency_text(const Cell& cell) {
  const LatencySummary k = latency_of(cell, &CellRun::kworker);
  return k.count == 0 ? "-" : format_ns(k.mean_ns);
}

// What P1 published, beside the cells that it names, at the kernel's default tick.
std::string published_text(const SimTable& table) {
  std::string out;
  for (const published::P1Cell& p1 : published::kP1Cells) {
    for (const SimCell& sim : table.cells) {
      const CellSpec& spec = sim.cell.spec;
      if (sim.hz != 250 || sim.hrtick || sim.cell.runs.empty()) continue;
      if (p1.preemption != preemption_name(spec.mode) || p1.pool != pool_name(spec.pool)) continue;
      const LatencySummary k = latency_of(sim.cell, &CellRun::kworker);
      out += format("  %s/%s at HZ 250: %s (p50 %s, p99 %s, max %s); P1 %s: %.2f of it\n",
                    preemption_name(spec.mode), pool_name(spec.pool), format_ns(k.mean_ns).c_str(),
                    format_ns(k.p50_ns).c_str(), format_ns(k.p99_ns).c_str(),
                    format_ns(k.max_ns).c_str(), format_ns(p1.kworker_mean_ns).c_str(),
                    k.mean_ns / p1.kworker_mean_ns);
    }
  }
  return out;
}

std::string table_text(const KworkerSimReport& report, const SimTable& table) {
  std::string out =
      table.block_every_us == 0
          ? std::string("\n(i) The producer never blocks.")
          : format("\n(ii) The producer sleeps for 20 us about every %d us.", table.block_every_us);
  out += " The kworker, from queued to running, mean:\n";
  out += matrix_text(report, table, latency_text);
  out += "Throughput, Gb/s:\n";
  out += matrix_text(report, table, [](const Cell& cell) {
    return cell.runs.empty() ? std::string("-") : format("%.1f", throughput_of(cell).median);
  });
  return out + published_text(table);
}

std::string text(const KworkerSimReport& report) {
  std::string out = head_text(report);
  for (const SimTable& table : report.tables) out += table_text(report, table);
  if (report.interrupted) out += "! Interrupted: only what was simulated so far.\n";
  return out + format("\nP1: \"%.*s\".\n", static_cast<int>(published::kP1Thread.size()),
                      published::kP1Thread.data());
}

}  // namespace

SimOptions sim_machine_options(uint64_t seed) {
  using std::chrono::nanoseconds;
  SimOptions options;
  options.seed = seed;
  options.wakeup_cost = nanoseconds(500);
  options.switch_cost = nanoseconds(1'000);
  options.interrupt_cost = nanoseconds(500);
  options.ipi_latency = SimDelay(nanoseconds(1'000), nanoseconds(2'000));
  options.wake_latency = SimDelay(nanoseconds(1'000), nanoseconds(3'000));
  return options;
}

const SimCell* find_cell(const SimTable& table, Preemption mode, Pool pool, int hz, bool hrtick) {
  for (const SimCell& sim : table.cells) {
    if (sim.cell.spec.mode == mode && sim.cell.spec.pool == pool && sim.hz == hz &&
        sim.hrtick == hrtick && !sim.cell.runs.empty()) {
      return &sim;
    }
  }
  return nullptr;
}

int run_kworker_sim(const KworkerOptions& options) {
  KworkerSimReport report;
  report.options = options;
  report.cpus = cpus_for(options);
  run_tables(&report);
  report.interrupted = interrupted();
  const std::string out = options.json ? kworker_sim_json(report) : text(report);
  std::fputs(out.c_str(), stdout);
  if (report.error.empty()) return kExitOk;
  std::fprintf(stderr, "jiffy kworker: %s\n", report.error.c_str());
  return kExitFailed;
}

}  // namespace jiffy
