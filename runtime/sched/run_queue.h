// The run queue of one Cpu: the classes, the requests to reschedule, and the pick.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include <jiffy/detail/list.h>
#include <jiffy/detail/spinlock.h>
#include "cpu/cpu.h"
#include "fiber/fiber.h"
#include "sched/fair_queue.h"
#include "sched/mode_table.h"

namespace jiffy {

struct RuntimeState;

enum class SwitchKind : uint8_t { kBlock, kYield, kPreempt, kExit };

// All members but the hints are used under `lock`, with preemption off. Two queues' locks are taken
// in the order of their Cpus' ids. Interrupts (which run only at safe points) never find it held by
// their own Cpu.
//
// The stop class and FIFO share one array of lists: stop is the priority above all.
class RunQueue {
 public:
  static constexpr int kStopPriority = 100;
  enum EnqueueFlag : unsigned { kWakeup = 1, kInitial = 2, kMigrated = 4 };

  RunQueue(Cpu& cpu, RuntimeState& state) : cpu_(cpu), state_(state) {}

  RawSpinLock lock;

  // The callers of enqueue(), dequeue(), requeue_delayed() and wakeup_preempt() of a fair fiber have
  // called update_current() under this hold of the lock.

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

  void tick(int64_t now);
  void hrtick(int64_t now);

  // Unlocks, and wakes the Cpu if it idles and was asked for something.
  void unlock_and_notify();

  void set_attributes(Fiber& fiber, Policy policy, int nice, int priority, int64_t slice_ns,
                      int64_t now);

  // Takes a waiting fiber that may run elsewhere off the queue, or returns null.
  Fiber* detach_one();

  // Runnable fibers, the current one included, delayed ones not.
  int nr_running() const { return nr_queued() - fair_.nr_delayed(); }
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

 private:
  friend struct RunQueueTestPeer;

  void fifo_push(Fiber& fiber, bool front);
  void fifo_remove(Fiber& fiber);
  Fiber* fifo_first() const;
  Fiber* rotate_fifo(Fiber& prev);
  Fiber* pick_fair(bool protect);
  void finish_delayed(FairEntity& entity);
  void publish_hint() { nr_hint_.store(nr_running(), std::memory_order_relaxed); }
  void begin_waiting(Fiber& fiber);
  void end_waiting(Fiber& fiber);
  void start_tick_if_needed();
  void arm_hrtick(int64_t now);
  void set_need(uint32_t bit);

  Cpu& cpu_;
  RuntimeState& state_;
  FairQueue fair_;
  std::array<List<Fiber, &Fiber::fifo_node>, kStopPriority + 1> fifo_;
  std::array<uint64_t, 2> fifo_bitmap_{};
  int nr_fifo_ = 0;      // stop and FIFO fibers, the current one included
  bool notify_ = false;  // the idle Cpu must be told
  std::atomic<int> nr_hint_{0};
  std::atomic<int> movable_hint_{0};  // written under lock
};

inline Fiber* fiber_of(FairEntity& entity) {
  return reinterpret_cast<Fiber*>(reinterpret_cast<char*>(&entity) - offsetof(Fiber, fair));
}

}  // namespace jiffy
