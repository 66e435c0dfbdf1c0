// A context of execution: a stack and where it stopped, with what must travel with it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jiffy {

// The C++ runtime's per-thread record of exceptions in flight (the Itanium ABI fixes its layout).
// It must belong to the context: two fibers that switch away inside their catch blocks would
// otherwise rethrow each other's exception. Boost.Context saves it since 1.88, but only in its
// fiber and callcc classes; we use the raw jump, so no release of it does this twice.
struct EhGlobals {
  void* caught_exceptions = nullptr;
  unsigned int uncaught_exceptions = 0;
};

// The record of the calling thread. Its address is constant for the life of the thread.
EhGlobals* thread_eh_globals();

// Not thread safe: a context is switched from and to under its scheduler's rules, and it may be
// resumed only once the other side, on its way out of context_switch(), stored where it stopped.
//
// The words that a switch touches come last, so that a fiber can put them at the head of a
// cache line with what its scheduler touches.
struct Context {
  static constexpr size_t kColdSize = 5 * sizeof(void*);

  void* stack_bottom = nullptr;  // lowest usable address; null for a thread's own stack
  size_t stack_size = 0;
  void (*entry)(Context* previous) = nullptr;  // what it runs first
  void* sanitizer = nullptr;                   // ASan's fake stack, or TSan's fiber
  void* tcb = nullptr;  // its own thread control block; null: it uses its thread's

  // Where it stopped; null while it runs. On the way to it: the context that it was switched from.
  void* fctx = nullptr;
  EhGlobals eh;
};

// Prepares `context` to run entry(previous context) on its stack, whose initial stack pointer is
// `stack_pointer` (within [stack_bottom, stack_bottom + stack_size]). `entry` never returns.
void context_init(Context& context, void* stack_pointer, void (*entry)(Context* previous));

// Makes `context` stand for the calling thread's own stack.
void context_init_thread(Context& context);

// Frees what the sanitizers keep for a context that will not run again.
void context_destroy(Context& context);

// Before stacks are used anew or unmapped: what ended deep in calls that it never left had its
// redzones marked, and the sanitizer would hold that against whoever lives there next.
void forget_stacks(void* memory, size_t bytes);

// Saves the running context into `from` and resumes `to`. `eh` is thread_eh_globals() of this
// thread. `from_dies` says that `from` will never be resumed. Returns when somebody switches back,
// perhaps on another thread, with the context that did so; from->fctx of that one is stored.
//
// Floating point: MXCSR and the x87 control word belong to the context, sticky flags included. (To
// clear the flags at a switch costs more than to keep them: the store of MXCSR waits some 60 ns for
// flags that were raised since it was loaded, and a flag that stays up is not raised again.)
Context* context_switch(Context& from, Context& to, EhGlobals* eh, bool from_dies);

}  // namespace jiffy
