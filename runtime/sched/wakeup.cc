// try_to_wake_up(), and the blocking call of fibers and plain threads that stands on it.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "sched/placement.h"
#include "sched/runtime_state.h"
#include "sched/sched.h"

namespace jiffy {

namespace {

// The queue that `fiber` is on or slept on, locked.
RunQueue& lock_queue_of(Fiber& fiber) {
  for (;;) {
    // Acquire: partner is the release store of whoever moves the fiber.
    Cpu* cpu = fiber.cpu.load(std::memory_order_acquire);
    cpu->rq->lock.lock();
    if (fiber.cpu.load(std::memory_order_relaxed) == cpu) return *cpu->rq;
    cpu->rq->lock.unlock();
  }
}

// The FIFO class reads no clock.
bool needs_clock(const Fiber& fiber, const RuntimeState& state) {
  return fiber.sched_class == SchedClass::kFair || state.options.latency_stats;
}

void count_real_wakeup(RuntimeState& state, const Fiber& fiber, const Cpu& target) {
  count_event(state, Counter::kWakeupsReal);
  const bool remote = this_cpu() != &target;
  if (remote) count_event(state, Counter::kWakeupsRemote);
  trace_any(state, remote ? TraceEvent::kWakeupRemote : TraceEvent::kWakeupReal,
            static_cast<uint32_t>(target.id), fiber.id);
}

// The fiber has not slept yet, or sleeps as a delayed entity: it is on its queue.
bool wake_queued(Fiber& fiber, RunQueue& rq) {
  RuntimeState& state = *rq.cpu().state;
  const int64_t now = needs_clock(fiber, state) ? clock_now(state) : 0;
  if (now != 0) rq.update_current(now);
  const bool slept = fiber.sched_class == SchedClass::kFair && fiber.fair.delayed;
  if (slept) rq.requeue_delayed(fiber, now);
  fiber.state.store(FiberState::kRunning, std::memory_order_relaxed);
  if (rq.cpu().current != &fiber) rq.wakeup_preempt(fiber, RunQueue::kWakeup);
  if (slept) {
    count_real_wakeup(state, fiber, rq.cpu());
  } else {
    count_event(state, Counter::kWakeupsNoop);
    trace_any(state, TraceEvent::kWakeupNoop, static_cast<uint32_t>(rq.cpu().id), fiber.id);
  }
  rq.unlock_and_notify();
  return true;
}

}  // namespace

// Three outcomes, as in the kernel: the fiber does not sleep (nothing to do), it is still queued
// (it only has to be told), or it really sleeps and is placed and queued.
bool try_to_wake_up(Fiber& fiber) {
  // Relaxed: the lock of what the fiber waits for, which the caller holds, orders this look with
  // the sleeper's announcement.
  if (fiber.state.load(std::memory_order_relaxed) != FiberState::kSleeping) {
    count_event(*fiber.state_of_runtime, Counter::kWakeupsNoop);
    return false;
  }
  RuntimeState& state = *fiber.state_of_runtime;
  const Cpu* me = this_cpu();
  const bool foreign = me == nullptr || me->state != &state;
  if (foreign) state.foreign_wakers.fetch_add(1, std::memory_order_relaxed);
  preempt_disable();
  RunQueue* rq = &lock_queue_of(fiber);
  bool woken = false;
  if (fiber.state.load(std::memory_order_relaxed) != FiberState::kSleeping) {
    rq->lock.unlock();
    count_event(state, Counter::kWakeupsNoop);
  } else if (fiber.on_rq) {
    woken = wake_queued(fiber, *rq);
  } else {
    // Off the queue, so its registers are stored: its Cpu kept this lock until then.
    Cpu* target = &rq->cpu();
    if (fiber_may_move(fiber)) target = &select_cpu(state, fiber);
    unsigned flags = RunQueue::kWakeup;
    if (target != &rq->cpu()) {
      // Taken: no other waker, and no attribute change, touches it between the two locks.
      fiber.state.store(FiberState::kWaking, std::memory_order_relaxed);
      rq->lock.unlock();
      rq = target->rq;
      rq->lock.lock();
      // Release: partner is the acquire in lock_queue_of().
      fiber.cpu.store(target, std::memory_order_release);
      flags |= RunQueue::kMigrated;
      count_event(state, Counter::kMigrations);
    }
    const int64_t now = needs_clock(fiber, state) ? clock_now(state) : 0;
    if (now != 0) rq->update_current(now);
    rq->enqueue(fiber, flags, now);
    fiber.state.store(FiberState::kRunning, std::memory_order_relaxed);
    rq->wakeup_preempt(fiber, flags);
    count_real_wakeup(state, fiber, *target);
    rq->unlock_and_notify();
    woken = true;
  }
  preempt_enable();
  // Release: partner is the acquire in the runtime's stop().
  if (foreign) state.foreign_wakers.fetch_sub(1, std::memory_order_release);
  return woken;
}

// --- Waiter.

namespace {

long futex(std::atomic<uint32_t>& word, int op, uint32_t value, const timespec* until) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), op | FUTEX_PRIVATE_FLAG, value,
                 until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

// The deadline of a fiber's sleep. It wakes under the base's lock, which block() takes before it
// returns, so that the fiber outlives the call.
struct SleepTimer : TimerNode {
  Fiber* fiber;
  bool fired = false;

  static int64_t expired(TimerNode& node, int64_t) {
    SleepTimer& self = static_cast<SleepTimer&>(node);
    self.fired = true;
    (void)try_to_wake_up(*self.fiber);
    return kNever;
  }
};

}  // namespace

Waiter::Waiter() : fiber(current_fiber()) {}

void Waiter::prepare() {
  if (fiber != nullptr) {
    fiber->state.store(FiberState::kSleeping, std::memory_order_relaxed);
  } else {
    word.store(0, std::memory_order_relaxed);
  }
}

void Waiter::cancel() {
  if (fiber != nullptr) {
    // A waker may be at work under the queue's lock, so the state is not ours to store: it counts
    // as a wakeup of oneself.
    (void)try_to_wake_up(*fiber);
  } else {
    word.store(1, std::memory_order_relaxed);
  }
}

bool Waiter::block(int64_t deadline) {
  if (fiber == nullptr) {
    timespec until;
    deadline = std::max<int64_t>(deadline, 0);  // the system call refuses times before the clock's start
    until.tv_sec = deadline / 1'000'000'000;
    until.tv_nsec = deadline % 1'000'000'000;
    // Acquire: partner is the release in wake().
    while (word.load(std::memory_order_acquire) == 0) {
      const long rc =
          futex(word, FUTEX_WAIT_BITSET, 0, deadline == kNever ? nullptr : &until);
      if (rc != 0 && errno == ETIMEDOUT) return word.load(std::memory_order_acquire) != 0;
    }
    return true;
  }
  if (deadline == kNever) {
    schedule();
    return true;
  }
  SleepTimer timer;
  timer.fn = SleepTimer::expired;
  timer.fiber = fiber;
  preempt_disable();
  this_cpu()->timers.arm(timer, deadline);
  preempt_enable();
  schedule();
  (void)TimerBase::cancel(timer);
  return !timer.fired;
}

bool Waiter::wake() {
  if (fiber != nullptr) return try_to_wake_up(*fiber);
  // Release: partner is the acquire in block(). The futex call may find the waiter gone already; it
  // then wakes nobody, or somebody who looks again at his word.
  if (word.exchange(1, std::memory_order_release) != 0) return false;
  (void)futex(word, FUTEX_WAKE, 1, nullptr);
  return true;
}

}  // namespace jiffy
