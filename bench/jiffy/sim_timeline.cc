// What a scenario's trace says: who ran, waited and slept when, as a chart, a list and a table.
#include <algorithm>
#include <cmath>

#include "sim_scenario.h"
#include "text_table.h"

namespace jiffy {

namespace {

constexpr int kColumns = 96;

// Builds the stretches of all fibers by going through the trace once.
class Timelines {
 public:
  explicit Timelines(const SimReport& report) : report_(report) {
    for (const ScenarioFiber& fiber : report.scenario.fibers) {
      index_[fiber.options.name] = lines_.size();
      lines_.push_back({});
      lines_.back().name = fiber.options.name;
      open_.push_back({Stretch::kAsleep, 0, 0, 0});
      starts_.push_back(fiber.starts);
    }
  }

  std::vector<FiberTimeline> build() {
    for (const TraceRecord& r : report_.records) {
      const auto now = static_cast<int64_t>(r.time_ns);
      begin_due(now);
      if (now < report_.complete_from) continue;
      if (r.event == TraceEvent::kSwitch) on_switch(r, now);
      if (r.event == TraceEvent::kWakeupReal || r.event == TraceEvent::kWakeupRemote) {
        on_wakeup(r, now);
      }
      if (size_t i; r.event == TraceEvent::kUser && find(r.arg1, &i)) ++lines_[i].noop_wakeups;
    }
    begin_due(report_.scenario.duration);
    for (size_t i = 0; i < lines_.size(); ++i) close(i, report_.scenario.duration);
    return std::move(lines_);
  }

 private:
  // A fiber waits for its first turn from its start on.
  void begin_due(int64_t now) {
    for (size_t i = 0; i < starts_.size(); ++i) {
      if (starts_[i] < 0 || starts_[i] > now) continue;
      enter(i, Stretch::kWaiting, 0, starts_[i]);
      starts_[i] = -1;
    }
  }

  void on_switch(const TraceRecord& r, int64_t now) {
    const auto reason = static_cast<SwitchReason>(r.arg0);
    if (size_t i; find(r.arg1, &i)) {
      const bool leaves = reason == SwitchReason::kBlock || reason == SwitchReason::kExit;
      if (leaves) ++lines_[i].blocked;
      if (reason == SwitchReason::kPreemptHard || reason == SwitchReason::kPreemptLazy) {
        ++lines_[i].preempted;
      }
      enter(i, leaves ? Stretch::kAsleep : Stretch::kWaiting, r.cpu, now);
    }
    if (size_t i; find(r.arg2, &i)) enter(i, Stretch::kRunning, r.cpu, now);
  }

  void on_wakeup(const TraceRecord& r, int64_t now) {
    if (size_t i; find(r.arg1, &i) && open_[i].state == Stretch::kAsleep) {
      enter(i, Stretch::kWaiting, static_cast<int>(r.arg0), now);
    }
  }

  bool find(uint64_t id, size_t* i) const {
    const auto name = report_.names.find(id);
    if (name == report_.names.end()) return false;
    *i = index_.at(name->second);
    return true;
  }

  void enter(size_t i, Stretch::State state, int cpu, int64_t now) {
    close(i, now);
    open_[i] = {state, cpu, now, now};
  }

  void close(size_t i, int64_t now) {
    Stretch stretch = open_[i];
    stretch.from = std::max(stretch.from, report_.complete_from);
    stretch.to = now;
    if (stretch.to < stretch.from) return;
    FiberTimeline& line = lines_[i];
    const int64_t length = stretch.to - stretch.from;
    if (stretch.state == Stretch::kRunning) {
      ++line.turns;
      line.ran += length;
    } else if (stretch.state == Stretch::kWaiting) {
      ++line.waits;
      line.waited += length;
      line.longest_wait = std::max(line.longest_wait, length);
    }
    if (length > 0) line.stretches.push_back(stretch);
  }

  const SimReport& report_;
  std::map<std::string, size_t> index_;
  std::vector<FiberTimeline> lines_;
  std::vector<Stretch> open_;    // the current one of each
  std::vector<int64_t> starts_;  // -1: begun
};

std::string ms(int64_t ns) { return format("%.3f", static_cast<double>(ns) / 1e6); }

// Of one column: what the fiber mostly did, and whether it ran at all.
char sign_of(const FiberTimeline& line, int64_t from, int64_t to, int cpus) {
  int64_t in[3] = {0, 0, 0};
  int cpu = 0;
  for (const Stretch& s : line.stretches) {
    const int64_t part = std::min(s.to, to) - std::max(s.from, from);
    if (part <= 0) continue;
    in[s.state] += part;
    if (s.state == Stretch::kRunning) cpu = s.cpu;
  }
  if (2 * in[Stretch::kRunning] >= to - from) {
    return cpus == 1 ? '#' : static_cast<char>(cpu < 10 ? '0' + cpu : 'a' + (cpu - 10) % 26);
  }
  if (in[Stretch::kRunning] > 0) return '+';
  return in[Stretch::kWaiting] > in[Stretch::kAsleep] ? '.' : ' ';
}

struct Axis {
  std::string labels, marks;
};

// Some round times, each above a mark at its column.
Axis axis_of(int64_t duration) {
  constexpr int kMostLabels = 10;
  constexpr double kRound[] = {1, 2, 5, 10};
  const double total = static_cast<double>(duration) / 1e6;
  const double power = std::pow(10, std::floor(std::log10(total / kMostLabels)));
  double step = 0;
  for (const double round : kRound) {
    step = round * power;
    if (step * kMostLabels >= total) break;
  }
  Axis axis{"", std::string(kColumns, '-')};
  for (int i = 0; i * step < total; ++i) {
    const auto column = static_cast<size_t>(std::lround(i * step / total * kColumns));
    if (column >= kColumns) break;
    axis.labels.resize(std::max(axis.labels.size(), column), ' ');
    axis.labels += format("%.10g", i * step);
    axis.marks[column] = '|';
  }
  axis.labels += " ms";
  return axis;
}

std::string chart_text(const SimReport& report) {
  size_t width = 4;
  for (const FiberTimeline& line : report.timelines) width = std::max(width, line.name.size());
  const int64_t duration = report.scenario.duration;
  const std::string margin(width, ' ');
  const Axis axis = axis_of(duration);
  std::string out = margin + " " + axis.labels + "\n" + margin + " " + axis.marks + "\n";
  for (const FiberTimeline& line : report.timelines) {
    out += format("%*s|", static_cast<int>(width), line.name.c_str());
    for (int column = 0; column < kColumns; ++column) {
      out += sign_of(line, duration * column / kColumns, duration * (column + 1) / kColumns,
                     report.scenario.cpus);
    }
    out += "|\n";
  }
  out += report.scenario.cpus == 1 ? "# runs" : "0, 1, ... runs on that Cpu";
  return out + ", + runs for a part, . is ready and waits, blank: asleep. A column is " +
         format_ns(static_cast<double>(duration) / kColumns) + ".\n";
}

class EventList {
 public:
  explicit EventList(const SimReport& report) : report_(report) {}

  std::string text() {
    std::string out;
    int lines = 0, left_out = 0;
    for (const TraceRecord& r : report_.records) {
      if (r.event == TraceEvent::kSwitch) running_[r.cpu] = r.arg2;
      const std::string what = describe(r);
      if (what.empty()) continue;
      if (lines == report_.options.events) {
        ++left_out;
        continue;
      }
      ++lines;
      const std::string cpu = r.cpu == kForeignCpu ? "device" : format("Cpu %d", r.cpu);
      out += format("%12s ms  %-6s  %s\n", ms(static_cast<int64_t>(r.time_ns)).c_str(), cpu.c_str(),
                    what.c_str());
    }
    if (left_out > 0) out += format("%15s and %d more (--events)\n", "", left_out);
    return out;
  }

 private:
  // Empty for what concerns the runtime's own fibers only.
  std::string describe(const TraceRecord& r) const {
    switch (r.event) {
      case TraceEvent::kSwitch:
        if (!known(r.arg1) && !known(r.arg2)) return "";
        return format("%s -> %s  (%s)", name(r.arg1), name(r.arg2),
                      std::string(switch_reason_name(static_cast<SwitchReason>(r.arg0))).c_str());
      case TraceEvent::kWakeupReal:
      case TraceEvent::kWakeupRemote:
        return known(r.arg1) ? format("%s is woken, on Cpu %u", name(r.arg1), r.arg0) : "";
      case TraceEvent::kWakeupNoop:
        return known(r.arg1) && !by_itself(r)
                   ? format("the wakeup of %s is a no-op: it is awake", name(r.arg1))
                   : "";
      case TraceEvent::kLazyRequest:
        return !known(r.arg1)
                   ? ""
                   : format("lazy request to Cpu %u, which runs %s", r.arg0, name(r.arg1));
      case TraceEvent::kHardRequest:
        return !known(r.arg1)
                   ? ""
                   : format("hard request to Cpu %u, which runs %s", r.arg0, name(r.arg1));
      case TraceEvent::kUser:
        return format("%s need not be woken by %s: it is awake", name(r.arg1),
                      r.arg2 == 0 ? "the device" : name(r.arg2));
      case TraceEvent::kPromotion:
        return "the tick makes the lazy request hard";
      case TraceEvent::kTick:
        return known(r.arg1) ? format("tick, while %s runs", name(r.arg1)) : "";
      case TraceEvent::kMigrate:
        return known(r.arg1) ? format("%s moves here from Cpu %llu", name(r.arg1),
                                      static_cast<unsigned long long>(r.arg2))
                             : "";
      default:
        return "";
    }
  }

  // A sleep whose time has come takes its announcement back in this way.
  bool by_itself(const TraceRecord& r) const {
    const auto running = running_.find(r.cpu);
    return running != running_.end() && running->second == r.arg1;
  }

  bool known(uint64_t id) const { return report_.names.count(id) == 1; }
  const char* name(uint64_t id) const {
    if (id == 0) return "idle";
    const auto it = report_.names.find(id);
    return it == report_.names.end() ? "the runtime" : it->second.c_str();
  }

  const SimReport& report_;
  std::map<uint16_t, uint64_t> running_;  // the fiber, by Cpu
};

std::string summary_text(const SimReport& report) {
  TextTable table({"fiber", "ran, ms", "share", "turns", "waited, mean", "longest", "preempted",
                   "blocked", "no-op wakeups"});
  for (const FiberTimeline& line : report.timelines) {
    const double mean = line.waits == 0 ? 0 : static_cast<double>(line.waited) / line.waits;
    table.add({line.name, ms(line.ran), format("%.1f %%", share_percent(report, line)),
               format("%d", line.turns), format_ns(mean),
               format_ns(static_cast<double>(line.longest_wait)), format("%d", line.preempted),
               format("%d", line.blocked), format("%d", line.noop_wakeups)});
  }
  return table.to_string();
}

}  // namespace

double share_percent(const SimReport& report, const FiberTimeline& line) {
  const int64_t counted = report.scenario.duration - report.complete_from;
  return counted > 0 ? 100 * static_cast<double>(line.ran) / static_cast<double>(counted) : 0;
}

std::vector<FiberTimeline> timelines_of(const SimReport& report) {
  return Timelines(report).build();
}

std::string sim_text(const SimReport& report) {
  const Scenario& s = report.scenario;
  std::string out = s.question + "\n\n";
  out += format("%d Cpu%s, HZ %d%s, %s preemption, seed %llu, %.10g ms.\n\n", s.cpus,
                s.cpus == 1 ? "" : "s", s.hz, s.hrtick ? " and HRTICK" : "",
                preemption_name(s.preemption), static_cast<unsigned long long>(s.sim.seed),
                static_cast<double>(s.duration) / 1e6);
  if (report.interrupted) out += "! Interrupted: only what was simulated so far.\n\n";
  if (report.complete_from > 0) {
    out += format(
        "! The trace was too small: what was before %s ms is lost, and the rest alone is counted. "
        "Simulate less (\"for\").\n\n",
        ms(report.complete_from).c_str());
  }
  out += chart_text(report) + "\n";
  if (report.options.events > 0) out += EventList(report).text() + "\n";
  return out + summary_text(report);
}

}  // namespace jiffy
