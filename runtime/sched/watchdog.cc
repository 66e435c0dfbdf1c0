#include "sched/watchdog.h"

#include <execinfo.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "sched/runtime_state.h"
#include "sched/sched.h"

namespace jiffy {

namespace {

constexpr int kStampsPerThreshold = 5;
constexpr int64_t kUnknown = -1;

// Of the Cpu's thread. A process that was stopped, or a machine that was, ages the stamp too; but
// then the thread has not run either.
int64_t thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// In a signal handler: formatted into a buffer of its own, and written without stdio's locks.
void report(const Cpu& cpu, const Fiber& fiber, int64_t stuck_ns) {
  char text[512];
  const int n = std::snprintf(text, sizeof text,
                              "jiffy: soft lockup: Cpu %d has run fiber '%s' (%llu) for %lld ms, "
                              "and others wait. It makes no "
                              "jiffy call and cannot be preempted where it is. Its stack:\n",
                              cpu.id, fiber.name, static_cast<unsigned long long>(fiber.id),
                              static_cast<long long>(stuck_ns / 1'000'000));
  if (n > 0) [[maybe_unused]]
    const ssize_t written = write(STDERR_FILENO, text, static_cast<size_t>(n));
  if (cpu.machine->simulated()) return;
  void* frames[32];
  const int depth = backtrace(frames, 32);
  backtrace_symbols_fd(frames, depth, STDERR_FILENO);
}

}  // namespace

void watchdog_touch(Cpu& cpu, int64_t now) {
  const bool known = this_cpu() == &cpu && !cpu.machine->simulated();
  cpu.watchdog_cpu_ns.store(known ? thread_cpu_ns() : kUnknown, std::memory_order_relaxed);
  cpu.watchdog_stamp.store(now, std::memory_order_relaxed);
  cpu.lockup_reported.store(false, std::memory_order_relaxed);
}

void watchdog_prepare() {
  void* frame;
  (void)backtrace(&frame, 1);  // the first call loads a library, which no signal handler may
}

void watchdog_tick(Cpu& cpu, int64_t now) {
  const int64_t threshold = cpu.state->options.soft_lockup.count();
  Fiber* stopper = cpu.stopper.load(std::memory_order_relaxed);
  if (threshold == 0 || stopper == nullptr) return;
  // Who runs alone keeps nobody waiting.
  if (cpu.rq->nr_running_hint() <= 1) return watchdog_touch(cpu, now);
  if (now - cpu.watchdog_stamp.load(std::memory_order_relaxed) >= threshold / kStampsPerThreshold) {
    (void)try_to_wake_up(*stopper);
  }
}

void watchdog_check(Cpu& cpu) {
  const int64_t threshold = cpu.state->options.soft_lockup.count();
  if (threshold == 0) return;
  // Not by the Cpu's clock, which may be in the middle of a correction.
  const bool simulated = cpu.machine->simulated();
  const int64_t now = simulated ? cpu.now() : monotonic_ns();
  const int64_t stuck = now - cpu.watchdog_stamp.load(std::memory_order_relaxed);
  if (stuck < threshold || cpu.lockup_reported.load(std::memory_order_relaxed)) return;
  const Fiber* fiber = std::atomic_ref(cpu.current).load(std::memory_order_relaxed);
  if (fiber->is_idle || cpu.rq->nr_running_hint() <= 1) return watchdog_touch(cpu, now);
  const int64_t since = cpu.watchdog_cpu_ns.load(std::memory_order_relaxed);
  // A stamp from another thread knows nothing of this one's time: start again from here.
  if (!simulated && since == kUnknown) return watchdog_touch(cpu, now);
  if (!simulated && thread_cpu_ns() - since < threshold / 2) return;
  cpu.lockup_reported.store(true, std::memory_order_relaxed);
  cpu.counters.add_shared(Counter::kSoftLockups);
  const auto hook = cpu.state->options.on_soft_lockup;
  if (hook != nullptr) {
    hook({fiber->name, fiber->id, cpu.id, std::chrono::nanoseconds(stuck)});
  } else {
    report(cpu, *fiber, stuck);
  }
}

}  // namespace jiffy
