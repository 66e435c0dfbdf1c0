// A machine in virtual time: for exact tests, and for machines that one does not have.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace jiffy {

class Machine;

struct SimOptions {
  uint64_t seed = 1;  // orders what happens at the same instant; 1: in the order of the causes
  int cpus = 1;       // where Options::cpus is 0
  // What the hardware takes: from a reschedule interrupt's sending to its arrival, and from the
  // wakeup of a parked Cpu to its first instruction.
  std::chrono::nanoseconds ipi_latency{0};
  std::chrono::nanoseconds wake_latency{0};
  // Ticks come at multiples of the period, as on the host, plus this.
  std::chrono::nanoseconds tick_phase{0};
};

// All Cpus of the runtime run in the thread that waits for it (Runtime::run, join from outside),
// one at a time, in an order that only the seed determines. Fibers run their real code, which takes
// no virtual time, and say by consume() what it would take; ticks, timers and interrupts arrive
// inside that time and preempt by the same rules as on the host. The clock starts at zero.
//
//   jiffy::Options options;
//   options.machine = jiffy::make_sim_machine({.cpus = 4});
//   jiffy::Runtime rt(options);
//   rt.run([] { jiffy::consume(std::chrono::milliseconds(3)); });
//
// The environment's JIFFY_SIM_SEED goes before the seed in the options: each failure prints the
// seed with which it happens again.
//
// When nothing can happen any more (each Cpu parked, no timer armed) and what is waited for has not
// happened, the wait aborts and says so: a deadlock is found, not slept through.
std::shared_ptr<Machine> make_sim_machine(const SimOptions& options = {});

// The running fiber takes `duration` of its Cpu. In a simulation virtual time passes; on the host
// the Cpu is kept busy for that long. A safe point. May be called with preemption disabled;
// interrupts then wait, as they would.
void consume(std::chrono::nanoseconds duration);

// Sim only: calls `fn` at the virtual time `when`, in no Cpu's context: a device, a guest, a plain
// thread of the simulated world. It may wake, signal and queue, but not block.
void at(Machine& machine, std::chrono::nanoseconds when, std::function<void()> fn);

}  // namespace jiffy
