// What the running context knows about itself: one word of counts and the Cpu it runs on.
//
// Both live in thread-local storage and are reached only through the accessors below, which read
// %fs anew each time. A compiler is free to keep the address of a thread_local in a register
// across a fiber switch, and a fiber that migrated would then use the words of the thread it left;
// an asm volatile cannot be cached. For a fiber with a thread control block of its own the words
// are the fiber's, for a cooperative fiber those of its Cpu's thread; the code is the same.
#pragma once

#include <cstdint>

namespace jiffy {

class Cpu;
struct Fiber;

namespace this_cpu_internal {

struct Words {
  uint32_t count;  // see kPreemptMask and its neighbours
  uint32_t reserved;
  Cpu* cpu;      // null on a thread that is no Cpu
  Fiber* fiber;  // null in the idle loop and on a thread that is no Cpu
};

// initial-exec: the offset from %fs is a load from the GOT (an immediate, once linked into an
// executable). "used" keeps the symbol for the assembler under LTO.
extern "C" {
extern thread_local Words jiffy_this_cpu_words __attribute__((tls_model("initial-exec")));
}

// The offset of the words from %fs: the same in each thread, so this asm may be merged and hoisted.
inline uintptr_t tls_offset() {
  uintptr_t offset;
  asm("movq jiffy_this_cpu_words@gottpoff(%%rip), %0" : "=r"(offset));
  return offset;
}

}  // namespace this_cpu_internal

// The count word, as the kernel's preempt_count: nesting counts side by side, so that "nothing is
// forbidden here" is one comparison with zero.
inline constexpr uint32_t kPreemptUnit = 1u << 0;  // bits 0-7: preempt_disable() nesting
inline constexpr uint32_t kPreemptMask = 0xffu;
inline constexpr uint32_t kSoftirqUnit = 1u << 8;  // bits 8-15: soft irqs off, or serving one
inline constexpr uint32_t kSoftirqMask = 0xffu << 8;
inline constexpr uint32_t kHardirqUnit = 1u << 16;  // bits 16-19: interrupt nesting
inline constexpr uint32_t kHardirqMask = 0xfu << 16;
inline constexpr uint32_t kIrqOffUnit = 1u << 20;  // bits 20-27: local_irq_disable() nesting
inline constexpr uint32_t kIrqOffMask = 0xffu << 20;
// Bit 28 is sync/event_fd.cc's.
inline constexpr uint32_t kCallUnit = 1u << 29;  // bits 29-31: inside a jiffy call (JiffyCall)
inline constexpr uint32_t kCallMask = 0x7u << 29;

inline Cpu* this_cpu() {
  Cpu* cpu;
  asm volatile("movq %%fs:8(%1), %0" : "=r"(cpu) : "r"(this_cpu_internal::tls_offset()));
  return cpu;
}

inline void set_this_cpu(Cpu* cpu) {
  asm volatile("movq %0, %%fs:8(%1)" : : "r"(cpu), "r"(this_cpu_internal::tls_offset()) : "memory");
}

// The words of another thread control block. They are its own to change, but for who switches to
// it.
inline this_cpu_internal::Words& words_of(void* tcb) {
  return *reinterpret_cast<this_cpu_internal::Words*>(static_cast<char*>(tcb) +
                                                      this_cpu_internal::tls_offset());
}

// With preemption on, a preemptible fiber may be on another Cpu before the next instruction; but it
// is the same fiber.
inline Fiber* current_fiber() {
  Fiber* fiber;
  asm volatile("movq %%fs:16(%1), %0" : "=r"(fiber) : "r"(this_cpu_internal::tls_offset()));
  return fiber;
}

inline void set_current_fiber(Fiber* fiber) {
  asm volatile("movq %0, %%fs:16(%1)"
               :
               : "r"(fiber), "r"(this_cpu_internal::tls_offset())
               : "memory");
}

inline uint32_t preempt_count() {
  uint32_t count;
  asm volatile("movl %%fs:0(%1), %0" : "=r"(count) : "r"(this_cpu_internal::tls_offset()));
  return count;
}

inline void set_preempt_count(uint32_t count) {
  asm volatile("movl %0, %%fs:0(%1)"
               :
               : "r"(count), "r"(this_cpu_internal::tls_offset())
               : "memory");
}

// One instruction, so that an interrupt on this thread sees the count before or after, never torn.
// Also a compiler barrier: nothing moves out of the region that the count protects.
inline void preempt_count_add(uint32_t units) {
  asm volatile("addl %0, %%fs:0(%1)"
               :
               : "ri"(units), "r"(this_cpu_internal::tls_offset())
               : "memory", "cc");
}

inline void preempt_count_sub(uint32_t units) {
  asm volatile("subl %0, %%fs:0(%1)"
               :
               : "ri"(units), "r"(this_cpu_internal::tls_offset())
               : "memory", "cc");
}

// Subtracts and says whether the whole word became zero: nothing forbids a switch any more.
inline bool preempt_count_sub_and_test(uint32_t units) {
  bool zero;
  asm volatile("subl %1, %%fs:0(%2)"
               : "=@ccz"(zero)
               : "ri"(units), "r"(this_cpu_internal::tls_offset())
               : "memory");
  return zero;
}

inline bool in_interrupt() { return (preempt_count() & (kHardirqMask | kSoftirqMask)) != 0; }
inline bool in_hardirq() { return (preempt_count() & kHardirqMask) != 0; }

}  // namespace jiffy
