#include <jiffy/runtime.h>
#include <jiffy/timer.h>

#include "sched/runtime_state.h"

namespace jiffy {

struct Timer::Impl : TimerNode {
  RuntimeState* state;
  std::function<void()> callback;
  int64_t period = 0;

  // In interrupt context, under the base's lock.
  static int64_t expired(TimerNode& node, int64_t now) {
    Impl& self = static_cast<Impl&>(node);
    self.callback();
    if (self.period == 0) return kNever;
    const int64_t missed = (now - self.expiry) / self.period;
    return self.expiry + (missed + 1) * self.period;
  }
};

Timer::Timer(Runtime& runtime, std::function<void()> callback) : impl_(std::make_unique<Impl>()) {
  impl_->fn = Impl::expired;
  impl_->state = &runtime.state();
  impl_->callback = std::move(callback);
}

Timer::~Timer() { (void)cancel(); }

void Timer::start(TimePoint when, std::chrono::nanoseconds period) {
  (void)cancel();
  impl_->period = period.count();
  preempt_disable();
  Cpu* cpu = this_cpu();
  if (cpu == nullptr || cpu->state != impl_->state) cpu = impl_->state->cpus[0];
  cpu->timers.arm(*impl_, std::chrono::nanoseconds(when.time_since_epoch()).count());
  preempt_enable();
}

bool Timer::cancel() { return TimerBase::cancel(*impl_); }

}  // namespace jiffy
