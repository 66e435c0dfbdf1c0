// One blocking call of whoever runs, a fiber or a plain thread. The primitives stand on it.
#pragma once

#include <atomic>
#include <cstdint>

namespace jiffy {

struct Fiber;

struct Waiter {
  Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // Announces the sleep: under the lock of what is waited for, before it is released. Whoever then
  // takes that lock finds a sleeper. `what` is waited for ("mutex"): of static lifetime, for dumps.
  void prepare(const char* what = "");
  // Sleeps until wake(), or at the latest until `deadline` (ns of the clock; INT64_MAX for none).
  // False if the deadline ended it.
  bool block(int64_t deadline);
  // As block() without a deadline, after WaitQueue::unlock_to_sleep().
  void sleep_after_unlock();
  // Takes prepare() back, where the wait turned out to be over.
  void cancel();
  // From any context, preemption off, under the lock of what is waited for: true if this call ended
  // the sleep.
  bool wake();

  Fiber* const fiber;  // null for a plain thread
  // Of a plain thread: 0 asleep, 1 awake; a futex. Release by wake(), acquire by block().
  std::atomic<uint32_t> word{1};
};

}  // namespace jiffy
