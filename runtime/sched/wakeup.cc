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
    if (fiber.cpu.load(std::memory_order_relaxed) == cpu ||
        model::planted(model::Fault::kWakeDoesNotLookAgain)) {
      return *cpu->rq;
    }
    cpu->rq->lock.unlock();
  }
}

void count_real_wakeup(RuntimeState& state, Cpu* local, const Fiber& fiber, const Cpu& target) {
  count_event(state, local, Counter::kWakeupsReal);
  if (local == &target) [[likely]] {
    local->trace_event(TraceEvent::kWakeupReal, static_cast<uint32_t>(target.id), fiber.id);
    return;
  }
  count_event(state, local, Counter::kWakeupsRemote);
  trace_any(state, TraceEvent::kWakeupRemote, static_cast<uint32_t>(target.id), fiber.id);
}

void count_noop_wakeup(RuntimeState& state, Cpu* local) {
  count_event(state, local, Counter::kWakeupsNoop);
}

// Charges who runs on the queue up to now, where a class that counts time takes part.
int64_t charge(RunQueue& rq, const Fiber& fiber, const RuntimeState& state) {
  if (!rq.needs_clock(fiber)) return 0;
  const int64_t now = clock_now(state);
  rq.update_current(now);
  return now;
}

// The fiber has not slept yet, or sleeps as a delayed entity: it is on its queue.
void wake_queued(Fiber& fiber, RunQueue& rq, Cpu* local) {
  RuntimeState& state = *rq.cpu().state;
  const int64_t now = charge(rq, fiber, state);
  const bool slept = fiber.sched_class == SchedClass::kFair && fiber.fair.delayed;
  if (slept) rq.requeue_delayed(fiber, now);
  fiber.state.store(FiberState::kRunning, std::memory_order_relaxed);
  if (rq.cpu().current != &fiber) rq.wakeup_preempt(fiber, RunQueue::kWakeup);
  if (slept) {
    count_real_wakeup(state, local, fiber, rq.cpu());
  } else {
    count_noop_wakeup(state, local);
    trace_any(state, TraceEvent::kWakeupNoop, static_cast<uint32_t>(rq.cpu().id), fiber.id);
  }
}

// Off the queue, so its registers are stored: its Cpu kept this lock until then. Returns the queue
// that it is on now, locked in the place of `rq`.
RunQueue& wake_sleeper(Fiber& fiber, RunQueue* rq, Cpu* local) {
  RuntimeState& state = *rq->cpu().state;
  unsigned flags = RunQueue::kWakeup;
  if (fiber_may_move(fiber)) {
    Cpu& target = select_cpu(state, fiber);
    if (&target != &rq->cpu()) {
      // Taken: no other waker, and no attribute change, touches it between the two locks.
      fiber.state.store(FiberState::kWaking, std::memory_order_relaxed);
      rq->lock.unlock();
      rq = target.rq;
      rq->lock.lock();
      // Release: partner is the acquire in lock_queue_of().
      fiber.cpu.store(&target, std::memory_order_release);
      flags |= RunQueue::kMigrated;
      count_event(state, local, Counter::kMigrations);
    }
  }
  rq->enqueue(fiber, flags, charge(*rq, fiber, state));
  fiber.state.store(FiberState::kRunning, std::memory_order_relaxed);
  rq->wakeup_preempt(fiber, flags);
  count_real_wakeup(state, local, fiber, rq->cpu());
  return *rq;
}

bool wake_under_lock(Fiber& fiber, Cpu* local) {
  RunQueue* rq = &lock_queue_of(fiber);
  if (fiber.state.load(std::memory_order_relaxed) != FiberState::kSleeping) {
    rq->lock.unlock();
    count_noop_wakeup(*fiber.state_of_runtime, local);
    return false;
  }
  if (fiber.passed) {
    // It has announced its sleep and is preempted: the tick puts it back.
    fiber.state.store(FiberState::kRunning, std::memory_order_relaxed);
    count_noop_wakeup(*fiber.state_of_runtime, local);
  } else if (fiber.on_rq) {
    wake_queued(fiber, *rq, local);
  } else {
    rq = &wake_sleeper(fiber, rq, local);
  }
  rq->unlock_and_notify();
  return true;
}

}  // namespace

// Three outcomes, as in the kernel: the fiber does not sleep (nothing to do), it is still queued
// (it only has to be told), or it really sleeps and is placed and queued.
bool try_to_wake_up(Fiber& fiber) {
  RuntimeState& state = *fiber.state_of_runtime;
  Cpu* local = local_cpu(state);
  // Relaxed: the lock of what the fiber waits for, which the caller holds, orders this look with
  // the sleeper's announcement.
  if (fiber.state.load(std::memory_order_relaxed) != FiberState::kSleeping) {
    count_noop_wakeup(state, local);
    return false;
  }
  if (local != nullptr) [[likely]]
    return wake_under_lock(fiber, local);
  state.machine->check_caller("a wakeup");
  state.foreign_wakers.fetch_add(1, std::memory_order_relaxed);
  const bool woken = wake_under_lock(fiber, nullptr);
  // Release: partner is the acquire in the runtime's stop().
  state.foreign_wakers.fetch_sub(1, std::memory_order_release);
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

void Waiter::prepare(const char* what) {
  if (fiber != nullptr) {
    fiber->waits_for.store(what, std::memory_order_relaxed);
    fiber->state.store(FiberState::kSleeping, std::memory_order_relaxed);
  } else {
    word.store(0, std::memory_order_relaxed);
  }
}

void Waiter::cancel() {
  if (fiber != nullptr) {
    // A waker may be at work under the queue's lock, so the state is not ours to store: it counts
    // as a wakeup of oneself.
    const PreemptGuard guard;
    (void)try_to_wake_up(*fiber);
  } else {
    word.store(1, std::memory_order_relaxed);
  }
}

bool Waiter::block(int64_t deadline) {
  if (fiber == nullptr) {
    timespec until;
    deadline =
        std::max<int64_t>(deadline, 0);  // the system call refuses times before the clock's start
    until.tv_sec = deadline / 1'000'000'000;
    until.tv_nsec = deadline % 1'000'000'000;
    // Acquire: partner is the release in wake().
    while (word.load(std::memory_order_acquire) == 0) {
      const long rc = futex(word, FUTEX_WAIT_BITSET, 0, deadline == kNever ? nullptr : &until);
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

void Waiter::sleep_after_unlock() {
  if (fiber != nullptr) [[likely]] {
    schedule_preempt_disabled();
  } else {
    preempt_enable();
    (void)block(kNever);
  }
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
