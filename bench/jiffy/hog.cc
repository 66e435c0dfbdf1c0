#include "hog.h"

#include <jiffy/runtime.h>
#include <jiffy/time.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>

#include "delivery.h"
#include "exit_codes.h"
#include "interrupted.h"
#include "json_report.h"
#include "progress.h"
#include "text_table.h"

namespace jiffy {

namespace {

constexpr auto kSleep = std::chrono::milliseconds(1);
// Shorter than an application's, so that a run of half a second shows it.
constexpr auto kLockupAfter = std::chrono::milliseconds(200);

// What the watchdog said last, in a signal handler: a copy, and nothing else.
struct Named {
  std::atomic<int> count{0};
  char fiber[24] = "";
  int64_t stuck_ns = 0;
} named;

void on_lockup(const SoftLockup& lockup) {
  std::strncpy(named.fiber, lockup.fiber, sizeof named.fiber - 1);
  named.stuck_ns = lockup.stuck.count();
  // Release: partner is the acquire in run_cell().
  named.count.fetch_add(1, std::memory_order_release);
}

// A line of its own for each hog's count: they are looked at from another thread.
struct alignas(64) Hog {
  std::atomic<uint64_t> loops{0};
  JoinHandle<void> fiber;
};

class HogRun {
 public:
  HogRun(const HogOptions& options, HogCell& cell) : options_(options), cell_(cell) {}

  Status run(Delivery* effective) {
    Runtime rt(runtime_options());
    if (Status status = rt.start(); !status.ok()) return status;
    *effective = rt.options().delivery;
    named.count = 0;
    spawn_all(rt);
    const TimePoint start = now();
    (void)sleep_unless_interrupted(std::chrono::nanoseconds(int64_t(options_.seconds * 1e9)));
    cell_.seconds = std::chrono::duration<double>(now() - start).count();
    stop_.store(true, std::memory_order_relaxed);
    for (auto& hog : hogs_) hog->fiber.join();
    sleeper_.join();
    fill_in(rt);
    return Status();
  }

 private:
  Options runtime_options() const {
    Options o = delivery_options(Delivery::kSignals);
    o.fiber_kind = cell_.kind;
    o.cpus = 1;
    o.preemption = cell_.mode;
    o.hz = options_.hz;
    o.soft_lockup = kLockupAfter;
    o.on_soft_lockup = on_lockup;
    return o;
  }

  // The sleeper first: it is asleep when the hogs come.
  void spawn_all(Runtime& rt) {
    SpawnOptions sleeper;
    sleeper.name = "sleeper";
    sleeper.cpu = 0;
    sleeper_ = rt.spawn([this] { sleep_and_measure(); }, sleeper);
    for (size_t i = 0; i < options_.nice.size(); ++i) {
      hogs_.push_back(std::make_unique<Hog>());
      Hog& hog = *hogs_.back();
      SpawnOptions options;
      options.name = format("hog%zu", i);
      options.nice = options_.nice[i];
      options.cpu = 0;
      options.kernel_mode = cell_.kernel_mode;
      hog.fiber = rt.spawn(
          [this, &hog] {
            while (!stop_.load(std::memory_order_relaxed)) {
              hog.loops.store(hog.loops.load(std::memory_order_relaxed) + 1,
                              std::memory_order_relaxed);
            }
          },
          options);
    }
  }

  void sleep_and_measure() {
    while (!stop_.load(std::memory_order_relaxed)) {
      const TimePoint wanted = now() + kSleep;
      (void)sleep_until(wanted);
      delays_.record(static_cast<uint64_t>(std::chrono::nanoseconds(now() - wanted).count()));
    }
  }

  void fill_in(Runtime& rt) {
    double all = 0, weights = 0;
    for (const auto& hog : hogs_) all += static_cast<double>(hog->loops.load());
    const auto weight = [](int nice) { return std::pow(1.25, -nice); };
    for (const int nice : options_.nice) weights += weight(nice);
    for (size_t i = 0; i < hogs_.size(); ++i) {
      const double loops = static_cast<double>(hogs_[i]->loops.load());
      cell_.share_percent.push_back(all > 0 ? 100 * loops / all : 0);
      cell_.fair_percent.push_back(100 * weight(options_.nice[i]) / weights);
    }
    cell_.delay = summarize(delays_.snapshot());
    cell_.counts = rt.counters();
    if (named.count.load(std::memory_order_acquire) > 0) {
      cell_.named = named.fiber;
      cell_.named_after_ms = static_cast<double>(named.stuck_ns) / 1e6;
    }
  }

  const HogOptions& options_;
  HogCell& cell_;
  std::atomic<bool> stop_{false};
  Histogram delays_;
  std::vector<std::unique_ptr<Hog>> hogs_;
  JoinHandle<void> sleeper_;
};

std::vector<HogCell> cells_of(const HogOptions& options) {
  std::vector<HogCell> cells;
  const auto add = [&cells](Preemption mode, FiberKind kind, bool kernel_mode) {
    HogCell cell;
    cell.mode = mode;
    cell.kind = kind;
    cell.kernel_mode = kernel_mode;
    cells.push_back(cell);
  };
  for (const bool kernel_mode : {false, true}) {
    for (const Preemption mode : options.modes) add(mode, FiberKind::kPreemptible, kernel_mode);
  }
  add(options.modes.back(), FiberKind::kCooperative, false);
  return cells;
}

std::string text(const HogReport& report) {
  std::string out = format(
      "Fibers that compute without end and make no call, beside one that sleeps for 1 ms again and "
      "again,\non one Cpu: HZ %d, %.1f s each, delivery by %s%s.\n\n",
      report.options.hz, report.options.seconds, delivery_name(report.delivery),
      delivery_note(Delivery::kSignals, report.delivery));
  std::string fair;
  for (const double percent : report.cells.front().fair_percent) {
    fair += format("%s%.0f", fair.empty() ? "" : "/", percent);
  }
  TextTable table({"hogs", "preemption", "shares % (" + fair + ")", "sleeper late, mean", "p50",
                   "p99", "max", "forced/s", "the watchdog names"},
                  2);
  for (const HogCell& cell : report.cells) {
    std::string shares;
    for (const double percent : cell.share_percent) {
      shares += format("%s%.0f", shares.empty() ? "" : "/", percent);
    }
    const std::string kind = cell.kind == FiberKind::kCooperative ? "cooperative"
                             : cell.kernel_mode                   ? "kernel mode"
                                                                  : "user mode";
    const double forced = static_cast<double>(cell.counts.at(Counter::kForcedSwitches));
    table.add({kind, preemption_name(cell.mode), shares, format_ns(cell.delay.mean_ns),
               format_ns(cell.delay.p50_ns), format_ns(cell.delay.p99_ns),
               format_ns(cell.delay.max_ns),
               format("%.0f", cell.seconds > 0 ? forced / cell.seconds : 0),
               cell.named.empty()
                   ? "nobody"
                   : format("%s, after %.0f ms", cell.named.c_str(), cell.named_after_ms)});
  }
  out += table.to_string();
  out +=
      "A user-mode hog is preempted at the tick in every mode, and by a wakeup at once in full. "
      "One in "
      "kernel\nmode only where the mode preempts kernel code. A cooperative one never: the "
      "watchdog "
      "is for that.\n";
  if (report.interrupted) out += "! Interrupted: only what was measured so far.\n";
  return out;
}

}  // namespace

int run_hog(const HogOptions& options) {
  HogReport report;
  report.options = options;
  const Progress progress;
  for (HogCell& cell : cells_of(options)) {
    if (interrupted()) break;
    progress.show(format("%s, %s", preemption_name(cell.mode),
                         cell.kernel_mode ? "kernel mode" : "user mode"));
    Delivery effective = Delivery::kSignals;
    if (const Status status = HogRun(options, cell).run(&effective); !status.ok()) {
      std::fprintf(stderr, "jiffy hog: %s\n", status.message().c_str());
      return kExitMissing;
    }
    report.delivery = effective;
    report.cells.push_back(cell);
  }
  report.interrupted = interrupted();
  if (report.cells.empty()) return kExitOk;
  const std::string out = options.json ? hog_json(report) : text(report);
  std::fputs(out.c_str(), stdout);
  return kExitOk;
}

}  // namespace jiffy
