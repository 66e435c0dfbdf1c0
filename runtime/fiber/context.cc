#include "fiber/context.h"

#include <cxxabi.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#define JIFFY_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define JIFFY_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define JIFFY_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define JIFFY_TSAN 1
#endif
#endif

#ifdef JIFFY_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef JIFFY_TSAN
#include <sanitizer/tsan_interface.h>
#endif

// TSan keeps a shadow call stack a fiber. A function that switches fibers must not be instrumented:
// its entry would be recorded on one and its exit on the other. (Clang's no_sanitize("thread")
// still records entries and exits.)
#if !defined(JIFFY_TSAN)
#define JIFFY_NO_TSAN
#elif defined(__clang__)
#define JIFFY_NO_TSAN __attribute__((disable_sanitizer_instrumentation))
#else
#define JIFFY_NO_TSAN __attribute__((no_sanitize("thread")))
#endif

namespace jiffy {

namespace bctx = boost::context::detail;

namespace {

constexpr uint32_t kDefaultMxcsr = 0x1f80;  // exceptions masked, round to nearest, no flag raised
constexpr uint16_t kDefaultX87 = 0x037f;

// What every resumed context does first, given itself: only now is it known where the other one
// stopped.
[[gnu::always_inline]] inline Context* switch_finish(bctx::transfer_t transfer) {
  Context* self = static_cast<Context*>(transfer.data);
  Context* previous = static_cast<Context*>(self->fctx);
  self->fctx = nullptr;
  previous->fctx = transfer.fctx;
  return previous;
}

void trampoline(bctx::transfer_t transfer);

// Calls jump_fcontext() without a call instruction. It leaves by a jump and not by a return, so
// each call would leave one entry too many on the CPU's return stack, and every return after a
// switch would be mispredicted: three or four of them, some 50 ns, in a yield. With a pushed
// address the return stack of two fibers that switch in the same function stays right.
// The enclosing function must not be a leaf (no red zone below its stack pointer).
[[gnu::always_inline]] inline bctx::transfer_t balanced_jump(void* to, void* data) {
  bctx::transfer_t back;
  asm volatile(
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "jmpq *jump_fcontext@GOTPCREL(%%rip)\n"
      "1:"
      : "=a"(back.fctx), "=d"(back.data), "+D"(to), "+S"(data)
      :
      : "rcx", "r8", "r9", "r10", "r11", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
        "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#ifdef __AVX512F__
        ,
        "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25",
        "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k0", "k1", "k2", "k3", "k4", "k5",
        "k6", "k7"
#endif
  );
  return back;
}

[[noreturn, gnu::noinline]] void resumed_while_running() {
  std::fputs("jiffy: a context was resumed that has not stopped. Rule: one Cpu runs a fiber.\n",
             stderr);
  std::abort();
}

}  // namespace

EhGlobals* thread_eh_globals() { return reinterpret_cast<EhGlobals*>(abi::__cxa_get_globals()); }

void forget_stacks([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#ifdef JIFFY_ASAN
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

void context_init(Context& context, void* stack_pointer, void (*entry)(Context* previous)) {
  const size_t room = static_cast<size_t>(static_cast<char*>(stack_pointer) -
                                          static_cast<char*>(context.stack_bottom));
  forget_stacks(context.stack_bottom, room);
  context.entry = entry;
  context.fctx = bctx::make_fcontext(stack_pointer, room, trampoline);
  // Its frame begins with the two control words, taken from the caller; a fiber starts with the
  // default ones, whoever spawned it.
  std::memcpy(context.fctx, &kDefaultMxcsr, sizeof kDefaultMxcsr);
  std::memcpy(static_cast<char*>(context.fctx) + 4, &kDefaultX87, sizeof kDefaultX87);
  context.eh = EhGlobals{};
#ifdef JIFFY_ASAN
  context.sanitizer = nullptr;
#endif
#ifdef JIFFY_TSAN
  // A new one for each life: the last fiber of this stack ended deep in calls that it never left,
  // and the record of those would grow from life to life.
  if (context.sanitizer != nullptr) __tsan_destroy_fiber(context.sanitizer);
  context.sanitizer = __tsan_create_fiber(0);
#endif
}

void context_init_thread(Context& context) {
  context = Context{};
#ifdef JIFFY_TSAN
  context.sanitizer = __tsan_get_current_fiber();
#endif
}

void context_destroy(Context& context) {
#ifdef JIFFY_TSAN
  if (context.sanitizer != nullptr && context.stack_bottom != nullptr) {
    __tsan_destroy_fiber(context.sanitizer);
  }
#endif
  context.sanitizer = nullptr;
}

JIFFY_NO_TSAN Context* context_switch(Context& from, Context& to, EhGlobals* eh, bool from_dies) {
  from.eh = *eh;
  *eh = to.eh;
  void* const target = to.fctx;
  if (target == nullptr) [[unlikely]]
    resumed_while_running();
  to.fctx = &from;
#ifdef JIFFY_ASAN
  // A dying context gives its fake stack back: null for its save slot.
  __sanitizer_start_switch_fiber(from_dies ? nullptr : &from.sanitizer, to.stack_bottom,
                                 to.stack_size);
#else
  (void)from_dies;
#endif
#ifdef JIFFY_TSAN
  __tsan_switch_to_fiber(to.sanitizer, 0);
#endif
  const bctx::transfer_t back = balanced_jump(target, &to);
#ifdef JIFFY_ASAN
  Context* const previous_context = static_cast<Context*>(from.fctx);
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(from.sanitizer, &bottom, &size);
  // A thread's own stack is learnt from the first switch away from it.
  if (previous_context->stack_bottom == nullptr) {
    previous_context->stack_bottom = const_cast<void*>(bottom);
    previous_context->stack_size = size;
  }
#endif
  return switch_finish(back);
}

namespace {

JIFFY_NO_TSAN void trampoline(bctx::transfer_t transfer) {
  Context* self = static_cast<Context*>(transfer.data);
  Context* previous = switch_finish(transfer);
#ifdef JIFFY_ASAN
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (previous->stack_bottom == nullptr) {
    previous->stack_bottom = const_cast<void*>(bottom);
    previous->stack_size = size;
  }
#endif
  self->entry(previous);
  std::abort();  // entry never returns
}

}  // namespace

}  // namespace jiffy
