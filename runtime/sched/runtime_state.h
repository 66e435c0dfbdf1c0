// What the rooms of one runtime share. The public Runtime owns it.
//
// Letters: I immutable between start and stop; A atomic; L under lock.
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/detail/spinlock.h>
#include <jiffy/options.h>
#include <jiffy/semaphore.h>
#include <jiffy/topology.h>
#include <jiffy/trace.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpu/cpu.h"
#include "fiber/stack_pool.h"
#include "sched/run_queue.h"

namespace jiffy {

class WorkState;
struct ServiceFibers;
class OffloadPool;

// A Cpu and what stands on it. Heap allocated, so that its parts keep their addresses.
struct CpuUnit {
  CpuUnit(int id, RuntimeState& state) : cpu(id, state), rq(cpu, state) { cpu.rq = &rq; }
  Cpu cpu;
  RunQueue rq;
  ServiceFibers* services = nullptr;  // I: owned
};

struct RuntimeState {
  explicit RuntimeState(Options o);
  ~RuntimeState();

  Options options;                   // I
  std::shared_ptr<Machine> machine;  // I
  Clock clock;                       // I: for threads that are no Cpu; virtual in the sim
  std::vector<std::unique_ptr<CpuUnit>> units;  // I
  std::vector<Cpu*> cpus;                       // I: units' Cpus, by id
  std::unique_ptr<StackPool> stacks;            // I: of the default size
  std::unique_ptr<StackPool> tcb_stacks;        // I: the same for preemptible fibers
  bool shared_tls = false;  // I: preemptible fibers have no control block, and stay on their Cpu
  int llc_size = 0;         // I: Cpus that share a cache, for the idle search

  // A, relaxed: the mode may change at any time; each rule is asked with the mode of its moment.
  Atomic<Preemption> mode;
  // A: set once, before an interrupt to each Cpu: after that interrupt each exit sees it.
  Atomic<bool> draining{false};
  RawSpinLock drain_lock{LockClass::kDrain};
  Waiter* drain_waiter = nullptr;  // L: drain_lock. Told of each exit while draining
  Atomic<bool> stop_cpus{false};   // A, seq_cst; partner: the idle loop
  // A, seq_cst: a foreign spawn announces itself below and then looks here; stop() clears it and
  // then looks below.
  Atomic<bool> accept_spawns{false};
  Atomic<int> foreign_spawns{0};
  // A: threads that are not Cpus of this runtime, inside a wakeup of one of its fibers. The Cpus
  // are not freed before they are out. Release on leaving, acquire by stop().
  Atomic<int> foreign_wakers{0};
  Atomic<uint64_t> next_fiber_id{1};        // A: handed to the Cpus in blocks
  Atomic<bool> complained_of_mutex{false};  // A, relaxed: it is said once
  // A: a Cpu has been unparked to look for work to pull, and has not looked yet. Keeps a burst of
  // spawns from waking each idle Cpu.
  Atomic<bool> balancer_waking{false};
  Atomic<int> parked_cpus{0};  // A: how many park or are about to

  Counters foreign_counters;  // add_shared only
  ForeignTraceRing foreign_trace;

  // Stack pools of other sizes. L: pools_lock. Of a capacity that is never exceeded, so that
  // nothing allocates under the lock.
  static constexpr size_t kMostPools = 64;
  RawSpinLock pools_lock{LockClass::kPools};
  std::vector<std::unique_ptr<StackPool>> other_stacks;

  int drain_acks = 0;  // L: drain_lock. Cpus that have seen `draining`

  Semaphore stop_requested{0};           // what init waits for
  Fiber* init = nullptr;                 // I
  std::unique_ptr<OffloadPool> offload;  // I
  WorkState* work = nullptr;             // I: the worker pools; owned by the room work/
  // The pools of a stopped runtime. Empty, but who holds a system work queue may still ask it, and
  // is refused.
  std::shared_ptr<WorkState> ended_work;
  CounterSnapshot foreign_before;  // I: foreign_counters at start(); they are never reset
};

// All fibers, one a line; see Runtime::dump().
std::string dump_fibers(const RuntimeState& state);

// The Cpu that this runs on, if it is one of this runtime; else null, and the caller is foreign. A
// Cpu of another runtime is foreign too: the shutdown counts spawns and exits, and both must be in
// its own runtime.
inline Cpu* local_cpu(const RuntimeState& state) {
  Cpu* cpu = this_cpu();
  return cpu != nullptr && cpu->state == &state ? cpu : nullptr;
}

// The clock for whoever asks: the calling Cpu's, or the runtime's.
inline int64_t clock_now(const RuntimeState& state) {
  const Cpu* cpu = this_cpu();
  return cpu != nullptr ? cpu->now() : state.clock.now();
}

// Counts an event on the calling Cpu, or among those of foreign threads.
inline void count_event(RuntimeState& state, Cpu* local, Counter counter, uint64_t n = 1) {
  if (local != nullptr) [[likely]] {
    local->counters.add(counter, n);
  } else {
    state.foreign_counters.add_shared(counter, n);
  }
}
inline void count_event(RuntimeState& state, Counter counter, uint64_t n = 1) {
  count_event(state, local_cpu(state), counter, n);
}

inline void trace_any(RuntimeState& state, TraceEvent event, uint32_t arg0, uint64_t arg1 = 0,
                      uint64_t arg2 = 0) {
  if (Cpu* cpu = local_cpu(state); cpu != nullptr) {
    cpu->trace_event(event, arg0, arg1, arg2);
  } else if (state.foreign_trace.enabled()) {
    state.foreign_trace.emit(static_cast<uint64_t>(state.clock.now()), event, arg0, arg1, arg2);
  }
}

}  // namespace jiffy
