#include "fiber/stack_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "fiber/tcb.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

namespace jiffy {

namespace {

constexpr uint32_t kUnitsPerSlab = 64;
constexpr size_t kColourStep = 128;  // two cache lines: the adjacent-line prefetcher fetches pairs
constexpr size_t kColours = 8;
// Room above the requested stack for the fiber, its colour and the closure it runs. One page, so
// that a fiber that parks early touches no more than that page.
constexpr size_t kTopRoom = 4096;
static_assert(sizeof(Fiber) + kColours * kColourStep + 1024 <= kTopRoom);

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

long max_map_count() {
  long value = -1;
  if (std::FILE* f = std::fopen("/proc/sys/vm/max_map_count", "re")) {
    if (std::fscanf(f, "%ld", &value) != 1) value = -1;
    std::fclose(f);
  }
  return value;
}

}  // namespace

Fiber* StackSlab::fiber_at(uint32_t i) const {
  const size_t colour = (i % kColours) * kColourStep;
  const size_t size = round_up(sizeof(Fiber), 64);
  return reinterpret_cast<Fiber*>(base + (i + 1) * unit_size - colour - size);
}

StackPool::StackPool(size_t stack_size, GuardMethod guard, bool with_tcb)
    : page_size_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
      stack_size_(stack_size),
      with_tcb_(with_tcb),
      guard_(guard) {
  unit_size_ = page_size_ + round_up(stack_size, page_size_) + round_up(kTopRoom, page_size_);
}

StackPool::~StackPool() {
  StackSlab* next = nullptr;
  for (StackSlab* slab = slabs_.load(std::memory_order_relaxed); slab != nullptr; slab = next) {
    next = slab->next;
    for (uint32_t i = 0; i < slab->count; ++i) {
      Fiber* fiber = slab->fiber_at(i);
      if (fiber->context.tcb != nullptr) tcb_destroy(fiber->context.tcb);
      context_destroy(fiber->context);
      fiber->~Fiber();
    }
    forget_stacks(slab->base, slab->unit_size * slab->count);
    munmap(slab->base, slab->unit_size * slab->count);
    delete slab;
  }
}

bool StackPool::fails_now() {
  if (fail_next_.load(std::memory_order_relaxed) <= 0) return false;
  return fail_next_.fetch_sub(1, std::memory_order_relaxed) > 0;
}

int StackPool::take(Fiber** out, int wanted) {
  int got = 0;
  lock_.lock();
  while (got < wanted && free_ != nullptr) {
    out[got++] = free_;
    free_ = free_->next_free;
  }
  in_use_ += static_cast<size_t>(got);
  lock_.unlock();
  return got;
}

void StackPool::retire(std::unique_ptr<StackPool> pool) {
  StackPool* self = pool.release();
  self->lock_.lock();
  self->retired_ = true;
  const bool last = self->in_use_ == 0;
  self->lock_.unlock();
  if (last) delete self;
}

bool StackPool::release(Fiber** units, int count) {
  lock_.lock();
  for (int i = 0; i < count; ++i) {
    units[i]->next_free = free_;
    free_ = units[i];
  }
  in_use_ -= static_cast<size_t>(count);
  const bool last = retired_ && in_use_ == 0;
  lock_.unlock();
  return last;
}

// The first guard ever made decides what kAuto is.
bool StackPool::guard_unit(char* guard, int* error) {
  const GuardMethod method = guard_.load(std::memory_order_relaxed);
  if (method != GuardMethod::kMprotect) {
    if (madvise(guard, page_size_, MADV_GUARD_INSTALL) == 0) {
      guard_.store(GuardMethod::kMadvise, std::memory_order_relaxed);
      return true;
    }
    *error = errno;
    if (method == GuardMethod::kMadvise) return false;
    guard_.store(GuardMethod::kMprotect, std::memory_order_relaxed);
  }
  const bool done = mprotect(guard, page_size_, PROT_NONE) == 0;
  *error = errno;
  return done;
}

Status StackPool::make_slab(StackSlab** out) {
  const size_t bytes = unit_size_ * kUnitsPerSlab;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return guard_error(errno);
  // A huge page would make one parked fiber cost 2 MiB. Old kernels may lack the call; then it is
  // the administrator's setting that counts.
  (void)madvise(memory, bytes, MADV_NOHUGEPAGE);
  char* base = static_cast<char*>(memory);
  for (uint32_t i = 0; i < kUnitsPerSlab; ++i) {
    int error = 0;
    if (!guard_unit(base + i * unit_size_, &error)) {
      munmap(memory, bytes);
      return guard_error(error);
    }
  }
  *out = new StackSlab{this, base, unit_size_, kUnitsPerSlab, {}};
  (*out)->known.reserve(kUnitsPerSlab);
  for (uint32_t i = 0; i < kUnitsPerSlab; ++i) {
    char* unit = base + i * unit_size_;
    Fiber* fiber = new ((*out)->fiber_at(i)) Fiber;
    fiber->slab = *out;
    fiber->context.stack_bottom = unit + page_size_;
    fiber->context.stack_size =
        static_cast<size_t>(reinterpret_cast<char*>(fiber) - (unit + page_size_));
    fiber->block_limit = fiber;
    (*out)->known.emplace_back(unit + page_size_, fiber);
  }
  return Status();
}

void StackPool::adopt(StackSlab& slab) {
  lock_.lock();
  for (uint32_t i = slab.count; i-- > 0;) {
    Fiber* fiber = slab.fiber_at(i);
    fiber->next_free = free_;
    free_ = fiber;
  }
  slab.next = slabs_.load(std::memory_order_relaxed);
  // Release: partner is the acquire in for_each_unit().
  slabs_.store(&slab, std::memory_order_release);
  slab_count_.fetch_add(1, std::memory_order_relaxed);
  lock_.unlock();
}

Status StackPool::guard_error(int error) const {
  const size_t stacks = slab_count_.load(std::memory_order_relaxed) * kUnitsPerSlab;
  char text[512];
  if (error == ENOMEM && guard() == GuardMethod::kMprotect) {
    std::snprintf(text, sizeof text,
                  "cannot map another slab of fiber stacks: each stack guarded by mprotect takes "
                  "two mappings, %zu stacks exist and vm.max_map_count is %ld. Raise it (sysctl "
                  "vm.max_map_count=...), or run Linux 6.13 or later, whose guards take none.",
                  stacks, max_map_count());
  } else {
    std::snprintf(text, sizeof text,
                  "cannot map another slab of fiber stacks (%u of %zu bytes each; %zu stacks "
                  "exist): %s. Free memory, use a smaller stack_size, or look at ulimit -v and "
                  "vm.overcommit_memory.",
                  kUnitsPerSlab, unit_size_, stacks, std::strerror(error));
  }
  return Status::error(text);
}

size_t stack_high_water(const Fiber& fiber) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t bottom = reinterpret_cast<uintptr_t>(fiber.context.stack_bottom);
  const uintptr_t top = bottom + fiber.context.stack_size;
  const size_t pages = (top - bottom + page - 1) / page;
  std::vector<unsigned char> resident(pages);
  if (mincore(fiber.context.stack_bottom, pages * page, resident.data()) != 0) return 0;
  for (size_t i = 0; i < pages; ++i) {
    if ((resident[i] & 1) != 0) return top - (bottom + i * page);
  }
  return 0;
}

}  // namespace jiffy
