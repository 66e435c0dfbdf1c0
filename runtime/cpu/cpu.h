// The virtual CPU: what a CPU has for its kernel. Interrupts pending, requests to reschedule,
// guards, soft interrupts, a clock, timers, and how it idles.
#pragma once

#include <jiffy/counters.h>
#include <jiffy/detail/atomic.h>
#include <jiffy/histogram.h>
#include <jiffy/trace.h>

#include <array>
#include <cstdint>

#include "cpu/this_cpu.h"
#include "cpu/timer_base.h"
#include "fiber/fiber.h"
#include "machine/clock.h"
#include "machine/machine.h"

namespace jiffy {

class RunQueue;
struct RuntimeState;

// The request bits (TIF_NEED_RESCHED and its lazy sister).
inline constexpr uint32_t kNeedResched = 1;
inline constexpr uint32_t kNeedReschedLazy = 2;

// Interrupt vectors: bits of Cpu::pending. The lower ones are the machine's.
enum Vector : uint8_t {
  kTickVector,
  kTimerVector,  // the one-shot timer: hrtimers and HRTICK
  kRescheduleVector,
  kCallVector,  // stopper work arrived
  kFirstUserVector = 8,
  kVectors = 64,
};
using InterruptHandler = void (*)(Cpu& cpu, void* arg);

// Soft interrupts, in the kernel's order of priority.
enum class Softirq : uint8_t {
  kHi,
  kTimer,
  kNetTx,
  kNetRx,
  kBlock,
  kIrqPoll,
  kTasklet,
  kSched,
  kHrtimer,
  kRcu,
  kCount,
};
using SoftirqHandler = void (*)(Cpu& cpu, void* arg);

// What an idle Cpu is doing, for those who would wake it.
enum class IdleState : uint32_t {
  kBusy,     // runs fibers: an interrupt reaches it
  kPolling,  // spins on its request bits: a store wakes it
  kParked,   // sleeps in the machine: needs unpark()
};

// What the rooms above fill in (a lower room never includes a higher one).
struct CpuHooks {
  // What a Cpu does from its start to its end.
  void (*main)(Cpu& cpu);
  // At an outermost preempt_enable with a request pending: schedules if the mode's rule says so.
  // Returns whether it did.
  // `interrupted`: it is the return from an interrupt that was taken there.
  bool (*preempt_point)(bool interrupted);
  // After interrupts were taken in the middle of a fiber's code: whether to switch there. `waits`:
  // the fiber waits for a lock that another one holds, which must then run, whatever its class.
  bool (*irq_exit)(Cpu& cpu, bool waits);
  // What the interrupted fiber then does. Preemption is off, once, and stays so.
  void (*preempt_irq)();
  // In the tick interrupt.
  void (*tick)(Cpu& cpu, int64_t now);
  // In the handler of a tick signal, whatever was interrupted.
  void (*watchdog)(Cpu& cpu);
  // Wakes the Cpu's soft-interrupt thread.
  void (*wake_ksoftirqd)(Cpu& cpu);
  // All fibers of the Cpu's runtime, for the report of a simulation that cannot go on.
  std::string (*report)(const Cpu& cpu);
};

// How an idle Cpu waits. The default polls its own words and then parks in the machine; a ring of
// completions installs its own. Called by the owner only, but unpark() from anywhere.
class IdleWaiter {
 public:
  virtual ~IdleWaiter() = default;
  // One round of polling: look for events of one's own. True if something was found.
  virtual bool poll(Cpu& cpu) = 0;
  virtual void park(Cpu& cpu, int64_t until) = 0;
  // Also in a signal handler: makes no call that such a one may not make.
  virtual void unpark(Cpu& cpu) = 0;
};

// Letters: I immutable after start; P the owner's thread only; R under the lock of its run queue;
// A atomic.
class alignas(128) Cpu {
 public:
  Cpu(int cpu_id, RuntimeState& owner_state);
  Cpu(const Cpu&) = delete;
  Cpu& operator=(const Cpu&) = delete;

  // --- Read at each safe point by the owner.

  // R, read by the owner without the lock. Relaxed: a request that is missed at one safe point is
  // seen at the next; an idle Cpu is covered by the fence in kick_idle() and its partner in the
  // idle loop.
  Atomic<uint32_t> need{0};
  // A: interrupts raised and not yet taken. fetch_or (release) by who raises, exchange (acquire)
  // by who takes: what was written before the raise is visible to the handler.
  Atomic<uint64_t> pending{0};
  Fiber* current = nullptr;         // R; the owner reads it without the lock
  RunQueue* rq = nullptr;           // I
  EhGlobals* eh = nullptr;          // P
  const CpuHooks* hooks = nullptr;  // I
  RuntimeState* state;              // I
  Clock clock;                      // P
  const int id;                     // I: 0 ... n - 1; not a host CPU number

  // P: soft interrupts raised and not yet run, and whether the thread has been asked.
  uint32_t softirq_pending = 0;

  // --- Written by others.

  // A: seq_cst, the two halves of a Dekker pattern: the idle loop stores it and then looks for
  // work; a waker makes work visible and then looks here.
  alignas(64) Atomic<IdleState> idle_state{IdleState::kBusy};
  Atomic<bool> tick_running{false};  // A: exchange, by who starts or stops the tick
  // A: this Cpu has had a fiber waiting for a whole tick. Set by its tick, cleared by who pulls.
  Atomic<bool> wants_help{false};

  // --- The owner's own.

  alignas(64) Fiber idle;  // the thread's own stack
  TimerBase timers;
  IdleWaiter* waiter = nullptr;  // I while it runs
  void* signal_slot = nullptr;   // I: of machine/host/signals.h
  void* thread_tcb = nullptr;    // I: the control block of the Cpu's thread
  // P: when the handler was entered that made the running fiber call preempt_irq; 0 where latency
  // is not measured. And how long it took from there to the switch.
  int64_t irq_entry = 0;
  Histogram preempt_delay;
  bool pass_over = false;        // P: irq_exit to preempt_irq
  Machine* machine = nullptr;    // I
  void* machine_data = nullptr;  // I: the machine's record of this Cpu
  Fiber* ksoftirqd = nullptr;    // I
  // A, relaxed: for the watchdog. Its units stay mapped for as long as the Cpu lives.
  Atomic<Fiber*> stopper{nullptr};
  // A, relaxed: sched/watchdog.h. The CPU time of the thread at the stamp, 0 for not known.
  Atomic<int64_t> watchdog_stamp{0};
  Atomic<int64_t> watchdog_cpu_ns{0};
  Atomic<bool> lockup_reported{false};
  // P: units of the default size, hottest first; of cooperative and of preemptible fibers.
  struct StackCache {
    Fiber* first = nullptr;
    int size = 0;
  };
  std::array<StackCache, 2> stack_caches;
#ifdef JIFFY_CHECK_LOCKS
  HeldLocks held_locks;  // P
#endif
  const StepCosts* costs = nullptr;       // I: of a simulation; null on the host
  int64_t owed = 0;                       // P: ns for such steps, not yet passed
  int64_t oneshot_armed = kNever;         // P
  Atomic<int64_t> hrtick_expiry{kNever};  // R; read by the owner
  int64_t tick_period = 0;                // I: ns
  uint64_t next_fiber_id = 0;             // P: of the block of ids that it holds
  uint64_t last_fiber_id = 0;             // P

  struct Irq {
    InterruptHandler handler = nullptr;
    void* arg = nullptr;
  };
  struct Soft {
    SoftirqHandler handler = nullptr;
    void* arg = nullptr;
  };
  std::array<Irq, kVectors> irqs{};  // written by the owner or before start
  std::array<Soft, static_cast<size_t>(Softirq::kCount)> softirqs{};

  Counters counters;                                   // P writes
  std::array<Histogram, kLatencyKinds> queue_latency;  // P writes
  TraceRing trace;                                     // P writes

  int64_t now() const { return clock.now(); }

  // By the owner, preemption off: records an event, if tracing is on.
  void trace_event(TraceEvent event, uint32_t arg0 = 0, uint64_t arg1 = 0, uint64_t arg2 = 0) {
    if (trace.enabled()) [[unlikely]] {
      trace.emit(static_cast<uint64_t>(now()), event, arg0, arg1, arg2);
    }
  }
  uint64_t jiffies() const { return static_cast<uint64_t>(now() / tick_period); }

  // Raises `vector` here, from any context: sets the bit and, where the Cpu would not see it by
  // itself soon, interrupts or unparks it. Raising a vector that is pending is a no-op.
  void raise(Vector vector);

  // By the machine: this Cpu's own timer has fired. On its thread, in a signal handler; or, where
  // time is virtual, by who makes time pass.
  void timer_interrupt(Vector vector);

  // By the owner in any context, preemption off. From outside interrupts the thread is woken.
  void raise_softirq(Softirq nr);

  // By the owner, interrupts enabled and not in one: takes what is pending, then runs soft
  // interrupts. Does not reschedule.
  void service_interrupts();

  // Runs pending soft interrupts within the kernel's limits: 2 ms in jiffies, 10 rounds, no hard
  // request pending; what is left goes to the thread. Not nested.
  void do_softirq();

  // By the owner, with no lock held, in a simulation: what is owed passes.
  void pay();

  // By the owner: arms the machine's one-shot timer for the earliest of timers and HRTICK.
  void program_oneshot();
};

// Takes what is pending and reschedules where the rules say so. Returns whether it did the latter.
bool preempt_enable_slow();

// --- Guards. All of them nest, and cost one instruction to enter.

inline void preempt_disable() { preempt_count_add(kPreemptUnit); }

#if defined(__SANITIZE_THREAD__)
#define JIFFY_KEEPS_SIGNALS_BACK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define JIFFY_KEEPS_SIGNALS_BACK 1
#endif
#endif

// The thread sanitizer keeps a signal back until its thread calls one of the functions that the
// sanitizer wraps, which a busy fiber may never do: then no tick would come.
#ifdef JIFFY_KEEPS_SIGNALS_BACK
void take_kept_back_signals();
#else
inline void take_kept_back_signals() {}
#endif

inline bool cpu_has_work(const Cpu& cpu) {
  take_kept_back_signals();
  return cpu.need.load(std::memory_order_relaxed) != 0 ||
         cpu.pending.load(std::memory_order_relaxed) != 0;
}

// The outermost one is a safe point: pending interrupts are taken and, by the rule of the mode,
// the fiber may be preempted here.
inline void preempt_enable() {
  if (preempt_count_sub_and_test(kPreemptUnit)) {
    const Cpu* cpu = this_cpu();
    if (cpu != nullptr && cpu_has_work(*cpu)) [[unlikely]] {
      (void)preempt_enable_slow();
    }
  }
}

// A call into jiffy is to a fiber what a system call is to a task: inside it nothing is a return to
// user mode, and its end is. So the locks that a call takes are no safe points, its end is one. The
// call may block, which the counts below would forbid.
class JiffyCall {
 public:
  JiffyCall() { preempt_count_add(kCallUnit); }
  ~JiffyCall() {
    if (preempt_count_sub_and_test(kCallUnit)) {
      const Cpu* cpu = this_cpu();
      if (cpu != nullptr && cpu_has_work(*cpu)) [[unlikely]] {
        (void)preempt_enable_slow();
      }
    }
  }
  JiffyCall(const JiffyCall&) = delete;
  JiffyCall& operator=(const JiffyCall&) = delete;
};

// Inside a jiffy call, around code of the standard library that may spin for a bit which another
// fiber of this Cpu has set: there, and only there, the call may be preempted. No lock is held.
class PreemptibleInCall {
 public:
  PreemptibleInCall() : count_(preempt_count()) { set_preempt_count(0); }
  ~PreemptibleInCall() { set_preempt_count(count_); }
  PreemptibleInCall(const PreemptibleInCall&) = delete;
  PreemptibleInCall& operator=(const PreemptibleInCall&) = delete;

 private:
  const uint32_t count_;
};

inline void preempt_enable_no_resched() { preempt_count_sub(kPreemptUnit); }

class PreemptGuard {
 public:
  PreemptGuard() { preempt_disable(); }
  ~PreemptGuard() { preempt_enable(); }
  PreemptGuard(const PreemptGuard&) = delete;
  PreemptGuard& operator=(const PreemptGuard&) = delete;
};

// Interrupts off, softly: what arrives is marked and taken at the outermost enable.
inline void local_irq_disable() { preempt_count_add(kIrqOffUnit); }
inline void local_irq_enable() {
  if (preempt_count_sub_and_test(kIrqOffUnit)) {
    const Cpu* cpu = this_cpu();
    if (cpu != nullptr && cpu_has_work(*cpu)) preempt_enable_slow();
  }
}

// Soft interrupts off on this Cpu; the outermost enable runs what was raised meanwhile.
inline void local_bh_disable() { preempt_count_add(2 * kSoftirqUnit); }
void local_bh_enable();

// A spin lock whose holder cannot be switched out.
class SpinLock {
 public:
  explicit SpinLock(LockClass lock_class = LockClass::kOther) : raw_(lock_class) {}

  void lock() {
    preempt_disable();
    raw_.lock();
  }
  void unlock() {
    raw_.unlock();
    preempt_enable();
  }
  // For callers that hold preemption off by themselves.
  RawSpinLock& raw() { return raw_; }
  const RawSpinLock& raw() const { return raw_; }

 private:
  RawSpinLock raw_;
};

}  // namespace jiffy
