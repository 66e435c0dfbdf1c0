#include <jiffy/semaphore.h>

#include "sync/handoff_wait.h"

namespace jiffy {

bool Semaphore::try_acquire() {
  return waiters_.with_lock([this] {
    if (count_ == 0) return false;
    --count_;
    return true;
  });
}

WaitResult Semaphore::acquire(const Until& until) {
  const JiffyCall call;
  waiters_.lock();
  if (count_ > 0) {
    --count_;
    waiters_.unlock();
    return WaitResult::kReady;
  }
  HandoffWait self;
  self.enqueue(waiters_);
  return self.unlock_and_block(waiters_, until);
}

void Semaphore::release(int64_t units) {
  const JiffyCall call;
  waiters_.lock();
  for (; units > 0 && !waiters_.empty(); --units) HandoffWait::grant(*waiters_.front());
  count_ += units;
  waiters_.unlock();
}

}  // namespace jiffy
