#include <jiffy/condition_variable.h>

#include "sync/handoff_wait.h"

namespace jiffy {

WaitResult ConditionVariable::wait(std::unique_lock<Mutex>& lock, const Until& until) {
  const JiffyCall call;
  HandoffWait self;
  waiters_.lock();
  self.enqueue(waiters_);
  waiters_.unlock();
  // Queued before the mutex is released: a notify that follows a change under it finds us.
  lock.unlock();
  const WaitResult result = self.block(waiters_, until);
  lock.lock();
  return result;
}

void ConditionVariable::notify(int count) { (void)waiters_.wake(count); }

}  // namespace jiffy
