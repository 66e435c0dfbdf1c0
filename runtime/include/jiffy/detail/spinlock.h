// The smallest lock: test-and-set with a bounded spin before it gives the processor away.
#pragma once

#include <sched.h>

#include <atomic>
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
    if (spins < kSpinsBeforeYield) {
      cpu_relax();
    } else {
      sched_yield();
    }
  }
}

// A raw spin lock. It knows nothing of preemption: code that runs on fibers uses SpinLock of
// cpu/spinlock.h, which also keeps its holder on the Cpu.
//
// Ordering: lock() is an acquire that pairs with the release in unlock().
// Lifetime: unlock() touches the lock for the last time with its store, so whoever sees it free
// (is_locked() == false) after having been granted something under it may destroy it.
class RawSpinLock {
 public:
  RawSpinLock() = default;
  RawSpinLock(const RawSpinLock&) = delete;
  RawSpinLock& operator=(const RawSpinLock&) = delete;

  void lock() {
    // Acquire: partner is the release store in unlock().
    if (word_.exchange(1, std::memory_order_acquire) != 0) [[unlikely]] {
      lock_slow();
    }
  }

  bool try_lock() {
    // Acquire: partner is the release store in unlock().
    return word_.load(std::memory_order_relaxed) == 0 &&
           word_.exchange(1, std::memory_order_acquire) == 0;
  }

  void unlock() {
    // Release: partner is the acquire exchange in lock().
    word_.store(0, std::memory_order_release);
  }

  // Acquire: partner is the release store in unlock(). Used by a waiter that was granted its wish
  // under the lock, to know that the granter is done with the object.
  bool is_locked() const { return word_.load(std::memory_order_acquire) != 0; }

 private:
  [[gnu::noinline]] void lock_slow() {
    do {
      spin_until([this] { return word_.load(std::memory_order_relaxed) == 0; });
    } while (word_.exchange(1, std::memory_order_acquire) != 0);
  }

  std::atomic<uint32_t> word_{0};
};

}  // namespace jiffy
