#include <jiffy/fiber.h>
#include <jiffy/runtime.h>
#include <jiffy/time.h>
#include <jiffy/wait_queue.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <memory>
#include <utility>

#include "exit_codes.h"
#include "interrupted.h"
#include "json_report.h"
#include "sim_scenario.h"
#include "text_table.h"

namespace jiffy {

namespace {

// Of all Cpus together, 32 bytes each: enough for a lecture, some seconds of a few fibers.
constexpr size_t kTraceRecords = size_t{1} << 19;
constexpr size_t kLeastTraceRecords = size_t{1} << 12;  // of one Cpu

// Beyond these a file is a mistake. The machine itself ends a livelock by aborting, after more
// switches than this; and one fiber that wakes itself switches never.
constexpr uint64_t kMostSteps = 10'000'000;
constexpr uint64_t kMostStepsAtOnce = 100'000;

class Run {
 public:
  explicit Run(SimReport* report)
      : report_(*report),
        scenario_(report->scenario),
        random_(scenario_.sim.seed * 0x9E3779B97F4A7C15ull + 1),
        rt_(options()),
        doorbells_(scenario_.fibers.size()) {}

  Status run() {
    if (Status status = rt_.start(); !status.ok()) return status;
    auto clock = start_clock();
    const CounterSnapshot before = rt_.counters();
    handles_.resize(scenario_.fibers.size());
    ids_.resize(scenario_.fibers.size());
    for (size_t i = 0; i < scenario_.fibers.size(); ++i) start(i);
    for (const ScenarioDevice& device : scenario_.devices) arm(device, device.first);
    (void)clock.wait(TimePoint(on_the_machine(scenario_.duration)));
    // The notes first: of one instant, a fiber's wake comes before the wait that ends its turn.
    const std::vector<TraceRecord> rings[] = {std::move(notes_), rt_.trace()};
    report_.complete_from = std::max<int64_t>(complete_from(rings[1]) - origin_, 0);
    report_.records = merge_traces(rings);
    std::erase_if(report_.records, [this](const TraceRecord& r) {
      const int64_t when = static_cast<int64_t>(r.time_ns) - origin_;
      return when < 0 || when > scenario_.duration;
    });
    for (TraceRecord& r : report_.records) r.time_ns -= static_cast<uint64_t>(origin_);
    report_.counts = rt_.counters() - before;
    report_.interrupted = interrupted();
    end(clock);
    return std::move(status_);
  }

 private:
  // A wake that comes before the wait is kept, once.
  struct Doorbell {
    WaitQueue queue;
    bool rung = false;  // under the queue's lock
  };

  Options options() const {
    Options o;
    o.cpus = scenario_.cpus;
    o.hz = scenario_.hz;
    o.hrtick = scenario_.hrtick;
    o.preemption = scenario_.preemption;
    o.trace_records = trace_records();
    o.soft_lockup = std::chrono::nanoseconds(0);
    SimOptions sim = scenario_.sim;
    sim.cpus = scenario_.cpus;
    o.machine = make_sim_machine(sim);
    return o;
  }

  std::chrono::nanoseconds choose(const TimeRange& range) {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    const auto width = static_cast<uint64_t>(range.most - range.least);
    const uint64_t extra = width == 0 ? 0 : (random_ >> 11) % (width + 1);
    return std::chrono::nanoseconds(range.least + static_cast<int64_t>(extra));
  }

  void start(size_t i) {
    const ScenarioFiber& fiber = scenario_.fibers[i];
    const auto spawn_it = [this, i] {
      handles_[i] = rt_.spawn([this, i] { body(i); }, scenario_.fibers[i].options);
      if (!handles_[i].valid()) stop(Status::error(handles_[i].error()));
    };
    if (fiber.starts == 0 && origin_ == 0) return spawn_it();
    at(*rt_.options().machine, on_the_machine(fiber.starts), spawn_it);
  }

  void body(size_t i) {
    const ScenarioFiber& fiber = scenario_.fibers[i];
    ids_[i] = this_fiber::id();
    report_.names[ids_[i]] = fiber.options.name;
    for (uint64_t round = 0; !ending_ && (fiber.repeat == 0 || round < fiber.repeat); ++round) {
      for (const ScenarioStep& step : fiber.steps) {
        if (!may_go_on(fiber.options.name, now_ns())) return;
        take(step, doorbells_[i]);
      }
    }
  }

  void take(const ScenarioStep& step, Doorbell& own) {
    switch (step.kind) {
      case ScenarioStep::kRun:
        return consume(choose(step.time));
      case ScenarioStep::kSleep:
        return (void)sleep_for(choose(step.time));
      case ScenarioStep::kWake:
        return ring(static_cast<size_t>(step.target), now_ns());
      case ScenarioStep::kWait:
        return (void)own.queue.wait([&] { return std::exchange(own.rung, false) || ending_; });
      case ScenarioStep::kYield:
        return yield();
      case ScenarioStep::kCondResched:
        return (void)cond_resched();
    }
  }

  // False at the end: of the simulation, of the person's patience, or of what can be simulated.
  bool may_go_on(const std::string& who, int64_t time) {
    if (!ending_ && interrupted()) {
      report_.scenario.duration = std::max<int64_t>(time, 1);
      stop(Status());
    }
    if (ending_) return false;
    if (time != last_step_at_) steps_at_once_ = 0;
    last_step_at_ = time;
    const double ms = static_cast<double>(time) / 1e6;
    if (++steps_at_once_ > kMostStepsAtOnce) {
      refuse(format("%llu steps at %.3f ms without time passing, the last by %s: add run or sleep",
                    static_cast<unsigned long long>(kMostStepsAtOnce), ms, who.c_str()));
    } else if (++steps_ > kMostSteps) {
      refuse(
          format("more than %llu steps in the first %.3f ms: let steps take longer, or simulate "
                 "less (\"for\")",
                 static_cast<unsigned long long>(kMostSteps), ms));
    }
    return !ending_;
  }
  void refuse(const std::string& why) {
    report_.refused = true;
    stop(Status::error(report_.options.file + ": " + why));
  }
  void stop(Status status) {
    if (ending_) return;
    ending_ = true;
    status_ = std::move(status);
    (void)never_.queue.wake(WaitQueue::kAll);
  }

  // In the scenario's time. By fibers only: a device has no Cpu, and now() there is the host's.
  int64_t now_ns() const { return now().time_since_epoch().count() - origin_; }
  std::chrono::nanoseconds on_the_machine(int64_t scenario_ns) const {
    return std::chrono::nanoseconds(origin_ + scenario_ns);
  }

  void ring(size_t i, int64_t time) {
    Doorbell& bell = doorbells_[i];
    const bool noop = bell.queue.with_lock([&bell] {
      const bool was_rung = std::exchange(bell.rung, true);
      return bell.queue.wake_locked(WaitQueue::kAll) == 0 && !was_rung;
    });
    if (noop && ids_[i] != 0) note_noop(ids_[i], time);
  }

  // Nobody had to be woken, so the runtime has no record of it: but that is what the comparison of
  // modes is about.
  void note_noop(uint64_t id, int64_t time) {
    const int cpu = this_fiber::cpu();
    notes_.push_back({.time_ns = static_cast<uint64_t>(origin_ + time),
                      .event = TraceEvent::kUser,
                      .cpu = cpu < 0 ? kForeignCpu : static_cast<uint16_t>(cpu),
                      .arg1 = id,
                      .arg2 = this_fiber::id()});
  }

  void arm(const ScenarioDevice& device, int64_t when) {
    at(*rt_.options().machine, on_the_machine(when), [this, &device, when] {
      if (!may_go_on("a device", when)) return;
      ring(static_cast<size_t>(device.wakes), when);
      arm(device, when + choose(device.every).count());
    });
  }

  // A simulation runs while somebody outside waits: here, for a fiber that sleeps to the end. It
  // sleeps before the first of the scenario's begins.
  JoinHandle<void> start_clock() {
    auto clock = rt_.spawn([this] { (void)never_.queue.wait([this] { return ending_; }); },
                           {.name = "clock", .cpu = 0});
    const auto started = [] {
      yield();
      return now().time_since_epoch().count();
    };
    const int64_t start_took = rt_.run(started, {.name = "start", .cpu = 0});
    const int64_t tick = 1'000'000'000 / scenario_.hz;
    if (start_took > 0) origin_ = (start_took / tick + 2) * tick;
    return clock;
  }

  size_t trace_records() const {
    const size_t each = kTraceRecords / static_cast<size_t>(scenario_.cpus);
    return std::bit_floor(std::max(each, kLeastTraceRecords));
  }
  // Where a ring was full, others may go back further.
  int64_t complete_from(const std::vector<TraceRecord>& records) const {
    std::map<uint16_t, std::pair<size_t, uint64_t>> rings;  // number, and time of the first
    uint64_t from = 0;
    for (const TraceRecord& r : records) {
      auto& [count, first] = rings.try_emplace(r.cpu, 0, r.time_ns).first->second;
      if (++count + 1 >= trace_records()) from = std::max(from, first);
    }
    return static_cast<int64_t>(from);
  }

  void end(JoinHandle<void>& clock) {
    ending_ = true;
    (void)never_.queue.wake(WaitQueue::kAll);
    clock.join();
    for (Doorbell& bell : doorbells_) (void)bell.queue.wake(WaitQueue::kAll);
    for (auto& handle : handles_) {
      if (handle.valid()) handle.join();
    }
    rt_.stop();
  }

  SimReport& report_;
  const Scenario& scenario_;
  uint64_t random_;
  // The scenario's zero on the machine's clock: after the runtime's own start, where costs make
  // that take time, and at a tick's time.
  int64_t origin_ = 0;
  bool ending_ = false;
  Status status_;
  uint64_t steps_ = 0, steps_at_once_ = 0;
  int64_t last_step_at_ = 0;        // ns
  std::vector<TraceRecord> notes_;  // see note_noop()
  std::vector<uint64_t> ids_;       // of the fibers that have begun
  Runtime rt_;
  std::vector<Doorbell> doorbells_;
  Doorbell never_;
  std::vector<JoinHandle<void>> handles_;
};

bool write_file(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return false;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written;
}

}  // namespace

Status run_scenario(SimReport* report) {
  Run run(report);
  if (Status status = run.run(); !status.ok()) return status;
  report->timelines = timelines_of(*report);
  return Status();
}

int run_sim(const ScenarioOptions& options) {
  SimReport report;
  report.options = options;
  if (Status status = read_scenario(options.file, &report.scenario); !status.ok()) {
    std::fprintf(stderr, "jiffy sim: %s\n", status.message().c_str());
    return kExitUsage;
  }
  if (options.seed_given) report.scenario.sim.seed = options.seed;
  if (options.mode_given) report.scenario.preemption = options.mode;
  if (Status status = run_scenario(&report); !status.ok()) {
    std::fprintf(stderr, "jiffy sim: %s\n", status.message().c_str());
    return report.refused ? kExitUsage : kExitFailed;
  }
  const std::string out = options.json ? sim_json(report) : sim_text(report);
  std::fputs(out.c_str(), stdout);
  if (options.trace_file.empty()) return kExitOk;
  const std::string trace = trace_to_chrome_json(report.records, [&report](uint64_t id) {
    const auto it = report.names.find(id);
    return it == report.names.end() ? std::string() : it->second;
  });
  if (write_file(options.trace_file, trace)) return kExitOk;
  std::fprintf(stderr, "jiffy sim: cannot write the trace to %s\n", options.trace_file.c_str());
  return kExitFailed;
}

}  // namespace jiffy
