// What the tests of work queues in virtual time share.
#pragma once

#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/sim.h>
#include <jiffy/work.h>

#include <chrono>
#include <cstdint>
#include <utility>

#include "sched/runtime_state.h"
#include "work/work_queue_state.h"

namespace jiffy::work_test {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

inline Options work_options(int cpus, Preemption mode = Preemption::kLazy) {
  Options o;
  o.preemption = mode;
  o.cpus = cpus;
  o.latency_stats = true;
  o.trace_records = 1 << 12;
  o.machine = make_sim_machine({.cpus = cpus});
  return o;
}

inline SpawnOptions on_cpu(int cpu, bool kernel = false) {
  SpawnOptions o;
  o.cpu = cpu;
  o.kernel_mode = kernel;
  return o;
}

// Virtual time.
inline nanoseconds clock() { return now().time_since_epoch(); }

// A simulated machine with its runtime, whose tests run in a fiber of Cpu 0.
class World {
 public:
  explicit World(int cpus = 1, Preemption mode = Preemption::kLazy) : rt(work_options(cpus, mode)) {
    const Status status = rt.start();
    EXPECT_TRUE(status.ok()) << status.message();
    // The runtime's own fibers have run and sleep; no time has passed.
    const Status settled = rt.state().machine->run_until([this] {
      for (Cpu* cpu : rt.state().cpus) {
        if (cpu->idle_state.load() != IdleState::kParked) return false;
      }
      return true;
    });
    EXPECT_TRUE(settled.ok()) << settled.message();
  }
  template <class F>
  void run(F&& body) {
    rt.run(std::forward<F>(body), on_cpu(0));
  }
  uint64_t count(Counter c) const { return rt.counters().at(c); }
  size_t workers(int pool) const {
    WorkerPool& p = *rt.state().work->pools[static_cast<size_t>(pool)];
    size_t n = 0;
    for (Worker* w = p.all.front(); w != nullptr; w = p.all.next(w)) ++n;
    return n;
  }
  size_t idle_workers(int pool) const {
    WorkerPool& p = *rt.state().work->pools[static_cast<size_t>(pool)];
    size_t n = 0;
    for (Worker* w = p.idle.front(); w != nullptr; w = p.idle.next(w)) ++n;
    return n;
  }
  Runtime rt;
};

inline constexpr WorkQueueKind kBothKinds[] = {WorkQueueKind::kPerCpu, WorkQueueKind::kUnbound};

}  // namespace jiffy::work_test
