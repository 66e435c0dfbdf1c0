// Switching and starting fibers: yield_*, spawn_join.
#include <benchmark/benchmark.h>
#include <jiffy/fiber.h>
#include <xmmintrin.h>

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstdio>

#include "micro/bench_runtime.h"
#include "micro/raw_contexts.h"

namespace jiffy::micro {

namespace {

constexpr int64_t kSwitches = 2'000'000;  // a repetition: some 0.1 s

// `fibers` fibers, the caller among them, that do nothing but yield; `turn(i)` is what fiber i does
// between two yields. ns for one switch: what is counted is how often the Cpu really changed
// fibers, since a yield that finds nobody better would be cheap. One warm-up round starts them.
template <class Turn>
double yield_ring(Runtime& rt, int fibers, const SpawnOptions& options, Turn turn) {
  bool stop = false;  // one Cpu: no race
  std::vector<JoinHandle<void>> others;
  for (int i = 1; i < fibers; ++i) {
    others.push_back(spawn(
        [&stop, &turn, i] {
          while (!stop) {
            turn(i);
            yield();
          }
        },
        options));
  }
  yield();
  const auto switches = [&rt] { return rt.counters().at(Counter::kContextSwitches); };
  const uint64_t before = switches();
  const double start = thread_cpu_ns();
  for (int64_t i = 0; i < kSwitches / fibers; ++i) {
    turn(0);
    yield();
  }
  const double ns = (thread_cpu_ns() - start) / static_cast<double>(switches() - before);
  stop = true;
  for (auto& other : others) other.join();
  return ns;
}

Outcome run_yield(const Row& row, const Settings& settings, int fibers, Policy policy,
                  const Options& runtime_options) {
  Runtime rt(runtime_options);
  if (const Status status = rt.start(); !status.ok()) {
    Outcome outcome;
    outcome.skipped = status.message();
    return outcome;
  }
  RawRing ring(fibers);
  const auto nothing = [](int) {};
  const SpawnOptions options = options_of(policy);
  const auto ours = in_fiber(
      rt, [&] { return yield_ring(rt, fibers, options, nothing); }, options);
  return contend(row, settings, {ours, on_first_cpu([&] { return ring.run(kSwitches / fibers); })});
}

Outcome run_yield_fifo_1000(const Row& row, const Settings& settings) {
  return run_yield(row, settings, 1000, Policy::kFifo, bench_options(1));
}
Outcome run_yield_fair_2(const Row& row, const Settings& settings) {
  return run_yield(row, settings, 2, Policy::kNormal, preemptible_options(1));
}
Outcome run_yield_fair_1000(const Row& row, const Settings& settings) {
  return run_yield(row, settings, 1000, Policy::kNormal, preemptible_options(1));
}

// Both fibers compute as much; ours by a division whose result is inexact in one of the two, so
// that their sticky flags differ at each switch. A flag that was set only once would prove
// nothing: the flags do not survive a switch. Beside it, what the plain jump does.
Outcome run_yield_mxcsr(const Row& row, const Settings& settings) {
  Runtime rt(bench_options(1));
  const SpawnOptions options = options_of(Policy::kFifo);
  const auto measure = [&](float divisor) {
    return yield_ring(rt, 2, options, [divisor](int i) {
      __m128 one = _mm_set_ss(1.0f);
      benchmark::DoNotOptimize(one);  // at run time, in each turn
      benchmark::DoNotOptimize(_mm_div_ss(one, _mm_set_ss(i == 1 ? divisor : 2.0f)));
    });
  };
  Outcome outcome = contend(row, settings,
                            {in_fiber(
                                 rt, [&] { return measure(3.0f); }, options),
                             in_fiber(
                                 rt, [&] { return measure(2.0f); }, options)});
  RawRing same(2), different(2, /*sticky=*/true);
  const auto raw = [&](RawRing& ring) {
    std::vector<double> values;
    for (int i = 0; i < settings.repetitions; ++i) {
      values.push_back(on_first_cpu([&] { return ring.run(kSwitches / 4); })());
    }
    return range_of(values).median;
  };
  char note[128];
  const double raw_same = raw(same), raw_different = raw(different);
  std::snprintf(
      note, sizeof note,
      "plain jump_fcontext: %.1f ns with the same flags, %.1f with different ones (%.1f x)",
      raw_same, raw_different, raw_different / raw_same);
  outcome.notes.emplace_back(note);
  return outcome;
}

// The reference allocates its stack from a pool, runs an empty function and gives the stack back;
// it has no scheduler, no join and no result, so the bar leaves ours some more.
Outcome run_spawns(const Row& row, const Settings& settings, const Options& runtime_options) {
  constexpr int64_t kSpawns = 300'000;
  namespace ctx = boost::context;
  Runtime rt(runtime_options);
  if (const Status status = rt.start(); !status.ok()) {
    Outcome outcome;
    outcome.skipped = status.message();
    return outcome;
  }
  ctx::pooled_fixedsize_stack pool(rt.options().stack_size);
  const auto ours = [&rt](Policy policy) {
    const SpawnOptions options = options_of(policy);
    return in_fiber(
        rt, [options] { return time_per(kSpawns, [&] { spawn([] {}, options).join(); }); },
        options);
  };
  const auto reference = [&pool] {
    return time_per(kSpawns, [&pool] {
      ctx::fiber fiber(std::allocator_arg, pool,
                       [](ctx::fiber&& caller) { return std::move(caller); });
      benchmark::DoNotOptimize(std::move(fiber).resume());
    });
  };
  Outcome outcome = contend(row, settings, {ours(Policy::kFifo), on_first_cpu(reference)});
  outcome.notes.push_back(variant_note("in the fair class", settings, ours(Policy::kNormal)));
  return outcome;
}

Outcome run_spawn_join(const Row& row, const Settings& settings) {
  return run_spawns(row, settings, bench_options(1));
}
Outcome run_spawn_join_preemptible(const Row& row, const Settings& settings) {
  return run_spawns(row, settings, preemptible_options(1));
}

}  // namespace

std::vector<Row> switch_rows() {
  return {
      {"yield_fifo_1000",
       "yield among 1000 cooperative fibers of the FIFO class",
       "jump_fcontext in a ring of as many",
       {Bar::kRatio, 4, "<= 4 x"},
       {.jumps = 1, .locked = 1},
       1,
       run_yield_fifo_1000},
      {"yield_fair_2",
       "yield between 2 preemptible fibers, EEVDF",
       "jump_fcontext in a ring of as many",
       {Bar::kAbsolute, 60, "<= 60 ns"},
       {.jumps = 1, .locked = 1, .clocks = 1},
       1,
       run_yield_fair_2},
      {"yield_fair_1000",
       "yield among 1000 preemptible fibers, EEVDF",
       "jump_fcontext in a ring of as many",
       {Bar::kAbsolute, 110, "<= 110 ns"},
       {.jumps = 1, .locked = 1, .clocks = 1},
       1,
       run_yield_fair_1000},
      {"yield_mxcsr",
       "yield between 2 fibers whose sticky FP flags differ",
       "the same with equal flags",
       {Bar::kRatio, 1.5, "<= 1.5 x"},
       {.jumps = 1, .locked = 1},
       1,
       run_yield_mxcsr},
      {"spawn_join",
       "an empty fiber of the FIFO class on a pooled stack, to its end",
       "boost::context::fiber with pooled_fixedsize_stack",
       {Bar::kRatio, 1.3, "<= 1.3 x"},
       {.jumps = 2, .locked = 6},
       1,
       run_spawn_join},
      {"spawn_join_preemptible",
       "the same with a preemptible fiber, whose unit has a thread control block",
       "boost::context::fiber with pooled_fixedsize_stack",
       {Bar::kRatio, 2, "<= 2 x"},
       {.jumps = 2, .locked = 6},
       1,
       run_spawn_join_preemptible},
  };
}

}  // namespace jiffy::micro
