// Results as JSON. Only this file and sim_parse.cc see the JSON library.
#include "json_report.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "delivery.h"
#include "environment.h"
#include "published/p1.h"

namespace jiffy {

namespace {

using Json = nlohmann::ordered_json;

Json environment_json(const std::string& command_line) {
  const Environment e = read_environment();
  Json quota = nullptr;  // none
  if (std::isfinite(e.quota_cpus)) quota = e.quota_cpus;
  return {{"jiffy", e.version},
          {"command", command_line},
          {"kernel", e.kernel},
          {"host_preemption", e.host_preemption},
          {"host_tick_hz", e.host_hz},
          {"cpu_model", e.cpu_model},
          {"online_cpus", e.online_cpus},
          {"allowed_cpus", e.allowed_cpus},
          {"allowed_cpu_list", e.allowed_cpu_list},
          {"quota_cpus", quota},
          {"load_1min_tasks", e.load_1min},
          {"compiler", e.compiler},
          {"build", e.build}};
}

Json head(const char* schema, const std::string& command_line) {
  Json json;
  json["schema"] = schema;
  json["environment"] = environment_json(command_line);
  return json;
}

std::string to_text(const Json& json) { return json.dump(2) + "\n"; }

Json range_json(const Range& range) {
  return {{"median", range.median}, {"min", range.min}, {"max", range.max}};
}

Json latency_json(const LatencySummary& l) {
  if (l.count == 0) return nullptr;
  return {{"mean", l.mean_ns}, {"p50", l.p50_ns}, {"p99", l.p99_ns}, {"max", l.max_ns}};
}

Json delay_json(const SimDelay& delay) {
  return {{"least", delay.least.count()}, {"most", delay.most.count()}};
}

Json ratio_json(double value, double reference) {
  return reference > 0 ? Json(value / reference) : Json(nullptr);
}

// --- kworker.

Json options_json(const KworkerReport& report) {
  const KworkerOptions& o = report.options;
  return {{"cpus", report.cpus},
          {"pinned", report.pinned},
          {"delivery", delivery_name(report.delivery)},
          {"tick_hz", o.hz},
          {"hrtick", o.hrtick},
          {"ring_entries", o.ring_entries},
          {"mergeable", o.mergeable},
          {"packet_bytes", o.packet_bytes},
          {"full", o.block_when_full ? "block" : "drop"},
          {"block_every_us", o.block_every_us},
          {"queues", o.queues},
          {"busy", o.busy},
          {"run_s", o.seconds},
          {"runs", o.runs},
          {"ring_sweep", o.ring_sweep}};
}

Json baseline_json(const Baseline& b) {
  return {{"producer_gbit_s", b.producer_gbit_s},
          {"consumer_gbit_s", b.consumer_gbit_s},
          {"consumer_is_faster", b.consumer_is_faster()},
          {"wake_parked_cpu_ns", b.wake_parked_ns},
          {"wake_polling_cpu_ns", b.wake_polling_ns}};
}

Json counts_json(const CounterSnapshot& counts) {
  Json json;
  for (size_t i = 0; i < kCounterCount; ++i) {
    json[std::string(counter_name(static_cast<Counter>(i)))] = counts.values[i];
  }
  return json;
}

Json queue_latency_json(const std::array<LatencySummary, kLatencyKinds>& kinds) {
  Json json;
  for (int kind = 0; kind < kLatencyKinds; ++kind) {
    json[latency_kind_name(static_cast<LatencyKind>(kind))] =
        latency_json(kinds[static_cast<size_t>(kind)]);
  }
  return json;
}

Json run_json(const CellRun& run) {
  return {{"seconds_s", run.seconds},
          {"throughput_gbit_s", run.throughput_gbit_s},
          {"offered_gbit_s", run.offered_gbit_s},
          {"offered_packets", run.offered},
          {"received_packets", run.received},
          {"dropped_packets", run.dropped},
          {"kworker_latency_ns", latency_json(run.kworker)},
          {"signal_to_run_ns", latency_json(run.signal_to_run)},
          {"queue_latency_ns", queue_latency_json(run.queue_latency)},
          {"consumer_busy_percent", run.consumer_busy_percent},
          {"work_on_producer_cpu_percent", run.work_on_producer_percent},
          {"host_wait_percent", run.host_wait_percent},
          {"counts", counts_json(run.counts)}};
}

Json published_json(const KworkerReport& report, const Cell& cell) {
  const char* mode = preemption_name(cell.spec.mode);
  Json json = nullptr;
  if (report.options.queues == 1) {
    const auto* p1 = published::p1_cell(mode, pool_name(cell.spec.pool));
    const auto* full = published::p1_cell("full", "percpu");
    if (p1 == nullptr) return json;
    json = {{"throughput_gbit_s", p1->throughput_gbit_s},
            {"throughput_ratio", p1->throughput_gbit_s / full->throughput_gbit_s},
            {"kworker_mean_ns", p1->kworker_mean_ns},
            {"kworker_mean_ratio", p1->kworker_mean_ns / full->kworker_mean_ns}};
    return json;
  }
  const auto* p1 = published::p1_four_queues(mode);
  if (p1 == nullptr || cell.spec.pool != Pool::kPerCpu) return json;
  json = {{"mergeable_gbit_s", p1->mergeable_gbit_s},
          {"no_mergeable_gbit_s", p1->no_mergeable_gbit_s},
          {"guest_busy_percent", p1->guest_busy_percent},
          {"kworker_queue_latency_mean_ns", p1->kworker_ns},
          {"vhost_queue_latency_mean_ns", p1->vhost_ns},
          {"vcpu_queue_latency_mean_ns", p1->vcpu_ns}};
  return json;
}

Json cell_json(const KworkerReport& report, const Cell& cell) {
  const Range gbit = throughput_of(cell);
  const LatencySummary kworker = latency_of(cell, &CellRun::kworker);
  const Cell* reference = reference_cell(report, cell);
  uint64_t offered = 0, dropped = 0;
  for (const CellRun& run : cell.runs) {
    offered += run.offered;
    dropped += run.dropped;
  }
  Json json = {{"preemption", preemption_name(cell.spec.mode)},
               {"pool", pool_name(cell.spec.pool)},
               {"ring_entries", cell.spec.ring.entries},
               {"ring_bytes", cell.spec.ring.bytes()},
               {"throughput_gbit_s", range_json(gbit)},
               {"kworker_latency_ns", latency_json(kworker)},
               {"signal_to_run_ns", latency_json(latency_of(cell, &CellRun::signal_to_run))},
               {"dropped_percent", offered > 0 ? 100.0 * double(dropped) / double(offered) : 0},
               {"consumer_busy_percent", median_of(cell, &CellRun::consumer_busy_percent)},
               {"host_wait_percent", median_of(cell, &CellRun::host_wait_percent)},
               {"throughput_ratio_to_full_percpu", nullptr},
               {"kworker_mean_ratio_to_full_percpu", nullptr},
               {"published", published_json(report, cell)},
               {"counts", counts_json(counts_of(cell))},
               {"counted_s", seconds_of(cell)}};
  if (reference != nullptr) {
    json["throughput_ratio_to_full_percpu"] =
        ratio_json(gbit.median, throughput_of(*reference).median);
    if (kworker.count != 0) {
      json["kworker_mean_ratio_to_full_percpu"] =
          ratio_json(kworker.mean_ns, latency_of(*reference, &CellRun::kworker).mean_ns);
    }
  }
  for (const CellRun& run : cell.runs) json["runs"].push_back(run_json(run));
  return json;
}

}  // namespace

std::string kworker_json(const KworkerReport& report) {
  Json json = head("jiffy.kworker/1", report.options.command_line);
  json["options"] = options_json(report);
  json["baseline"] = baseline_json(report.baseline);
  json["published_thread"] = published::kP1Thread;
  json["interrupted"] = report.interrupted;
  json["error"] = report.error.empty() ? Json(nullptr) : Json(report.error);
  json["warnings"] = kworker_warnings(report);
  json["cells"] = Json::array();
  for (const Cell& cell : report.cells) {
    if (!cell.runs.empty()) json["cells"].push_back(cell_json(report, cell));
  }
  return to_text(json);
}

std::string kworker_sim_json(const KworkerSimReport& report) {
  const KworkerOptions& o = report.options;
  const SimOptions m = sim_machine_options(o.seed);
  Json json = head("jiffy.kworker_sim/1", o.command_line);
  json["options"] = {{"cpus", report.cpus},
                     {"seed", o.seed},
                     {"runs", o.runs},
                     {"run_s", o.seconds},
                     {"queues", o.queues},
                     {"busy", o.busy},
                     {"ring_entries", o.ring_entries},
                     {"packet_bytes", o.packet_bytes}};
  json["costs_ns"] = {{"packet_in", kSimChainCosts.produce.count()},
                      {"packet_out", kSimChainCosts.consume.count()},
                      {"injection", kSimChainCosts.inject.count()},
                      {"wakeup", m.wakeup_cost.count()},
                      {"switch", m.switch_cost.count()},
                      {"interrupt", m.interrupt_cost.count()},
                      {"ipi", delay_json(m.ipi_latency)},
                      {"idle_exit", delay_json(m.wake_latency)}};
  json["published_thread"] = published::kP1Thread;
  json["interrupted"] = report.interrupted;
  json["error"] = report.error.empty() ? Json(nullptr) : Json(report.error);
  json["cells"] = Json::array();
  for (const SimTable& table : report.tables) {
    for (const SimCell& sim : table.cells) {
      if (sim.cell.runs.empty()) continue;
      const CellSpec& spec = sim.cell.spec;
      json["cells"].push_back(
          {{"preemption", preemption_name(spec.mode)},
           {"pool", pool_name(spec.pool)},
           {"tick_hz", sim.hz},
           {"hrtick", sim.hrtick},
           {"block_every_us", table.block_every_us},
           {"throughput_gbit_s", range_json(throughput_of(sim.cell))},
           {"kworker_latency_ns", latency_json(latency_of(sim.cell, &CellRun::kworker))},
           {"signal_to_run_ns", latency_json(latency_of(sim.cell, &CellRun::signal_to_run))},
           {"counts", counts_json(counts_of(sim.cell))},
           {"counted_s", seconds_of(sim.cell)}});
    }
  }
  return to_text(json);
}

// --- sim.

std::string sim_json(const SimReport& report) {
  const Scenario& s = report.scenario;
  Json json = head("jiffy.sim/1", report.options.command_line);
  json["question"] = s.question;
  json["options"] = {{"cpus", s.cpus},     {"tick_hz", s.hz},
                     {"hrtick", s.hrtick}, {"preemption", preemption_name(s.preemption)},
                     {"seed", s.sim.seed}, {"duration_ns", s.duration}};
  json["costs_ns"] = {
      {"wakeup", s.sim.wakeup_cost.count()},       {"switch", s.sim.switch_cost.count()},
      {"interrupt", s.sim.interrupt_cost.count()}, {"offload", s.sim.offload_cost.count()},
      {"ipi", delay_json(s.sim.ipi_latency)},      {"idle_exit", delay_json(s.sim.wake_latency)}};
  json["interrupted"] = report.interrupted;
  json["truncated"] = report.complete_from > 0;
  json["complete_from_ns"] = report.complete_from;
  json["fibers"] = Json::array();
  for (const FiberTimeline& line : report.timelines) {
    Json turns = Json::array();
    for (const Stretch& stretch : line.stretches) {
      if (stretch.state != Stretch::kRunning) continue;
      turns.push_back({{"cpu", stretch.cpu}, {"from_ns", stretch.from}, {"to_ns", stretch.to}});
    }
    json["fibers"].push_back(
        {{"name", line.name},
         {"ran_ns", line.ran},
         {"share_percent", share_percent(report, line)},
         {"waited_mean_ns", line.waits == 0 ? 0 : double(line.waited) / line.waits},
         {"longest_wait_ns", line.longest_wait},
         {"turns", line.turns},
         {"preempted", line.preempted},
         {"blocked", line.blocked},
         {"noop_wakeups", line.noop_wakeups},
         {"runs", turns}});
  }
  json["counts"] = counts_json(report.counts);
  return to_text(json);
}

// --- pingpong.

std::string pingpong_json(const PingpongReport& report) {
  Json json = head("jiffy.pingpong/1", report.options.command_line);
  json["published_thread"] = published::kP1Thread;
  json["interrupted"] = report.interrupted;
  json["block_wakeup"] = Json::array();
  for (const BlockWakeupCounts& c : report.block_wakeup) {
    json["block_wakeup"].push_back({{"preemption", preemption_name(c.mode)},
                                    {"machine", c.machine},
                                    {"delivery", delivery_name(report.options.delivery)},
                                    {"exchanges", c.exchanges},
                                    {"real_wakeups", c.real_wakeups},
                                    {"noop_wakeups", c.noop_wakeups},
                                    {"voluntary_switches", c.voluntary_switches},
                                    {"forced_switches", c.forced_switches},
                                    {"promotions", c.promotions}});
  }
  json["detour"] = Json::array();
  for (const DetourCounts& c : report.detour) {
    json["detour"].push_back({{"preemption", preemption_name(c.mode)},
                              {"machine", c.machine},
                              {"exchanges", c.exchanges},
                              {"b_first_exchanges", c.b_first},
                              {"c_first_exchanges", c.c_first},
                              {"b_wait_mean_ns", c.b_wait_ns},
                              {"promotions", c.promotions}});
  }
  return to_text(json);
}

// --- hog.

std::string hog_json(const HogReport& report) {
  Json json = head("jiffy.hog/1", report.options.command_line);
  json["options"] = {{"tick_hz", report.options.hz},
                     {"run_s", report.options.seconds},
                     {"nice_levels", report.options.nice},
                     {"delivery", delivery_name(report.delivery)}};
  json["interrupted"] = report.interrupted;
  json["cells"] = Json::array();
  for (const HogCell& cell : report.cells) {
    json["cells"].push_back(
        {{"preemption", preemption_name(cell.mode)},
         {"fibers", cell.kind == FiberKind::kCooperative ? "cooperative" : "preemptible"},
         {"kernel_mode", cell.kernel_mode},
         {"share_percent", cell.share_percent},
         {"fair_share_percent", cell.fair_percent},
         {"sleeper_delay_ns", latency_json(cell.delay)},
         {"watchdog_named", cell.named.empty() ? Json(nullptr) : Json(cell.named)},
         {"watchdog_after_ms", cell.named.empty() ? Json(nullptr) : Json(cell.named_after_ms)},
         {"counted_s", cell.seconds},
         {"counts", counts_json(cell.counts)}});
  }
  return to_text(json);
}

// --- doctor.

std::string doctor_json(const DoctorOptions& options, const std::vector<Check>& checks) {
  Json json = head("jiffy.doctor/1", options.command_line);
  json["checks"] = Json::array();
  for (const Check& check : checks) {
    json["checks"].push_back({{"name", check.name},
                              {"state", check_state_name(check.state)},
                              {"required", check.required},
                              {"found", check.found},
                              {"cost", check.cost.empty() ? Json(nullptr) : Json(check.cost)}});
  }
  return to_text(json);
}

}  // namespace jiffy
