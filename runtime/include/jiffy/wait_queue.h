// The kernel's wait queue: everything that blocks in jiffy stands on it.
#pragma once

#include <jiffy/detail/list.h>
#include <jiffy/detail/spinlock.h>
#include <jiffy/detail/waiter.h>
#include <jiffy/time.h>

#include <cstdint>
#include <optional>
#include <stop_token>

namespace jiffy {

class WaitQueue;

// One entry of a queue, owned by who waits. `wake` runs in the waker's context, under the queue's
// lock with preemption off: it must not block. It returns
//   > 0  woken: an exclusive entry uses up one of the waker's number,
//   0    not (the waker goes on to the next),
//   < 0  stop the walk.
// It may unlink the entry itself, and no other.
struct WaitEntry {
  enum Flag : uint8_t { kExclusive = 1, kPriority = 2 };

  ListNode node;
  int (*wake)(WaitEntry& entry, uint64_t key) = nullptr;
  uint8_t flags = 0;
};

namespace detail {

// The bounds of a jiffy call; see JiffyCall of the runtime.
void begin_call();
void end_call();
struct CallScope {
  CallScope() { begin_call(); }
  ~CallScope() { end_call(); }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
};

// A blocking wait of the calling fiber or thread on a queue; WaitQueue::wait() drives it.
class BlockingWait : public WaitEntry {
 public:
  BlockingWait(WaitQueue& queue, const Until& until, uint8_t entry_flags);
  ~BlockingWait();

  // Under the queue's lock.
  void enqueue();
  void leave();
  // Under the queue's lock, after enqueue(): whether the wait is over without what it waits for.
  std::optional<WaitResult> over();

  void sleep();

 private:
  struct StopWake {
    BlockingWait* self;
    void operator()() const;
  };
  static int wake_entry(WaitEntry& entry, uint64_t key);

  WaitQueue& queue_;
  Waiter waiter_;
  const bool limited_;
  const int64_t deadline_;
  std::stop_token stop_;
  std::optional<std::stop_callback<StopWake>> on_stop_;
};

}  // namespace detail

// A list of waiters under a lock, which also guards the condition they wait for.
//
// Non-exclusive entries go to the head (in what order, a simulation's seed chooses), exclusive ones
// to the tail, priority ones to the head: a wake() reaches all of the former and then as many
// exclusive ones as it is told.
//
//   WaitQueue queue;  bool ready = false;           // ready: under queue's lock
//   queue.wait([&] { return ready; });              // a fiber or a thread
//   queue.with_lock([&] { ready = true; queue.wake_locked(WaitQueue::kAll); });
//
// Ordering: what was written under the lock before a wake is visible to who was woken.
// Lifetime: must outlive all calls on it. Fibers and plain threads; the lock disables preemption.
class WaitQueue {
 public:
  static constexpr int kAll = 0;

  // kHandoff: for a queue whose entries only wake fibers and threads. `what` one waits for, of
  // static lifetime: for dumps.
  explicit WaitQueue(LockClass lock_class = LockClass::kWaitQueue, const char* what = "wait queue")
      : lock_(lock_class), what_(what) {}
  WaitQueue(const WaitQueue&) = delete;
  WaitQueue& operator=(const WaitQueue&) = delete;

  void lock();
  void unlock();
  // Unlocks, and leaves preemption off: for a waiter that sleeps next (Waiter::sleep_after_unlock).
  void unlock_to_sleep() { lock_.unlock(); }
  bool is_locked() const { return lock_.is_locked(); }
  const char* what() const { return what_; }
  // For who was granted something: the holder's ticket, and whether that holder is done with the
  // queue.
  uint32_t ticket() const { return lock_.ticket(); }
  bool has_left(uint32_t ticket) const { return lock_.has_left(ticket); }
  template <class Fn>
  auto with_lock(Fn&& fn) {
    struct Guard {
      WaitQueue& q;
      explicit Guard(WaitQueue& queue) : q(queue) { q.lock(); }
      ~Guard() { q.unlock(); }
    } guard(*this);
    return fn();
  }

  // Under the lock.
  void add(WaitEntry& entry);
  void remove(WaitEntry& entry) { entry.node.unlink(); }
  bool empty() const { return entries_.empty(); }
  WaitEntry* front() const { return entries_.front(); }
  // Calls the entries' wake functions in order, until `exclusive` exclusive ones were woken (kAll:
  // no end). Returns how many were woken.
  int wake_locked(int exclusive, uint64_t key = 0);

  // Takes the lock. Any context.
  int wake(int exclusive, uint64_t key = 0);

  // Blocks until condition() is true; it is called under the lock, first at once, and again after
  // each wakeup. What it consumes when it is true is consumed once: kReady goes before a deadline
  // that passed at the same moment.
  template <class Condition>
  WaitResult wait(Condition&& condition, const Until& until = {}, uint8_t flags = 0) {
    const detail::CallScope call;
    lock();
    if (condition()) {
      unlock();
      return WaitResult::kReady;
    }
    detail::BlockingWait self(*this, until, flags);
    for (;;) {
      self.enqueue();
      if (const auto result = self.over()) {
        self.leave();
        unlock();
        return *result;
      }
      unlock();
      self.sleep();
      lock();
      if (condition()) {
        self.leave();
        unlock();
        return WaitResult::kReady;
      }
    }
  }

 private:
  RawSpinLock lock_;
  List<WaitEntry, &WaitEntry::node> entries_;
  const char* const what_;
};

}  // namespace jiffy
