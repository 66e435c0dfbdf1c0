// A machine in virtual time: for exact tests, and for machines that one does not have.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace jiffy {

class Machine;

// A time that is fixed, or that the seed chooses between two bounds, each time anew.
struct SimDelay {
  template <class Rep, class Period>
  SimDelay(std::chrono::duration<Rep, Period> fixed) : least(fixed), most(fixed) {}  // NOLINT
  SimDelay(std::chrono::nanoseconds from, std::chrono::nanoseconds to) : least(from), most(to) {}

  std::chrono::nanoseconds least, most;
};

struct SimOptions {
  uint64_t seed = 1;  // orders what happens at the same instant; 1: in the order of the causes
  int cpus = 1;       // where Options::cpus is 0
  // What the hardware takes: from a reschedule interrupt's sending to its arrival, and from the
  // wakeup of a parked Cpu to its first instruction.
  SimDelay ipi_latency = std::chrono::nanoseconds(0);
  SimDelay wake_latency = std::chrono::nanoseconds(0);
  // What the runtime's own steps cost the Cpu that takes them. A wakeup, and what an interrupt
  // handler does, are paid with the Cpu's next switch, consume() or interrupt, since nothing may
  // pass while a lock is held; with a switch, before the next fiber goes on.
  std::chrono::nanoseconds wakeup_cost{0};
  std::chrono::nanoseconds switch_cost{0};
  std::chrono::nanoseconds interrupt_cost{0};  // from its arrival to its handler
  std::chrono::nanoseconds offload_cost{0};    // an offload runs inline, and takes this
  // So many switches without time passing end the simulation: fibers that wake each other for ever.
  // 0: never.
  int64_t most_switches_at_once = 1'000'000;
  // A fiber that blocks its thread in real time (a system call, a lock of another thread's) stops
  // the virtual world. After this long, real time, the simulation ends. 0: never.
  std::chrono::nanoseconds most_blocked = std::chrono::seconds(5);
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
// happened, the wait aborts and says so: a deadlock is found, not slept through. So does a
// simulation whose fibers switch for ever while no time passes, and one whose thread is blocked in
// real time. Each shows all fibers, what they wait for and since when.
//
// A simulation belongs to the thread that started its runtime. From any other thread a call into it
// (spawn, join, a wakeup, queueing work) aborts: the order of the calls would be nobody's choice.
// What a plain thread would do in the real world, at() does in the simulated one.
std::shared_ptr<Machine> make_sim_machine(const SimOptions& options = {});

// The running fiber takes `duration` of its Cpu. In a simulation virtual time passes; on the host
// the Cpu is kept busy for that long. A safe point. May be called with preemption disabled;
// interrupts then wait, as they would.
void consume(std::chrono::nanoseconds duration);

// Sim only: calls `fn` at the virtual time `when`, in no Cpu's context: a device, a guest, a plain
// thread of the simulated world. It may wake, signal and queue, but not block; its time is `when`:
// now() knows only the clocks of Cpus, and the host's.
void at(Machine& machine, std::chrono::nanoseconds when, std::function<void()> fn);

}  // namespace jiffy
