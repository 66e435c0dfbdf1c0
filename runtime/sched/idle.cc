// What a Cpu does with nothing to run: look for work, poll a while, park.
#include "fiber/tcb.h"
#include "sched/placement.h"
#include "sched/runtime_state.h"
#include "sched/sched.h"

namespace jiffy {

namespace {

// The default: the Cpu's own words are polled by the idle loop itself, and it parks in the machine.
class MachineWaiter final : public IdleWaiter {
 public:
  bool poll(Cpu&) override { return false; }
  void park(Cpu& cpu, int64_t until) override { cpu.machine->park(cpu, until); }
  void unpark(Cpu& cpu) override { cpu.machine->unpark(cpu); }
};

// Anything that ends idling. The looks are relaxed; before a park a fence stands in front of them.
bool wanted(const Cpu& cpu) {
  return cpu_has_work(cpu) || cpu.rq->nr_running_hint() != 0 ||
         cpu.state->stop_cpus.load(std::memory_order_relaxed);
}

void run_due_timers(Cpu& cpu) {
  if (cpu.timers.empty()) return;
  const int64_t now = cpu.now();
  if (cpu.timers.next_expiry() > now) return;
  preempt_count_add(kHardirqUnit);
  const int fired = cpu.timers.expire(now);
  cpu.counters.add(Counter::kTimersFired, static_cast<uint64_t>(fired));
  cpu.trace_event(TraceEvent::kTimerFired, static_cast<uint32_t>(fired));
  preempt_count_sub(kHardirqUnit);
  if (cpu.softirq_pending != 0) cpu.do_softirq();
}

// Polls until something comes, at most until `until`. A waker that sees the Cpu polling only
// stores: that is what makes a wakeup of a Cpu that has just become idle cheap.
bool poll_until(Cpu& cpu, int64_t until) {
  constexpr int kRoundsPerClock = 16;
  for (int round = 0;; ++round) {
    if (wanted(cpu) || cpu.waiter->poll(cpu)) return true;
    if (others_have_waiting(cpu)) return true;
    cpu_relax();
    if (round % kRoundsPerClock != 0) continue;
    const int64_t now = cpu.now();
    if (now >= until || now >= cpu.timers.next_expiry()) return false;
  }
}

void idle_wait(Cpu& cpu, int64_t spin_ns) {
  cpu.idle_state.store(IdleState::kPolling, std::memory_order_seq_cst);
  const bool found = spin_ns > 0 && poll_until(cpu, cpu.now() + spin_ns);
  if (!found && !wanted(cpu)) {
    RuntimeState& state = *cpu.state;
    if (cpu.tick_running.load(std::memory_order_relaxed)) stop_tick(cpu);
    state.parked_cpus.fetch_add(1, std::memory_order_relaxed);
    // seq_cst: partners are unlock_and_notify(), raise() and kick_balancer(), which make work
    // visible, fence, and look at idle_state. One of the two sides sees the other.
    const bool fence = !model::planted(model::Fault::kParkWithoutFence);
    cpu.idle_state.store(IdleState::kParked,
                         fence ? std::memory_order_seq_cst : std::memory_order_release);
    if (fence) full_fence();
    const bool still_idle = !wanted(cpu) && !others_have_waiting(cpu);
    if (still_idle || model::planted(model::Fault::kParkWithoutLook)) {
      cpu.counters.add(Counter::kParks);
      // Its deadlines are given to the system in the system's time.
      if (cpu.clock.resync_due(cpu.now())) cpu.clock.resync();
      cpu.waiter->park(cpu, cpu.timers.next_expiry());
      // Whoever was woken to pull is awake, and may have found something better to do: another one
      // may be woken from now on.
      state.balancer_waking.store(false, std::memory_order_relaxed);
    }
    state.parked_cpus.fetch_sub(1, std::memory_order_relaxed);
  }
  cpu.idle_state.store(IdleState::kBusy, std::memory_order_seq_cst);
}

}  // namespace

IdleWaiter& machine_waiter() {
  static MachineWaiter instance;  // stateless
  return instance;
}

void cpu_main(Cpu& cpu) {
  set_this_cpu(&cpu);
  set_current_fiber(nullptr);
  set_preempt_count(kPreemptUnit);  // exactly one across each switch, so it is never saved
  cpu.eh = thread_eh_globals();
  cpu.thread_tcb = thread_control_block();
  RuntimeState& state = *cpu.state;
  const int64_t spin_ns = cpu.machine->spin_ns();
  for (;;) {
    if (cpu.pending.load(std::memory_order_relaxed) != 0) cpu.service_interrupts();
    run_due_timers(cpu);
    if (cpu.rq->nr_running_hint() != 0) {
      schedule_locked_out(SwitchKind::kBlock);
      continue;
    }
    cpu.need.store(0, std::memory_order_relaxed);
    if (cpu.rq->nr_running_hint() != 0 || pull_from_others(cpu)) continue;
    // Acquire: partner is the store in the runtime's stop(); by then no fiber is left.
    if (state.stop_cpus.load(std::memory_order_acquire)) break;
    idle_wait(cpu, spin_ns);
  }
  set_preempt_count(0);
  set_this_cpu(nullptr);
}

}  // namespace jiffy
