// A runtime on a simulated machine, as the tests of rules use it: driven from outside, in virtual
// time, with interrupts that come when the test says.
#pragma once

#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/sim.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sched/runtime_state.h"
#include "sched/sched.h"

namespace jiffy {

using namespace std::chrono_literals;

inline constexpr Preemption kAllModes[] = {Preemption::kNone, Preemption::kVoluntary,
                                           Preemption::kLazy, Preemption::kFull};

// Virtual time so far; any context.
inline std::chrono::nanoseconds sim_time(const Runtime& rt) {
  return std::chrono::nanoseconds(rt.state().clock.now());
}

class SimWorld {
 public:
  explicit SimWorld(Options options, SimOptions sim = {}) : rt(prepare(options, sim)) {
    const Status status = rt.start();
    EXPECT_TRUE(status.ok()) << status.message();
    for (Cpu* cpu : rt.state().cpus) {
      cpu->irqs[kTestVector] = {on_interrupt, this};
    }
    interrupts_.resize(rt.state().cpus.size());
    // The runtime's own fibers have run and sleep; no time has passed.
    run_until([this] {
      for (Cpu* cpu : rt.state().cpus) {
        if (cpu->idle_state.load() != IdleState::kParked) return false;
      }
      return true;
    });
    EXPECT_EQ(time(), 0ns);
    mark();
  }

  static SimWorld with_mode(Preemption mode, int cpus = 1) {
    Options options;
    options.preemption = mode;
    options.cpus = cpus;
    options.trace_records = 4096;
    return SimWorld(options);
  }

  std::chrono::nanoseconds time() const { return sim_time(rt); }

  // --- Driving. From the test's thread.

  void run_until(const std::function<bool()>& done) {
    const Status status = rt.state().machine->run_until(done);
    ASSERT_TRUE(status.ok()) << status.message() << "\n" << rt.dump();
  }
  void run_until(std::chrono::nanoseconds when) {
    at(when, [] {});
    run_until([this, when] { return time() >= when; });
  }
  // Waits for all of `handles`.
  template <class... Handles>
  void join(Handles&... handles) {
    (handles.join(), ...);
  }

  // A device of the simulated world: `fn` runs in no Cpu's context ...
  void at(std::chrono::nanoseconds when, std::function<void()> fn) {
    jiffy::at(*rt.state().machine, when, std::move(fn));
  }
  // ... or in an interrupt of Cpu `cpu`.
  void interrupt_at(std::chrono::nanoseconds when, int cpu, std::function<void()> fn) {
    at(when,
       [this, cpu, handler = std::move(fn)]() mutable { interrupt(cpu, std::move(handler)); });
  }
  void interrupt(int cpu, std::function<void()> fn) {
    interrupts_[static_cast<size_t>(cpu)].push_back(std::move(fn));
    this->cpu(cpu).raise(kTestVector);
  }

  // --- Fibers.

  // A fiber on Cpu 0 in kernel mode, unless the options say something else.
  static SpawnOptions kernel(std::string name, int cpu = 0) {
    SpawnOptions options;
    options.name = std::move(name);
    options.cpu = cpu;
    options.kernel_mode = true;
    return options;
  }
  template <class F>
  auto spawn(const SpawnOptions& options, F&& fn) {
    auto handle = rt.spawn(std::forward<F>(fn), options);
    EXPECT_TRUE(handle.valid()) << handle.error();
    names_[handle.native()->id] = options.name;
    return handle;
  }
  void name_fiber(const Fiber& fiber, std::string name) { names_[fiber.id] = std::move(name); }

  // --- Looking.

  Cpu& cpu(int id) { return *rt.state().cpus[static_cast<size_t>(id)]; }
  FairQueue& fair(int id) { return cpu(id).rq->fair(); }
  bool hard(int id) { return (cpu(id).need.load() & kNeedResched) != 0; }
  bool lazy(int id) { return (cpu(id).need.load() & kNeedReschedLazy) != 0; }
  // From here on count(), trace(), switches() and order() start anew.
  void mark() {
    start_counts_ = rt.counters();
    start_records_.clear();
    for (const TraceRecord& r : rt.trace()) ++start_records_[r.cpu];
  }
  uint64_t count(Counter counter) const { return (rt.counters() - start_counts_).at(counter); }

  // In order of time; those of one instant in the order of their rings, each in its own order.
  std::vector<TraceRecord> trace() const {
    std::vector<TraceRecord> all = rt.trace();
    std::map<uint16_t, size_t> old = start_records_;
    std::erase_if(all, [&old](const TraceRecord& r) {
      const bool is_old = old[r.cpu] > 0;
      if (is_old) --old[r.cpu];
      return is_old;
    });
    return all;
  }
  std::vector<TraceRecord> trace(TraceEvent event, int cpu = -1) const {
    std::vector<TraceRecord> some = trace();
    std::erase_if(
        some, [&](const TraceRecord& r) { return r.event != event || (cpu >= 0 && r.cpu != cpu); });
    return some;
  }
  std::string name_of(uint64_t id) const {
    if (id == 0) return "idle";
    const auto it = names_.find(id);
    return it == names_.end() ? "#" + std::to_string(id) : it->second;
  }
  // The switches of a Cpu, each as "A B preempt_hard": who left, who came, and why.
  std::vector<std::string> switches(int cpu = 0) const {
    std::vector<std::string> lines;
    for (const TraceRecord& r : trace(TraceEvent::kSwitch, cpu)) {
      lines.push_back(name_of(r.arg1) + " " + name_of(r.arg2) + " " +
                      std::string(switch_reason_name(static_cast<SwitchReason>(r.arg0))));
    }
    return lines;
  }
  // Who ran on a Cpu, in order: "A B A".
  std::string order(int cpu = 0) const {
    std::string names;
    for (const TraceRecord& r : trace(TraceEvent::kSwitch, cpu)) {
      if (r.arg2 == 0) continue;
      names += (names.empty() ? "" : " ") + name_of(r.arg2);
    }
    return names;
  }

  Runtime rt;

 private:
  static constexpr Vector kTestVector = kFirstUserVector;

  static Options prepare(Options options, SimOptions sim) {
    if (options.cpus != 0) sim.cpus = options.cpus;
    options.machine = make_sim_machine(sim);
    return options;
  }
  static void on_interrupt(Cpu& cpu, void* arg) {
    auto& queue = static_cast<SimWorld*>(arg)->interrupts_[static_cast<size_t>(cpu.id)];
    while (!queue.empty()) {
      const std::function<void()> fn = std::move(queue.front());
      queue.pop_front();
      fn();
    }
  }

  std::vector<std::deque<std::function<void()>>> interrupts_;
  std::map<uint64_t, std::string> names_;
  CounterSnapshot start_counts_;
  std::map<uint16_t, size_t> start_records_;  // by ring: at one instant the rings are interleaved
};

// A fiber that sleeps until wake(), again and again, and notes when it was woken and when it ran.
class Sleeper {
 public:
  // `body` runs after each wakeup.
  Sleeper(
      SimWorld& world, const SpawnOptions& options, std::function<void()> body = [] {})
      : world_(world), body_(std::move(body)) {
    handle_ = world.spawn(options, [this] {
      for (;;) {
        sleep();
        if (ending_) return;
        ran_.push_back(sim_time(world_.rt));
        body_();
      }
    });
  }
  ~Sleeper() { finish(); }
  // Brings it to its first sleep, before the test begins.
  void settle() {
    world_.run_until([this] { return asleep(); });
  }
  // Lets it do what it was woken for, and ends it. By the test's thread.
  void finish() {
    if (!handle_.valid()) return;
    settle();
    ending_ = true;
    const PreemptGuard guard;
    (void)try_to_wake_up(fiber());
    handle_.join();
  }

  // Any context. A wakeup of one that is not asleep does nothing but count.
  void wake() {
    if (asleep()) woken_.push_back(sim_time(world_.rt));
    const PreemptGuard guard;
    (void)try_to_wake_up(fiber());
  }
  bool asleep() const { return handle_.native()->state.load() == FiberState::kSleeping; }

  Fiber& fiber() { return *handle_.native(); }
  const std::vector<std::chrono::nanoseconds>& ran() const { return ran_; }
  // From the wakeup to the run, each.
  std::vector<std::chrono::nanoseconds> latencies() const {
    std::vector<std::chrono::nanoseconds> all;
    for (size_t i = 0; i < ran_.size(); ++i) all.push_back(ran_[i] - woken_[i]);
    return all;
  }

 private:
  // No condition and no lock: in a simulation nothing runs between the announcement and schedule().
  static void sleep() {
    Waiter waiter;
    waiter.prepare();
    (void)waiter.block(INT64_MAX);
  }

  SimWorld& world_;
  std::function<void()> body_;
  bool ending_ = false;
  JoinHandle<void> handle_;
  std::vector<std::chrono::nanoseconds> woken_, ran_;
};

}  // namespace jiffy
