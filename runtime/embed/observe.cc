// What a Runtime shows of itself.
#include <jiffy/runtime.h>

#include <algorithm>
#include <cstdio>

#include "sched/runtime_state.h"

namespace jiffy {

const char* preemption_name(Preemption mode) {
  static constexpr const char* kNames[kPreemptionModes] = {"none", "voluntary", "lazy", "full"};
  return kNames[static_cast<size_t>(mode)];
}

const char* latency_kind_name(LatencyKind kind) {
  static constexpr const char* kNames[kLatencyKinds] = {"user", "kernel", "worker", "other"};
  return kNames[static_cast<size_t>(kind)];
}

namespace {

// Voluntary switches are not counted on the hot path: they are the rest.
void derive(CounterSnapshot& s) {
  auto& v = s.values;
  const auto i = [](Counter c) { return static_cast<size_t>(c); };
  v[i(Counter::kVoluntarySwitches)] =
      v[i(Counter::kContextSwitches)] - v[i(Counter::kForcedSwitches)];
}

const char* state_name(const Fiber& fiber) {
  switch (fiber.state.load(std::memory_order_relaxed)) {
    case FiberState::kRunning:
      return "runnable";
    case FiberState::kSleeping:
      return "sleeping";
    case FiberState::kWaking:
      return "waking";
    case FiberState::kDead:
      return "ended";
    case FiberState::kFree:
      return "free";
  }
  return "?";
}

const char* class_name(const Fiber& fiber) {
  static constexpr const char* kNames[] = {"stop", "fifo", "fair", "idle"};
  return kNames[static_cast<size_t>(fiber.sched_class)];
}

void append_fiber(std::string& out, const Fiber& fiber) {
  if (fiber.magic != kFiberMagic) {
    out += "  (a fiber's block is damaged: its magic number is wrong)\n";
    return;
  }
  const FiberState s = fiber.state.load(std::memory_order_relaxed);
  if (s == FiberState::kFree) return;
  Cpu* cpu = fiber.cpu.load(std::memory_order_relaxed);
  const bool running =
      cpu != nullptr && std::atomic_ref(cpu->current).load(std::memory_order_relaxed) == &fiber;
  char line[256];
  std::snprintf(line, sizeof line, "  %8llu  %-23s  Cpu %-3d  %-8s  %s%s%s  stack %zu of %zu KiB\n",
                static_cast<unsigned long long>(fiber.id), fiber.name[0] != '\0' ? fiber.name : "-",
                cpu != nullptr ? cpu->id : -1, running ? "running" : state_name(fiber),
                class_name(fiber), fiber.kernel_mode ? " kernel" : "",
                fiber.migratable ? " migratable" : "", stack_high_water(fiber) / 1024,
                fiber.context.stack_size / 1024);
  out += line;
  const char* what = fiber.waits_for.load(std::memory_order_relaxed);
  if (s != FiberState::kSleeping || what[0] == '\0') return;
  out.back() = ' ';
  out += std::string(" waits for ") + what;
  if (cpu != nullptr && cpu->costs != nullptr) {
    std::snprintf(line, sizeof line, " since %.6f ms",
                  static_cast<double>(fiber.sleep_stamp.load(std::memory_order_relaxed)) / 1e6);
    out += line;
  }
  out += '\n';
}

}  // namespace

CounterSnapshot Runtime::counters() const {
  CounterSnapshot sum = state_->foreign_counters.snapshot() - state_->foreign_before;
  for (const auto& unit : state_->units) sum += unit->cpu.counters.snapshot();
  derive(sum);
  return sum;
}

CounterSnapshot Runtime::counters(int cpu) const {
  CounterSnapshot s = state_->cpus[static_cast<size_t>(cpu)]->counters.snapshot();
  derive(s);
  return s;
}

HistogramSnapshot Runtime::preempt_delay() const {
  HistogramSnapshot sum;
  for (const auto& unit : state_->units) sum.merge_from(unit->cpu.preempt_delay.snapshot());
  return sum;
}

HistogramSnapshot Runtime::queue_latency(LatencyKind kind) const {
  HistogramSnapshot sum;
  for (const auto& unit : state_->units) {
    sum.merge_from(unit->cpu.queue_latency[static_cast<size_t>(kind)].snapshot());
  }
  return sum;
}

std::vector<TraceRecord> Runtime::trace() const {
  std::vector<std::vector<TraceRecord>> rings;
  // First what came from outside: of one instant, it is more likely the cause.
  rings.push_back(state_->foreign_trace.snapshot());
  for (const auto& unit : state_->units) rings.push_back(unit->cpu.trace.snapshot());
  return merge_traces(rings);
}

std::string dump_fibers(const RuntimeState& state) {
  std::string out = "        id  name                     on       state     class\n";
  const auto each = [&out](const Fiber* fiber) { append_fiber(out, *fiber); };
  if (state.shared_tls) {
    out +=
        "preemptible fibers share their thread's locals here: they are switched at safe points\n";
  }
  std::vector<StackPool*> others;
  others.reserve(RuntimeState::kMostPools + 2);
  for (StackPool* pool : {state.stacks.get(), state.tcb_stacks.get()}) {
    if (pool != nullptr) others.push_back(pool);
  }
  auto& lock = const_cast<RawSpinLock&>(state.pools_lock);
  preempt_disable();
  lock.lock();
  for (auto& pool : state.other_stacks) others.push_back(pool.get());
  lock.unlock();
  preempt_enable();
  for (StackPool* pool : others) pool->for_each_unit(each);
  return out;
}

std::string Runtime::dump() const { return dump_fibers(*state_); }

}  // namespace jiffy
