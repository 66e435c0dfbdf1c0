// A spin lock in order of arrival, with a bounded spin before it gives the processor away.
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/detail/lock_class.h>
#include <sched.h>

#include <cstdint>

namespace jiffy {

inline void cpu_relax() { __builtin_ia32_pause(); }

// Waits for a store that is a few instructions away on another thread. That thread may have been
// preempted by its kernel, even by the one that waits here, so spinning for ever would burn a host
// slice: after a while give the processor to it.
template <class Condition>
void spin_until(Condition condition) {
  constexpr int kSpinsBeforeYield = 128;
  for (int spins = 0; !condition(); ++spins) {
    model::spin();
    if (spins < kSpinsBeforeYield) {
      cpu_relax();
    } else {
      sched_yield();
    }
  }
}

class RawSpinLock;

// What a Cpu, or a thread that is none, holds: kept where JIFFY_CHECK_LOCKS is on.
struct HeldLocks {
  static constexpr int kMost = 8;
  struct Held {
    const RawSpinLock* lock;
    LockClass lock_class;
    int order;
  };
  Held locks[kMost] = {};
  int count = 0;
};

// A raw spin lock. It knows nothing of preemption: code that runs on fibers uses SpinLock of
// cpu/cpu.h, which also keeps its holder on the Cpu.
//
// A ticket lock: served in order of arrival. A test-and-set lock costs the same but is unfair
// without bound: a Cpu that does nothing but yield takes its run queue's lock again before another
// Cpu can see it free, and a waker there waited a second.
//
// Ordering: lock() is an acquire that pairs with the release in unlock().
// Lifetime: unlock() touches the lock for the last time with its store, so whoever was granted
// something under it, and then sees that the granter has left, may destroy it.
class RawSpinLock {
 public:
#ifdef JIFFY_CHECK_LOCKS
  // `order`: among locks of one class that may be held together.
  explicit RawSpinLock(LockClass lock_class = LockClass::kOther, int order = 0)
      : lock_class_(lock_class), order_(order) {}
  ~RawSpinLock();
#else
  explicit RawSpinLock(LockClass = LockClass::kOther, int = 0) {}
#endif
  RawSpinLock(const RawSpinLock&) = delete;
  RawSpinLock& operator=(const RawSpinLock&) = delete;

  void lock() {
    check_lock();
    note_locked();  // with its ticket it stands in line
    const uint32_t ticket = next_.fetch_add(1, std::memory_order_relaxed);
    if (!is_served(ticket)) [[unlikely]]
      lock_slow(ticket);
  }

  bool try_lock() {
    // Acquire: partner is the release store in unlock(). It has to be this load: unlock() never
    // writes next_, so nothing would pair with an acquire there.
    uint32_t ticket = serving_.load(std::memory_order_acquire);
    const bool taken = next_.compare_exchange_strong(ticket, ticket + 1, std::memory_order_relaxed,
                                                     std::memory_order_relaxed);
    if (taken) note_locked();
    return taken;
  }

  void unlock() {
    // Only the holder writes it. Release: partner is the acquire in is_served().
    serving_.store(serving_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    note_unlocked();  // by its address: the lock may be gone
  }

  // For a waiter that was granted its wish under the lock, to know that the granter is done with
  // the object: the granter leaves it the number of its ticket, and is gone once that is not served
  // any more.
  uint32_t ticket() const { return serving_.load(std::memory_order_relaxed); }  // by the holder
  bool has_left(uint32_t ticket) const { return !is_served(ticket); }

  // Whether somebody holds or awaits it.
  bool is_locked() const {
    const uint32_t next = next_.load(std::memory_order_relaxed);
    return !is_served(next);
  }

 private:
#ifdef JIFFY_CHECK_LOCKS
  bool may_nest(const HeldLocks::Held& held) const;
  void check_lock() const;  // that it may be taken here and now
  void note_locked() const;
  void note_unlocked() const;
  const LockClass lock_class_;
  const int order_;
#else
  void check_lock() const {}
  void note_locked() const {}
  void note_unlocked() const {}
#endif

  bool is_served(uint32_t ticket) const {
    // Acquire: partner is the release store in unlock().
    return serving_.load(std::memory_order_acquire) == ticket;
  }

  [[gnu::noinline]] void lock_slow(uint32_t ticket) {
    spin_until([&] { return is_served(ticket); });
  }

  Atomic<uint32_t> next_{0};
  Atomic<uint32_t> serving_{0};
};

}  // namespace jiffy
