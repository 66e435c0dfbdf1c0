// What can be done to one item besides queueing it: waiting for it, taking it back, disabling it.
#include <jiffy/work.h>

#include <cstdio>
#include <cstdlib>

#include "cpu/timer_base.h"
#include "sched/sched.h"
#include "work/work_queue_state.h"

namespace jiffy {

// Armed by who set the item pending, so by one at a time.
int64_t DelayedTimer::expired(TimerNode& node, int64_t) {
  DelayedTimer& self = static_cast<DelayedTimer&>(node);
  (void)insert_item(*self.wq, *self.pwq, *self.item);
  return kNever;
}

namespace {

// A flush's marker: an item of its own, queued right behind the one that is waited for.
struct Barrier {
  Semaphore done{0};
  WorkItem item{[this] { done.release(); }};

  Barrier() { item.barrier = true; }
};

void check_not_self(const WorkNode& item, const char* call) {
  const Worker* worker = current_worker();
  if (worker == nullptr || worker->item != &item || worker->fn != item.fn) return;
  std::fprintf(
      stderr,
      "jiffy: a work item's callback (fiber '%s') calls %s of its own item, and would wait "
      "for itself\n",
      worker->fiber->name, call);
  std::abort();
}

// Under the pool's lock: the barrier goes where it runs right after `target`, and belongs to the
// same flushes.
void insert_barrier(WorkNode& barrier, PoolWorkQueue& pwq, uint8_t colour) {
  barrier.state.store(WorkNode::kPending, std::memory_order_relaxed);
  barrier.pwq = &pwq;
  barrier.colour = colour;
  ++pwq.in_flight[colour];
  barrier.queued_on.store(pwq.pool, std::memory_order_release);
}

// Whichever list `position` is on.
void link_behind(ListNode& position, ListNode& node) {
  node.prev = &position;
  node.next = position.next;
  position.next->prev = &node;
  position.next = &node;
}

bool insert_barrier_if_queued(WorkNode& target, WorkNode& barrier, bool* retry) {
  // Acquire: partner is the release of who puts it there or takes it off.
  WorkerPool* pool = target.queued_on.load(std::memory_order_acquire);
  if (pool == nullptr) return false;
  pool->lock.lock();
  if (target.queued_on.load(std::memory_order_relaxed) != pool) {
    pool->lock.unlock();
    *retry = true;
    return false;
  }
  insert_barrier(barrier, *target.pwq, target.colour);
  barrier.inactive = target.inactive;
  barrier.linked = std::exchange(target.linked, true);
  link_behind(target.node, barrier.node);
  pool->lock.unlock();
  return true;
}

bool insert_barrier_if_running(WorkState& work, const WorkNode& target, WorkNode& barrier) {
  const int32_t last = target.last_pool.load(std::memory_order_relaxed);
  if (last < 0 || static_cast<size_t>(last) >= work.pools.size()) return false;
  WorkerPool& pool = *work.pools[static_cast<size_t>(last)];
  pool.lock.lock();
  Worker* worker = find_executing(pool, target);
  if (worker != nullptr) {
    insert_barrier(barrier, *worker->pwq, worker->colour);
    worker->scheduled.push_front(&barrier);
  }
  pool.lock.unlock();
  return worker != nullptr;
}

bool flush_item(WorkState& work, WorkNode& target) {
  Barrier barrier;
  bool retry;
  bool inserted;
  do {
    retry = false;
    inserted = insert_barrier_if_queued(target, barrier.item, &retry);
  } while (retry);
  if (!inserted && !insert_barrier_if_running(work, target, barrier.item)) return false;
  barrier.done.acquire();
  return true;
}

// Takes the item away from whoever has it: afterwards it is pending by our doing. Returns whether
// it was pending before. Preemption off. `timer` belongs to a DelayedWork.
bool grab(WorkNode& item, DelayedTimer* timer) {
  bool was_pending = true;
  // Again, while somebody is between two instructions of queueing, starting or cancelling it.
  spin_until([&] {
    if (timer != nullptr && TimerBase::cancel(*timer)) return true;
    // acq_rel: as in queue(), partner is the worker's clearing.
    const uint32_t old = item.state.fetch_or(WorkNode::kPending, std::memory_order_acq_rel);
    was_pending = (old & WorkNode::kPending) != 0;
    if (!was_pending) return true;
    // Acquire: as above.
    WorkerPool* pool = item.queued_on.load(std::memory_order_acquire);
    if (pool == nullptr) return false;
    pool->lock.raw().lock();
    const bool found = item.queued_on.load(std::memory_order_relaxed) == pool;
    if (found) remove_pending(item);
    pool->lock.raw().unlock();
    return found;
  });
  return was_pending;
}

// Release: partner is the acquire in queue(), by the next owner.
void give_up(WorkNode& item) {
  item.state.fetch_and(~WorkNode::kPending, std::memory_order_release);
}

bool cancel_item(WorkNode& item, DelayedTimer* timer) {
  preempt_disable();
  const bool was_pending = grab(item, timer);
  give_up(item);
  preempt_enable();
  return was_pending;
}

// seq_cst: a queue() that comes before it in the item's order is found pending by the cancel that
// follows, one after it sees that the item is disabled.
void add_disabled(WorkNode& item) {
  const uint32_t old = item.state.fetch_add(WorkNode::kDisableUnit, std::memory_order_seq_cst);
  constexpr uint32_t kDeepest = 0xffff * WorkNode::kDisableUnit;
  if (old >= kDeepest) {
    std::fprintf(stderr, "jiffy: a work item was disabled 65536 times without being enabled\n");
    std::abort();
  }
}

bool remove_disabled(WorkNode& item) {
  const uint32_t old = item.state.fetch_sub(WorkNode::kDisableUnit, std::memory_order_seq_cst);
  if (old < WorkNode::kDisableUnit) {
    std::fprintf(stderr, "jiffy: a work item was enabled more often than it was disabled\n");
    std::abort();
  }
  return old < 2 * WorkNode::kDisableUnit;
}

bool cancel_and_wait(WorkQueueState& wq, WorkNode& item, DelayedTimer* timer) {
  add_disabled(item);
  const bool was_pending = cancel_item(item, timer);
  if (!wq.dead()) {
    blocking_call(*wq.runtime, [&] { (void)flush_item(*wq.work, item); });
  }
  return was_pending;
}

}  // namespace

void WorkItem::die_pending() const {
  std::fprintf(stderr,
               "jiffy: a work item (%p) is destroyed while it is queued. Rule: cancel_sync() or "
               "flush() it first.\n",
               static_cast<const void*>(this));
  std::abort();
}

bool WorkQueue::flush(WorkItem& item) {
  check_not_self(item, "flush()");
  if (state_->dead()) return false;
  return blocking_call(*state_->runtime, [&] { return flush_item(*state_->work, item); });
}

bool WorkQueue::cancel(WorkItem& item) { return cancel_item(item, nullptr); }

bool WorkQueue::cancel_sync(WorkItem& item) {
  check_not_self(item, "cancel_sync()");
  const bool was_pending = cancel_and_wait(*state_, item, nullptr);
  (void)remove_disabled(item);
  return was_pending;
}

bool WorkQueue::disable(WorkItem& item) {
  add_disabled(item);
  return cancel_item(item, nullptr);
}

bool WorkQueue::disable_sync(WorkItem& item) {
  check_not_self(item, "disable_sync()");
  return cancel_and_wait(*state_, item, nullptr);
}

bool WorkQueue::enable(WorkItem& item) { return remove_disabled(item); }

// --- Delayed work: pending while its timer is armed.

DelayedWork::DelayedWork() : timer_(std::make_unique<DelayedTimer>()) {
  timer_->fn = DelayedTimer::expired;
}

DelayedWork::~DelayedWork() {
  // Also waits until the interrupt that fired it has let go of it.
  if (TimerBase::cancel(*timer_)) give_up(*item_);
}

namespace {

// The item is the caller's, preemption off.
bool start(WorkQueueState& wq, WorkNode& item, DelayedTimer& timer, int64_t delay) {
  if (delay <= 0 || wq.dead()) return insert_item(wq, local_pwq(wq), item);
  timer.wq = &wq;
  timer.pwq = &local_pwq(wq);
  timer.item = &item;
  Cpu* cpu = this_cpu();
  if (cpu == nullptr || cpu->state != wq.runtime) cpu = wq.runtime->cpus[0];
  cpu->timers.arm(timer, clock_now(*wq.runtime) + delay);
  return true;
}

}  // namespace

bool WorkQueue::queue_delayed(DelayedWork& work, std::chrono::nanoseconds delay) {
  preempt_disable();
  const bool mine = claim_item(*state_, *work.item_);
  const bool queued = mine && start(*state_, *work.item_, *work.timer_, delay.count());
  preempt_enable();
  return queued;
}

bool WorkQueue::mod_delayed(DelayedWork& work, std::chrono::nanoseconds delay) {
  preempt_disable();
  const bool was_pending = grab(*work.item_, work.timer_.get());
  if (work.item_->state.load(std::memory_order_relaxed) >= WorkNode::kDisableUnit) {
    give_up(*work.item_);
  } else {
    (void)start(*state_, *work.item_, *work.timer_, delay.count());
  }
  preempt_enable();
  return was_pending;
}

bool WorkQueue::flush(DelayedWork& work) {
  preempt_disable();
  if (TimerBase::cancel(*work.timer_)) (void)insert_item(*state_, local_pwq(*state_), *work.item_);
  preempt_enable();
  return flush(*work.item_);
}

bool WorkQueue::cancel(DelayedWork& work) { return cancel_item(*work.item_, work.timer_.get()); }

bool WorkQueue::cancel_sync(DelayedWork& work) {
  check_not_self(*work.item_, "cancel_sync()");
  const bool was_pending = cancel_and_wait(*state_, *work.item_, work.timer_.get());
  (void)remove_disabled(*work.item_);
  return was_pending;
}

}  // namespace jiffy
