// Preemption in the middle of a fiber's code: preempt_full, preempt_lazy, and delay_* for each kind
// of hostile code.
#include <jiffy/semaphore.h>
#include <jiffy/time.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "micro/bench_runtime.h"
#include "micro/futex_wake.h"
#include "support/hostile.h"

namespace jiffy::micro {

namespace {

Outcome skip(const Status& status) {
  Outcome outcome;
  outcome.skipped = status.message();
  return outcome;
}

// --- The reference: from a signal to the handler of a thread that computes, on another CPU.

std::atomic<double> handled_at{0};

// Release: partner is the acquire in run().
void stamp(int) { handled_at.store(now_ns(), std::memory_order_release); }

class SignalToHandler {
 public:
  SignalToHandler() {
    struct sigaction action = {};
    action.sa_handler = stamp;
    sigaction(SIGUSR2, &action, &old_);
    thread_ = std::thread([this] {
      const PinnedHere pinned(0);
      tid_.store(static_cast<pid_t>(syscall(SYS_gettid)), std::memory_order_release);
      while (run_.load(std::memory_order_relaxed) >= 0) {
        // Computes only while it is measured: ours has the same CPU in its turn.
        if (run_.load(std::memory_order_relaxed) == 0) usleep(1000);
      }
    });
    while (tid_.load(std::memory_order_acquire) == 0) usleep(100);
  }
  ~SignalToHandler() {
    run_.store(-1, std::memory_order_relaxed);
    thread_.join();
    sigaction(SIGUSR2, &old_, nullptr);
  }

  double run(int signals) {
    const PinnedHere pinned(1);
    run_.store(1, std::memory_order_relaxed);
    std::vector<double> samples;
    for (int i = 0; i < signals; ++i) {
      spin_for(kSilenceNs);
      handled_at.store(0, std::memory_order_relaxed);
      const double start = now_ns();
      syscall(SYS_tgkill, getpid(), tid_.load(std::memory_order_relaxed), SIGUSR2);
      double at = 0;
      // Acquire: partner is the release in stamp().
      while ((at = handled_at.load(std::memory_order_acquire)) == 0) __builtin_ia32_pause();
      samples.push_back(at - start);
    }
    run_.store(0, std::memory_order_relaxed);
    return percentile(samples, 50);
  }

 private:
  std::atomic<int> run_{0};
  std::atomic<pid_t> tid_{0};
  struct sigaction old_ = {};
  std::thread thread_;
};

// --- Ours: a fiber in for(;;), and another one that is woken from another CPU.

class Wakee {
 public:
  Wakee(Runtime& rt, Policy policy) : rt_(rt) {
    wakee_ = rt.spawn(
        [this] {
          for (;;) {
            go_.acquire();
            if (ended_.load(std::memory_order_relaxed)) return;
            // Release: partner is the acquire in run().
            ran_at_.store(now_ns(), std::memory_order_release);
          }
        },
        options_of(policy));
  }
  ~Wakee() {
    ended_ = true;
    go_.release();
    wakee_.join();
  }

  // p50, or the longest of all.
  double run(int wakes, double silence_ns, bool longest) {
    std::atomic<bool> stop{false};
    auto hog = rt_.spawn([&stop] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
    const PinnedHere pinned(1);
    std::vector<double> samples;
    for (int i = 0; i < wakes; ++i) {
      spin_for(silence_ns);
      ran_at_.store(0, std::memory_order_relaxed);
      const double start = now_ns();
      go_.release();
      double at = 0;
      // Acquire: partner is the release in the fiber.
      while ((at = ran_at_.load(std::memory_order_acquire)) == 0) __builtin_ia32_pause();
      samples.push_back(at - start);
    }
    stop = true;
    hog.join();
    return percentile(samples, longest ? 100 : 50);
  }

 private:
  Runtime& rt_;
  Semaphore go_;
  std::atomic<bool> ended_{false};
  std::atomic<double> ran_at_{0};
  JoinHandle<void> wakee_;
};

Outcome run_preempt_full(const Row& row, const Settings& settings) {
  constexpr int kWakes = 200;
  Options options = preemptible_options(1);
  options.preemption = Preemption::kFull;
  Runtime rt(options);
  if (const Status status = rt.start(); !status.ok()) return skip(status);
  SignalToHandler reference;
  Wakee wakee(rt, Policy::kFifo);
  return contend(row, settings,
                 {[&wakee] { return wakee.run(kWakes, kSilenceNs, /*longest=*/false); },
                  [&reference] { return reference.run(kWakes); }});
}

// The longest wait of a repetition: the bar is a promise for each.
Outcome run_preempt_lazy(const Row& row, const Settings& settings) {
  constexpr int kWakes = 40;
  Options options = preemptible_options(1);
  options.preemption = Preemption::kLazy;
  Runtime rt(options);
  if (const Status status = rt.start(); !status.ok()) return skip(status);
  Wakee wakee(rt, Policy::kNormal);
  return contend(row, settings,
                 {[&wakee] { return wakee.run(kWakes, 1'300'000, /*longest=*/true); }, nullptr});
}

// --- The price of a short run in the fair class: a wakee that runs for r costs half of that in
// lag, and a wait earns it half of the wait. So in the long run it waits, in the mean, as long as
// it runs: nearly always not at all, and now and then until the hog's slice is over, rounded up to
// a tick. That asks for runs that are short against such a wait, of some milliseconds, and for
// wakeups that keep no step with the tick.

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<double> waits_ns(Runtime& rt, double run_ns, double seconds) {
  Semaphore go;
  std::atomic<bool> stop{false};
  std::atomic<double> woken_at{0};  // 0: the wakee may be woken
  std::vector<double> waits;
  SpawnOptions pinned_to_0 = options_of(Policy::kNormal);
  pinned_to_0.cpu = 0;
  auto wakee = rt.spawn(
      [&] {
        for (;;) {
          go.acquire();
          if (stop.load(std::memory_order_relaxed)) return;
          waits.push_back(now_ns() - woken_at.load(std::memory_order_acquire));
          for (const double end = thread_cpu_ns() + run_ns; thread_cpu_ns() < end;) {
          }
          // Release: partner is the acquire of the device.
          woken_at.store(0, std::memory_order_release);
        }
      },
      pinned_to_0);
  auto hog = rt.spawn(
      [&stop] {
        while (!stop.load(std::memory_order_relaxed)) {
        }
      },
      pinned_to_0);
  const PinnedHere pinned(1);
  std::mt19937 random(1);
  std::uniform_real_distribution<double> gap(4 * run_ns, 12 * run_ns);
  for (const double end = now_ns() + seconds * 1e9; now_ns() < end;) {
    spin_for(gap(random));
    while (woken_at.load(std::memory_order_acquire) != 0) __builtin_ia32_pause();
    woken_at.store(now_ns(), std::memory_order_release);
    go.release();
  }
  while (woken_at.load(std::memory_order_acquire) != 0) __builtin_ia32_pause();
  stop = true;
  go.release();
  wakee.join();
  hog.join();
  return waits;
}

Outcome run_wait_is_run(const Row& row, const Settings& settings) {
  Options options = preemptible_options(1);
  options.preemption = Preemption::kFull;
  Runtime rt(options);
  if (const Status status = rt.start(); !status.ok()) return skip(status);
  constexpr double kRunNs = 30'000, kSeconds = 2;
  std::vector<double> medians;
  Outcome outcome = contend(row, settings,
                            {[&] {
                               std::vector<double> waits = waits_ns(rt, kRunNs, kSeconds);
                               medians.push_back(percentile(waits, 50));
                               return mean(waits);
                             },
                             [] { return kRunNs; }});
  char median[64];
  std::snprintf(median, sizeof median, "the median wait, which is the delivery alone: %.1f us",
                percentile(medians, 50) / 1000);
  outcome.notes.push_back(median);
  for (const double run_us : {10.0, 100.0, 300.0}) {
    char what[64];
    std::snprintf(what, sizeof what, "with a run of %.0f us", run_us);
    outcome.notes.push_back(variant_note(
        what, settings, [&rt, run_us] { return mean(waits_ns(rt, run_us * 1000, kSeconds)); }));
  }
  return outcome;
}

// --- The delay inside the runtime: from the entry of the handler that finds a request to the
// switch.

// What the machine itself takes away from a thread that only reads its clock: longest gaps.
HistogramSnapshot machine_gaps(double ns) {
  Histogram gaps;
  double last = now_ns();
  for (const double end = last + ns; last < end;) {
    const double now = now_ns();
    if (now - last > 300) gaps.record(static_cast<uint64_t>(now - last));
    last = now;
  }
  return gaps.snapshot();
}

std::string describe(const char* what, const HistogramSnapshot& h) {
  char text[160];
  std::snprintf(
      text, sizeof text, "%s: %llu, p50 %llu ns, p99 %llu ns, max %llu ns", what,
      static_cast<unsigned long long>(h.count()), static_cast<unsigned long long>(h.percentile(50)),
      static_cast<unsigned long long>(h.percentile(99)), static_cast<unsigned long long>(h.max()));
  return text;
}

Outcome run_delay(const Row& row, const Settings& settings) {
  const Hostile* workload = nullptr;
  for (const Hostile& one : hostile_workloads()) {
    if (std::string("delay_") + one.name == row.name) workload = &one;
  }
  HistogramSnapshot all;
  const auto repetition = [&]() -> double {
    Options options = preemptible_options(1);
    options.hz = 1000;
    options.latency_stats = true;
    Runtime rt(options);
    if (!rt.start().ok()) return 0;
    HostileRun runs[2];
    std::vector<JoinHandle<void>> fibers;
    for (HostileRun& run : runs) {
      run.file = "/dev/null";
      fibers.push_back(rt.spawn([&run, workload] { workload->run(run, 7); }));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    for (HostileRun& run : runs) run.stop = true;
    for (auto& fiber : fibers) fiber.join();
    const HistogramSnapshot delay = rt.preempt_delay();
    all.merge_from(delay);
    return static_cast<double>(delay.percentile(99));
  };
  {
    Runtime probe(preemptible_options(1));
    if (const Status status = probe.start(); !status.ok()) return skip(status);
  }
  Outcome outcome = contend(row, settings, {repetition, nullptr});
  outcome.notes.push_back(describe("all delays", all));
  const PinnedHere pinned(0);
  outcome.notes.push_back(
      describe("gaps above 300 ns of a thread alone in 0.4 s", machine_gaps(400e6)));
  return outcome;
}

}  // namespace

std::vector<Row> preempt_rows() {
  std::vector<Row> rows = {
      {"preempt_full",
       "FULL: a FIFO fiber woken from another CPU over for(;;), p50",
       "a signal to the handler of a computing thread",
       {Bar::kRatio, 1.3, "<= 1.3 x"},
       {},
       2,
       run_preempt_full},
      {"preempt_lazy",
       "LAZY: a fair fiber woken from another CPU beside for(;;), longest",
       nullptr,
       // The slice of 0.7 ms rounded up to a tick of 4 ms, and one tick.
       {Bar::kAbsolute, 8e6, "<= 8 ms"},
       {},
       2,
       run_preempt_lazy},
  };
  rows.push_back(
      {"wait_is_run",
       "FULL: a pinned fair fiber that runs for 30 us a wakeup, beside for(;;); mean wait",
       "its run",
       {Bar::kRatio, 1.5, "0.67 - 1.5 x", 0.67},
       {},
       2,
       run_wait_is_run});
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Hostile& one : hostile_workloads()) all.push_back(std::string("delay_") + one.name);
    return all;
  }();
  for (const std::string& name : names) {
    rows.push_back({name.c_str(),
                    "from the handler that finds a request to the switch, in such code, p99",
                    nullptr,
                    {Bar::kAbsolute, 5000, "< 5 us"},
                    {},
                    1,
                    run_delay});
  }
  return rows;
}

}  // namespace jiffy::micro
