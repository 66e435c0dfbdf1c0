#include <jiffy/sim.h>
#include <jiffy/time.h>
#include <jiffy/wait_queue.h>

#include "sched/runtime_state.h"
#include "sched/sched.h"

namespace jiffy {

TimePoint now() {
  // The Cpu's clock is its owner's alone: it must not change hands in between.
  preempt_count_add(kPreemptUnit);
  const Cpu* cpu = this_cpu();
  const int64_t ns = cpu != nullptr ? cpu->now() : monotonic_ns();
  // No safe point, which a cooperative fiber's clock reading never was. But a preemptible one that
  // does little else would keep off what arrives meanwhile for ever.
  if (preempt_count_sub_and_test(kPreemptUnit)) {
    const Fiber* self = current_fiber();
    if (self != nullptr && self->preemptible && cpu_has_work(*this_cpu())) {
      (void)preempt_enable_slow();
    }
  }
  return TimePoint(std::chrono::nanoseconds(ns));
}

WaitResult sleep_until(const Until& until) {
  WaitQueue nobody(LockClass::kHandoff, "a time");
  return nobody.wait([] { return false; }, until);
}

void consume(std::chrono::nanoseconds duration) {
  Cpu* cpu = this_cpu();
  if (cpu != nullptr) {
    cpu->machine->consume(duration.count());
    if (preempt_count() == 0 && cpu_has_work(*this_cpu())) preempt_enable_slow();
    return;
  }
  const int64_t end = monotonic_ns() + duration.count();
  while (monotonic_ns() < end) cpu_relax();
}

}  // namespace jiffy
