// The words of the scheduler: preemption modes, policies, and the options of a Runtime.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace jiffy {

class Machine;

// Which requests to reschedule are made, and where they are honoured: the kernel's models.
// docs/preemption.md has the table. Switchable while the runtime runs.
enum class Preemption : uint8_t {
  kNone,       // kernel-mode code runs until it blocks or calls cond_resched()
  kVoluntary,  // ... or reaches a might_sleep()
  kLazy,       // fair requests wait for the tick, a block or user mode; others act at once
  kFull,       // every request acts at once
};
inline constexpr int kPreemptionModes = 4;
const char* preemption_name(Preemption mode);

// How a request reaches a running fiber.
enum class Delivery : uint8_t {
  kSafePoints,  // the fiber sees it at its next jiffy call; interrupts are taken there too
  kSignals,     // interrupts are signals to the Cpu's thread, and are taken at once; a preemptible
                // fiber is switched there too, a cooperative one still inside jiffy calls only. (A
                // sanitizer's or valgrind's code cannot be interrupted: there it is kSafePoints.)
};

// What of a thread a fiber has for itself. docs/preemption.md says what code in each may do.
enum class FiberKind : uint8_t {
  kDefault,      // in SpawnOptions: the runtime's
  kCooperative,  // nothing: it shares its Cpu's thread, and is switched inside jiffy calls only
  kPreemptible,  // a thread control block: malloc, stdio, errno, exceptions and each thread_local
                 // are its own, so that it may be preempted at any instruction and go on anywhere
};

// The scheduling class, highest first; the order is the kernel's.
enum class SchedClass : uint8_t {
  kStop,  // one stopper a Cpu: pushes and migrations
  kFifo,  // runs until it blocks; 99 priorities
  kFair,  // EEVDF
  kIdle,  // the Cpu's own idle loop
};

// What a fiber asks for. kNormal, kBatch and kIdle are served by the fair class.
enum class Policy : uint8_t {
  kNormal,
  kBatch,  // never preempts at its wakeup
  kIdle,   // weight 3, preempted by any other
  kFifo,
};

// The histograms of run-queue latency, by kind of fiber.
enum class LatencyKind : uint8_t { kUser, kKernel, kWorker, kOther };
inline constexpr int kLatencyKinds = 4;
const char* latency_kind_name(LatencyKind kind);

struct SpawnOptions {
  std::string name{};     // shown by dump(), the debugger and in errors; up to 23 bytes
  size_t stack_size = 0;  // bytes; 0: the runtime's
  Policy policy = Policy::kNormal;
  int nice = 0;                       // -20 ... 19; for kNormal and kBatch
  int priority = 50;                  // 1 ... 99; for kFifo
  std::chrono::nanoseconds slice{0};  // EEVDF request, 0.1 ... 100 ms; 0: the base slice
  int cpu = -1;                       // pinned to this Cpu; -1: any
  std::vector<int> allowed{};         // or: may run on these only
  FiberKind fiber_kind = FiberKind::kDefault;
  bool kernel_mode = false;  // preempted only where kernel code is
  bool migratable = false;   // may move to another Cpu at any suspension: it promises to hold
                             // no thread_local, errno or std::mutex across one
  LatencyKind kind = LatencyKind::kUser;
};

// The pieces of the fair class, each of which can be switched off to see what it is for, as the
// kernel's sched_features file does. docs/eevdf.md says what breaks without each.
struct SchedFeatures {
  bool average_with_current = true;  // the running entity counts in the queue's average
  bool place_lag = true;             // lag is kept across a sleep ...
  bool inflate_lag = true;           // ... and scaled so that placing the entity does not dilute it
  bool clamp_lag = true;             // ... and bounded by the largest slice and a tick
  bool delay_dequeue = true;         // an ineligible sleeper stays queued to burn its debt
  bool delay_zero = true;            // ... and gains no credit by it
  bool run_to_parity = true;         // the current entity is protected until its deadline
  bool preempt_short = true;         // a shorter slice overrides that protection
  bool slice_check = true;           // the tick ends a used-up slice
  bool promote_lazy = true;          // the tick turns a lazy request into a hard one
};

// What asynchronous preemption stands on, each piece to be switched off in a test or a lecture that
// shows what it is for: without any one of them programs crash, hang or compute nonsense.
// docs/preemption.md says how.
struct PreemptChecks {
  bool own_tls = true;          // a thread control block a fiber
  bool alternate_stack = true;  // handlers run on a stack of the Cpu, not of the fiber
  bool stack_room = true;       // the injected call fits below the interrupted function
  bool signal_mask = true;      // the application's own handlers are not preempted
  bool stack_pointer = true;    // nor is code that runs on a stack of its own
  bool count = true;            // nor is the runtime while one of its counts forbids it
  bool futex_rule = true;       // who waits for a lock lets its holder run, whatever their classes
};

// A fiber that did not give up its Cpu, nor could be made to, for Options::soft_lockup.
struct SoftLockup {
  const char* fiber;  // its name
  uint64_t id;
  int cpu;
  std::chrono::nanoseconds stuck;
};

struct Options {
  // Fibers that can be preempted anywhere.
  static Options preemptible() {
    Options options;
    options.delivery = Delivery::kSignals;
    options.fiber_kind = FiberKind::kPreemptible;
    return options;
  }

  int cpus = 0;  // 0: allowed CPUs, bounded by the cgroup's quota
  Preemption preemption = Preemption::kLazy;
  Delivery delivery = Delivery::kSafePoints;
  FiberKind fiber_kind = FiberKind::kCooperative;  // of fibers that do not say
  // Where thread control blocks cannot be had (sanitizers, valgrind, another C library):
  // preemptible fibers then share their thread's locals, stay on their Cpu and are switched at safe
  // points; dump() says so. Without it start() fails.
  bool allow_shared_tls = false;
  int hz = 250;         // 100, 250 or 1000
  bool hrtick = false;  // a precise timer ends a slice, in each mode, by a hard request
  size_t stack_size = size_t{64} * 1024;
  bool pin = false;            // each Cpu's thread to one host CPU; off: the process's affinity
  bool latency_stats = false;  // run-queue latency histograms: a clock read at each wakeup
  size_t trace_records = 0;    // records a Cpu; 0: no trace
  int spin_us = -1;            // how long an idle Cpu polls before it parks; -1: measured
  bool force_mprotect_guards = false;  // as on kernels without MADV_GUARD_INSTALL
  // How long one fiber may keep a Cpu from others before it is named with its stack, once, on
  // stderr; 0 switches the watchdog off. Counted while others wait; time in which the thread did
  // not run is not.
  std::chrono::nanoseconds soft_lockup = std::chrono::seconds(2);
  // Called instead. In a signal handler: async-signal-safe code only.
  void (*on_soft_lockup)(const SoftLockup& lockup) = nullptr;
  SchedFeatures features{};
  PreemptChecks preempt_checks{};
  std::shared_ptr<Machine> machine{};  // null: the host; make_sim_machine(): virtual time
  // Called once in each Cpu's thread, before its first fiber and after its last. Host only.
  std::function<void(int cpu)> on_cpu_start{}, on_cpu_stop{};
};

}  // namespace jiffy
