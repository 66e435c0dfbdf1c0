#include "fiber/context.h"

#include <cxxabi.h>
#include <xmmintrin.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdlib>

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
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef JIFFY_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace jiffy {

namespace bctx = boost::context::detail;

namespace {

// jump_fcontext saves MXCSR and loads the other side's. When the two differ in the sticky
// exception flags, that load costs some 75 ns; so both sides enter the jump with the flags clear.
// The flags are thereby dropped at a switch, the control bits (rounding, masks) stay the context's.
inline void clear_sticky_flags() {
  constexpr unsigned int kStickyFlags = 0x3f;
  const unsigned int mxcsr = _mm_getcsr();
  if ((mxcsr & kStickyFlags) != 0) _mm_setcsr(mxcsr & ~kStickyFlags);
}

// What every resumed context does first: only now is it known where the other one stopped.
inline Context* switch_finish(bctx::transfer_t transfer) {
  Context* previous = static_cast<Context*>(transfer.data);
  previous->fctx = transfer.fctx;
  return previous;
}

void trampoline(bctx::transfer_t transfer);

#ifdef JIFFY_TSAN
// The call that switches must not be in an instrumented function: its shadow stack would be that
// of the other fiber on return.
__attribute__((no_sanitize("thread"), noinline)) void tsan_switch(void* fiber) {
  __tsan_switch_to_fiber(fiber, 0);
}
#endif

}  // namespace

EhGlobals* thread_eh_globals() {
  return reinterpret_cast<EhGlobals*>(abi::__cxa_get_globals());
}

void context_init(Context& context, void* stack_pointer, void (*entry)(Context* previous)) {
  const size_t room = static_cast<size_t>(static_cast<char*>(stack_pointer) -
                                          static_cast<char*>(context.stack_bottom));
  context.entry = entry;
  context.fctx = bctx::make_fcontext(stack_pointer, room, trampoline);
  context.eh = EhGlobals{};
  context.asan_fake_stack = nullptr;
#ifdef JIFFY_TSAN
  if (context.tsan_fiber == nullptr) context.tsan_fiber = __tsan_create_fiber(0);
#endif
}

void context_init_thread(Context& context) {
  context = Context{};
#ifdef JIFFY_TSAN
  context.tsan_fiber = __tsan_get_current_fiber();
#endif
}

void context_destroy(Context& context) {
#ifdef JIFFY_TSAN
  if (context.tsan_fiber != nullptr && context.stack_bottom != nullptr) {
    __tsan_destroy_fiber(context.tsan_fiber);
  }
#endif
  context.tsan_fiber = nullptr;
}

#ifdef JIFFY_TSAN
__attribute__((no_sanitize("thread")))
#endif
Context*
context_switch(Context& from, Context& to, EhGlobals* eh, bool from_dies) {
  from.eh = *eh;
  *eh = to.eh;
  from.target = &to;
  clear_sticky_flags();
#ifdef JIFFY_ASAN
  // A dying context gives its fake stack back: null for its save slot.
  __sanitizer_start_switch_fiber(from_dies ? nullptr : &from.asan_fake_stack, to.stack_bottom,
                                 to.stack_size);
#else
  (void)from_dies;
#endif
#ifdef JIFFY_TSAN
  tsan_switch(to.tsan_fiber);
#endif
  void* target = to.fctx;
  to.fctx = nullptr;
  const bctx::transfer_t back = bctx::jump_fcontext(target, &from);
#ifdef JIFFY_ASAN
  Context* const previous_context = static_cast<Context*>(back.data);
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(from.asan_fake_stack, &bottom, &size);
  // A thread's own stack is learnt from the first switch away from it.
  if (previous_context->stack_bottom == nullptr) {
    previous_context->stack_bottom = const_cast<void*>(bottom);
    previous_context->stack_size = size;
  }
#endif
  return switch_finish(back);
}

namespace {

#ifdef JIFFY_TSAN
__attribute__((no_sanitize("thread")))
#endif
void trampoline(bctx::transfer_t transfer) {
  Context* previous = static_cast<Context*>(transfer.data);
#ifdef JIFFY_ASAN
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (previous->stack_bottom == nullptr) {
    previous->stack_bottom = const_cast<void*>(bottom);
    previous->stack_size = size;
  }
#endif
  switch_finish(transfer);
  previous->target->entry(previous);
  std::abort();  // entry never returns
}

}  // namespace

}  // namespace jiffy
