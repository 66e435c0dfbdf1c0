// schedule(): the one place where a Cpu changes fibers, and the points that lead there.
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "fiber/tcb.h"
#include "sched/placement.h"
#include "sched/runtime_state.h"
#include "sched/sched.h"
#include "sched/watchdog.h"

// Present when debug/lock_check.cc is linked.
extern "C" __attribute__((weak)) int jiffy_held_pthread_mutexes();

namespace jiffy {

namespace {

[[noreturn]] void scheduling_while_atomic(const Fiber& fiber, uint32_t count) {
  std::fprintf(stderr,
               "jiffy: fiber '%s' (%llu) on Cpu %d would sleep where it may not (count %#x: "
               "preempt_disable, a spin lock or an interrupt). Rule: nothing blocks there.\n",
               fiber.name, static_cast<unsigned long long>(fiber.id),
               fiber.cpu.load(std::memory_order_relaxed)->id, count);
  std::abort();
}

// Complains once a runtime; docs/sync.md says why it is a fault.
[[gnu::noinline]] void complain_of_held_mutex(Fiber& fiber) {
  const int held = jiffy_held_pthread_mutexes();
  // A preemptible fiber is to the library a thread of its own.
  if (held <= 0 || fiber.preemptible) return;
  if (fiber.state_of_runtime->complained_of_mutex.exchange(true, std::memory_order_relaxed)) return;
  std::fprintf(stderr,
               "jiffy: fiber '%s' (%llu) suspends while its thread holds %d std::mutex or pthread "
               "mutex: another fiber of this Cpu that wants it would block the Cpu. Use "
               "jiffy::Mutex, or unlock first.\n",
               fiber.name, static_cast<unsigned long long>(fiber.id), held);
}

SwitchReason reason_of(SwitchKind kind, uint32_t need, const Fiber& prev) {
  if (prev.is_idle) return SwitchReason::kIdle;
  switch (kind) {
    case SwitchKind::kBlock:
      return SwitchReason::kBlock;
    case SwitchKind::kYield:
      return SwitchReason::kYield;
    case SwitchKind::kExit:
      return SwitchReason::kExit;
    case SwitchKind::kPassOver:
      return SwitchReason::kPreemptHard;
    case SwitchKind::kPreempt:
      return (need & kNeedResched) != 0 ? SwitchReason::kPreemptHard : SwitchReason::kPreemptLazy;
  }
  return SwitchReason::kBlock;
}

// runqlat's stamps: the time from becoming runnable, or from being preempted, to running.
[[gnu::noinline]] void account_latency(Cpu& cpu, Fiber& prev, Fiber& next, int64_t now) {
  if (!prev.is_idle && prev.on_rq && !prev.fair.delayed) prev.wake_stamp = now;
  if (!next.is_idle && next.wake_stamp != 0) {
    const int64_t waited = now > next.wake_stamp ? now - next.wake_stamp : 0;
    cpu.queue_latency[static_cast<size_t>(next.kind)].record(static_cast<uint64_t>(waited));
    next.wake_stamp = 0;
  }
  if (cpu.costs == nullptr) return;
  if (prev.state.load(std::memory_order_relaxed) == FiberState::kSleeping) {
    prev.sleep_stamp.store(now, std::memory_order_relaxed);
  }
  cpu.owed += cpu.costs->switching;
  if (cpu.owed != 0) cpu.rq->pay_after_unlock();
  cpu.machine->switched(cpu);
}

// The words of the running context follow it: those of a control block of its own are written
// before %fs goes there. The count needs nothing: it is one on both sides.
[[gnu::always_inline]] inline void switch_words(Cpu& cpu, const Fiber& prev, Fiber& next) {
  Fiber* fiber = next.is_idle ? nullptr : &next;
  if (!prev.preemptible && !next.preemptible) [[likely]] {
    set_current_fiber(fiber);
    return;
  }
  void* tcb = next.context.tcb != nullptr ? next.context.tcb : cpu.thread_tcb;
  this_cpu_internal::Words& words = words_of(tcb);
  words.cpu = &cpu;
  words.fiber = fiber;
  write_fs(tcb);
}

// Runs in the context switched to: the lock that the previous one took is released here, when its
// registers are stored and it may be resumed elsewhere.
void finish_switch(Context* previous) {
  Fiber* prev = fiber_of(previous);
  Cpu* cpu = this_cpu();
  if (prev->state.load(std::memory_order_relaxed) != FiberState::kDead) [[likely]] {
    cpu->rq->unlock_and_notify();
    return;
  }
  const bool reap = prev->reap_at_exit;
  // Release: partner is the acquire in detail::wait_done(). Unless it is ours to free, `prev` must
  // not be touched after it.
  prev->on_stack.store(false, std::memory_order_release);
  cpu->rq->unlock_and_notify();
  if (reap) detail::release(*prev);  // its result was destroyed by itself
}

}  // namespace

void fiber_entry(Context* previous) {
  Fiber* self = current_fiber();
  self->started = true;
  finish_switch(previous);
  preempt_enable();
  self->invoke(self->block);
  fiber_exit();
}

namespace {

// Inlined into a function for each kind: who yields pays nothing for what a block has to ask.
[[gnu::always_inline]] inline void schedule_as(SwitchKind kind) {
  Cpu* cpu = this_cpu();
  RunQueue& rq = *cpu->rq;
  Fiber* prev = cpu->current;
  rq.lock.lock();
  // What brought it here, before the charge below adds a request of its own.
  const uint32_t need = cpu->need.load(std::memory_order_relaxed);
  int64_t now = 0;
  if (rq.needs_clock(*prev)) {
    now = cpu->now();
    rq.update_current(now);
  }
  // A preempted fiber stays, even one that has announced its sleep: it has not looked yet whether
  // what it waits for is there.
  if (kind == SwitchKind::kPassOver) {
    rq.pass_over(*prev);
  } else if (kind != SwitchKind::kPreempt && kind != SwitchKind::kYield && !prev->is_idle &&
             prev->state.load(std::memory_order_relaxed) != FiberState::kRunning) {
    (void)rq.dequeue(*prev, /*sleep=*/kind == SwitchKind::kBlock);
  }
  Fiber* next = rq.pick_next(*prev, kind, now);
  cpu->need.store(0, std::memory_order_relaxed);
  if (next == prev) {
    rq.unlock_and_notify();
    return;
  }
  cpu->counters.add(Counter::kContextSwitches);
  if (kind == SwitchKind::kPreempt) cpu->counters.add(Counter::kForcedSwitches);
  if (rq.stamps()) account_latency(*cpu, *prev, *next, now);
  if (cpu->trace.enabled()) [[unlikely]] {
    cpu->trace_event(TraceEvent::kSwitch, static_cast<uint32_t>(reason_of(kind, need, *prev)),
                     prev->id, next->id);
  }
  // Atomic for those who look from elsewhere: dumps, and the handler of faults.
  std::atomic_ref(cpu->current).store(next, std::memory_order_relaxed);
  switch_words(*cpu, *prev, *next);
  Context* previous =
      context_switch(prev->context, next->context, cpu->eh, kind == SwitchKind::kExit);
  finish_switch(previous);
}

}  // namespace

void schedule_locked_out(SwitchKind kind) {
  switch (kind) {
    case SwitchKind::kBlock:
      return schedule_as(SwitchKind::kBlock);
    case SwitchKind::kYield:
      return schedule_as(SwitchKind::kYield);
    case SwitchKind::kPreempt:
      return schedule_as(SwitchKind::kPreempt);
    case SwitchKind::kPassOver:
      return schedule_as(SwitchKind::kPassOver);
    case SwitchKind::kExit:
      return schedule_as(SwitchKind::kExit);
  }
}

void schedule() {
  preempt_disable();
  schedule_preempt_disabled();
}

void schedule_preempt_disabled() {
  Fiber* self = current_fiber();
  const uint32_t calls = preempt_count() - kPreemptUnit;
  if ((calls & ~kCallMask) != 0) [[unlikely]]
    scheduling_while_atomic(*self, calls);
  if (jiffy_held_pthread_mutexes != nullptr) [[unlikely]]
    complain_of_held_mutex(*self);
  // The pool of a worker that really sleeps may start another one; a preempted one still counts.
  const bool hook = self->sleep_hook != nullptr &&
                    self->state.load(std::memory_order_relaxed) != FiberState::kRunning;
  if (hook) self->sleep_hook(self, /*going_to_sleep=*/true);
  // The nesting of calls is this fiber's; the count across a switch is one for all.
  set_preempt_count(kPreemptUnit);
  schedule_as(SwitchKind::kBlock);
  if (calls != 0) {
    set_preempt_count(calls);
  } else {
    preempt_enable();
  }
  if (hook) self->sleep_hook(self, /*going_to_sleep=*/false);
}

void yield() {
  Fiber* self = current_fiber();
  if (self == nullptr) {
    sched_yield();
    return;
  }
  if (const uint32_t count = preempt_count(); count != 0) [[unlikely]] {
    scheduling_while_atomic(*self, count);
  }
  if (jiffy_held_pthread_mutexes != nullptr) [[unlikely]]
    complain_of_held_mutex(*self);
  preempt_disable();
  Cpu* cpu = this_cpu();
  cpu->counters.add(Counter::kYields);
  schedule_as(SwitchKind::kYield);
  preempt_enable();
}

// --- The points of the mode table.

namespace {

bool act_wants(Act act, uint32_t need) {
  switch (act) {
    case Act::kIfHard:
      return (need & kNeedResched) != 0;
    case Act::kIfAny:
      return need != 0;
    case Act::kAlways:
      return true;
    default:
      return false;
  }
}

// Preemption is on. Returns whether it scheduled.
bool preempt_at(Moment moment) {
  preempt_disable();
  Cpu* cpu = this_cpu();
  const Act act = mode_rule(moment, cpu->state->mode.load(std::memory_order_relaxed));
  const bool wants =
      !cpu->current->is_idle && act_wants(act, cpu->need.load(std::memory_order_relaxed));
  if (wants) {
    if (jiffy_held_pthread_mutexes != nullptr) [[unlikely]]
      complain_of_held_mutex(*cpu->current);
    schedule_locked_out(SwitchKind::kPreempt);
  }
  preempt_enable_no_resched();
  return wants;
}

}  // namespace

void stop_tick(Cpu& cpu) {
  cpu.machine->stop_tick(cpu);
  // Who queued a fiber before this takes the lock may have seen the tick running, and not started
  // it; who does later sees it stopped.
  cpu.rq->lock.lock();
  const bool needed = cpu.rq->nr_running() > 1;
  cpu.rq->lock.unlock();
  if (needed) cpu.machine->start_tick(cpu);
}

namespace {

// For a user-mode fiber the end of a jiffy call, and of an interrupt taken there, is the return to
// user mode. For a kernel-mode one it is the end of the interrupt, or of a critical section.
bool preempt_point(bool interrupted) {
  const Fiber* self = current_fiber();
  if (self == nullptr) return false;
  const Moment in_kernel = interrupted ? Moment::kIrqReturnKernel : Moment::kPreemptEnable;
  return preempt_at(self->kernel_mode ? in_kernel : Moment::kReturnToUser);
}

// The same question at the end of an interrupt that came in the middle of the fiber's own code.
bool wanted_at_irq_exit(const Cpu& cpu) {
  const Moment moment = cpu.current->kernel_mode ? Moment::kIrqReturnKernel : Moment::kReturnToUser;
  return act_wants(mode_rule(moment, cpu.state->mode.load(std::memory_order_relaxed)),
                   cpu.need.load(std::memory_order_relaxed));
}

bool irq_exit(Cpu& cpu, bool waits) {
  if (waits) {
    preempt_disable();
    cpu.rq->lock.lock();
    cpu.pass_over = cpu.rq->nr_running() > 1;
    cpu.rq->lock.unlock();
    preempt_enable_no_resched();  // signals are blocked in the handler: nothing came
    if (cpu.pass_over) return true;
  }
  return wanted_at_irq_exit(cpu);
}

// What the interrupted fiber is made to call. The loop is the kernel's: what came meanwhile is
// dealt with before the fiber goes on.
void preempt_irq() {
  if (Cpu& cpu = *this_cpu(); cpu.irq_entry != 0) {
    const int64_t delay = cpu.now() - std::exchange(cpu.irq_entry, 0);
    cpu.preempt_delay.record(static_cast<uint64_t>(delay > 0 ? delay : 0));
  }
  for (;;) {
    const bool passes = std::exchange(this_cpu()->pass_over, false);
    schedule_as(passes ? SwitchKind::kPassOver : SwitchKind::kPreempt);
    Cpu& cpu = *this_cpu();  // after a switch it may be another one
    if (cpu.pending.load(std::memory_order_relaxed) != 0) cpu.service_interrupts();
    if (!wanted_at_irq_exit(cpu)) return;
  }
}

void tick(Cpu& cpu, int64_t now) {
  cpu.counters.add(Counter::kTicks);
  cpu.trace_event(TraceEvent::kTick, static_cast<uint32_t>(cpu.id), cpu.current->id);
  if (cpu.clock.resync_due(now)) cpu.clock.resync();
  watchdog_tick(cpu, now);
  if (cpu.machine->simulated()) watchdog_check(cpu);
  RunQueue& rq = *cpu.rq;
  rq.lock.lock();
  rq.tick(now);
  const int running = rq.nr_running();
  // One that sleeps delayed is taken off by a pick, which the tick has to ask for.
  const bool alone = rq.nr_queued() <= 1;
  rq.unlock_and_notify();
  if (const int fired = cpu.timers.expire(now); fired > 0) {
    cpu.counters.add(Counter::kTimersFired, static_cast<uint64_t>(fired));
  }
  if (running > 1) {
    cpu.wants_help.store(true, std::memory_order_relaxed);
    kick_balancer(*cpu.state);
  } else if (alone && cpu.timers.empty()) {
    stop_tick(cpu);
  }
}

std::string report(const Cpu& cpu) { return dump_fibers(*cpu.state); }

void wake_ksoftirqd(Cpu& cpu) {
  if (cpu.ksoftirqd != nullptr) (void)try_to_wake_up(*cpu.ksoftirqd);
}

}  // namespace

bool cond_resched() {
  const Fiber* self = current_fiber();
  if (self == nullptr || preempt_count() != 0) return false;
  // Takes interrupts: a safe point, at which a user-mode fiber may be switched already. Kernel code
  // is not asked about a request that no interrupt of now has made: that is the rule's below.
  const Cpu& cpu = *this_cpu();
  const bool asked =
      cpu_has_work(cpu) && (!self->kernel_mode || cpu.pending.load(std::memory_order_relaxed) != 0);
  const bool switched = asked && preempt_enable_slow();
  return preempt_at(Moment::kCondResched) || switched;
}

void might_sleep() {
  Fiber* self = current_fiber();
  if (self == nullptr) return;
  const uint32_t count = preempt_count();
  if ((count & ~kCallMask) != 0) [[unlikely]]
    scheduling_while_atomic(*self, count);
  if (count == 0 && cpu_has_work(*this_cpu())) (void)preempt_at(Moment::kMightSleep);
}

// --- Interrupts that belong to the scheduler.

namespace {

void on_tick(Cpu& cpu, void*) { cpu.hooks->tick(cpu, cpu.now()); }

void on_timer(Cpu& cpu, void*) {
  const int64_t now = cpu.now();
  if (cpu.clock.resync_due(now)) cpu.clock.resync();
  cpu.oneshot_armed = kNever;
  if (cpu.hrtick_expiry.load(std::memory_order_relaxed) <= now) {
    cpu.hrtick_expiry.store(kNever, std::memory_order_relaxed);
    cpu.rq->lock.lock();
    cpu.rq->hrtick(now);
    cpu.rq->unlock_and_notify();
  }
  if (const int fired = cpu.timers.expire(now); fired > 0) {
    cpu.counters.add(Counter::kTimersFired, static_cast<uint64_t>(fired));
    cpu.trace_event(TraceEvent::kTimerFired, static_cast<uint32_t>(fired));
  }
  cpu.program_oneshot();
}

// The request bits are the waker's to set: the interrupt only brings the Cpu to look at them.
void on_reschedule(Cpu& cpu, void*) {
  cpu.counters.add(Counter::kIpisReceived);
  cpu.trace_event(TraceEvent::kIpi, static_cast<uint32_t>(cpu.id));
  if (cpu.state->options.hrtick) cpu.program_oneshot();
}

}  // namespace

const CpuHooks kSchedHooks = {.main = cpu_main,
                              .preempt_point = preempt_point,
                              .irq_exit = irq_exit,
                              .preempt_irq = preempt_irq,
                              .tick = tick,
                              .watchdog = watchdog_check,
                              .wake_ksoftirqd = wake_ksoftirqd,
                              .report = report};

void sched_init_cpu(Cpu& cpu) {
  cpu.hooks = &kSchedHooks;
  cpu.waiter = &machine_waiter();
  cpu.irqs[kTickVector].handler = on_tick;
  cpu.irqs[kTimerVector].handler = on_timer;
  cpu.irqs[kRescheduleVector].handler = on_reschedule;
}

}  // namespace jiffy
