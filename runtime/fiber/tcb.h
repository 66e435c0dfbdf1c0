// Thread control blocks for fibers: what makes a fiber preemptible at any instruction.
//
// Nearly everything in a process that cannot be re-entered belongs to a thread and is found through
// %fs: malloc's cache, errno, the exceptions in flight, the owner of a FILE's lock, each
// thread_local. A fiber with a control block of its own has its own of all that, so it may stop
// anywhere and go on anywhere. A switch of %fs is one instruction of some 7 ns.
//
// The C library's own allocator makes the blocks, found by name at run time: a program that needs
// none runs with any C library, and one that needs them is told by tcb_support() what is missing.
#pragma once

#include <jiffy/status.h>

#include <cstdint>

namespace jiffy {

// Whether control blocks can be had here: the processor's FSGSBASE, a C library that is known, no
// sanitizer, valgrind or shadow stack. The error names what is missing. Found out once a process;
// any thread, not in a preemptible fiber.
Status tcb_support();

// False under a sanitizer or valgrind: their own code in the interrupted thread cannot be
// interrupted, so requests are delivered at safe points there, whatever was asked for.
bool interruptible_build();

// Whether the kernel checks returns against a shadow stack in this process: a program that switches
// stacks is then killed at its first switch, whatever its fibers' kind.
bool shadow_stacks_on();

// A block whose thread_locals have their initial values. Null: no memory. Allocates.
void* tcb_create();
// The second half of the making, which needs %fs at the block for a moment: whoever has signal
// handlers that look at its thread_locals has set those.
void tcb_init_locale(void* tcb);

// Runs the destructors of the block's thread_locals on the calling thread, and frees it. What its
// malloc cache holds goes back to the arenas, but for the cache's own record of some 700 bytes,
// which the C library frees only at the end of a thread. Nobody may run on it.
void tcb_destroy(void* tcb);

// The control block that the calling context uses: what %fs points to.
inline void* thread_control_block() {
  void* self;
  asm volatile("movq %%fs:0x10, %0" : "=r"(self));
  return self;
}

inline void* read_fs() {
  void* fs;
  asm volatile("rdfsbase %0" : "=r"(fs));
  return fs;
}
// Everything after it sees the other block's thread_locals, the stack stays. Preemption is off.
inline void write_fs(void* fs) { asm volatile("wrfsbase %0" : : "r"(fs) : "memory"); }

}  // namespace jiffy
