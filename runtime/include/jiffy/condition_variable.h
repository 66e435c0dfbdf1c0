// A condition variable for jiffy::Mutex.
#pragma once

#include <jiffy/mutex.h>

#include <concepts>
#include <mutex>

namespace jiffy {

// As std::condition_variable, between fibers and plain threads.
//
//   std::unique_lock lock(m);
//   cv.wait(lock, [&] { return !queue.empty(); });
//
// Ordering: a notify that follows a change made under the mutex is not missed by a waiter that
// looked before the change. Each notify_one() is used up by exactly one waiter; one whose deadline
// passes at that moment either reports the notification or leaves it to another waiter. No spurious
// wakeups of its own. The result of the wait without a predicate says why it ended; with one,
// kReady means that the predicate holds.
// Lifetime: may be destroyed when nobody waits and no notify is in progress. notify: any context.
class ConditionVariable {
 public:
  ConditionVariable() = default;

  void notify_one() { notify(1); }
  void notify_all() { notify(WaitQueue::kAll); }

  // The mutex is held again at the return, whatever the result.
  WaitResult wait(std::unique_lock<Mutex>& lock, const Until& until = {});

  template <class Predicate>
  requires std::predicate<Predicate&> WaitResult wait(std::unique_lock<Mutex>& lock,
                                                      Predicate predicate,
                                                      const Until& until = {}) {
    while (!predicate()) {
      if (const WaitResult result = wait(lock, until); result != WaitResult::kReady) {
        return predicate() ? WaitResult::kReady : result;
      }
    }
    return WaitResult::kReady;
  }

 private:
  void notify(int count);

  WaitQueue waiters_{LockClass::kHandoff, "condition variable"};
};

}  // namespace jiffy
