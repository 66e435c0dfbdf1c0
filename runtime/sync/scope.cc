#include <jiffy/scope.h>

#include <utility>

#include "sched/sched.h"

namespace jiffy {

Scope::~Scope() {
  bool pending = false;
  waiters_.with_lock([&] { pending = children_ != 0; });
  if (pending) stop_.request_stop();
  (void)wait(Until());
  if (error_) detail::die_of_exception(error_);
}

void Scope::begin_child() {
  waiters_.with_lock([this] { ++children_; });
}

void Scope::end_child(std::exception_ptr error) {
  if (error) {
    // Recorded before the others are asked to stop: what they throw then is not the first.
    waiters_.with_lock([&] {
      if (!error_) error_ = std::move(error);
    });
    stop_.request_stop();
  }
  // The last touch of the scope: wait() returns under the same lock, after this released it.
  waiters_.with_lock([&] {
    if (--children_ == 0) (void)waiters_.wake_locked(WaitQueue::kAll);
  });
}

WaitResult Scope::wait(const Until& until) {
  return waiters_.wait([this] { return children_ == 0; }, until);
}

void Scope::join() {
  (void)wait(Until());
  if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

}  // namespace jiffy
