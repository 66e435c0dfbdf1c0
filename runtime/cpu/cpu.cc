#include "cpu/cpu.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "machine/model.h"

namespace jiffy {

namespace {

// Around a handler: it ends with the counts and the locks that it began with. Checked with the
// locks; elsewhere it is nothing.
class HandlerCheck {
 public:
#ifdef JIFFY_CHECK_LOCKS
  HandlerCheck(const Cpu& cpu, const char* kind, int nr)
      : cpu_(cpu), kind_(kind), nr_(nr), count_(preempt_count()), locks_(cpu.held_locks.count) {}
  ~HandlerCheck() {
    if (preempt_count() == count_ && cpu_.held_locks.count == locks_) return;
    std::fprintf(
        stderr,
        "jiffy: the handler of %s %d on Cpu %d began with count %#x and %d locks and ended "
        "with count %#x and %d locks\n",
        kind_, nr_, cpu_.id, count_, locks_, preempt_count(), cpu_.held_locks.count);
    std::abort();
  }

 private:
  const Cpu& cpu_;
  const char* const kind_;
  const int nr_;
  const uint32_t count_;
  const int locks_;
#else
  HandlerCheck(const Cpu&, const char*, int) {}
#endif
};

}  // namespace

extern "C" {
thread_local constinit this_cpu_internal::Words jiffy_this_cpu_words
    __attribute__((tls_model("initial-exec"), used)) = {};
}

Cpu::Cpu(int cpu_id, RuntimeState& owner_state)
    : state(&owner_state), id(cpu_id), timers(*this), trace(static_cast<uint16_t>(cpu_id)) {}

void Cpu::raise(Vector vector) {
  const uint64_t bit = uint64_t{1} << vector;
  // Release: partner is the acquire exchange in service_interrupts(). seq_cst so that it also
  // stands before the look at idle_state (partner: the idle loop's store of it).
  if ((pending.fetch_or(bit, std::memory_order_seq_cst) & bit) != 0) return;
  if (this_cpu() == this) return;  // seen at the owner's next safe point
  switch (idle_state.load(std::memory_order_seq_cst)) {
    case IdleState::kBusy:
      counters.add_shared(Counter::kIpisSent);
      machine->send_ipi(*this);
      break;
    case IdleState::kPolling:
      counters.add_shared(Counter::kIpisElided);
      break;
    case IdleState::kParked:
      waiter->unpark(*this);
      break;
  }
}

// The signal may have come after the idle loop's last look and before the sleep, which would then
// go on with the bit set: and raise(), which finds it set, would wake nobody.
void Cpu::timer_interrupt(Vector vector) {
  // Release: partner is the acquire in service_interrupts().
  pending.fetch_or(uint64_t{1} << vector, std::memory_order_release);
  // The owner's own store: either seen here, or followed by its look at `pending`.
  if (idle_state.load(std::memory_order_relaxed) != IdleState::kParked) return;
  if (model::planted(model::Fault::kTimerDoesNotUnpark)) return;
  waiter->unpark(*this);
}

void Cpu::raise_softirq(Softirq nr) {
  softirq_pending |= 1u << static_cast<uint32_t>(nr);
  // In an interrupt the exit path runs it; elsewhere nothing would, before the next interrupt.
  if (!in_interrupt() && hooks != nullptr) hooks->wake_ksoftirqd(*this);
}

void Cpu::pay() {
  if (owed != 0) machine->consume(0);
}

void Cpu::service_interrupts() {
  preempt_count_add(kHardirqUnit);
  if (costs != nullptr) [[unlikely]] {
    owed += costs->interrupt;
    pay();
  }
  // Acquire: partner is the release in raise().
  uint64_t bits = pending.exchange(0, std::memory_order_acquire);
  while (bits != 0) {
    const int vector = std::countr_zero(bits);
    bits &= bits - 1;
    const Irq irq = irqs[static_cast<size_t>(vector)];
    if (irq.handler == nullptr) continue;
    [[maybe_unused]] const HandlerCheck check(*this, "interrupt", vector);
    irq.handler(*this, irq.arg);
  }
  preempt_count_sub(kHardirqUnit);
  if (softirq_pending != 0 && !in_interrupt()) do_softirq();
}

void Cpu::do_softirq() {
  constexpr int kMaxRestarts = 10;
  constexpr int64_t kMaxNs = 2'000'000;
  // Measured in jiffies, so the 2 ms are rounded up to whole ticks, as in the kernel.
  const uint64_t limit = static_cast<uint64_t>((kMaxNs + tick_period - 1) / tick_period);
  const uint64_t start = jiffies();
  preempt_count_add(kSoftirqUnit);
  for (int restarts = kMaxRestarts;;) {
    uint32_t bits = std::exchange(softirq_pending, 0u);
    counters.add(Counter::kSoftirqRuns);
    while (bits != 0) {
      const int nr = std::countr_zero(bits);
      bits &= bits - 1;
      const Soft soft = softirqs[static_cast<size_t>(nr)];
      trace_event(TraceEvent::kSoftirq, static_cast<uint32_t>(nr));
      if (soft.handler == nullptr) continue;
      [[maybe_unused]] const HandlerCheck check(*this, "soft interrupt", nr);
      soft.handler(*this, soft.arg);
    }
    if (softirq_pending == 0) break;
    const bool hard = (need.load(std::memory_order_relaxed) & kNeedResched) != 0;
    if (jiffies() - start >= limit || hard || --restarts == 0) {
      counters.add(Counter::kSoftirqDeferred);
      hooks->wake_ksoftirqd(*this);
      break;
    }
  }
  preempt_count_sub(kSoftirqUnit);
}

void Cpu::program_oneshot() {
  const int64_t when =
      std::min(timers.next_expiry(), hrtick_expiry.load(std::memory_order_relaxed));
  if (when == oneshot_armed) return;
  oneshot_armed = when;
  machine->arm_oneshot(*this, when);
}

#ifdef JIFFY_KEEPS_SIGNALS_BACK
void take_kept_back_signals() {
  timespec unused;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &unused);  // a wrapped function
}
#endif

bool preempt_enable_slow() {
  for (bool switched = false;;) {
    preempt_disable();
    Cpu* cpu = this_cpu();
    const bool interrupted = cpu->pending.load(std::memory_order_relaxed) != 0;
    if (interrupted) cpu->service_interrupts();
    const bool wanted = cpu->need.load(std::memory_order_relaxed) != 0;
    const CpuHooks* hooks = cpu->hooks;
    preempt_enable_no_resched();
    // What came while the count was up left only its bit: looked at with the count down.
    const auto more = [] { return this_cpu()->pending.load(std::memory_order_relaxed) != 0; };
    if (!wanted) {
      if (!more()) return switched;
      continue;
    }
    if (!hooks->preempt_point(interrupted)) {
      if (!more()) return switched;
      continue;
    }
    switched = true;
    // After a switch this may be another Cpu, and new interrupts may have come.
    if (!cpu_has_work(*this_cpu())) return switched;
  }
}

void local_bh_enable() {
  Cpu* cpu = this_cpu();
  if ((preempt_count() & kSoftirqMask) == 2 * kSoftirqUnit && !in_hardirq() && cpu != nullptr &&
      cpu->softirq_pending != 0) {
    // Run them while still counted as serving, so that the end of this region is not a nested one.
    preempt_disable();
    preempt_count_sub(2 * kSoftirqUnit);
    cpu->do_softirq();
    preempt_enable();
    return;
  }
  if (preempt_count_sub_and_test(2 * kSoftirqUnit) && cpu != nullptr && cpu_has_work(*cpu)) {
    preempt_enable_slow();
  }
}

// --- Timers.

void TimerBase::update_next() {
  const TimerNode* first = timers_.first();
  next_expiry_.store(first == nullptr ? kNever : first->expiry, std::memory_order_relaxed);
}

bool TimerBase::empty() const { return next_expiry() == kNever; }

// The callback runs under the lock that both take.
void TimerBase::check_not_in_callback() const {
  if (this_cpu() != &cpu_ || !expiring_) [[likely]]
    return;
  std::fprintf(
      stderr,
      "jiffy: a timer's callback on Cpu %d starts or cancels a timer, or queues or cancels "
      "delayed work. Rule: it may signal, wake and queue work; a periodic timer goes on by "
      "itself.\n",
      cpu_.id);
  std::abort();
}

void TimerBase::arm(TimerNode& timer, int64_t expiry) {
  check_not_in_callback();
  lock_.lock();
  timer.expiry = expiry;
  timers_.insert(&timer);
  // Release: partner is the acquire in cancel(), which then takes this base's lock.
  timer.base.store(this, std::memory_order_release);
  update_next();
  lock_.unlock();
  if (this_cpu() == &cpu_) {
    cpu_.program_oneshot();
  } else {
    cpu_.raise(kTimerVector);  // only the owner programs its timer
  }
}

bool TimerBase::cancel(TimerNode& timer) {
  preempt_disable();
  bool armed = false;
  // Acquire: partner is the release in arm() and expire().
  while (TimerBase* base = timer.base.load(std::memory_order_acquire)) {
    base->check_not_in_callback();
    base->lock_.lock();
    if (timer.base.load(std::memory_order_relaxed) != base &&
        !model::planted(model::Fault::kCancelDoesNotLookAgain)) {
      base->lock_.unlock();
      continue;
    }
    base->timers_.erase(&timer);
    timer.base.store(nullptr, std::memory_order_relaxed);
    base->update_next();
    base->lock_.unlock();
    armed = true;
    break;
  }
  preempt_enable();
  return armed;
}

int TimerBase::expire(int64_t now) {
  if (next_expiry() > now) return 0;
  int fired = 0;
  lock_.lock();
  expiring_ = true;
  while (TimerNode* timer = timers_.first()) {
    if (timer->expiry > now) break;
    timers_.erase(timer);
    const int64_t next = timer->fn(*timer, now);
    ++fired;
    if (next != kNever) {
      timer->expiry = next;
      timers_.insert(timer);
    } else {
      // Release: partner is the acquire in cancel(). The last touch of the node: its owner, who
      // was woken by fn, may be waiting for this very store to free it.
      timer->base.store(nullptr, std::memory_order_release);
    }
  }
  expiring_ = false;
  update_next();
  lock_.unlock();
  return fired;
}

}  // namespace jiffy
