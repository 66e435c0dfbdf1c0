// The seam between a Cpu and what it runs on, as between a kernel and an architecture.
#pragma once

#include <jiffy/options.h>
#include <jiffy/status.h>

#include <cstdint>
#include <functional>

#include "machine/clock.h"

namespace jiffy {

class Cpu;

inline constexpr int64_t kNever = INT64_MAX;

// What the runtime's own steps cost where time is virtual, ns.
struct StepCosts {
  int64_t wakeup = 0;
  int64_t switching = 0;
  int64_t interrupt = 0;
  int64_t offload = 0;
};

// A machine gives each Cpu a thread of execution, a clock, a periodic tick, a one-shot timer,
// inter-processor interrupts and a place to idle. Two exist: the host (threads, POSIX timers,
// signals, futexes) and the sim (all Cpus in one thread, in virtual time).
//
// A machine serves one Runtime. Times are nanoseconds of the Cpu's clock. Everything here is off
// the hot paths: a fiber switch makes no call into it.
class Machine {
 public:
  virtual ~Machine() = default;

  virtual bool simulated() const = 0;
  virtual Clock make_clock() = 0;
  // How many Cpus, when the options leave it open; an error when the options ask too much.
  virtual Status choose_cpus(const Options& options, int* count) = 0;

  // Brings the Cpus up: each calls its cpu_main() and returns from it at shutdown. On success all
  // of them are in their idle loops, or will be as soon as the machine runs.
  virtual Status start(const Options& options, Cpu* const* cpus, int count) = 0;
  // Waits until each Cpu's cpu_main() returned, and takes the Cpus down. After stop() no signal,
  // timer or interrupt of this machine arrives.
  virtual void stop() = 0;

  // Sim: runs the machine from the calling thread until done() or until nothing can happen any
  // more, which is an error. Host: the Cpus run by themselves; blocks until done() by waiting.
  virtual Status run_until(const std::function<bool()>& done) = 0;

  // Any context. start_tick() is idempotent; ticks come at multiples of the period.
  virtual void start_tick(Cpu& cpu) = 0;
  virtual void stop_tick(Cpu& cpu) = 0;
  // By the owner, preemption off. Replaces what was armed; kNever disarms.
  virtual void arm_oneshot(Cpu& cpu, int64_t when) = 0;

  // Makes `target`, which runs a fiber, take its pending interrupts soon. Any context.
  virtual void send_ipi(Cpu& target) = 0;

  // By the owner, idle: waits until unpark(), an interrupt of its own, or `until`. May return
  // early. The Cpu has published that it parks (IdleState) before the call.
  virtual void park(Cpu& cpu, int64_t until) = 0;
  virtual void unpark(Cpu& cpu) = 0;
  // By the owner, idle: how long it is worth polling before park(), ns. 0 in the sim.
  virtual int64_t spin_ns() const = 0;

  // Sim: what its steps cost, and that a Cpu has switched. On the host they take what they take.
  virtual const StepCosts* step_costs() const { return nullptr; }
  virtual void switched(Cpu&) {}
  // Sim: a number below `n`, by the seed, where a contract leaves the order open. Host: 0.
  virtual uint64_t choose(uint64_t n [[maybe_unused]]) { return 0; }

  // A thread that is no Cpu of this machine's runtime calls into it (`call`: how). Host: nothing to
  // say. Sim: aborts if it is not the thread that started it.
  virtual void check_caller(const char* call) const { (void)call; }

  // The running fiber says that it would take `ns` of its Cpu's time. Sim: the time passes and
  // interrupts arrive in it. Host: burns that time.
  virtual void consume(int64_t ns) = 0;
};

}  // namespace jiffy
