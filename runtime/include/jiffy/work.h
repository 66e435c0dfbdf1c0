// Deferred work: the kernel's workqueues.
//
//   WorkQueue wq(rt, {.name = "flush", .kind = WorkQueueKind::kUnbound});
//   WorkItem item([&] { write_back(); });
//   wq.queue(item);   // any context: a fiber, a plain thread, an interrupt, a wake function
//   wq.flush();       // a fiber or a plain thread: waits
//
// docs/workqueues.md says what the kernel does, and where this differs.
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/detail/list.h>
#include <jiffy/histogram.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

namespace jiffy {

class Runtime;
class WorkItem;
class WorkQueue;
struct DelayedTimer;
struct PoolWorkQueue;
struct RuntimeState;
struct WorkerPool;
struct WorkQueueState;

namespace detail {

// What the pools keep in an item. Letters: I immutable; L under the lock of the pool it is queued
// on; N by who set kPending, until it is queued; A atomic.
struct WorkNode {
  // Of `state`. Queued, or being queued: whoever sets it owns the item.
  static constexpr uint32_t kPending = 1;
  // Above it: how often it was disabled.
  static constexpr uint32_t kDisableUnit = 2;

  ListNode node;  // L
  // A. Set by a read-modify-write (acq_rel) in queue(), cleared by one (seq_cst, the full barrier
  // before the callback) in the worker: what was written before a queue() is visible to the
  // execution that it caused, or that it found pending.
  Atomic<uint32_t> state{0};
  // A. The pool it ran on last, -1 for none: where non-reentrancy is checked. A number and not an
  // address, since an item may outlive its runtime. Written under that pool's lock.
  Atomic<int32_t> last_pool{-1};
  // A. The pool on whose lists it is, or null. Written under that pool's lock (release); read
  // without (acquire), and then again under the lock.
  Atomic<WorkerPool*> queued_on{nullptr};
  PoolWorkQueue* pwq = nullptr;     // L
  void (*fn)(WorkItem&) = nullptr;  // I: with the address, what makes it the same item
  int64_t queued_at = 0;            // N: ns, with latency statistics
  uint8_t colour = 0;               // L: which flush it belongs to
  bool inactive = false;            // L: waits for max_active
  bool linked = false;              // L: the next entry moves with it
  bool barrier = false;             // I: a flush's marker
};

}  // namespace detail

// A callback that can be queued. The callback is fn() or fn(WorkItem&); it may block. One that is
// small (four words) lies in the item, so that making an item does not allocate; queueing never
// does.
//
//   WorkItem item([&] { refill(ring); });
//
// The owner keeps an item alive while it is queued; destroying a queued one aborts. Its own
// callback may destroy it, and must then not use its captures any more, and may queue it again. An
// item never runs twice at once, as long as it is queued on queues of one runtime, on one of them
// at a time. An exception that leaves the callback aborts with its text.
class WorkItem : public detail::WorkNode {
 public:
  template <class F>
  requires(!std::derived_from<std::remove_cvref_t<F>, WorkItem> &&
           (std::invocable<std::decay_t<F>&> ||
            std::invocable<std::decay_t<F>&, WorkItem&>)) explicit WorkItem(F&& callback) {
    using Fn = std::decay_t<F>;
    if constexpr (sizeof(Fn) <= sizeof room_ && alignof(Fn) <= alignof(std::max_align_t)) {
      new (room_) Fn(std::forward<F>(callback));
      destroy_ = [](void* room) { std::launder(static_cast<Fn*>(room))->~Fn(); };
      fn = [](WorkItem& self) { call(*std::launder(reinterpret_cast<Fn*>(self.room_)), self); };
    } else {
      new (room_) Fn*(new Fn(std::forward<F>(callback)));
      destroy_ = [](void* room) { delete *std::launder(static_cast<Fn**>(room)); };
      fn = [](WorkItem& self) { call(**std::launder(reinterpret_cast<Fn**>(self.room_)), self); };
    }
  }
  ~WorkItem() {
    if ((state.load(std::memory_order_relaxed) & kPending) != 0) die_pending();
    destroy_(room_);
  }
  WorkItem(const WorkItem&) = delete;
  WorkItem& operator=(const WorkItem&) = delete;

  // Queued and not yet started. A racy look, as the kernel's work_pending().
  bool pending() const { return (state.load(std::memory_order_relaxed) & kPending) != 0; }

 private:
  template <class Fn>
  static void call(Fn& callback, WorkItem& self) {
    if constexpr (std::invocable<Fn&, WorkItem&>) {
      callback(self);
    } else {
      callback();
    }
  }
  [[noreturn]] void die_pending() const;

  alignas(std::max_align_t) unsigned char room_[4 * sizeof(void*)];
  void (*destroy_)(void* room);
};

// An item with a timer in front. As WorkItem; while its timer is armed it counts as pending. Armed,
// it must not outlive its queue: cancel() it first. The destructor disarms.
class DelayedWork {
 public:
  template <class F>
  requires(!std::derived_from<std::remove_cvref_t<F>, DelayedWork> &&
           std::constructible_from<WorkItem, F>) explicit DelayedWork(F&& callback)
      : DelayedWork() {
    item_ = std::make_unique<WorkItem>(std::forward<F>(callback));
  }
  ~DelayedWork();
  DelayedWork(const DelayedWork&) = delete;
  DelayedWork& operator=(const DelayedWork&) = delete;

  // Armed or queued.
  bool pending() const { return item_->pending(); }

 private:
  friend class WorkQueue;
  DelayedWork();

  std::unique_ptr<WorkItem> item_;
  std::unique_ptr<DelayedTimer> timer_;
};

enum class WorkQueueKind : uint8_t {
  // An item runs on the Cpu that queued it, in turn: the pool starts the next one when the running
  // one ends or blocks. Cheap and warm, and waits behind whatever that Cpu runs.
  kPerCpu,
  // An item starts at once on any Cpu that idles, each in a worker of its own. Workers move at each
  // wakeup: a callback holds no thread_local, errno or std::mutex across a call that blocks.
  kUnbound,
};

struct WorkQueueOptions {
  // There is no default: a queue that is silently per-Cpu is what P1 is about. Leaving `kind` out
  // does not compile.
  struct Kind {
    Kind() = delete;
    constexpr Kind(WorkQueueKind k) : value(k) {}  // NOLINT: converts
    WorkQueueKind value;
  };

  std::string name;
  Kind kind;
  int max_active = 0;    // items that may run or be runnable at once, a Cpu for per-Cpu queues;
                         // 1 to 2048, 0 for 1024. More wait in order.
  bool ordered = false;  // unbound, one at a time, strictly in the order of queueing
};

// A queue of work on the worker pools of a runtime.
//
// Used between start() and stop() of its runtime; stop() drains it, after which it refuses items.
// So plain threads may call queue() and queue_on() also while stop() runs, and after it. queue()
// and the like, cancel(), disable() and enable() work in any context and do not block or allocate;
// they take the lock of a pool, and where they have to wake a worker that of a run queue (those of
// delayed work take a timer base's too, so a timer's callback must not call them). So they
// may be called under the lock of a WaitQueue, by its wake functions. All others block: fibers and
// plain threads only, and never from a callback of the item or of the queue that is waited for,
// which would wait for itself (this aborts).
class WorkQueue {
 public:
  // Aborts on options out of range, and on a runtime that has not been started.
  WorkQueue(Runtime& runtime, const WorkQueueOptions& options);
  // drain(), then releases. Not at the same time as the runtime's stop().
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // True if this call made the item pending: exactly one execution answers it. False if it was
  // pending already (that execution sees what was written before this call), is disabled, or was
  // refused. Per-Cpu: on the caller's Cpu; from a plain thread, or a fiber of another runtime, on
  // the home Cpu, which is Cpu 0. An item that is still running elsewhere goes there.
  bool queue(WorkItem& item);
  // Per-Cpu: on that Cpu. Unbound: the Cpu is checked and makes no difference.
  bool queue_on(int cpu, WorkItem& item);
  // After `delay`, from the timer interrupt of the caller's Cpu; at once if it is not positive.
  bool queue_delayed(DelayedWork& work, std::chrono::nanoseconds delay);
  // The same, with the new delay also if it was pending; returns whether it was.
  bool mod_delayed(DelayedWork& work, std::chrono::nanoseconds delay);

  // Waits for everything that was queued before the call, and for nothing that comes later.
  void flush();
  // Waits until the queue is empty. Meanwhile only callbacks of its own items may queue on it; what
  // others queue is dropped, counted, and said once on stderr.
  void drain();
  // How many items were dropped so.
  uint64_t dropped() const;

  // Of one item, which is queued on, or last ran on, a queue of this runtime.
  //
  // Waits for the last instance queued before the call; returns whether it had to wait.
  bool flush(WorkItem& item);
  bool flush(DelayedWork& work);  // fires the timer now
  // Takes it off the queue; it may still be running. Returns whether it was pending.
  bool cancel(WorkItem& item);
  bool cancel(DelayedWork& work);
  // ... and waits for a running instance. It is disabled meanwhile, so one that queues itself ends.
  bool cancel_sync(WorkItem& item);
  bool cancel_sync(DelayedWork& work);
  // Counted: queueing is refused until as many enable(). disable() cancels, disable_sync() also
  // waits; both return whether it was pending. enable() returns whether it is enabled now.
  bool disable(WorkItem& item);
  bool disable_sync(WorkItem& item);
  bool enable(WorkItem& item);

  // Time from becoming pending on a pool to the start of the callback, ns, over all pools; with
  // Options::latency_stats. A delay of a DelayedWork is not part of it. Any thread; clear()
  // forgets.
  HistogramSnapshot queue_latency() const;
  void clear_queue_latency();

  const std::string& name() const;
  WorkQueueKind kind() const;

 private:
  friend class WorkState;
  explicit WorkQueue(RuntimeState& state, const WorkQueueOptions& options);

  std::unique_ptr<WorkQueueState> state_;
};

// The queues that each running runtime has: per-Cpu (the kernel's system_percpu_wq), and unbound
// (system_dfl_wq). Shared by all, so nobody flushes or drains them. After stop() they refuse what
// is queued; they end at the next start(), or with the runtime.
WorkQueue& system_percpu_wq(Runtime& runtime);
WorkQueue& system_dfl_wq(Runtime& runtime);

}  // namespace jiffy
