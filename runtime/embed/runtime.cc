// The public Runtime: bringing the rooms up in order, and taking them down again.
#include <jiffy/runtime.h>

#include <cstdio>
#include <cstdlib>

#include "fiber/tcb.h"
#include "machine/host/host_machine.h"
#include "sched/runtime_state.h"
#include "sched/service.h"
#include "sync/offload_pool.h"
#include "work/work_state.h"

namespace jiffy {

namespace {

Status check_options(const Options& o) {
  constexpr int kStressHz = 10'000;  // for tests: no kernel ticks as fast
  if (o.hz != 100 && o.hz != 250 && o.hz != 1000 && o.hz != kStressHz) {
    return Status::error("hz is " + std::to_string(o.hz) + ": allowed are 100, 250 and 1000");
  }
  if (o.cpus < 0) return Status::error("cpus is negative: 0 means as many as allowed");
  if (o.stack_size < 4096) {
    return Status::error("stack_size is " + std::to_string(o.stack_size) + ": at least 4096 bytes");
  }
  if (o.trace_records > kMaxTraceCapacity) {
    return Status::error("trace_records is " + std::to_string(o.trace_records) + ": at most " +
                         std::to_string(kMaxTraceCapacity));
  }
  return Status();
}

// Runs on each Cpu once the runtime drains: an exit on this Cpu before the interrupt is in the
// counts, one after it sees the flag.
void on_drain_interrupt(Cpu& cpu, void*) {
  RuntimeState& state = *cpu.state;
  state.drain_lock.lock();
  ++state.drain_acks;
  if (state.drain_waiter != nullptr) (void)state.drain_waiter->wake();
  state.drain_lock.unlock();
}

int64_t live_fibers(const RuntimeState& state) {
  const auto sum_of = [&state](Counter c) {
    // Those of earlier lives of this runtime have ended, but on Cpus that are no more.
    uint64_t sum = state.foreign_counters.get(c) - state.foreign_before.at(c);
    for (const auto& unit : state.units) sum += unit->cpu.counters.get(c);
    return static_cast<int64_t>(sum);
  };
  // In this order: a fiber whose exit is in the first sum has its spawn in the second.
  const int64_t exits = sum_of(Counter::kExits);
  std::atomic_thread_fence(std::memory_order_acquire);
  return sum_of(Counter::kSpawns) - exits;
}

// The fibers that belong to the runtime itself and end later.
int64_t service_fibers(const RuntimeState& state) {
  return 2 * static_cast<int64_t>(state.units.size()) + 1 + live_workers(state);
}

void report_stragglers(const RuntimeState& state) {
  std::fprintf(stderr, "jiffy: shutdown still waits for fibers that have not ended:\n%s",
               dump_fibers(state).c_str());
}

// Step 2 of the shutdown.
void wait_for_fibers(RuntimeState& state) {
  Waiter waiter;
  preempt_disable();
  state.drain_lock.lock();
  state.drain_acks = 0;
  state.drain_waiter = &waiter;
  state.drain_lock.unlock();
  preempt_enable();
  state.draining.store(true, std::memory_order_seq_cst);
  for (Cpu* cpu : state.cpus) cpu->raise(kCallVector);
  const int cpus = static_cast<int>(state.cpus.size());
  constexpr int64_t kReportNs = 10'000'000'000;
  for (;;) {
    preempt_disable();
    state.drain_lock.lock();
    waiter.prepare("the last fiber");
    // In this order: a worker that is made meanwhile must not be counted among the second only.
    const int64_t services = service_fibers(state);
    const bool over = state.drain_acks == cpus && live_fibers(state) <= services;
    if (over) {
      state.drain_waiter = nullptr;
      waiter.cancel();
    }
    state.drain_lock.unlock();
    preempt_enable();
    if (over) return;
    if (!waiter.block(clock_now(state) + kReportNs)) report_stragglers(state);
  }
}

// Pid 1: it does, from within, what must be done in order at the end.
void init_main(void* block) {
  RuntimeState& state = **static_cast<RuntimeState**>(block);
  state.stop_requested.acquire();
  wait_for_fibers(state);
  destroy_work_state(state);
  wait_for_fibers(state);  // those that the last items spawned
  stop_service_fibers(state);
  join_service_fibers(state);
}

Status spawn_init(RuntimeState& state) {
  SpawnOptions options;
  options.name = "init";
  // Where preemptible fibers may hold a lock of the library, who waits for it must be one, too.
  options.fiber_kind =
      state.tcb_stacks != nullptr ? FiberKind::kPreemptible : FiberKind::kCooperative;
  options.migratable = true;
  options.kernel_mode = true;
  options.kind = LatencyKind::kOther;
  void* block = nullptr;
  Status status =
      detail::spawn_prepare(state, {sizeof(void*), alignof(void*), &options}, &state.init, &block);
  if (!status.ok()) return status;
  *static_cast<RuntimeState**>(block) = &state;
  detail::spawn_start(*state.init, init_main, nullptr);
  return status;
}

void stop_cpus(RuntimeState& state) {
  // seq_cst: partner is the idle loop, which announces that it parks and then looks here.
  state.stop_cpus.store(true, std::memory_order_seq_cst);
  for (Cpu* cpu : state.cpus) {
    if (cpu->idle_state.load(std::memory_order_seq_cst) == IdleState::kParked) {
      cpu->waiter->unpark(*cpu);
    }
  }
  state.machine->stop();
}

// Others are a few instructions from leaving.
void await_zero(const Atomic<int>& count) {
  // Acquire: partner is the release of who leaves.
  while (count.load(std::memory_order_acquire) != 0) sched_yield();
}

void take_down(RuntimeState& state) {
  state.offload.reset();
  for (auto& unit : state.units) {
    preempt_disable();
    unit->cpu.timers.disarm_if([](const TimerNode&) { return true; });
    preempt_enable();
    context_destroy(unit->cpu.idle.context);
    give_back_caches(unit->cpu);
  }
  state.units.clear();
  state.cpus.clear();
  // The destructors of thread_locals run on no Cpu and no fiber.
  const auto forget_cpu = [](Fiber* fiber) {
    if (fiber->context.tcb == nullptr) return;
    words_of(fiber->context.tcb) = {
        .count = kPreemptUnit, .reserved = 0, .cpu = nullptr, .fiber = nullptr};
  };
  for (auto& pool : state.other_stacks) pool->for_each_unit(forget_cpu);
  if (state.tcb_stacks != nullptr) state.tcb_stacks->for_each_unit(forget_cpu);
  for (auto& pool : state.other_stacks) StackPool::retire(std::move(pool));
  state.other_stacks.clear();
  if (state.tcb_stacks != nullptr) StackPool::retire(std::move(state.tcb_stacks));
  if (state.stacks != nullptr) StackPool::retire(std::move(state.stacks));
  state.draining.store(false, std::memory_order_relaxed);
  state.stop_cpus.store(false, std::memory_order_relaxed);
}

// Preemptible fibers need what not each machine has; what was asked for is never silently replaced.
Status make_stacks(RuntimeState& state) {
  const Options& o = state.options;
  const GuardMethod guard = o.force_mprotect_guards ? GuardMethod::kMprotect : GuardMethod::kAuto;
  state.other_stacks.reserve(RuntimeState::kMostPools);
  state.stacks = std::make_unique<StackPool>(o.stack_size, guard);
  if (state.machine->simulated()) return Status();
  const bool asked = o.fiber_kind == FiberKind::kPreemptible;
  if (o.delivery != Delivery::kSignals) {
    if (!asked) return Status();
    return Status::error(
        "preemptible fibers need delivery = Delivery::kSignals (Options::preemptible() sets both)");
  }
  const Status support = tcb_support();
  if (support.ok()) {
    state.tcb_stacks = std::make_unique<StackPool>(o.stack_size, guard, /*with_tcb=*/true);
    return Status();
  }
  if (asked && !o.allow_shared_tls) {
    return Status::error(support.message() +
                         ". Use Delivery::kSafePoints, or allow_shared_tls to go without.");
  }
  state.shared_tls = o.allow_shared_tls;
  if (o.allow_shared_tls || !interruptible_build()) {
    state.options.delivery = Delivery::kSafePoints;
  }
  return Status();
}

Status no_trace(const Options& o) {
  return Status::error("no memory for a trace of " + std::to_string(o.trace_records) +
                       " records a Cpu");
}

Status make_cpus(RuntimeState& state, int count) {
  const Options& o = state.options;
  const uint64_t slice = base_slice_ns(count);
  for (int i = 0; i < count; ++i) {
    auto unit = std::make_unique<CpuUnit>(i, state);
    Cpu& cpu = unit->cpu;
    cpu.machine = state.machine.get();
    cpu.costs = state.machine->step_costs();
    cpu.clock = state.machine->make_clock();
    cpu.tick_period = 1'000'000'000 / o.hz;
    cpu.current = &cpu.idle;
    cpu.idle.is_idle = true;
    cpu.idle.sched_class = SchedClass::kIdle;
    cpu.idle.state.store(FiberState::kRunning, std::memory_order_relaxed);
    cpu.idle.cpu.store(&cpu, std::memory_order_relaxed);
    unit->rq.fair().configure(o.features, slice, cpu.tick_period);
    sched_init_cpu(cpu);
    cpu.irqs[kCallVector].handler = on_drain_interrupt;
    if (o.trace_records != 0 && !cpu.trace.enable(o.trace_records)) return no_trace(o);
    state.cpus.push_back(&cpu);
    state.units.push_back(std::move(unit));
  }
  if (o.trace_records != 0 && !state.foreign_trace.enable(o.trace_records)) return no_trace(o);
  return Status();
}

}  // namespace

RuntimeState::RuntimeState(Options o) : options(std::move(o)), mode(options.preemption) {}
RuntimeState::~RuntimeState() = default;

Runtime::Runtime(Options options) : state_(std::make_unique<RuntimeState>(std::move(options))) {}

Runtime::~Runtime() { stop(); }

bool Runtime::started() const { return !state_->units.empty(); }

Status Runtime::start() {
  RuntimeState& state = *state_;
  if (started()) return Status::error("the runtime has been started already");
  if (Status status = check_options(state.options); !status.ok()) return status;
  if (shadow_stacks_on()) {
    return Status::error(
        "CET shadow stacks are on in this process, and end a program that switches stacks at its "
        "first "
        "switch. Run it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off, or link without -z shstk.");
  }
  state.machine =
      state.options.machine != nullptr ? state.options.machine : std::make_shared<HostMachine>();
  int count = 0;
  if (Status status = state.machine->choose_cpus(state.options, &count); !status.ok()) {
    return status;
  }
  // Nobody corrects a clock for threads that are no Cpu: they read the system's.
  state.clock = state.machine->simulated() ? state.machine->make_clock() : Clock::monotonic();
  state.foreign_before = state.foreign_counters.snapshot();
  Status status = make_stacks(state);
  if (status.ok()) status = make_cpus(state, count);
  if (status.ok()) status = state.machine->start(state.options, state.cpus.data(), count);
  if (!status.ok()) {
    take_down(state);
    return status;
  }
  state.offload = std::make_unique<OffloadPool>();
  state.accept_spawns.store(true, std::memory_order_seq_cst);
  status = start_service_fibers(state);
  if (status.ok()) status = create_work_state(state);
  if (status.ok()) status = spawn_init(state);
  if (!status.ok()) {
    // Without init there is nobody to end the others in order.
    std::fprintf(stderr, "jiffy: %s\n", status.message().c_str());
    std::abort();
  }
  return Status();
}

void Runtime::stop() {
  RuntimeState& state = *state_;
  if (!started()) return;
  state.accept_spawns.store(false, std::memory_order_seq_cst);
  await_zero(state.foreign_spawns);
  state.stop_requested.release();
  (void)detail::wait_done(*state.init, Until());
  detail::release(*std::exchange(state.init, nullptr));
  stop_cpus(state);
  await_zero(state.foreign_wakers);
  take_down(state);
}

void Runtime::start_or_die() {
  if (started()) return;
  if (const Status status = start(); !status.ok()) {
    std::fprintf(stderr, "jiffy: cannot start the runtime: %s\n", status.message().c_str());
    std::abort();
  }
}

int Runtime::cpus() const { return static_cast<int>(state_->cpus.size()); }

const Options& Runtime::options() const { return state_->options; }

void Runtime::set_preemption(Preemption mode) {
  state_->mode.store(mode, std::memory_order_relaxed);
}

Preemption Runtime::preemption() const { return state_->mode.load(std::memory_order_relaxed); }

}  // namespace jiffy
