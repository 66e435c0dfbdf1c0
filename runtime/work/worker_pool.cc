#include "work/worker_pool.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "machine/model.h"
#include "sched/sched.h"
#include "work/work_queue_state.h"

namespace jiffy {

namespace {

auto& bucket_of(WorkerPool& pool, const WorkNode* item) {
  // Items are some hundred bytes apart: multiply, and take the top bits.
  const uint64_t hash = reinterpret_cast<uintptr_t>(item) * 0x9E3779B97F4A7C15ull;
  static_assert(WorkerPool::kBuckets == 64);
  return pool.busy[hash >> 58];
}

// By the pool's Cpu alone, so the load and the store are not torn apart.
void add_running(WorkerPool& pool, int n) {
  pool.nr_running.store(pool.nr_running.load(std::memory_order_relaxed) + n,
                        std::memory_order_relaxed);
}

// The scheduler's hooks. A worker that really sleeps hands its place to the next; a preempted one
// keeps it, so a hog holds up its pool.
void sleep_hook(Fiber* self, bool going_to_sleep) {
  Worker& worker = *static_cast<Worker*>(self->sleep_hook_arg);
  if (worker.not_running) return;
  WorkerPool& pool = worker.pool;
  if (going_to_sleep) {
    pool.lock.lock();
    worker.sleeping = true;
    add_running(pool, -1);
    kick(pool);
    pool.lock.unlock();
  } else if (worker.sleeping) {
    preempt_disable();
    worker.sleeping = false;
    add_running(pool, 1);
    preempt_enable();
  }
}

void enter_idle(Worker& worker) { worker.pool.idle.push_front(&worker); }
void leave_idle(Worker& worker) { worker.node.unlink(); }

void set_running(Worker& worker, bool running) {
  if (worker.pool.cpu == nullptr) return;
  worker.not_running = !running;
  add_running(worker.pool, running ? 1 : -1);
}

// One worker is kept idle for whoever sleeps next: the last to leave makes another before it works.
// Under the lock; true if it was released meanwhile.
bool manage(WorkerPool& pool) {
  if (!pool.idle.empty() || pool.managed || pool.creation_failed) return false;
  pool.managed = true;
  pool.lock.unlock();
  const bool made = create_worker(pool);
  pool.lock.lock();
  pool.managed = false;
  if (!made && !pool.creation_failed) {
    // The pool goes on with what it has. If all of that sleeps, the creator is who helps.
    pool.creation_failed = true;
    pool.work.creation_wanted.release();
  }
  return true;
}

[[noreturn]] void die_atomic(const Worker& worker, uint32_t count) {
  std::fprintf(stderr,
               "jiffy: the work item's callback %p came back to worker '%s' with preemption or "
               "interrupts disabled (count %#x). Rule: what a callback disables, it enables.\n",
               reinterpret_cast<void*>(worker.fn), worker.fiber->name, count);
  std::abort();
}

void call(void (*fn)(WorkItem&), WorkNode& item) {
  try {
    fn(static_cast<WorkItem&>(item));
  } catch (...) {
    detail::die_of_exception(std::current_exception());
  }
}

// An item is over, or was taken off its list.
void finish(PoolWorkQueue& pwq, uint8_t colour, bool was_active) {
  if (was_active) {
    --pwq.nr_active;
    if (WorkNode* next = pwq.inactive.front()) {
      ++pwq.nr_active;
      next->inactive = false;
      move_linked(*next, pwq.pool->worklist);
    }
  }
  if (--pwq.in_flight[colour] == 0 && (pwq.flushing >> colour & 1) != 0) {
    pwq.flushing = static_cast<uint16_t>(pwq.flushing & ~(1u << colour));
    pwq.wq->colour_done(colour);  // whoever waits may destroy the queue once the lock is released
  }
}

void note_start(Worker& worker, const WorkNode& item) {
  Cpu& cpu = *this_cpu();
  cpu.counters.add(Counter::kWorksStarted);
  cpu.trace_event(TraceEvent::kWorkStarted, static_cast<uint32_t>(worker.pool.id),
                  reinterpret_cast<uintptr_t>(&item), worker.fiber->id);
  if (worker.pwq->latency != nullptr) {
    const int64_t waited = cpu.now() - item.queued_at;
    worker.pwq->latency->record(static_cast<uint64_t>(waited > 0 ? waited : 0));
  }
}

// Runs one item. Under the lock, which is released around the callback.
void process(Worker& worker, WorkNode& item) {
  WorkerPool& pool = worker.pool;
  item.node.unlink();
  item.linked = false;
  worker.item = &item;
  worker.fn = item.fn;
  worker.pwq = item.pwq;
  worker.colour = item.colour;
  const bool barrier = item.barrier;
  bucket_of(pool, &item).push_back(&worker);
  // The next worker of an unbound pool starts now, not when this item ends.
  kick(pool);
  if (!barrier) note_start(worker, item);
  item.last_pool.store(pool.id, std::memory_order_relaxed);
  // Release: partner is the acquire in WorkQueue::flush(): who sees no pool sees last_pool.
  item.queued_on.store(nullptr, std::memory_order_release);
  // From here on the item is its owner's again, who may queue or, in the callback, destroy it.
  // seq_cst: the full barrier between the end of pending and the callback. Partner: queue().
  item.state.fetch_and(~WorkNode::kPending, std::memory_order_seq_cst);
  pool.lock.unlock();

  call(worker.fn, item);
  if (const uint32_t count = preempt_count(); count != 0) [[unlikely]]
    die_atomic(worker, count);
  (void)cond_resched();

  pool.lock.lock();
  if (!barrier) {
    this_cpu()->trace_event(TraceEvent::kWorkDone, static_cast<uint32_t>(pool.id),
                            reinterpret_cast<uintptr_t>(worker.item), worker.fiber->id);
  }
  worker.node.unlink();
  worker.item = nullptr;
  worker.fn = nullptr;
  finish(*std::exchange(worker.pwq, nullptr), worker.colour, !barrier);
}

void process_scheduled(Worker& worker) {
  while (WorkNode* item = worker.scheduled.front()) process(worker, *item);
}

// Under the lock.
void run_items(Worker& worker) {
  WorkerPool& pool = worker.pool;
  do {
    WorkNode& item = *pool.worklist.front();
    if (Worker* other = find_executing(pool, item)) {
      move_linked(item, other->scheduled);  // never twice at once: it waits for itself
    } else if (item.linked) {
      move_linked(item, worker.scheduled);
    } else {
      process(worker, item);
    }
    process_scheduled(worker);
  } while (!pool.worklist.empty() && pool.nr_running.load(std::memory_order_relaxed) <= 1);
}

void worker_main(void* block) {
  Worker& self = *static_cast<Worker*>(block);
  WorkerPool& pool = self.pool;
  pool.lock.lock();
  for (;;) {
    leave_idle(self);
    while (need_more_worker(pool)) {
      if (manage(pool)) continue;  // look again
      set_running(self, true);
      run_items(self);
      set_running(self, false);
      break;
    }
    // A dying one is on no list any more: its stack, and this record on it, are soon another's.
    if (pool.dying) break;
    if (model::planted(model::Fault::kWorkerDoesNotLookAgain)) {
      // Between its last look and its announcement somebody may queue.
      pool.lock.unlock();
      pool.lock.lock();
    }
    enter_idle(self);
    Waiter waiter;
    waiter.prepare("work");
    pool.lock.unlock();
    (void)waiter.block(kNever);
    pool.lock.lock();
  }
  pool.lock.unlock();
}

// A new worker may be the last thing that a shutdown waits for; see WorkState::live.
void tell_shutdown(RuntimeState& state) {
  if (!state.draining.load(std::memory_order_seq_cst)) return;
  preempt_disable();
  state.drain_lock.lock();
  if (state.drain_waiter != nullptr) (void)state.drain_waiter->wake();
  state.drain_lock.unlock();
  preempt_enable();
}

}  // namespace

void Worker::die_linked() const {
  std::fprintf(stderr, "jiffy: worker %p ends while a list of its pool still leads to it\n",
               static_cast<const void*>(this));
  std::abort();
}

void kick(WorkerPool& pool) {
  if (!need_more_worker(pool)) return;
  if (Worker* worker = pool.idle.front()) (void)try_to_wake_up(*worker->fiber);
}

Worker* find_executing(WorkerPool& pool, const WorkNode& item) {
  auto& bucket = bucket_of(pool, &item);
  for (Worker* w = bucket.front(); w != nullptr; w = bucket.next(w)) {
    if (w->item == &item && w->fn == item.fn) return w;
  }
  return nullptr;
}

void move_linked(WorkNode& item, List<WorkNode, &WorkNode::node>& list) {
  // What follows a linked item is on the same list as that item.
  for (WorkNode* next = &item; next != nullptr;) {
    WorkNode* after = next->linked ? list.next(next) : nullptr;
    next->node.unlink();
    list.push_back(next);
    next = after;
  }
}

void enqueue_item(PoolWorkQueue& pwq, WorkNode& item) {
  WorkerPool& pool = *pwq.pool;
  item.pwq = &pwq;
  item.colour = pwq.colour;
  ++pwq.in_flight[item.colour];
  // Release: partner is the acquire of who looks for the item.
  item.queued_on.store(&pool, std::memory_order_release);
  item.inactive = !pwq.inactive.empty() || pwq.nr_active >= pwq.max_active;
  if (item.inactive) {
    pwq.inactive.push_back(&item);
    return;
  }
  ++pwq.nr_active;
  pool.worklist.push_back(&item);
  kick(pool);
}

void remove_pending(WorkNode& item) {
  PoolWorkQueue& pwq = *item.pwq;
  WorkerPool& pool = *pwq.pool;
  // Barriers behind it stay where they are and run in turn, which ends their waits. But none may
  // stay among the inactive, whose first is made active as an item.
  if (item.inactive && item.linked) move_linked(*pwq.inactive.next(&item), pool.worklist);
  item.node.unlink();
  item.linked = false;
  item.last_pool.store(pool.id, std::memory_order_relaxed);
  item.queued_on.store(nullptr, std::memory_order_release);  // partner: as in process()
  finish(pwq, item.colour, !std::exchange(item.inactive, false));
  kick(pool);
}

bool create_worker(WorkerPool& pool) {
  pool.lock.lock();
  const int number = pool.next_worker++;
  pool.lock.unlock();
  SpawnOptions options;
  options.name = "kworker/" + (pool.cpu != nullptr ? std::to_string(pool.cpu->id) : "u") + ":" +
                 std::to_string(number);
  options.kernel_mode = true;
  options.kind = LatencyKind::kWorker;
  options.migratable = pool.cpu == nullptr;
  options.cpu = pool.cpu != nullptr ? pool.cpu->id : -1;
  Fiber* fiber = nullptr;
  void* room = nullptr;
  const Status status =
      detail::spawn_prepare(pool.state, {sizeof(Worker), alignof(Worker), &options}, &fiber, &room);
  if (!status.ok()) return false;
  auto* worker = new (room) Worker(pool);
  worker->fiber = fiber;
  fiber->sleep_hook = sleep_hook;
  fiber->sleep_hook_arg = worker;
  // Under the lock, so that nobody wakes it before it exists, and it does not run before it is
  // idle.
  pool.lock.lock();
  pool.all.push_back(worker);
  enter_idle(*worker);
  detail::spawn_start(*fiber, worker_main, [](void* p) { static_cast<Worker*>(p)->~Worker(); });
  // Release: partner is the acquire in live_workers().
  pool.work.live.fetch_add(1, std::memory_order_release);
  pool.lock.unlock();
  tell_shutdown(pool.state);
  return true;
}

Worker* current_worker() {
  Fiber* fiber = current_fiber();
  if (fiber == nullptr || in_interrupt()) return nullptr;
  return fiber->sleep_hook == sleep_hook ? static_cast<Worker*>(fiber->sleep_hook_arg) : nullptr;
}

}  // namespace jiffy
