#include <jiffy/mutex.h>

#include "sched/sched.h"

namespace jiffy {

WaitResult Mutex::lock_slow(const Until& until) {
  // The exchange marks the mutex contended before the caller sleeps: the holder's unlock then comes
  // to the queue's lock, under which this runs. A woken caller marks it again, since others may
  // still wait; one needless look at the queue is the price.
  // Acquire: partner is the release in unlock().
  return waiters_.wait(
      [this] { return word_.exchange(kContended, std::memory_order_acquire) == kFree; }, until,
      WaitEntry::kExclusive);
}

void Mutex::unlock_slow() {
  if (model::planted(model::Fault::kMutexUnlockDoesNotLook)) return;
  (void)waiters_.wake(1);
}

}  // namespace jiffy
