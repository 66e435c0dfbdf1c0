// What the runtime costs when it is not asked for anything: idle, tick_250, trace_event.
#include <benchmark/benchmark.h>
#include <jiffy/fiber.h>
#include <time.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "micro/bench_runtime.h"

namespace jiffy::micro {

namespace {

double process_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

// As an application has it: as many Cpus as allowed, not pinned, polling before they park. The two
// seconds begin when it has just been busy.
Outcome run_idle(const Row& row, const Settings& settings) {
  Runtime rt;
  rt.run([] {});
  const auto ours = [&rt] {
    rt.run([] {});
    const double start = process_cpu_ns();
    usleep(2'000'000);
    return (process_cpu_ns() - start) / rt.cpus();
  };
  return contend(row, settings, {ours, nullptr});
}

// A loop with a safe point about each microsecond, as code that calls into the runtime has them.
// The tick runs only where something waits: for ours that is a fiber that sleeps for an hour.
double busy_loop() {
  constexpr int64_t kSteps = 150'000;
  uint64_t x = 1;
  return time_per(kSteps, [&x] {
    for (int i = 0; i < 400; ++i) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      benchmark::DoNotOptimize(x);
    }
    const PreemptGuard safe_point_at_its_end;
  });
}

Outcome run_tick_250(const Row& row, const Settings& settings) {
  Runtime rt(bench_options(1));
  const auto with_tick = [] {
    std::stop_source stop;
    auto sleeper = spawn([&] { (void)sleep_for(std::chrono::hours(1), stop.get_token()); });
    yield();
    const double ns = busy_loop();
    stop.request_stop();
    sleeper.join();
    return ns;
  };
  Outcome outcome =
      contend(row, settings, {in_fiber(rt, with_tick), in_fiber(rt, [] { return busy_loop(); })});
  if (rt.counters().at(Counter::kTicks) == 0) outcome.notes.emplace_back("no tick was seen");
  return outcome;
}

Outcome run_trace_event(const Row& row, const Settings& settings) {
  constexpr int64_t kEvents = 1'000'000;
  Options options = bench_options(1);
  options.trace_records = 1 << 14;
  Runtime rt(options);
  const auto ours = [] {
    const PreemptGuard guard;  // as where the runtime traces
    Cpu& cpu = *this_cpu();
    return time_per(kEvents, [&cpu] { cpu.trace_event(TraceEvent::kWakeupReal, 1, 2, 3); });
  };
  return contend(row, settings, {in_fiber(rt, ours), nullptr});
}

}  // namespace

std::vector<Row> cost_rows() {
  return {
      {"idle",
       "CPU time of a Cpu of an idle runtime in 2 s",
       nullptr,
       {Bar::kAbsolute, 5e6, "< 5 ms"},
       {},
       1,
       run_idle},
      {"tick_250",
       "1 us of work, with the tick of 250 Hz",
       "the same without the tick",
       {Bar::kRatio, 1.02, "< 1.02 x"},
       {},
       1,
       run_tick_250},
      {"trace_event",
       "an event into the trace ring, with its time stamp",
       nullptr,
       {Bar::kAbsolute, 25, "<= 25 ns"},
       {.clocks = 1},
       1,
       run_trace_event},
  };
}

}  // namespace jiffy::micro
