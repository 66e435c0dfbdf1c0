#include "sched/run_queue.h"

#include <algorithm>
#include <bit>

#include "machine/model.h"
#include "sched/placement.h"
#include "sched/runtime_state.h"
#include "sched/watchdog.h"

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

}  // namespace

RunQueue::RunQueue(Cpu& cpu, RuntimeState& state)
    : lock(LockClass::kRunQueue, cpu.id),
      cpu_(cpu),
      state_(state),
      stamps_(state.options.latency_stats || state.machine->simulated()),
      hrtick_(state.options.hrtick) {}

// --- On and off the queue.

int64_t RunQueue::read_clock() const { return clock_now(state_); }

void RunQueue::start_tick() {
  // Who ran alone until now has kept nobody waiting.
  watchdog_touch(cpu_, clock_now(state_));
  state_.machine->start_tick(cpu_);
}

void RunQueue::requeue_delayed(Fiber& fiber, int64_t now) {
  fair_.requeue_delayed(fiber.fair);
  if (&fiber != cpu_.current) begin_waiting(fiber);
  if (stamps_) stamp_runnable(fiber, kWakeup, now);
  publish_hint();
  start_tick_if_needed();
}

void RunQueue::stamp_runnable(Fiber& fiber, unsigned flags, int64_t now) {
  fiber.wake_stamp = now != 0 ? now : read_clock();
  Cpu* waker = this_cpu();
  if ((flags & kWakeup) != 0 && waker != nullptr && waker->costs != nullptr) {
    waker->owed += waker->costs->wakeup;
  }
}

void RunQueue::finish_delayed(FairEntity& entity) {
  fair_.finish_delayed(entity);
  fiber_of(entity)->on_rq = false;
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
  if (this_cpu() != &cpu_) after_unlock_ |= idle ? kTellIdle : kTellRunning;
}

// The interrupt first: somebody waits for what it brings.
void RunQueue::notify(unsigned todo) {
  if ((todo & kTellRunning) != 0) cpu_.raise(kRescheduleVector);
  if ((todo & kTellIdle) != 0) tell_idle();
  if ((todo & kStartTick) != 0) start_tick();
  if ((todo & kPay) != 0) cpu_.pay();
}

void RunQueue::tell_idle() {
  // The request was stored under the lock; this fence stands between it and the look at the idle
  // state. Partner: the idle loop stores that it parks, fences, and looks at its requests again.
  if (!model::planted(model::Fault::kNotifyWithoutFence)) full_fence();
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

// Of two fair fibers.
void RunQueue::wakeup_preempt_fair(Fiber& wakee, unsigned flags) {
  Fiber& current = *cpu_.current;
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
  begin_waiting(prev);
  fifo_push(prev, /*front=*/false);
  Fiber* next = fifo_first();
  fifo_remove(*next);
  end_waiting(*next);
  // The one after that will run soon: with many fibers its lines are no longer near.
  if (Fiber* after = fifo_[next->fifo_priority].front()) prefetch(*after);
  return next;
}

void RunQueue::put_back(Fiber& prev) {
  begin_waiting(prev);
  // A preempted one stays at the head of its equals.
  if (!is_fair(prev)) fifo_push(prev, /*front=*/true);
}

void RunQueue::pass_over(Fiber& current) {
  (void)dequeue(current, /*sleep=*/false);
  current.passed = true;
  passed_.push_back(&current);
  ++nr_passed_;
}

void RunQueue::resume_passed(int64_t now) {
  while (Fiber* fiber = passed_.pop_front()) {
    --nr_passed_;
    fiber->passed = false;
    enqueue(*fiber, 0, now);
    wakeup_preempt(*fiber, 0);
  }
}

Fiber* RunQueue::pick_fair_or_idle(Fiber& prev, SwitchKind kind, int64_t now) {
  if (fair_.nr_queued() == 0) {
    if (passed_.empty()) return &cpu_.idle;
    // Nobody is left who could hold the lock here.
    resume_passed(now != 0 ? now : cpu_.now());
    return pick_next(cpu_.idle, kind, now);
  }
  Fiber* next = pick_fair(/*protect=*/kind != SwitchKind::kYield);
  if (next != &prev) fair_.put_prev();
  if (next != nullptr) {
    if (now == 0) now = cpu_.now();
    fair_.set_next(next->fair, now);
    if (hrtick_) arm_hrtick(now);
  }
  publish_hint();
  if (next == nullptr) {
    return passed_.empty() ? &cpu_.idle : pick_fair_or_idle(cpu_.idle, kind, now);
  }
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
    FairEntity* e = fair_.find(
        [&](FairEntity& entity) { return fiber_of(entity)->counted_movable && !entity.delayed; });
    if (e != nullptr) found = fiber_of(*e);
  }
  if (found != nullptr) (void)dequeue(*found, /*sleep=*/false);
  return found;
}

// --- Time.

void RunQueue::tick(int64_t now) {
  const uint32_t need = cpu_.need.load(std::memory_order_relaxed);
  const Act entry = mode_rule(Moment::kTickEntry, state_.mode.load(std::memory_order_relaxed));
  if (entry == Act::kPromote && state_.options.features.promote_lazy && need == kNeedReschedLazy) {
    set_need(kNeedResched);
    cpu_.counters.add(Counter::kPromotions);
    cpu_.trace_event(TraceEvent::kPromotion, static_cast<uint32_t>(cpu_.id), cpu_.current->id);
  }
  update_current(now);
  if (!passed_.empty()) resume_passed(now);
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

void RunQueue::set_attributes(Fiber& fiber, Policy policy, int nice, int priority, int64_t slice_ns,
                              int64_t now) {
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
