// Mutual exclusion between fibers, plain threads, or both.
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/wait_queue.h>

#include <cstdint>

namespace jiffy {

// A mutex that blocks the fiber, not its Cpu. Works with std::lock_guard and std::unique_lock.
//
//   jiffy::Mutex m;
//   std::lock_guard lock(m);
//
// Ordering: lock() is an acquire, unlock() a release. Waiters queue in order, but a running caller
// may take the mutex before a woken one does (as in the kernel: handing over would idle the lock
// for the length of a wakeup); a waiter that lost so once goes to the head.
// Not recursive. It must be unlocked by the fiber or thread that locked it. It may be destroyed
// when no call on it is in progress. Not in interrupts.
class Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() {
    uint32_t expected = kFree;
    // Acquire: partner is the release in unlock().
    if (!word_.compare_exchange_strong(expected, kLocked, std::memory_order_acquire,
                                       std::memory_order_relaxed)) [[unlikely]] {
      (void)lock_slow(Until());
    }
  }
  bool try_lock() {
    uint32_t expected = kFree;
    // Acquire: partner is the release in unlock().
    return word_.compare_exchange_strong(expected, kLocked, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  // kReady: locked.
  WaitResult lock(const Until& until) { return try_lock() ? WaitResult::kReady : lock_slow(until); }
  void unlock() {
    // Release: partner is the acquire in lock().
    if (word_.exchange(kFree, std::memory_order_release) == kContended) [[unlikely]] {
      unlock_slow();
    }
  }

 private:
  // kContended: somebody may wait, so unlock() has to look. Set under the queue's lock.
  enum : uint32_t { kFree, kLocked, kContended };

  WaitResult lock_slow(const Until& until);
  void unlock_slow();

  Atomic<uint32_t> word_{kFree};
  WaitQueue waiters_{LockClass::kHandoff, "mutex"};
};

}  // namespace jiffy
