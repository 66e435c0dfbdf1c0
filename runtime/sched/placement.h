// Which Cpu a fiber runs on: at its wakeup, at its start, and when a Cpu is idle.
#pragma once

#include <cstdint>
#include <vector>

#include "fiber/fiber.h"

namespace jiffy {

class Cpu;
struct RuntimeState;

// A set of a runtime's Cpus, by id.
class CpuMask {
 public:
  explicit CpuMask(int cpus) : words_(static_cast<size_t>(cpus + 63) / 64) {}
  void set(int cpu) { words_[static_cast<size_t>(cpu) / 64] |= uint64_t{1} << (cpu % 64); }
  bool test(int cpu) const {
    const auto word = static_cast<size_t>(cpu) / 64;
    return word < words_.size() && (words_[word] >> (cpu % 64) & 1) != 0;
  }
  int count() const {
    int n = 0;
    for (uint64_t w : words_) n += __builtin_popcountll(w);
    return n;
  }

 private:
  std::vector<uint64_t> words_;
};

// Whether its state allows the fiber to change Cpus: a cooperative fiber that has run may hold
// addresses of its thread's locals, so it stays unless it promised not to.
inline bool fiber_may_move(const Fiber& fiber) {
  return (fiber.migratable || !fiber.started) && fiber.pinned_cpu < 0;
}

inline bool fiber_allows_cpu(const Fiber& fiber, int cpu) {
  if (fiber.pinned_cpu >= 0) return fiber.pinned_cpu == cpu;
  return fiber.allowed == nullptr || fiber.allowed->test(cpu);
}

// The Cpu for a fiber that wakes on behalf of the calling context. Pinned fibers never get here.
// Racy by nature: idle Cpus may be taken meanwhile.
Cpu& select_cpu(RuntimeState& state, const Fiber& fiber);

// The Cpu for a new fiber: the caller's own, where an idle one may pull it from; for a plain
// thread an idle one, else the least loaded.
Cpu& select_cpu_for_spawn(RuntimeState& state, const Fiber& fiber);

// By an idle Cpu: pulls one fiber that waits elsewhere. True if it got one.
bool pull_from_others(Cpu& cpu);

// Whether a pull would find something: looked at while polling and before parking.
bool others_have_waiting(const Cpu& cpu);

// Wakes one parked Cpu to pull, unless one is on its way. Any context, preemption off.
void kick_balancer(RuntimeState& state);

}  // namespace jiffy
