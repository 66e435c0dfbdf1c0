// A stage for tests that write down a whole trace: a machine in virtual time with its sleepers and
// actors, and their trace as text, with names and without ids.
#pragma once

#include <jiffy/fiber.h>
#include <jiffy/trace.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/sim_world.h"

namespace jiffy {

class Stage {
 public:
  explicit Stage(Preemption mode, int cpus = 1, bool hrtick = false)
      : mode_(mode), world_(options(mode, cpus, hrtick)) {}

  // Who may play. A is an ordinary fiber; the others should preempt it when they wake.
  static SpawnOptions kernel(const std::string& name, int cpu = 0) {
    return SimWorld::kernel(name, cpu);
  }
  static SpawnOptions user(const std::string& name) {
    SpawnOptions o = kernel(name);
    o.kernel_mode = false;
    return o;
  }
  static SpawnOptions eager(const std::string& name) {
    SpawnOptions o = kernel(name);
    o.slice = 100us;
    return o;
  }
  static SpawnOptions batch(const std::string& name) {
    SpawnOptions o = kernel(name);
    o.policy = Policy::kBatch;
    return o;
  }
  static SpawnOptions fifo(const std::string& name, int priority = 50) {
    SpawnOptions o = kernel(name);
    o.policy = Policy::kFifo;
    o.priority = priority;
    return o;
  }

  // Before curtain_up(), which begins the trace.
  Sleeper& sleeper(
      const SpawnOptions& o, std::function<void()> body = [] {}) {
    sleepers_.push_back(std::make_unique<Sleeper>(world_, o, std::move(body)));
    sleepers_.back()->settle();
    return *sleepers_.back();
  }
  void curtain_up() { world_.mark(); }
  void actor(const SpawnOptions& o, std::function<void()> body) {
    actors_.push_back(world_.spawn(o, std::move(body)));
  }
  void interrupt_at(std::chrono::nanoseconds when, int cpu, std::function<void()> fn) {
    world_.interrupt_at(when, cpu, std::move(fn));
  }
  void run_until(std::chrono::nanoseconds when) { world_.run_until(when); }
  void note(const std::string& text) {
    notes_.push_back(text);
    trace_any(world_.rt.state(), TraceEvent::kUser, static_cast<uint32_t>(notes_.size() - 1));
  }
  std::string requests(int cpu = 0) {
    return std::string("hard ") + (world_.hard(cpu) ? "1" : "0") + ", lazy " +
           (world_.lazy(cpu) ? "1" : "0");
  }
  // A lazy request whatever the mode is: it was made when the mode was LAZY.
  void wake_lazily(Sleeper& s) {
    world_.rt.set_preemption(Preemption::kLazy);
    s.wake();
    world_.rt.set_preemption(mode_);
  }

  // Plays to the end, until `least` at any rate, and prints the trace.
  std::string play(std::chrono::nanoseconds least = 0ns) {
    if (world_.time() < least) run_until(least);
    for (auto& actor : actors_) actor.join();
    for (auto& s : sleepers_) s->settle();
    std::string text;
    for (const TraceRecord& r : world_.trace()) text += line(r) + "\n";
    return text;
  }

 private:
  static Options options(Preemption mode, int cpus, bool hrtick) {
    Options o;
    o.preemption = mode;
    o.cpus = cpus;
    o.hrtick = hrtick;
    o.trace_records = 1024;
    return o;
  }

  std::string line(const TraceRecord& r) const {
    char head[64];
    std::snprintf(head, sizeof head, "%9.3f us  %s  ", static_cast<double>(r.time_ns) / 1000,
                  r.cpu == kForeignCpu ? "----" : ("cpu" + std::to_string(r.cpu)).c_str());
    return head + what(r);
  }
  std::string what(const TraceRecord& r) const {
    std::string event(trace_event_name(r.event));
    switch (r.event) {
      case TraceEvent::kSwitch:
        return event + " " + world_.name_of(r.arg1) + " -> " + world_.name_of(r.arg2) + ", " +
               std::string(switch_reason_name(static_cast<SwitchReason>(r.arg0)));
      case TraceEvent::kWakeupReal:
      case TraceEvent::kWakeupNoop:
      case TraceEvent::kWakeupRemote:
        return event + " of " + world_.name_of(r.arg1) + " on cpu" + std::to_string(r.arg0);
      case TraceEvent::kLazyRequest:
      case TraceEvent::kHardRequest:
        return event + " to cpu" + std::to_string(r.arg0) + ", which runs " +
               world_.name_of(r.arg1);
      case TraceEvent::kPromotion:
      case TraceEvent::kTick:
        return event + " in " + world_.name_of(r.arg1);
      case TraceEvent::kTimerFired:
        return event + " " + std::to_string(r.arg0);
      case TraceEvent::kUser:
        return "\"" + notes_[r.arg0] + "\"";
      default:
        return event;
    }
  }

  const Preemption mode_;
  SimWorld world_;
  std::vector<std::string> notes_;
  std::vector<JoinHandle<void>> actors_;
  std::vector<std::unique_ptr<Sleeper>> sleepers_;
};

}  // namespace jiffy
