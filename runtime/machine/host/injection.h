// A call that a signal handler makes on behalf of the fiber that it interrupted.
//
// The handler cannot switch fibers itself: its frame would stay on the alternate stack. So it edits
// the interrupted context, and when it returns the fiber finds itself in a function that it never
// called. That one saves every register, lets the scheduler run, and goes back.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>

namespace jiffy {

struct Fiber;
struct PreemptChecks;

// Room that an injected call needs on the fiber's stack: the processor's extended state, and what
// schedule() uses.
size_t injection_room();

// Whether the interrupted context may be left for another fiber: it runs on the stack of `fiber`,
// which is preemptible, and has room there; it is not a signal handler of the application (whose
// mask is not `base_mask`); and it is not in the injected call itself.
bool can_inject(const Fiber& fiber, const ucontext_t& context, uint64_t base_mask,
                const PreemptChecks& checks);

// Whether it waits for a lock: in a futex call, which the kernel is about to repeat, or between two
// calls of sched_yield().
bool waits_for_lock(const ucontext_t& context);

// Makes the context call the hook preempt_irq of its Cpu when it goes on. The caller has disabled
// preemption once, and the call enables it.
void inject(ucontext_t& context);

}  // namespace jiffy
