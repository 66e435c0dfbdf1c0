#ifdef JIFFY_MODEL

#include "machine/model.h"

#include <jiffy/runtime.h>
#include <jiffy/sim.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cpu/cpu.h"
#include "machine/sim/sim_machine.h"

namespace jiffy {

namespace model {

namespace {

// The machine whose Cpu runs in this thread; null outside.
thread_local SimMachine* running = nullptr;

// Of the exploration that this thread is in.
thread_local uint64_t seed = 1;
thread_local Fault fault = Fault::kNone;
thread_local Explored explored;

uint64_t seed_from_environment() {
  const char* text = std::getenv("JIFFY_SIM_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

void explore_one(int cpus, const std::function<void(Runtime&)>& body) {
  Options options;
  options.cpus = cpus;
  options.preemption = Preemption::kFull;
  options.stack_size = 16 * 1024;
  SimOptions sim;
  sim.seed = seed;
  sim.cpus = cpus;
  sim.most_blocked =
      std::chrono::nanoseconds(0);  // thousands of short runs, each with a limit of its own
  options.machine = make_sim_machine(sim);
  Runtime rt(options);
  if (const Status status = rt.start(); !status.ok()) fail(status.message().c_str());
  body(rt);
  rt.stop();
}

}  // namespace

bool planted(Fault wanted) { return fault == wanted; }

void fail(const char* what) {
  std::fprintf(stderr, "jiffy: model: %s\nJIFFY_SIM_SEED=%llu shows it again\n", what,
               static_cast<unsigned long long>(seed));
  std::abort();
}

Explored explore(uint64_t seeds, int cpus, Fault planted_fault,
                 const std::function<void(Runtime&)>& body) {
  explored = Explored{};
  fault = planted_fault;
  const uint64_t only = seed_from_environment();
  const uint64_t last = only != 0 ? only : seeds;
  for (seed = only != 0 ? only : 1; seed <= last; ++seed) {
    ++explored.seeds;
    explore_one(cpus, body);
  }
  fault = Fault::kNone;
  return explored;
}

void enter(SimMachine* machine) { running = machine; }

void point() {
  if (running != nullptr) running->model_point(/*spins=*/false);
}
void spin() {
  if (running != nullptr) running->model_point(/*spins=*/true);
}
bool buffer(void* address, uint64_t value, void (*write)(void*, uint64_t)) {
  return running != nullptr && running->model_buffer({address, value, write});
}
bool buffered(const void* address, uint64_t* value) {
  return running != nullptr && running->model_buffered(address, value);
}
void drain() {
  if (running != nullptr) running->model_drain();
}

}  // namespace model

// --- The machine's side.

// Chosen once a run: how often Cpus change and how late stores are seen. Some faults need many
// changes, others few at the right place.
void SimMachine::model_start() {
  model_switch_in_ = 2u << (next_choice() % 4);
  model_write_in_ = 1u << (next_choice() % 5);
}

void SimMachine::model_point(bool spins) {
  constexpr uint64_t kMostPoints = 2'000'000;
  Cpu* cpu = running_cpu();
  SimCpu& sim = sim_cpu(*cpu);
  ++model::explored.points;
  if (++model_points_ > kMostPoints) model::fail("it goes on for ever");
  // Each Cpu's oldest store may reach memory now.
  for (auto& other : cpus_) {
    if (!other->stores.empty() && next_choice() % model_write_in_ == 0) write_oldest(*other);
  }
  if (!spins && next_choice() % model_switch_in_ != 0) return;
  ++model::explored.switches;
  // Who spins waits for another Cpu, which may have to wait for a time of its own.
  if (spins) write_all(sim);
  // Now and then a Cpu stands still for a while, so that timers fire in the middle of things.
  const bool stalls = !spins && next_choice() % 8 == 0;
  const uint64_t passes = stalls ? next_choice() % 64 : spins;
  post(now_ + static_cast<int64_t>(passes), Kind::kResume, cpu_id(*cpu), ++sim.resume_generation);
  wait_in_loop(sim, Waits::kConsuming);
}

// Whoever waits for the machine may take a lock next, and its Cpus stand still meanwhile.
bool SimMachine::model_quiet() const {
  for (const auto& cpu : cpus_) {
    if (cpu->cpu->held_locks.count != 0 || !cpu->stores.empty()) return false;
  }
  return true;
}

bool SimMachine::model_buffer(const Store& store) {
  sim_cpu(*running_cpu()).stores.push_back(store);
  return true;
}

bool SimMachine::model_buffered(const void* address, uint64_t* value) {
  const auto& stores = sim_cpu(*running_cpu()).stores;
  for (auto it = stores.rbegin(); it != stores.rend(); ++it) {
    if (it->address != address) continue;
    *value = it->value;
    return true;
  }
  return false;
}

void SimMachine::model_drain() { write_all(sim_cpu(*running_cpu())); }

void SimMachine::write_oldest(SimCpu& cpu) {
  const Store store = cpu.stores.front();
  cpu.stores.pop_front();
  store.write(store.address, store.value);
}

void SimMachine::write_all(SimCpu& cpu) {
  while (!cpu.stores.empty()) write_oldest(cpu);
}

}  // namespace jiffy

#endif  // JIFFY_MODEL
