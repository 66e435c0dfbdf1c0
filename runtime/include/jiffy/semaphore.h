// A counting semaphore, and the completion made of it.
#pragma once

#include <jiffy/wait_queue.h>

#include <cstdint>

namespace jiffy {

// A count that acquire() takes from and release() adds to; with nothing to take, it blocks.
//
//   Semaphore done(0);
//   spawn([&] { work(); done.release(); }).detach();
//   done.acquire();
//
// A release with waiters hands its unit over to the first of them: in order, and nobody overtakes.
// Ordering: release() synchronises with the acquire() that takes its unit.
// Lifetime: may be destroyed as soon as the last acquire() has returned, even if the release() that
// satisfied it is still on its way back. release(): any context; acquire(): fibers and threads.
class Semaphore {
 public:
  explicit Semaphore(int64_t count = 0) : count_(count) {}

  void acquire() { (void)acquire(Until()); }
  // kReady: a unit was taken. A unit that comes at the moment of a deadline is never lost.
  WaitResult acquire(const Until& until);
  bool try_acquire();
  void release(int64_t units = 1);

 private:
  WaitQueue waiters_{LockClass::kHandoff, "semaphore"};
  int64_t count_;  // under waiters_' lock
};

}  // namespace jiffy
