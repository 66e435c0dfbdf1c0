#include "support/runtimes.h"

#include <thread>

#include "sched/runtime_state.h"

namespace jiffy {

Options options_for(MachineKind kind, int cpus, uint64_t seed) {
  Options options;
  options.cpus = cpus;
  if (kind == MachineKind::kSim) {
    SimOptions sim;
    sim.seed = seed;
    sim.cpus = cpus;
    options.machine = make_sim_machine(sim);
  } else {
    options.spin_us = 0;
  }
  return options;
}

CheckedRuntime::CheckedRuntime(Options options) : rt_(std::move(options)) {
  const Status status = rt_.start();
  EXPECT_TRUE(status.ok()) << status.message();
  if (!status.ok()) return;
  // A worker of the pools may be at its birth: it holds its stack, and is not yet counted.
  do {
    own_units_ = live_units();
    start_ = rt_.counters();
  } while (own_units_ != start_.at(Counter::kSpawns) - start_.at(Counter::kExits));
}

// Units of stack that belong to a fiber which has not been released.
size_t CheckedRuntime::live_units() {
  size_t live = 0;
  const auto count = [&live](const Fiber* fiber) {
    live += fiber->state.load(std::memory_order_relaxed) != FiberState::kFree ? 1 : 0;
  };
  RuntimeState& state = rt_.state();
  state.stacks->for_each_unit(count);
  if (state.tcb_stacks != nullptr) state.tcb_stacks->for_each_unit(count);
  state.pools_lock.lock();
  for (auto& pool : state.other_stacks) pool->for_each_unit(count);
  state.pools_lock.unlock();
  return live;
}

void CheckedRuntime::expect_quiet() {
  if (!rt_.started()) return;
  RuntimeState& state = rt_.state();
  const auto quiet = [this] { return live_units() <= own_units_; };
  if (state.machine->simulated()) {
    const Status status = state.machine->run_until(quiet);
    EXPECT_TRUE(status.ok()) << status.message();
  } else {
    // A detached fiber gives its stack back a few instructions after all it does.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!quiet() && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
  }
  EXPECT_EQ(live_units(), own_units_) << "fibers or stacks are left over:\n" << rt_.dump();
}

void CheckedRuntime::finish() {
  if (!rt_.started()) return;
  expect_quiet();
  const CounterSnapshot counts = rt_.counters() - start_;
  EXPECT_EQ(counts.at(Counter::kSpawns), counts.at(Counter::kExits))
      << "each fiber that was started has ended, once";
  rt_.stop();
}

}  // namespace jiffy
