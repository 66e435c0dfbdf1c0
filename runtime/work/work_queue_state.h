// What stands behind a WorkQueue, and behind all of a runtime's.
//
// Letters: I immutable; M under `mutex`; F under `flush_lock`; R under WorkState::lock; A atomic.
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/fiber.h>
#include <jiffy/mutex.h>
#include <jiffy/semaphore.h>
#include <jiffy/work.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sched/runtime_state.h"
#include "work/worker_pool.h"

namespace jiffy {

// A flush of a whole queue, on the stack of who waits. F but `done`.
struct Flusher {
  ListNode node;
  int pwqs = 1;  // that still have items of its colour, and one for the setting up
  uint8_t colour = 0;
  Semaphore done{0};
};

struct WorkQueueState {
  enum Flag : uint32_t {
    kDraining = 1,
    kDestroying = 2,
    kDead = 4,  // its runtime has stopped: pools are gone
  };

  RuntimeState* runtime = nullptr;  // I
  WorkState* work = nullptr;        // I
  std::string name;                 // I
  bool per_cpu = false;             // I
  bool ordered = false;             // I
  int cpus = 0;                     // I: of the runtime
  // A, seq_cst: read in queue(), with preemption off; kDead is followed by a pass over all Cpus
  // before the pools go.
  Atomic<uint32_t> flags{0};
  std::vector<std::unique_ptr<PoolWorkQueue>> pwqs;  // I: by Cpu, or one

  // A: callers that are no Cpu of this runtime and are inside queue(). seq_cst, a Dekker pattern:
  // they count themselves and look at the flags; kDead is set and then the count looked at.
  Atomic<int> foreign{0};
  Atomic<uint64_t> dropped{0};  // A
  ListNode registered;          // R

  // Flushing. Sixteen colours go round, so fifteen flushes may be under way; more wait their turn.
  Mutex mutex;
  uint8_t colour = 0;  // M: of what is queued now
  int drainers = 0;    // M
  Semaphore free_colours{kFlushColours - 1};
  RawSpinLock flush_lock{LockClass::kFlush};
  List<Flusher, &Flusher::node> flushers;            // F: the oldest first; they end in this order
  std::array<Flusher*, kFlushColours> flusher_of{};  // F: by colour

  bool dead() const { return (flags.load(std::memory_order_seq_cst) & kDead) != 0; }
  // Under the lock of a pool: it has no item of that colour left.
  void colour_done(uint8_t colour_of_items);
  void flush();
  void drain();
  bool empty();

 private:
  void put(Flusher& flusher);
};

class WorkState {
 public:
  explicit WorkState(RuntimeState& s) : state(s) {}

  RuntimeState& state;                             // I
  std::vector<std::unique_ptr<WorkerPool>> pools;  // I: a Cpu's each, then the unbound one
  std::unique_ptr<WorkQueue> percpu_wq, dfl_wq;    // I
  SpinLock lock{LockClass::kWorkQueues};
  List<WorkQueueState, &WorkQueueState::registered> queues;  // R
  // A: workers and the creator. A worker is counted after its spawn and never leaves before the
  // shutdown, so that who waits for all other fibers never counts one too many.
  Atomic<int64_t> live{0};

  // The creator: a fiber that makes workers where a pool could not.
  Fiber* creator = nullptr;  // I
  Semaphore creation_wanted{0};
  Atomic<bool> stopping{false};  // A, relaxed: creation_wanted is released after it

  WorkerPool& unbound() { return *pools.back(); }

  static WorkQueueState& state_of(WorkQueue& queue) { return *queue.state_; }
  void make_system_queues();
  void kill(WorkQueueState& wq);
  void end_workers();
};

inline int64_t stamp_of(const RuntimeState& state) {
  return state.options.latency_stats ? clock_now(state) : 0;
}

// A plain thread outside of a simulation would wait for a world that only moves while it is run, so
// its call is made by a fiber.
template <class Fn>
auto blocking_call(RuntimeState& state, Fn fn) {
  if (this_cpu() == nullptr && state.machine->simulated()) {
    return spawn_in(state, fn, detail::kDefaultSpawn).join();
  }
  const JiffyCall call;
  return fn();
}

// Aborts if a callback of `wq` asks to wait for it.
void check_not_inside(const WorkQueueState& wq, const char* call);

// Makes the item pending and the caller's, preemption off. False if it was pending, or is disabled.
bool claim_item(WorkQueueState& wq, WorkNode& item);
// Of an item that is pending by the caller's doing, preemption off: puts it on its list. False if
// it is refused and not pending any more.
bool insert_item(WorkQueueState& wq, PoolWorkQueue& pwq, WorkNode& item);
// Where the caller's items go, preemption off.
PoolWorkQueue& local_pwq(WorkQueueState& wq);

// What a DelayedWork is pending by until its time. `expired` runs in interrupt context, under the
// lock of the timer base.
struct DelayedTimer : TimerNode {
  WorkQueueState* wq = nullptr;
  PoolWorkQueue* pwq = nullptr;
  WorkNode* item = nullptr;

  static int64_t expired(TimerNode& node, int64_t now);
};

}  // namespace jiffy
