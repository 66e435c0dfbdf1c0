// The fiber: what the kernel calls a task. Plain data; the rooms above work on it.
//
// Fields are grouped by who may touch them; the letter says under which rule:
//   I  immutable after spawn
//   R  under the lock of the run queue of cpu_ (see sched/run_queue.h)
//   P  by the Cpu that runs the fiber, or by the fiber itself
//   J  under the lock of join_queue
//   A  atomic, as the comment says
//   S  by the stack pool that owns the unit
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/detail/list.h>
#include <jiffy/detail/spinlock.h>
#include <jiffy/options.h>
#include <jiffy/wait_queue.h>

#include <cstddef>
#include <cstdint>

#include "base/treap.h"
#include "fiber/context.h"

namespace jiffy {

class Cpu;
struct RuntimeState;
class CpuMask;
struct StackSlab;

enum class FiberState : uint32_t {
  kRunning,   // runs or wants to
  kSleeping,  // sleeps, or is about to: it set this before its schedule()
  kWaking,    // taken by a waker that is moving it to another Cpu's queue
  kDead,      // ended; waits only to leave its stack
  kFree,      // in a stack pool
};

// A fair entity: everything EEVDF keeps for one fiber. Virtual times are in nanoseconds of a
// nice-0 fiber; all of it is R. The first line is what a walk down the tree reads.
struct alignas(64) FairEntity {
  TreapNode node;
  int64_t deadline = 0;  // the tree's order
  int64_t vruntime = 0;
  int64_t min_vruntime = 0;  // summary: of the subtree
  uint64_t slice = 0;        // the request, ns of real time

  uint64_t min_slice = 0;  // summary
  uint64_t max_slice = 0;  // summary
  int64_t vlag = 0;        // saved when it leaves the queue
  int64_t vprot = 0;       // protected from being replaced while vruntime is below
  uint64_t sum_exec = 0;   // ns run
  uint32_t weight = 1024;
  bool on_queue = false;
  bool in_tree = false;       // queued and not current
  bool delayed = false;       // asleep, but still queued to burn its negative lag
  bool custom_slice = false;  // the slice was asked for, so placement keeps it
  bool rel_deadline = false;  // `deadline` is relative to vruntime: it migrated
};

inline constexpr uint32_t kFiberMagic = 0x4a694659;

// The layout is for speed: a thousand fibers that take turns do not fit into the first-level cache,
// so a switch should touch few lines of each. The second line is the one that every switch reads.
struct alignas(64) Fiber {
  uint64_t id = 0;            // I
  Atomic<Cpu*> cpu{nullptr};  // A: whose run queue. Release by who moves the fiber,
                              // acquire by who then locks that queue
  uint32_t magic = kFiberMagic;
  int pinned_cpu = -1;  // R: the only allowed Cpu, or -1

  // P. Its hot half begins the second line.
  Context context;
  ListNode fifo_node;  // R
  // A. Written sleeping by the fiber itself, under the lock of what it waits for; written running
  // under R by its waker. The wait's lock orders the two.
  Atomic<FiberState> state{FiberState::kFree};
  SchedClass sched_class{};      // R
  uint8_t fifo_priority = 0;     // R
  bool on_rq = false;            // R
  bool counted_movable = false;  // R: waits in the queue, and another Cpu may take it
  bool kernel_mode = false;      // I
  bool migratable = false;       // I
  bool preemptible = false;      // I: has a control block of its own
  bool passed = false;           // R: off the queue until the next tick: RunQueue::pass_over()
  bool started = false;          // P: has run at least once
  bool is_idle = false;          // I: the Cpu's own context
  Policy policy{};               // R
  int8_t nice = 0;               // R
  // A. True from spawn until the Cpu has left the stack of the ended fiber for good: release there,
  // acquire by whoever wants to free the unit.
  Atomic<bool> on_stack{false};

  FairEntity fair;  // R

  int64_t wake_stamp = 0;  // R: when it became runnable (runqlat's stamp); 0 for none
  // Written by the fiber, read by dump(): relaxed, and not the model's business.
  std::atomic<int64_t> sleep_stamp{0};     // since when it sleeps; in a simulation
  std::atomic<const char*> waits_for{""};  // what it waits for, since it last announced a sleep
  CpuMask* allowed = nullptr;              // R: null for all
  // P. Called by schedule() when the fiber is about to sleep, and when it runs again: how a worker
  // pool keeps its count of running workers.
  void (*sleep_hook)(Fiber* self, bool going_to_sleep) = nullptr;
  void* sleep_hook_arg = nullptr;

  // What it runs. The block (closure and result) lies on its own stack unit.
  void (*invoke)(void* block) = nullptr;
  void (*destroy)(void* block) = nullptr;  // I: of closure and result; null for nothing to do
  void* block = nullptr;

  // Joining. J is the lock of this queue.
  WaitQueue join_queue{LockClass::kHandoff, "the end of a fiber"};
  bool done = false;          // J
  bool detached = false;      // J
  bool reap_at_exit = false;  // P: it was detached when it ended, so its Cpu frees it
  LatencyKind kind{};         // I: which latency histogram it counts in

  RuntimeState* state_of_runtime = nullptr;  // I
  char name[24] = {};                        // I
  StackSlab* slab = nullptr;                 // S
  void* block_limit = nullptr;               // S: the top of the room for block and stack
  Fiber* next_free = nullptr;                // S
};

static_assert(offsetof(Fiber, context) + Context::kColdSize == 64, "the hot half begins a line");
static_assert(offsetof(Fiber, fair) == 128, "one line for what every switch reads");

inline Fiber* fiber_of(Context* context) {
  return reinterpret_cast<Fiber*>(reinterpret_cast<char*>(context) - offsetof(Fiber, context));
}

}  // namespace jiffy
