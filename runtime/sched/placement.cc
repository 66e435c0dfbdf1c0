#include "sched/placement.h"

#include "sched/runtime_state.h"

namespace jiffy {

namespace {

// The count of the queue includes who runs. The idle state says something else: it is busy also
// while the idle Cpu takes an interrupt or runs its timers, which is where most wakeups come from.
bool is_idle(const Cpu& cpu) { return cpu.rq->nr_running_hint() == 0; }

// How many must run or wait on a Cpu before another one takes from it. A lone waiting fiber is
// left: its spawner is likely to block for it at once, and then it runs there with a warm cache;
// if it does not, the tick asks for help.
constexpr int kPullThreshold = 3;

bool has_spare(const Cpu& cpu) {
  const int threshold = cpu.wants_help.load(std::memory_order_relaxed) ? 2 : kPullThreshold;
  return cpu.rq->nr_movable_hint() > 0 && cpu.rq->nr_running_hint() >= threshold;
}

}  // namespace

// The order of the kernel's idle search: the target, the previous Cpu, then the neighbours that
// share its cache, and the target itself if nobody idles.
Cpu& select_cpu(RuntimeState& state, const Fiber& fiber) {
  Cpu& prev = *fiber.cpu.load(std::memory_order_relaxed);
  const Cpu* me = this_cpu();
  const bool local = me != nullptr && me->state == &state;

  // The stacking rule: a pinned worker that wakes its client on the Cpu that the client ran on is
  // about to sleep, so the client is best off behind it. Workers only (they have the hook): other
  // pinned kernel-mode fibers, such as P1's producer, may go on for ever after the wakeup, and the
  // kernel makes no such exception for them either.
  if (local && me == &prev && !in_interrupt() && me->current->sleep_hook != nullptr &&
      me->current->pinned_cpu >= 0 && me->rq->nr_running_hint() <= 1 &&
      fiber_allows_cpu(fiber, prev.id)) {
    return prev;
  }
  // Wake affine: the waker's Cpu if it is idle (an interrupt woke it), else the previous one.
  Cpu* target = &prev;
  if (local && is_idle(*me)) target = state.cpus[static_cast<size_t>(me->id)];
  if (fiber_allows_cpu(fiber, target->id) && is_idle(*target)) return *target;
  if (&prev != target && fiber_allows_cpu(fiber, prev.id) && is_idle(prev)) return prev;

  const int n = static_cast<int>(state.cpus.size());
  for (int step = 1; step < n; ++step) {
    Cpu& cpu = *state.cpus[static_cast<size_t>((target->id + step) % n)];
    if (fiber_allows_cpu(fiber, cpu.id) && is_idle(cpu)) return cpu;
  }
  if (fiber_allows_cpu(fiber, target->id)) return *target;
  for (Cpu* cpu : state.cpus) {
    if (fiber_allows_cpu(fiber, cpu->id)) return *cpu;
  }
  return *target;
}

Cpu& select_cpu_for_spawn(RuntimeState& state, const Fiber& fiber) {
  if (fiber.pinned_cpu >= 0) return *state.cpus[static_cast<size_t>(fiber.pinned_cpu)];
  const Cpu* me = this_cpu();
  // A new worker is made because work waits, by one that goes on to work here: it starts where it
  // can run at once.
  const bool worker = fiber.sleep_hook != nullptr;
  if (me != nullptr && me->state == &state && !worker && fiber_allows_cpu(fiber, me->id)) {
    return *state.cpus[static_cast<size_t>(me->id)];
  }
  Cpu* best = nullptr;
  for (Cpu* cpu : state.cpus) {
    if (!fiber_allows_cpu(fiber, cpu->id)) continue;
    if (best == nullptr || cpu->rq->nr_running_hint() < best->rq->nr_running_hint()) best = cpu;
  }
  return *best;
}

bool others_have_waiting(const Cpu& cpu) {
  for (const Cpu* other : cpu.state->cpus) {
    if (other == &cpu) continue;
    if (has_spare(*other)) return true;
  }
  return false;
}

namespace {

// In the order of their ids, as everywhere that takes two.
void lock_both(Cpu& a, Cpu& b) {
  (a.id < b.id ? a : b).rq->lock.lock();
  (a.id < b.id ? b : a).rq->lock.lock();
}

// Both queues stay locked, so that nobody sees the fiber between them: it may be one that has
// announced its sleep and was preempted before it slept, and its waker is looking for it.
Fiber* pull_one(Cpu& cpu, Cpu& victim) {
  lock_both(cpu, victim);
  const int64_t now = cpu.now();
  victim.rq->update_current(now);
  Fiber* fiber = victim.rq->detach_one();
  // Cleared also when nothing may move: the next tick asks again.
  victim.wants_help.store(false, std::memory_order_relaxed);
  if (fiber != nullptr) {
    // Release: partner is the acquire in the wakeup's lock_queue_of().
    fiber->cpu.store(&cpu, std::memory_order_release);
    cpu.rq->enqueue(*fiber, RunQueue::kMigrated, now);
  }
  victim.rq->unlock_and_notify();
  cpu.rq->unlock_and_notify();
  return fiber;
}

}  // namespace

bool pull_from_others(Cpu& cpu) {
  RuntimeState& state = *cpu.state;
  state.balancer_waking.store(false, std::memory_order_relaxed);
  const int n = static_cast<int>(state.cpus.size());
  for (int step = 1; step < n; ++step) {
    Cpu& victim = *state.cpus[static_cast<size_t>((cpu.id + step) % n)];
    if (!has_spare(victim)) continue;
    const Fiber* fiber = pull_one(cpu, victim);
    if (fiber == nullptr) continue;
    cpu.counters.add(Counter::kSteals);
    cpu.trace_event(TraceEvent::kMigrate, static_cast<uint32_t>(cpu.id), fiber->id,
                    static_cast<uint64_t>(victim.id));
    return true;
  }
  return false;
}

void kick_balancer(RuntimeState& state) {
  // What waits was made visible before. Partner: the idle loop counts itself parked, fences, and
  // looks for who waits.
  full_fence();
  if (state.parked_cpus.load(std::memory_order_relaxed) == 0) return;
  if (state.balancer_waking.exchange(true, std::memory_order_relaxed)) return;
  for (Cpu* cpu : state.cpus) {
    if (cpu->idle_state.load(std::memory_order_seq_cst) == IdleState::kParked) {
      count_event(state, Counter::kUnparks);
      cpu->waiter->unpark(*cpu);
      return;
    }
  }
  state.balancer_waking.store(false, std::memory_order_relaxed);
}

}  // namespace jiffy
