#include "machine/sim/sim_machine.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cpu/cpu.h"

namespace jiffy {

namespace {

constexpr size_t kIdleStackSize = size_t{256} * 1024;

uint64_t next_random(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

}  // namespace

SimMachine::SimMachine(const SimOptions& options)
    : options_(options),
      costs_{.wakeup = options.wakeup_cost.count(),
             .switching = options.switch_cost.count(),
             .interrupt = options.interrupt_cost.count(),
             .offload = options.offload_cost.count()},
      random_(options.seed * 0x9E3779B97F4A7C15ull + 1) {}

SimMachine::~SimMachine() = default;

void* SimMachine::machine_data(Cpu& cpu) { return cpu.machine_data; }
Cpu* SimMachine::running_cpu() { return this_cpu(); }
int SimMachine::cpu_id(const Cpu& cpu) { return cpu.id; }
uint64_t SimMachine::next_choice() { return next_random(random_) >> 11; }
uint64_t SimMachine::choose(uint64_t n) {
  // The default seed keeps the plain order, as for events of one instant.
  return options_.seed == 1 ? 0 : next_choice() % n;
}
int64_t SimMachine::choose_delay(const SimDelay& delay) {
  const int64_t least = delay.least.count(), most = delay.most.count();
  if (most <= least) return least;
  return least + static_cast<int64_t>(next_choice() % static_cast<uint64_t>(most - least + 1));
}

Status SimMachine::choose_cpus(const Options& options, int* count) {
  *count = options.cpus > 0 ? options.cpus : options_.cpus;
  if (*count < 1 || *count > 1024) {
    return Status::error("a simulation has 1 to 1024 Cpus, not " + std::to_string(*count));
  }
  return Status();
}

Status SimMachine::start(const Options& options, Cpu* const* cpus, int count) {
  owner_ = std::this_thread::get_id();
  tick_period_ = 1'000'000'000 / options.hz;
  model_start();
  eh_ = thread_eh_globals();
  for (int i = 0; i < count; ++i) {
    auto sim = std::make_unique<SimCpu>();
    void* stack = mmap(nullptr, kIdleStackSize, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) return Status::error("no memory for the stacks of the simulated Cpus");
    sim->cpu = cpus[i];
    sim->stack = static_cast<char*>(stack);
    sim->known = KnownStack(sim->stack, sim->stack + kIdleStackSize);
    Context& idle = cpus[i]->idle.context;
    idle.stack_bottom = stack;
    idle.stack_size = kIdleStackSize;
    context_init(idle, sim->stack + kIdleStackSize, cpu_entry);
    sim->resume = &idle;
    cpus[i]->machine_data = sim.get();
    cpus_.push_back(std::move(sim));
    post(now_, Kind::kResume, i, 0);
  }
  return Status();
}

void SimMachine::cpu_entry(Context*) {
  // The loop says which Cpu starts.
  Cpu* cpu = this_cpu();
  cpu->hooks->main(*cpu);
  SimMachine& machine = *static_cast<SimMachine*>(cpu->machine);
  machine.wait_in_loop(machine.sim_cpu(*cpu), Waits::kEnded);
  std::abort();
}

void SimMachine::stop() {
  (void)run_until([this] {
    for (auto& cpu : cpus_) {
      if (cpu->waits != Waits::kEnded) return false;
    }
    return true;
  });
  for (auto& cpu : cpus_) {
    context_destroy(cpu->cpu->idle.context);
    forget_stacks(cpu->stack, kIdleStackSize);
    munmap(cpu->stack, kIdleStackSize);
  }
  cpus_.clear();
  events_ = {};
  calls_.clear();
}

// --- The loop.

void SimMachine::post(int64_t when, Kind kind, int cpu, uint64_t generation) {
  // The default seed keeps things of one instant in the order in which they were caused.
  const uint64_t order = options_.seed == 1 ? 0 : next_random(random_);
  events_.push({std::max(when, now_), order, ++sequence_, kind, cpu, generation});
}

Status SimMachine::run_until(const std::function<bool()>& done) {
  if (running_) return Status::error("a simulation cannot be run from within itself");
  running_ = true;
  context_init_thread(loop_);
  watch_.begin(options_.most_blocked.count(), [this](int64_t ns) { report_blocked(ns); });
  Status status;
  while (!(done() && model_quiet())) {
    if (events_.empty()) {
      status = Status::error(
          "the simulation is at its end: each Cpu is parked, no timer is armed "
          "and no event is due, so what is waited for cannot happen (deadlock). JIFFY_SIM_SEED=" +
          std::to_string(options_.seed) + " shows it again");
      break;
    }
    const Event event = events_.top();
    events_.pop();
    now_ = event.when;
    watch_.moved();
    handle(event);
  }
  watch_.end();
  running_ = false;
  return status;
}

void SimMachine::handle(const Event& event) {
  if (event.kind == Kind::kCall) {
    const auto it = calls_.find(event.generation);
    const std::function<void()> fn = std::move(it->second);
    calls_.erase(it);
    fn();
    return;
  }
  SimCpu& cpu = *cpus_[static_cast<size_t>(event.cpu)];
  switch (event.kind) {
    case Kind::kResume:
      if (event.generation == cpu.resume_generation) run_cpu(cpu);
      break;
    case Kind::kTick:
      if (event.generation != cpu.tick_generation) break;
      post(now_ + tick_period_, Kind::kTick, event.cpu, event.generation);
      cpu.cpu->timer_interrupt(kTickVector);
      interrupt(cpu);
      break;
    case Kind::kOneshot:
      if (event.generation != cpu.oneshot_generation) break;
      cpu.cpu->timer_interrupt(kTimerVector);
      interrupt(cpu);
      break;
    case Kind::kIpi:
      interrupt(cpu);
      break;
    case Kind::kUnpark:
      if (event.generation == cpu.park_generation && cpu.waits == Waits::kParked) run_cpu(cpu);
      break;
    case Kind::kCall:
      break;
  }
}

// The Cpu's context takes what is pending by itself: in consume(), or in its idle loop.
void SimMachine::interrupt(SimCpu& cpu) {
  if (cpu.waits == Waits::kConsuming || cpu.waits == Waits::kParked) run_cpu(cpu);
}

void SimMachine::run_cpu(SimCpu& cpu) {
  if (cpu.waits == Waits::kEnded) return;
  cpu.waits = Waits::kReady;
  ++cpu.resume_generation;
  set_this_cpu(cpu.cpu);
  Fiber* fiber = cpu.cpu->current;
  set_current_fiber(fiber->is_idle ? nullptr : fiber);
  set_preempt_count(cpu.saved_count);
  Context* target = cpu.resume;
  cpu.resume = &cpu.context;
  running_cpu_.store(&cpu, std::memory_order_relaxed);
  model::enter(this);
  (void)context_switch(loop_, *target, eh_, /*from_dies=*/false);
  model::enter(nullptr);
  running_cpu_.store(nullptr, std::memory_order_relaxed);
  set_this_cpu(nullptr);
  set_current_fiber(nullptr);
  set_preempt_count(0);
}

void SimMachine::wait_in_loop(SimCpu& cpu, Waits waits) {
  if (waits != Waits::kConsuming) write_all(cpu);
  cpu.waits = waits;
  cpu.saved_count = preempt_count();
  // The stack is that of whichever fiber runs: the sanitizers want to know it on the way back.
  const Context& current = cpu.cpu->current->context;
  cpu.context.stack_bottom = current.stack_bottom;
  cpu.context.stack_size = current.stack_size;
  cpu.context.sanitizer = current.sanitizer;
  (void)context_switch(cpu.context, loop_, eh_, /*from_dies=*/false);
}

// --- What a Cpu asks of its machine.

void SimMachine::consume(int64_t ns) {
  model::drain();
  Cpu* cpu = this_cpu();
  int64_t left = ns + std::exchange(cpu->owed, 0);
  while (left > 0) {
    SimCpu& sim = sim_cpu(*cpu);
    const int64_t start = now_;
    post(start + left, Kind::kResume, cpu->id, ++sim.resume_generation);
    wait_in_loop(sim, Waits::kConsuming);
    left -= now_ - start;
    // An interrupt arrives here, where a CPU would take it: unless the count forbids it, or it is
    // the end of the time and nothing is pending.
    if (preempt_count() == 0 && cpu_has_work(*cpu)) preempt_enable_slow();
    cpu = this_cpu();  // it may have migrated meanwhile
  }
}

void SimMachine::start_tick(Cpu& cpu) {
  if (cpu.tick_running.exchange(true, std::memory_order_seq_cst)) return;
  const int64_t phase = options_.tick_phase.count() % tick_period_;
  const int64_t passed = now_ < phase ? 0 : (now_ - phase) / tick_period_ + 1;
  const int64_t next = passed * tick_period_ + phase;
  post(next, Kind::kTick, cpu.id, ++sim_cpu(cpu).tick_generation);
}

void SimMachine::stop_tick(Cpu& cpu) {
  if (!cpu.tick_running.exchange(false, std::memory_order_seq_cst)) return;
  ++sim_cpu(cpu).tick_generation;
}

void SimMachine::arm_oneshot(Cpu& cpu, int64_t when) {
  SimCpu& sim = sim_cpu(cpu);
  ++sim.oneshot_generation;
  if (when != kNever) post(when, Kind::kOneshot, cpu.id, sim.oneshot_generation);
}

void SimMachine::send_ipi(Cpu& target) {
  post(now_ + choose_delay(options_.ipi_latency), Kind::kIpi, target.id, 0);
}

void SimMachine::park(Cpu& cpu, int64_t until) {
  if (cpu.owed != 0) return consume(0);  // and looks for work again
  SimCpu& sim = sim_cpu(cpu);
  sim.park_word.park([&] {
    if (sim.park_word.word.load(std::memory_order_relaxed) != 0) return;
    if (until != kNever) post(until, Kind::kResume, cpu.id, ++sim.resume_generation);
    wait_in_loop(sim, Waits::kParked);
  });
  ++sim.park_generation;
}

void SimMachine::unpark(Cpu& cpu) {
  SimCpu& sim = sim_cpu(cpu);
  sim.park_word.unpark([&] {
    const int64_t arrives = now_ + choose_delay(options_.wake_latency);
    post(arrives, Kind::kUnpark, cpu.id, sim.park_generation);
  });
}

void SimMachine::switched(Cpu& cpu) {
  if (now_ != last_switch_at_) {
    last_switch_at_ = now_;
    switches_at_once_ = 0;
  }
  if (options_.most_switches_at_once == 0) return;
  if (++switches_at_once_ <= options_.most_switches_at_once) return;
  std::fprintf(
      stderr,
      "jiffy: the simulation stands at %lld ns: %lld switches without time passing, so its "
      "fibers wake each other for ever (livelock). JIFFY_SIM_SEED=%llu shows it again\n%s",
      static_cast<long long>(now_), static_cast<long long>(switches_at_once_),
      static_cast<unsigned long long>(options_.seed), cpu.hooks->report(cpu).c_str());
  std::abort();
}

void SimMachine::check_caller(const char* call) const {
  if (std::this_thread::get_id() == owner_) return;
  std::fprintf(stderr,
               "jiffy: %s from a thread that did not start the simulation it is meant for. A "
               "simulation belongs to one thread, since the order of two is nobody's choice and no "
               "seed's. Make the call from a fiber, from that thread, or by jiffy::at(), which "
               "stands for a thread or a device of the simulated world\n",
               call);
  std::abort();
}

// By the watching thread: what it reads stands still, since the thread that would write it is
// blocked.
void SimMachine::report_blocked(int64_t blocked_ns) const {
  const SimCpu* blocked = running_cpu_.load(std::memory_order_relaxed);
  const Cpu& cpu = blocked != nullptr ? *blocked->cpu : *cpus_.front()->cpu;
  std::fprintf(stderr,
               "jiffy: the simulation stands at %lld ns: %s%s%s has been blocked in real time for "
               "%.1f s, in a system call or by a lock that another thread holds, and with it the "
               "virtual world. In a simulation fibers wait by jiffy's own calls only. "
               "JIFFY_SIM_SEED=%llu shows it again\n%s",
               static_cast<long long>(now_),
               blocked != nullptr ? "fiber '" : "what runs outside of its Cpus",
               blocked != nullptr ? cpu.current->name : "", blocked != nullptr ? "'" : "",
               static_cast<double>(blocked_ns) / 1e9,
               static_cast<unsigned long long>(options_.seed), cpu.hooks->report(cpu).c_str());
  std::abort();
}

void SimMachine::call_at(int64_t when, std::function<void()> fn) {
  const uint64_t key = sequence_ + 1;
  calls_[key] = std::move(fn);
  post(when, Kind::kCall, 0, key);
}

std::shared_ptr<Machine> make_sim_machine(const SimOptions& options) {
  SimOptions chosen = options;
  if (const char* seed = std::getenv("JIFFY_SIM_SEED")) {
    chosen.seed = std::strtoull(seed, nullptr, 10);
  }
  return std::make_shared<SimMachine>(chosen);
}

void at(Machine& machine, std::chrono::nanoseconds when, std::function<void()> fn) {
  static_cast<SimMachine&>(machine).call_at(when.count(), std::move(fn));
}

}  // namespace jiffy
