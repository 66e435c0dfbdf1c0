// Worker pools: who runs the items. One a Cpu, concurrency managed, and one unbound.
//
// Letters: I immutable after start; L under the pool's lock; P by the pool's Cpu (of a worker: by
// the worker itself) with preemption off, read by others under the lock; A atomic.
//
// Lock order: wait queue, timer base -> pool -> WorkQueueState::flush_lock -> the wait queue of a
// flusher's semaphore (which has no wake functions of others) -> run queue.
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/detail/list.h>
#include <jiffy/histogram.h>
#include <jiffy/status.h>
#include <jiffy/work.h>

#include <array>
#include <cstdint>
#include <memory>

#include "cpu/cpu.h"
#include "fiber/fiber.h"

namespace jiffy {

class WorkState;
using detail::WorkNode;

inline constexpr int kFlushColours = 16;

// A queue on a pool: its counts, and what waits there for max_active.
struct alignas(64) PoolWorkQueue {
  WorkerPool* pool = nullptr;                      // I
  WorkQueueState* wq = nullptr;                    // I
  int max_active = 0;                              // I
  int nr_active = 0;                               // L: on the work list or running
  uint8_t colour = 0;                              // L: of what is queued now
  uint16_t flushing = 0;                           // L: colours that a flush waits for
  List<WorkNode, &WorkNode::node> inactive;        // L: in order
  std::array<int32_t, kFlushColours> in_flight{};  // L: queued and not finished, by colour
  std::unique_ptr<Histogram> latency;              // I; written under L, cleared under L
};

struct Worker {
  explicit Worker(WorkerPool& p) : pool(p) {}
  // It lies on its own fiber's stack, which is another's next.
  ~Worker() {
    if (node.linked() || all_node.linked()) die_linked();
  }
  [[noreturn]] void die_linked() const;

  WorkerPool& pool;        // I
  Fiber* fiber = nullptr;  // I
  ListNode node;           // L: in `idle` or in a bucket of `busy`
  ListNode all_node;       // L
  // L: what this worker alone may run: items with barriers behind them, and items that it is
  // executing right now and that were queued again.
  List<WorkNode, &WorkNode::node> scheduled;

  // What it executes. Written under L by the worker, who also reads it without. The item may be
  // gone: its address only serves for comparisons.
  const WorkNode* item = nullptr;
  void (*fn)(WorkItem&) = nullptr;
  PoolWorkQueue* pwq = nullptr;
  uint8_t colour = 0;

  bool not_running = true;  // P: between items, or of an unbound pool: it never counts as running
  bool sleeping = false;    // P: taken off nr_running by the sleep hook
};

struct WorkerPool {
  WorkerPool(WorkState& w, RuntimeState& s, int i, Cpu* c) : work(w), state(s), cpu(c), id(i) {}

  SpinLock lock{LockClass::kWorkerPool};
  List<WorkNode, &WorkNode::node> worklist;  // L
  // P, A: workers that execute and do not sleep. Relaxed: changed on the pool's Cpu only; who reads
  // a stale value elsewhere wakes a worker in vain. Always 0 in an unbound pool, hence each item
  // wakes one.
  Atomic<int> nr_running{0};
  List<Worker, &Worker::node> idle;     // L: the last to become idle first
  bool managed = false;                 // L: a worker is making another one
  bool creation_failed = false;         // L: left to the creator, which tries again
  bool dying = false;                   // L
  int next_worker = 1;                  // L
  WorkState& work;                      // I
  RuntimeState& state;                  // I
  Cpu* const cpu;                       // I: null for the unbound pool
  const int id;                         // I: the Cpu's, or the number of Cpus
  List<Worker, &Worker::all_node> all;  // L

  static constexpr size_t kBuckets = 64;
  std::array<List<Worker, &Worker::node>, kBuckets> busy;  // L: by address of the item
};

// All of these under the pool's lock.

inline bool need_more_worker(const WorkerPool& pool) {
  return !pool.worklist.empty() && pool.nr_running.load(std::memory_order_relaxed) == 0;
}
// Wakes a worker if there is work and none runs. With no idle one the running or the managing one
// will see to it.
void kick(WorkerPool& pool);
// Who executes this very item (address and callback), or null.
Worker* find_executing(WorkerPool& pool, const WorkNode& item);
// Moves an item, and what is linked to it, to the end of `list`.
void move_linked(WorkNode& item, List<WorkNode, &WorkNode::node>& list);
// Puts an item at the end of the work list, or of the inactive ones.
void enqueue_item(PoolWorkQueue& pwq, WorkNode& item);
// Takes a pending item off its list.
void remove_pending(WorkNode& item);

// Without the lock; not in interrupts. False if the system refuses a stack.
bool create_worker(WorkerPool& pool);

// The worker that calls; null for other fibers, plain threads and interrupts.
Worker* current_worker();

}  // namespace jiffy
