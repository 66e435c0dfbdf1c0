// Stacks in slabs: one mapping holds many units of guard, stack and fiber.
#pragma once

#include <jiffy/detail/spinlock.h>
#include <jiffy/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fiber/fiber.h"

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
  Fiber* fiber_at(uint32_t i) const;
};

// A pool of units of one stack size. Thread safe. Units are handed out last in, first out, so the
// hottest stack is used first; memory is returned to the system when the pool is destroyed.
//
// Errors: allocate() never falls back to something weaker. When the system refuses memory or
// mappings it says which limit was met (vm.max_map_count, memory) and what to do.
class StackPool {
 public:
  StackPool(size_t stack_size, GuardMethod guard);
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  // Fills `out` with up to `wanted` free units; at least one on success.
  Status allocate(Fiber** out, int wanted, int* got);
  void release(Fiber** units, int count);

  size_t stack_size() const { return stack_size_; }
  GuardMethod guard() const { return guard_; }

  // Calls fn for each unit ever made, free ones included. A racy look: for dumps and debuggers.
  template <class Fn>
  void for_each_unit(Fn&& fn) {
    std::vector<StackSlab*> slabs;
    lock_.lock();
    slabs.reserve(slabs_.size());
    for (auto& slab : slabs_) slabs.push_back(slab.get());
    lock_.unlock();
    for (StackSlab* slab : slabs) {
      for (uint32_t i = 0; i < slab->count; ++i) fn(slab->fiber_at(i));
    }
  }

  // Units handed out and not released.
  size_t in_use() const { return in_use_; }

  // For tests: makes the next allocations fail as the system would.
  void fail_next(int allocations) { fail_next_ = allocations; }

 private:
  Status add_slab();
  Status guard_error(int error) const;

  const size_t page_size_;
  const size_t stack_size_;
  GuardMethod guard_;
  size_t unit_size_ = 0;

  // Under lock_.
  RawSpinLock lock_;
  Fiber* free_ = nullptr;
  size_t in_use_ = 0;
  int fail_next_ = 0;
  std::vector<std::unique_ptr<StackSlab>> slabs_;
};

// The highest amount of stack that the unit has ever used, in bytes, to the page: what is resident.
size_t stack_high_water(const Fiber& fiber);

}  // namespace jiffy
