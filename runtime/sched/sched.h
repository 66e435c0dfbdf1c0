// The scheduler proper, for the rooms above: schedule(), wakeups, spawning, the idle loop.
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/detail/waiter.h>
#include <jiffy/fiber.h>
#include <jiffy/options.h>
#include <jiffy/status.h>

#include <cstddef>
#include <cstdint>

#include "cpu/cpu.h"
#include "fiber/fiber.h"
#include "machine/model.h"
#include "sched/run_queue.h"

namespace jiffy {

struct RuntimeState;

// --- Switching. By a fiber.

// With preemption off once, by the owner: changes fibers, if there is a better one. Returns when
// the caller runs again, perhaps on another Cpu.
void schedule_locked_out(SwitchKind kind);

// Gives up the Cpu. The caller has set its state to kSleeping (under the lock of what it waits for)
// and returns when somebody woke it; if that happened already, at once. Preemption is on at the
// call. Not in interrupts.
void schedule();
// The same for a caller that holds preemption off, once: from the lock of what it waits for on,
// say. Preemption is on at the return.
void schedule_preempt_disabled();
// The end of a fiber: wakes its joiners, never returns. Defined by the room sync, where joining is.
[[noreturn]] void fiber_exit();

// By the owner: stops the tick of a Cpu that has nobody waiting.
void stop_tick(Cpu& cpu);

// --- Waking. Any context, with preemption off: under a spin lock, or in an interrupt.

// Wakes `fiber` if it sleeps. True if this call did so. The caller keeps the fiber alive by what
// it waits on: it holds that lock, or the timer base's.
bool try_to_wake_up(Fiber& fiber);

// What a stop callback does. Not a safe point: std::stop_source knows its requester by the thread,
// so the fiber that runs a callback must neither change threads in it nor let the waiter, which
// destroys the callback, run before its end.
inline void wake_for_stop(Waiter& waiter) {
  preempt_disable();
  // seq_cst: between the request and the look at the sleeper. Partner: the sleeper announces its
  // sleep and then looks for the request.
  full_fence();
  (void)waiter.wake();
  preempt_enable_no_resched();
}

// --- Attributes. Any context but interrupts.

// What is wrong with them, naming the range.
Status check_spawn_options(const RuntimeState& state, const SpawnOptions& options);

// Frees the mask of a fiber that ends or has ended. Preemption on.
void free_mask(Fiber& fiber);

// The Cpu has stopped: its cached stacks go back to their pools.
void give_back_caches(Cpu& cpu);

void fiber_set_attributes(Fiber& fiber, Policy policy, int nice, int priority, int64_t slice_ns);

// Lifts a pinned fiber into the class of stoppers, above FIFO.
void fiber_make_stopper(Fiber& fiber);

// --- A Cpu's life. cpu_main() is what its thread runs.

void cpu_main(Cpu& cpu);
// The idle waiter of a Cpu that nobody gave another one.
IdleWaiter& machine_waiter();
void sched_init_cpu(Cpu& cpu);
extern const CpuHooks kSchedHooks;

// Runs fn(arg) on `cpu` in its stopper fiber, the highest class, and waits for it.
void stop_one_cpu(Cpu& cpu, void (*fn)(void* arg), void* arg);

}  // namespace jiffy
