#include "sched/run_queue.h"

#include <algorithm>
#include <bit>

#include "sched/placement.h"
#include "sched/runtime_state.h"

namespace jiffy {

namespace {

uint32_t weight_for(Policy policy, int nice) {
  return policy == Policy::kIdle ? kIdlePolicyWeight : weight_of_nice(nice);
}

// What a switch to `fiber` will touch first: its hot line, and the frames at its stack's end.
void prefetch(const Fiber& fiber) {
  const char* frames = static_cast<const char*>(fiber.context.fctx);
  for (int line = 0; line < 4; ++line) __builtin_prefetch(frames + line * 64);
  __builtin_prefetch(&fiber.fifo_node);
}

constexpr bool is_fair(const Fiber& fiber) { return fiber.sched_class == SchedClass::kFair; }

}  // namespace

// --- The FIFO lists.

void RunQueue::fifo_push(Fiber& fiber, bool front) {
  const auto priority = fiber.fifo_priority;
  if (front) {
    fifo_[priority].push_front(&fiber);
  } else {
    fifo_[priority].push_back(&fiber);
  }
  fifo_bitmap_[priority / 64] |= uint64_t{1} << (priority % 64);
}

void RunQueue::fifo_remove(Fiber& fiber) {
  const auto priority = fiber.fifo_priority;
  fifo_[priority].remove(&fiber);
  if (fifo_[priority].empty()) fifo_bitmap_[priority / 64] &= ~(uint64_t{1} << (priority % 64));
}

Fiber* RunQueue::fifo_first() const {
  for (int word = 1; word >= 0; --word) {
    const uint64_t bits = fifo_bitmap_[static_cast<size_t>(word)];
    if (bits != 0) {
      return fifo_[static_cast<size_t>(word * 64 + 63 - std::countl_zero(bits))].front();
    }
  }
  return nullptr;
}

// --- On and off the queue.

// Counts a fiber among those that another Cpu may take while it waits. One with a mask of its own is
// placed when it wakes, and not pulled.
void RunQueue::begin_waiting(Fiber& fiber) {
  if (!fiber_may_move(fiber) || fiber.allowed != nullptr) return;
  fiber.counted_movable = true;
  movable_hint_.store(movable_hint_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void RunQueue::end_waiting(Fiber& fiber) {
  if (!fiber.counted_movable) return;
  fiber.counted_movable = false;
  movable_hint_.store(movable_hint_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
}

void RunQueue::enqueue(Fiber& fiber, unsigned flags, int64_t now) {
  if (state_.options.latency_stats) fiber.wake_stamp = now != 0 ? now : clock_now(state_);
  if (is_fair(fiber)) {
    fair_.enqueue(fiber.fair, flags);
    if (state_.options.hrtick && fair_.nr_queued() == 2) arm_hrtick(now);
  } else {
    ++nr_fifo_;
    fifo_push(fiber, /*front=*/false);
  }
  fiber.on_rq = true;
  begin_waiting(fiber);
  publish_hint();
  start_tick_if_needed();
}

bool RunQueue::dequeue(Fiber& fiber, bool sleep) {
  if (is_fair(fiber)) {
    if (!fair_.dequeue(fiber.fair, sleep)) {
      cpu_.counters.add(Counter::kDelayedDequeues);
      publish_hint();
      return false;
    }
  } else {
    --nr_fifo_;
    if (fiber.fifo_node.linked()) fifo_remove(fiber);
  }
  fiber.on_rq = false;
  end_waiting(fiber);
  publish_hint();
  return true;
}

void RunQueue::requeue_delayed(Fiber& fiber, int64_t now) {
  fair_.requeue_delayed(fiber.fair);
  if (&fiber != cpu_.current) begin_waiting(fiber);
  if (state_.options.latency_stats) fiber.wake_stamp = now;
  publish_hint();
  start_tick_if_needed();
}

void RunQueue::finish_delayed(FairEntity& entity) {
  fair_.finish_delayed(entity);
  fiber_of(entity)->on_rq = false;
}

// The tick serves those who wait; with one fiber alone nothing has to be checked.
void RunQueue::start_tick_if_needed() {
  // Relaxed: a stop that races is repaired by its own look under this lock; see stop_tick().
  if (nr_running() > 1 && !cpu_.tick_running.load(std::memory_order_relaxed)) {
    state_.machine->start_tick(cpu_);
  }
}

// --- Requests.

void RunQueue::set_need(uint32_t bit) {
  cpu_.need.store(cpu_.need.load(std::memory_order_relaxed) | bit, std::memory_order_relaxed);
}

void RunQueue::request_resched(Moment moment) {
  Act act = mode_rule(moment, state_.mode.load(std::memory_order_relaxed));
  const bool idle = cpu_.current->is_idle;
  if (idle && act == Act::kSetLazy) {
    // An idle Cpu has nobody to be lazy for.
    act = Act::kSetHard;
    count_event(state_, Counter::kLazyUpgradedIdle);
  }
  const uint32_t need = cpu_.need.load(std::memory_order_relaxed);
  if ((need & kNeedResched) != 0) return;
  if (act == Act::kSetLazy) {
    if ((need & kNeedReschedLazy) != 0) return;
    set_need(kNeedReschedLazy);
    count_event(state_, Counter::kLazyRequests);
    trace_any(state_, TraceEvent::kLazyRequest, static_cast<uint32_t>(cpu_.id), cpu_.current->id);
    return;
  }
  set_need(kNeedResched);
  count_event(state_, Counter::kHardRequests);
  trace_any(state_, TraceEvent::kHardRequest, static_cast<uint32_t>(cpu_.id), cpu_.current->id);
  if (this_cpu() == &cpu_) return;
  if (idle) {
    notify_ = true;
  } else {
    cpu_.raise(kRescheduleVector);
  }
}

void RunQueue::unlock_and_notify() {
  const bool notify = notify_;
  notify_ = false;
  lock.unlock();
  if (!notify) return;
  // The request was stored under the lock; this fence stands between it and the look at the idle
  // state. Partner: the idle loop stores that it parks, fences, and looks at its requests again.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (cpu_.idle_state.load(std::memory_order_relaxed) == IdleState::kParked) {
    count_event(state_, Counter::kUnparks);
    cpu_.waiter->unpark(cpu_);
  } else {
    count_event(state_, Counter::kIpisElided);
  }
}

void RunQueue::update_current(int64_t now) {
  if (fair_.update_current(now)) request_resched(Moment::kFairSlice);
}

void RunQueue::wakeup_preempt(Fiber& wakee, unsigned flags) {
  Fiber& current = *cpu_.current;
  if (current.is_idle) return request_resched(Moment::kTargetIdle);
  if (wakee.sched_class != current.sched_class) {
    if (wakee.sched_class < current.sched_class) request_resched(Moment::kHigherClass);
    return;
  }
  if (!is_fair(wakee)) {
    if (wakee.fifo_priority > current.fifo_priority) request_resched(Moment::kHigherClass);
    return;
  }
  if ((cpu_.need.load(std::memory_order_relaxed) & kNeedResched) != 0) return;
  if (current.policy == Policy::kIdle && wakee.policy != Policy::kIdle) {
    fair_.cancel_protection();
    return request_resched(Moment::kFairWakeup);
  }
  const bool may_preempt = wakee.policy == Policy::kNormal && (flags & kInitial) == 0;
  for (;;) {
    FairEntity* delayed = nullptr;
    const bool preempts = fair_.wakeup_preempts(wakee.fair, may_preempt, &delayed);
    if (delayed == nullptr) {
      if (preempts) request_resched(Moment::kFairWakeup);
      return;
    }
    finish_delayed(*delayed);
  }
}

// --- The pick.

Fiber* RunQueue::pick_fair(bool protect) {
  while (fair_.nr_queued() != 0) {
    FairEntity* entity = fair_.pick(protect);
    if (!entity->delayed) return fiber_of(*entity);
    finish_delayed(*entity);
  }
  return nullptr;
}

// A yielder goes behind its equals, and the highest list's first runs.
Fiber* RunQueue::rotate_fifo(Fiber& prev) {
  fifo_push(prev, /*front=*/false);
  Fiber* next = fifo_first();
  fifo_remove(*next);
  end_waiting(*next);
  // The one after that will run soon: with many fibers its lines are no longer near.
  if (Fiber* after = fifo_[next->fifo_priority].front()) prefetch(*after);
  return next;
}

Fiber* RunQueue::pick_next(Fiber& prev, SwitchKind kind, int64_t now) {
  const bool stays = !prev.is_idle && prev.on_rq && !prev.fair.delayed;
  if (stays) begin_waiting(prev);
  if (stays && !is_fair(prev)) {
    if (kind == SwitchKind::kYield) return rotate_fifo(prev);
    fifo_push(prev, /*front=*/true);  // a preempted one stays at the head of its equals
  } else if (kind == SwitchKind::kYield && stays) {
    fair_.yield_current();
  }
  Fiber* next = fifo_first();
  if (next != nullptr) {
    fifo_remove(*next);
    if (is_fair(prev)) fair_.put_prev();
  } else if (fair_.nr_queued() != 0) {
    next = pick_fair(/*protect=*/kind != SwitchKind::kYield);
    if (next != &prev) fair_.put_prev();
    if (next != nullptr) {
      if (now == 0) now = cpu_.now();
      fair_.set_next(next->fair, now);
      if (state_.options.hrtick) arm_hrtick(now);
    }
    publish_hint();
  }
  if (next == nullptr) return &cpu_.idle;
  end_waiting(*next);
  return next;
}

Fiber* RunQueue::detach_one() {
  if (nr_movable_hint() == 0) return nullptr;
  Fiber* found = nullptr;
  for (auto& list : fifo_) {
    if (nr_fifo_ == 0 || found != nullptr) break;
    for (Fiber* f = list.front(); f != nullptr && found == nullptr; f = list.next(f)) {
      if (f->counted_movable) found = f;
    }
  }
  if (found == nullptr) {
    FairEntity* e = fair_.find([&](FairEntity& entity) {
      return fiber_of(entity)->counted_movable && !entity.delayed;
    });
    if (e != nullptr) found = fiber_of(*e);
  }
  if (found != nullptr) (void)dequeue(*found, /*sleep=*/false);
  return found;
}

// --- Time.

void RunQueue::tick(int64_t now) {
  const uint32_t need = cpu_.need.load(std::memory_order_relaxed);
  const Act entry = mode_rule(Moment::kTickEntry, state_.mode.load(std::memory_order_relaxed));
  if (entry == Act::kPromote && state_.options.features.promote_lazy &&
      need == kNeedReschedLazy) {
    set_need(kNeedResched);
    cpu_.counters.add(Counter::kPromotions);
    cpu_.trace_event(TraceEvent::kPromotion, static_cast<uint32_t>(cpu_.id), cpu_.current->id);
  }
  update_current(now);
}

void RunQueue::hrtick(int64_t now) {
  cpu_.counters.add(Counter::kHrtickFired);
  (void)fair_.update_current(now);
  request_resched(Moment::kHrtick);
}

void RunQueue::arm_hrtick(int64_t now) {
  constexpr int64_t kMinimumNs = 10'000;
  if (fair_.nr_queued() < 2 || fair_.current() == nullptr) {
    cpu_.hrtick_expiry.store(kNever, std::memory_order_relaxed);
  } else {
    cpu_.hrtick_expiry.store(now + std::max(kMinimumNs, fair_.current_remaining()),
                             std::memory_order_relaxed);
  }
  if (this_cpu() == &cpu_) {
    cpu_.program_oneshot();
  } else {
    cpu_.raise(kRescheduleVector);  // only the owner programs its timer
  }
}

// --- Attributes.

void RunQueue::set_attributes(Fiber& fiber, Policy policy, int nice, int priority,
                              int64_t slice_ns, int64_t now) {
  const bool running = &fiber == cpu_.current;
  const bool was_fair = is_fair(fiber);
  const bool to_fair = policy != Policy::kFifo;
  if (fiber.on_rq) update_current(now);
  // Only the fair class knows sleepers that stay queued.
  if (fiber.fair.delayed && !to_fair) finish_delayed(fiber.fair);
  const bool queued = fiber.on_rq;
  const bool changes_class = !(was_fair && to_fair);
  if (queued && changes_class) {
    if (running && !was_fair) {
      --nr_fifo_;
    } else {
      (void)dequeue(fiber, /*sleep=*/false);
    }
  }
  fiber.policy = policy;
  fiber.nice = static_cast<int8_t>(nice);
  fiber.sched_class = to_fair                     ? SchedClass::kFair
                      : priority == kStopPriority ? SchedClass::kStop
                                                  : SchedClass::kFifo;
  fiber.fifo_priority = static_cast<uint8_t>(priority);
  fair_.set_slice(fiber.fair, static_cast<uint64_t>(slice_ns));
  if (changes_class) {
    fiber.fair.weight = weight_for(policy, nice);
  } else {
    fair_.reweight(fiber.fair, weight_for(policy, nice));
  }
  if (!queued) return;
  if (changes_class) {
    fiber.on_rq = true;
    if (to_fair) {
      fair_.enqueue(fiber.fair, 0);
      if (running) fair_.set_next(fiber.fair, now);
    } else {
      ++nr_fifo_;
      if (!running) fifo_push(fiber, /*front=*/false);
    }
    if (!running) begin_waiting(fiber);
    publish_hint();
  }
  if (!running) {
    wakeup_preempt(fiber, 0);
  } else {
    request_resched(Moment::kHigherClass);  // it may no longer be the one to run
  }
}

}  // namespace jiffy
