// The runtimes that the rows measure, and their reference on the same CPU.
#pragma once

#include <jiffy/runtime.h>

#include <utility>

#include "micro/harness.h"

namespace jiffy::micro {

// `cpus` Cpus, each on a host CPU of its own, from the first allowed one on. An idle single Cpu
// does not poll: while the reference has its turn, it would take the CPU from it.
inline Options bench_options(int cpus) {
  Options options;
  options.cpus = cpus;
  options.pin = true;
  if (cpus == 1) options.spin_us = 0;
  return options;
}

// The same with fibers that can be preempted anywhere.
inline Options preemptible_options(int cpus) {
  Options options = bench_options(cpus);
  options.delivery = Delivery::kSignals;
  options.fiber_kind = FiberKind::kPreemptible;
  return options;
}

// The peers run what is ready in turn, by round robin and without a clock. That is the FIFO class,
// so it is what the rows with a peer for their reference run in; a note tells what the fair class
// takes.
inline SpawnOptions options_of(Policy policy) {
  SpawnOptions options;
  options.policy = policy;
  return options;
}

// fn() in a fiber of `rt`: one repetition of ours.
template <class Fn>
std::function<double()> in_fiber(Runtime& rt, Fn fn, const SpawnOptions& options = {}) {
  return [&rt, fn = std::move(fn), options] { return rt.run(fn, options); };
}

// fn() on the calling thread, on the CPU that Cpu 0 of a bench runtime has.
template <class Fn>
std::function<double()> on_first_cpu(Fn fn) {
  return [fn = std::move(fn)] {
    const PinnedHere pinned(0);
    return fn();
  };
}

}  // namespace jiffy::micro
