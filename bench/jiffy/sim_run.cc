#include <jiffy/fiber.h>
#include <jiffy/runtime.h>
#include <jiffy/wait_queue.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "exit_codes.h"
#include "json_report.h"
#include "sim_scenario.h"

namespace jiffy {

namespace {

// Enough for a lecture: some seconds of a few fibers.
constexpr size_t kTraceRecords = size_t{1} << 16;

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
    for (size_t i = 0; i < scenario_.fibers.size(); ++i) start(i);
    for (const ScenarioDevice& device : scenario_.devices) arm(device, device.first);
    (void)clock.wait(TimePoint(std::chrono::nanoseconds(scenario_.duration)));
    report_.records = rt_.trace();
    report_.counts = rt_.counters() - before;
    report_.truncated = ring_was_full();
    end(clock);
    return Status();
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
    o.trace_records = kTraceRecords;
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
    };
    if (fiber.starts == 0) return spawn_it();
    at(*rt_.options().machine, std::chrono::nanoseconds(fiber.starts), spawn_it);
  }

  void body(size_t i) {
    const ScenarioFiber& fiber = scenario_.fibers[i];
    report_.names[this_fiber::id()] = fiber.options.name;
    for (uint64_t round = 0; !ending_ && (fiber.repeat == 0 || round < fiber.repeat); ++round) {
      for (const ScenarioStep& step : fiber.steps) {
        if (ending_) return;
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
        return ring(static_cast<size_t>(step.target));
      case ScenarioStep::kWait:
        return (void)own.queue.wait([&] { return std::exchange(own.rung, false) || ending_; });
      case ScenarioStep::kYield:
        return yield();
      case ScenarioStep::kCondResched:
        return (void)cond_resched();
    }
  }

  void ring(size_t i) {
    Doorbell& bell = doorbells_[i];
    bell.queue.with_lock([&bell] {
      bell.rung = true;
      (void)bell.queue.wake_locked(WaitQueue::kAll);
    });
  }

  void arm(const ScenarioDevice& device, int64_t when) {
    at(*rt_.options().machine, std::chrono::nanoseconds(when), [this, &device, when] {
      if (ending_) return;
      ring(static_cast<size_t>(device.wakes));
      arm(device, when + choose(device.every).count());
    });
  }

  // A simulation runs while somebody outside waits: here, for a fiber that sleeps to the end. It
  // sleeps before the first of the scenario's begins.
  JoinHandle<void> start_clock() {
    auto clock = rt_.spawn([this] { (void)never_.queue.wait([this] { return ending_; }); },
                           {.name = "clock", .cpu = 0});
    rt_.run([] { yield(); }, {.name = "start", .cpu = 0});
    return clock;
  }

  bool ring_was_full() const {
    std::map<uint16_t, size_t> count;
    for (const TraceRecord& r : report_.records) {
      if (++count[r.cpu] + 1 >= kTraceRecords) return true;
    }
    return false;
  }

  void end(JoinHandle<void>& clock) {
    ending_ = true;
    never_.queue.wake(WaitQueue::kAll);
    clock.join();
    for (size_t i = 0; i < doorbells_.size(); ++i) ring(i);
    for (auto& handle : handles_) {
      if (handle.valid()) handle.join();
    }
    rt_.stop();
  }

  SimReport& report_;
  const Scenario& scenario_;
  uint64_t random_;
  bool ending_ = false;
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

int run_sim(const SimOptionsOfProgram& options) {
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
    return kExitFailed;
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
