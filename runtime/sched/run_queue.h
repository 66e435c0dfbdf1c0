// The run queue of one Cpu: the classes, the requests to reschedule, and the pick.
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/detail/list.h>
#include <jiffy/detail/spinlock.h>

#include <array>
#include <bit>
#include <cstdint>

#include "cpu/cpu.h"
#include "fiber/fiber.h"
#include "sched/fair_queue.h"
#include "sched/mode_table.h"
#include "sched/placement.h"

namespace jiffy {

struct RuntimeState;

enum class SwitchKind : uint8_t {
  kBlock,
  kYield,
  kPreempt,
  kPassOver,  // preempted while it waits for a lock: it is not picked before the next tick
  kExit,
};

// All members but the hints are used under `lock`, with preemption off. Two queues' locks are taken
// in the order of their Cpus' ids. Interrupts (which run only at safe points) never find it held by
// their own Cpu.
//
// The stop class and FIFO share one array of lists: stop is the priority above all.
//
// The layout is for wakers on other Cpus: the first line is all that they need besides the list.
class alignas(64) RunQueue {
 public:
  static constexpr int kStopPriority = 100;
  enum EnqueueFlag : unsigned { kWakeup = 1, kInitial = 2, kMigrated = 4 };

  RunQueue(Cpu& cpu, RuntimeState& state);

  RawSpinLock lock;

 private:
  // What is left to do when the lock is free again, since it takes a system call: tell another Cpu
  // of a request, which ran its idle loop or a fiber when it was made; and start its tick.
  enum AfterUnlock : uint8_t { kTellIdle = 1, kTellRunning = 2, kStartTick = 4, kPay = 8 };
  uint8_t after_unlock_ = 0;
  int nr_fifo_ = 0;  // stop and FIFO fibers, the current one included
  Atomic<int> nr_hint_{0};
  Atomic<int> movable_hint_{0};  // written under lock
  int nr_passed_ = 0;            // off the queue by pass_over()
  std::array<uint64_t, 2> fifo_bitmap_{};
  Cpu& cpu_;
  RuntimeState& state_;
  const bool stamps_;  // I: run-queue latency is measured
  const bool hrtick_;  // I

 public:
  // The callers of enqueue(), dequeue(), requeue_delayed() and wakeup_preempt() of a fair fiber
  // have called update_current() under this hold of the lock.

  // Puts `fiber` on the queue; `now` is the caller's clock. Does not ask for a reschedule.
  void enqueue(Fiber& fiber, unsigned flags, int64_t now);
  // Takes it off; false if it stays as a delayed entity.
  bool dequeue(Fiber& fiber, bool sleep);
  // A fiber that its waker found asleep as a delayed entity.
  void requeue_delayed(Fiber& fiber, int64_t now);

  // Asks for a reschedule where the rules say that `wakee`, just queued, should run.
  void wakeup_preempt(Fiber& wakee, unsigned flags);
  // Makes the request that the mode's rule gives for `moment`.
  void request_resched(Moment moment);

  // Charges the current fiber, and asks for a reschedule if its time is over.
  void update_current(int64_t now);

  // Puts `prev` back (or lets it go) and chooses who runs next; the idle fiber for nobody.
  // `now` is 0 where `prev` is not fair: the FIFO class reads no clock.
  Fiber* pick_next(Fiber& prev, SwitchKind kind, int64_t now);

  // Takes the current fiber off the queue until the next tick, or until nobody else is left: the
  // fiber whose lock it waits for may be of a lower class.
  void pass_over(Fiber& current);

  void tick(int64_t now);
  void hrtick(int64_t now);

  // Unlocks, and does what was left for then. Needed wherever something was queued or asked for.
  void unlock_and_notify() {
    const unsigned todo = after_unlock_;
    after_unlock_ = 0;
    lock.unlock();
    if (todo != 0) [[unlikely]]
      notify(todo);
  }

  void set_attributes(Fiber& fiber, Policy policy, int nice, int priority, int64_t slice_ns,
                      int64_t now);

  // Takes a waiting fiber that may run elsewhere off the queue, or returns null.
  Fiber* detach_one();

  // Runnable fibers, the current one included, delayed ones not.
  int nr_running() const { return nr_queued() - fair_.nr_delayed() + nr_passed_; }
  // The delayed ones too.
  int nr_queued() const { return nr_fifo_ + fair_.nr_queued(); }
  FairQueue& fair() { return fair_; }
  const FairQueue& fair() const { return fair_; }

  // A look from other Cpus, without the lock: how many wait or run here.
  // Relaxed, no partner: decisions made on it are checked again under the lock.
  int nr_running_hint() const { return nr_hint_.load(std::memory_order_relaxed); }

  // How many wait here that another Cpu may take.
  int nr_movable_hint() const { return movable_hint_.load(std::memory_order_relaxed); }

  Cpu& cpu() { return cpu_; }
  // Whether a switch of `fiber` needs the clock: the FIFO class reads none.
  bool needs_clock(const Fiber& fiber) const {
    return fiber.sched_class == SchedClass::kFair || stamps_;
  }
  bool stamps() const { return stamps_; }
  // In a simulation: the Cpu of this queue pays what it owes when the lock is free.
  void pay_after_unlock() { after_unlock_ |= kPay; }

 private:
  friend struct RunQueueTestPeer;

  void fifo_push(Fiber& fiber, bool front);
  void fifo_remove(Fiber& fiber);
  Fiber* fifo_first() const;
  Fiber* rotate_fifo(Fiber& prev);
  Fiber* pick_fair(bool protect);
  Fiber* pick_fair_or_idle(Fiber& prev, SwitchKind kind, int64_t now);
  void put_back(Fiber& prev);
  void wakeup_preempt_fair(Fiber& wakee, unsigned flags);
  void start_tick();
  int64_t read_clock() const;
  void finish_delayed(FairEntity& entity);
  void publish_hint() { nr_hint_.store(nr_running(), std::memory_order_relaxed); }
  void stamp_runnable(Fiber& fiber, unsigned flags, int64_t now);
  void begin_waiting(Fiber& fiber);
  void end_waiting(Fiber& fiber);
  void start_tick_if_needed();
  void arm_hrtick(int64_t now);
  void set_need(uint32_t bit);
  void notify(unsigned todo);
  void tell_idle();

  void resume_passed(int64_t now);

  alignas(64) FairQueue fair_;
  std::array<List<Fiber, &Fiber::fifo_node>, kStopPriority + 1> fifo_;
  List<Fiber, &Fiber::fifo_node> passed_;
};

inline Fiber* fiber_of(FairEntity& entity) {
  return reinterpret_cast<Fiber*>(reinterpret_cast<char*>(&entity) - offsetof(Fiber, fair));
}

// --- The way of each wakeup and each switch, as far as it goes without the fair class: inline,
// since the calls and their saved registers cost more than what they do.

inline bool is_fair(const Fiber& fiber) { return fiber.sched_class == SchedClass::kFair; }

inline void RunQueue::fifo_push(Fiber& fiber, bool front) {
  const auto priority = fiber.fifo_priority;
  if (front) {
    fifo_[priority].push_front(&fiber);
  } else {
    fifo_[priority].push_back(&fiber);
  }
  fifo_bitmap_[priority / 64] |= uint64_t{1} << (priority % 64);
}

inline void RunQueue::fifo_remove(Fiber& fiber) {
  const auto priority = fiber.fifo_priority;
  fifo_[priority].remove(&fiber);
  if (fifo_[priority].empty()) fifo_bitmap_[priority / 64] &= ~(uint64_t{1} << (priority % 64));
}

inline Fiber* RunQueue::fifo_first() const {
  for (int word = 1; word >= 0; --word) {
    const uint64_t bits = fifo_bitmap_[static_cast<size_t>(word)];
    if (bits != 0) {
      return fifo_[static_cast<size_t>(word * 64 + 63 - std::countl_zero(bits))].front();
    }
  }
  return nullptr;
}

// Counts a fiber among those that another Cpu may take while it waits. One with a mask of its own
// is placed when it wakes, and not pulled.
inline void RunQueue::begin_waiting(Fiber& fiber) {
  if (!fiber_may_move(fiber) || fiber.allowed != nullptr) return;
  fiber.counted_movable = true;
  movable_hint_.store(movable_hint_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

inline void RunQueue::end_waiting(Fiber& fiber) {
  if (!fiber.counted_movable) return;
  fiber.counted_movable = false;
  movable_hint_.store(movable_hint_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
}

// The tick serves those who wait; with one fiber alone nothing has to be checked.
inline void RunQueue::start_tick_if_needed() {
  // Relaxed: a stop that races is repaired by its own look under this lock; see stop_tick().
  if (nr_running() > 1 && !cpu_.tick_running.load(std::memory_order_relaxed)) [[unlikely]] {
    after_unlock_ |= kStartTick;
  }
}

inline void RunQueue::enqueue(Fiber& fiber, unsigned flags, int64_t now) {
  if (stamps_) stamp_runnable(fiber, flags, now);
  if (is_fair(fiber)) {
    fair_.enqueue(fiber.fair, flags);
    if (hrtick_ && fair_.nr_queued() == 2) arm_hrtick(now);
  } else {
    ++nr_fifo_;
    fifo_push(fiber, /*front=*/false);
  }
  fiber.on_rq = true;
  begin_waiting(fiber);
  publish_hint();
  start_tick_if_needed();
}

inline bool RunQueue::dequeue(Fiber& fiber, bool sleep) {
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

inline void RunQueue::wakeup_preempt(Fiber& wakee, unsigned flags) {
  const Fiber& current = *cpu_.current;
  if (current.is_idle) return request_resched(Moment::kTargetIdle);
  if (wakee.sched_class != current.sched_class) {
    if (wakee.sched_class < current.sched_class) request_resched(Moment::kHigherClass);
    return;
  }
  if (is_fair(wakee)) return wakeup_preempt_fair(wakee, flags);
  if (wakee.fifo_priority > current.fifo_priority) request_resched(Moment::kHigherClass);
}

inline Fiber* RunQueue::pick_next(Fiber& prev, SwitchKind kind, int64_t now) {
  if (!prev.is_idle && prev.on_rq && !prev.fair.delayed) {
    if (kind == SwitchKind::kYield && !is_fair(prev)) return rotate_fifo(prev);
    put_back(prev);
    if (kind == SwitchKind::kYield) fair_.yield_current();
  }
  Fiber* next = fifo_first();
  if (next == nullptr) return pick_fair_or_idle(prev, kind, now);
  fifo_remove(*next);
  if (is_fair(prev)) fair_.put_prev();
  end_waiting(*next);
  return next;
}

}  // namespace jiffy
