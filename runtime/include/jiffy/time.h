// Points in time, and how long a blocking call may wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <utility>

namespace jiffy {

using TimePoint = std::chrono::steady_clock::time_point;

// No deadline.
inline constexpr TimePoint kForever = TimePoint::max();

// The time of the calling context: the steady clock (CLOCK_MONOTONIC) on the host, virtual time in
// a simulation. Wall-clock jumps do not touch it; it stands still while the machine is suspended.
// Any context; does not block.
TimePoint now();

// What ended a blocking call. When several would, the first of this order is reported: what was
// waited for is never thrown away.
enum class WaitResult : uint8_t { kReady, kTimeout, kStopped };

// Any duration in nanoseconds, rounded up, since no wait may end early; at the ends of the range
// the nearest that can be had.
template <class Rep, class Period>
constexpr std::chrono::nanoseconds to_nanoseconds(std::chrono::duration<Rep, Period> d) {
  using std::chrono::nanoseconds;
  using Seconds = std::chrono::duration<double>;
  if (!(Seconds(d) < Seconds(nanoseconds::max()))) return nanoseconds::max();  // no number, too
  if (Seconds(d) <= Seconds(nanoseconds::min())) return nanoseconds::min();
  return std::chrono::ceil<nanoseconds>(d);
}

// The point `timeout` from now; kForever where that is beyond the clock's range.
inline TimePoint after(std::chrono::nanoseconds timeout) {
  const TimePoint start = now();
  return timeout > kForever - start ? kForever : start + timeout;
}

// The end of a wait: a deadline, a stop token, both, or neither. Every blocking call takes one.
//
//   queue.pop(Until(now() + 5ms, token))
struct Until {
  Until() = default;
  Until(TimePoint d) : deadline(d) {}               // NOLINT: converts
  Until(std::stop_token s) : stop(std::move(s)) {}  // NOLINT: converts
  template <class Rep, class Period>
  Until(std::chrono::duration<Rep, Period> timeout)  // NOLINT: converts
      : deadline(after(to_nanoseconds(timeout))) {}
  Until(TimePoint d, std::stop_token s) : deadline(d), stop(std::move(s)) {}

  TimePoint deadline = kForever;
  std::stop_token stop;

  int64_t deadline_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch())
        .count();
  }
  bool limited() const { return deadline != kForever || stop.stop_possible(); }
};

// Fibers and plain threads; a fiber lets others run. kReady never comes from a sleep.
WaitResult sleep_until(const Until& until);
template <class Rep, class Period>
WaitResult sleep_for(std::chrono::duration<Rep, Period> duration, std::stop_token stop = {}) {
  return sleep_until(Until(after(to_nanoseconds(duration)), std::move(stop)));
}

}  // namespace jiffy
