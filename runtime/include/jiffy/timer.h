// A callback at a point in time: the kernel's hrtimer.
#pragma once

#include <jiffy/time.h>

#include <chrono>
#include <functional>
#include <memory>

namespace jiffy {

class Runtime;

// The callback runs in interrupt context of a Cpu of the runtime: it may signal, wake and queue
// work; it must not block, nor start or cancel timers, delayed work included (a periodic one
// continues by itself): that aborts. With Delivery::kSignals it runs in a signal handler, and must
// not allocate either.
//
//   Timer timer(rt, [&] { event.signal(); });
//   timer.start(now() + 1ms, /*period=*/1ms);
//
// Ordering: start() happens before the callback; the callback happens before cancel() returns.
// Lifetime: the destructor cancels. start() and cancel() are not safe against each other.
class Timer {
 public:
  Timer(Runtime& runtime, std::function<void()> callback);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Replaces an earlier start. On the caller's Cpu; from a plain thread on Cpu 0. A period of zero:
  // once. Periods that passed unserved are skipped, not made up.
  void start(TimePoint when, std::chrono::nanoseconds period = std::chrono::nanoseconds(0));
  // After it returns the callback does not run and will not. True if it was armed.
  bool cancel();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace jiffy
