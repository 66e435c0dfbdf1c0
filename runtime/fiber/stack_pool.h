// Stacks in slabs: one mapping holds many units of guard, stack and fiber.
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/detail/spinlock.h>
#include <jiffy/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fiber/fiber.h"
#include "fiber/known_stack.h"

namespace jiffy {

// How a stack's end is guarded.
enum class GuardMethod {
  kAuto,      // kMadvise where the kernel has it, else kMprotect
  kMadvise,   // MADV_GUARD_INSTALL (Linux 6.13): costs no mapping
  kMprotect,  // splits the mapping: two more per stack, bounded by vm.max_map_count
};

// One mapping of `count` units. Unit i is [base + i * unit_size, + unit_size):
//   guard | stack, growing down .......... | block | Fiber | colour
// The colour moves the tops of neighbouring units through the sets of the first-level cache:
// without it the hot lines of a thousand fibers would share a handful of sets.
class StackPool;

struct StackSlab {
  StackPool* pool;
  char* base;
  size_t unit_size;
  uint32_t count;
  std::vector<KnownStack> known;
  StackSlab* next = nullptr;
  Fiber* fiber_at(uint32_t i) const;
};

// A pool of units of one stack size. Thread safe; what takes its lock is called with preemption
// off, and what allocates with preemption on: a preempted fiber may hold one of malloc's locks.
// Units are handed out last in, first out, so the hottest stack is used first; memory is returned
// to the system when the pool is destroyed.
//
// Errors: allocate() never falls back to something weaker. When the system refuses memory or
// mappings it says which limit was met (vm.max_map_count, memory) and what to do.
class StackPool {
 public:
  // `with_tcb`: its units are for preemptible fibers. Each gets its control block from who takes it
  // first; the pool destroys them.
  StackPool(size_t stack_size, GuardMethod guard, bool with_tcb = false);
  ~StackPool();
  // Destroys the pool, now or when the last unit that somebody still holds comes back: a handle may
  // outlive its runtime.
  static void retire(std::unique_ptr<StackPool> pool);
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  // Preemption off. Takes up to `wanted` free units; 0 if there is none.
  int take(Fiber** out, int wanted);
  // True if these were the last units of a retired pool: the caller deletes it, preemption on.
  [[nodiscard]] bool release(Fiber** units, int count);

  // Preemption on; maps memory. What it made is added by adopt(), preemption off.
  Status make_slab(StackSlab** out);
  void adopt(StackSlab& slab);

  size_t stack_size() const { return stack_size_; }
  bool with_tcb() const { return with_tcb_; }
  GuardMethod guard() const { return guard_.load(std::memory_order_relaxed); }

  // Calls fn for each unit ever made, free ones included. A racy look: for dumps and debuggers.
  template <class Fn>
  void for_each_unit(Fn&& fn) {
    // Acquire: partner is the release in adopt(). Slabs stay until the pool ends.
    for (StackSlab* slab = slabs_.load(std::memory_order_acquire); slab != nullptr;
         slab = slab->next) {
      for (uint32_t i = 0; i < slab->count; ++i) fn(slab->fiber_at(i));
    }
  }

  // Units handed out and not released.
  size_t in_use() const { return in_use_; }

  // For tests: makes the next allocations fail as the system would.
  void fail_next(int allocations) { fail_next_.store(allocations, std::memory_order_relaxed); }
  bool fails_now();
  Status guard_error(int error) const;

 private:
  bool guard_unit(char* guard, int* error);

  const size_t page_size_;
  const size_t stack_size_;
  const bool with_tcb_;
  size_t unit_size_ = 0;  // I

  Atomic<GuardMethod> guard_;          // A, relaxed: once it is known, it stays
  Atomic<StackSlab*> slabs_{nullptr};  // A: written under lock_
  Atomic<size_t> slab_count_{0};       // A, relaxed: for the text of an error
  Atomic<int> fail_next_{0};           // A, relaxed

  // Under lock_.
  RawSpinLock lock_{LockClass::kStackPool};
  Fiber* free_ = nullptr;
  size_t in_use_ = 0;
  bool retired_ = false;  // who brings the last unit back destroys it
};

// The highest amount of stack that the unit has ever used, in bytes, to the page: what is resident.
size_t stack_high_water(const Fiber& fiber);

}  // namespace jiffy
