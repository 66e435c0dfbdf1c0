// Fibers: spawning and joining them, and what a running one may ask of the scheduler.
#pragma once

#include <jiffy/options.h>
#include <jiffy/status.h>
#include <jiffy/time.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace jiffy {

struct Fiber;
struct RuntimeState;
class Runtime;

namespace detail {

// The untyped side of spawn and join. Any context but interrupts.

struct SpawnRequest {
  size_t block_size;
  size_t block_align;
  const SpawnOptions* options;
};
// Takes a unit of stack and gives room on it for the block of closure and result. The fiber does
// not run before spawn_start().
Status spawn_prepare(RuntimeState& state, const SpawnRequest& request, Fiber** fiber, void** block);
void spawn_start(Fiber& fiber, void (*invoke)(void* block), void (*destroy)(void* block));
// Takes spawn_prepare() back, where the closure could not be copied.
void spawn_abandon(Fiber& fiber);
// Waits until the fiber ended and left its stack; false at the end of `until`.
WaitResult wait_done(Fiber& fiber, const Until& until);
// Destroys the block and gives the unit back.
void release(Fiber& fiber);
// Nobody will join it: its Cpu releases it when it ends.
void detach(Fiber& fiber);
[[noreturn]] void die_of_exception(const std::exception_ptr& error);
[[noreturn]] void die_of_invalid_join(const std::string& error);
// The runtime that the calling fiber belongs to; aborts on a plain thread, saying so.
RuntimeState& current_runtime();

// A closure or a result too large for the stack's top room lives on the heap.
inline constexpr size_t kLargestInline = 512;

struct Nothing {};

// Where a result waits for its joiner.
template <class R>
using ResultValue = std::conditional_t<std::is_void_v<R>, Nothing, R>;
template <class R>
using ResultSlot =
    std::conditional_t<(sizeof(ResultValue<R>) <= kLargestInline), std::optional<ResultValue<R>>,
                       std::unique_ptr<ResultValue<R>>>;

template <class F, class R>
struct SpawnBlock {
  explicit SpawnBlock(F&& f) : fn(std::in_place, std::move(f)) {}
  explicit SpawnBlock(const F& f) : fn(std::in_place, f) {}

  // The closure ends with the fiber; the result waits for its joiner.
  static void invoke(void* p) {
    auto* self = static_cast<SpawnBlock*>(p);
    try {
      if constexpr (std::is_void_v<R>) {
        (*self->fn)();
        self->value.emplace();
      } else if constexpr (sizeof(R) <= kLargestInline) {
        self->value.emplace((*self->fn)());
      } else {
        self->value.reset(new R((*self->fn)()));
      }
    } catch (...) {
      self->error = std::current_exception();
    }
    self->fn.reset();
  }

  static void destroy(void* p) {
    auto* self = static_cast<SpawnBlock*>(p);
    // An exception that nobody joined must not vanish.
    if (self->error) die_of_exception(self->error);
    self->~SpawnBlock();
  }

  std::optional<F> fn;
  ResultSlot<R> value{};
  std::exception_ptr error{};
};

// A large closure: only a pointer lies on the stack.
template <class F, class R>
struct BoxedFn {
  std::unique_ptr<F> fn;
  R operator()() { return (*fn)(); }
};

}  // namespace detail

// The right to a fiber's end and its result. Movable; used by one fiber or thread at a time.
// Destroying a handle that was neither joined nor detached joins; if the fiber ended by an
// exception the program then aborts with its text, since nobody else would ever see it.
//
//   auto sum = rt.spawn([] { return 1 + 1; });
//   int two = sum.join();
template <class R>
class [[nodiscard("join() or detach() it")]] JoinHandle {
 public:
  JoinHandle() = default;
  JoinHandle(JoinHandle && other) noexcept
      : fiber_(std::exchange(other.fiber_, nullptr)),
        value_(other.value_),
        thrown_(other.thrown_),
        status_(std::move(other.status_)) {}
  JoinHandle& operator=(JoinHandle&& other) noexcept {
    JoinHandle old(std::move(*this));
    fiber_ = std::exchange(other.fiber_, nullptr);
    value_ = other.value_;
    thrown_ = other.thrown_;
    status_ = std::move(other.status_);
    return *this;
  }
  ~JoinHandle() {
    if (fiber_ == nullptr) return;
    (void)detail::wait_done(*fiber_, Until());
    detail::release(*std::exchange(fiber_, nullptr));
  }

  // False if the spawn failed (see error()), and after join() or detach().
  bool valid() const { return fiber_ != nullptr; }
  // Why the spawn failed; empty if it did not.
  const std::string& error() const { return status_.message(); }

  // Waits for the end; returns the result or rethrows what the fiber threw. Blocks. Aborts if the
  // handle is not valid.
  R join() {
    if (fiber_ == nullptr) detail::die_of_invalid_join(error());
    (void)detail::wait_done(*fiber_, Until());
    return collect();
  }

  // Waits within limits. On kReady join() returns at once.
  WaitResult wait(const Until& until = {}) {
    if (fiber_ == nullptr) detail::die_of_invalid_join(error());
    return detail::wait_done(*fiber_, until);
  }

  // Lets the fiber run on its own. If it ends by an exception, the program aborts with its text.
  void detach() {
    if (fiber_ != nullptr) detail::detach(*std::exchange(fiber_, nullptr));
  }

  Fiber* native() const { return fiber_; }

 private:
  template <class F>
  friend auto spawn_in(RuntimeState & state, F && fn, const SpawnOptions& options);
  R collect() {
    if (*thrown_) [[unlikely]] {
      const std::exception_ptr thrown = std::exchange(*thrown_, nullptr);
      detail::release(*std::exchange(fiber_, nullptr));
      std::rethrow_exception(thrown);
    }
    if constexpr (std::is_void_v<R>) {
      detail::release(*std::exchange(fiber_, nullptr));
    } else {
      R result = std::move(**value_);
      detail::release(*std::exchange(fiber_, nullptr));
      return result;
    }
  }

  Fiber* fiber_ = nullptr;
  detail::ResultSlot<R>* value_ = nullptr;  // in the fiber's block
  std::exception_ptr* thrown_ = nullptr;    // in the fiber's block
  Status status_;                           // why there is no fiber
};

// Starts a fiber in the given runtime; see Runtime::spawn.
template <class F>
auto spawn_in(RuntimeState& state, F&& fn, const SpawnOptions& options) {
  using Fn = std::decay_t<F>;
  using R = std::invoke_result_t<Fn&>;
  if constexpr (sizeof(Fn) > detail::kLargestInline) {
    detail::BoxedFn<Fn, R> boxed{std::make_unique<Fn>(std::forward<F>(fn))};
    return spawn_in(state, std::move(boxed), options);
  } else {
    using Block = detail::SpawnBlock<Fn, R>;
    JoinHandle<R> handle;
    void* room = nullptr;
    const detail::SpawnRequest request{sizeof(Block), alignof(Block), &options};
    handle.status_ = detail::spawn_prepare(state, request, &handle.fiber_, &room);
    if (!handle.status_.ok()) [[unlikely]]
      return handle;
    Block* block = nullptr;
    try {
      block = new (room) Block(std::forward<F>(fn));
    } catch (...) {
      detail::spawn_abandon(*std::exchange(handle.fiber_, nullptr));
      throw;
    }
    handle.value_ = &block->value;
    handle.thrown_ = &block->error;
    detail::spawn_start(*handle.fiber_, Block::invoke, Block::destroy);
    return handle;
  }
}

namespace detail {
inline const SpawnOptions kDefaultSpawn{};
}

// Starts a fiber in the runtime of the calling fiber.
//
// The new fiber is runnable when this returns, and runs when the scheduler picks it. Cooperative:
// it shares its Cpu's thread, and switches at jiffy calls only; until its first run an idle Cpu may
// take it, then it stays, unless SpawnOptions::migratable. Errors (no stack to be had, bad options)
// are in the handle: valid() is false and error() says why. Throws what copying the closure throws.
// Not in interrupts.
template <class F>
auto spawn(F&& fn, const SpawnOptions& options = detail::kDefaultSpawn) {
  return spawn_in(detail::current_runtime(), std::forward<F>(fn), options);
}

// Lets others of the same class run; the fair class counts it as giving up the rest of the slice.
// On a plain thread: sched_yield().
void yield();

// A point where long-running kernel-mode code offers to be preempted. By the kernel's rule a no-op
// in LAZY and FULL, where such code is preempted anyway. Returns whether it switched.
bool cond_resched();

// Says that the caller may sleep: aborts if it must not (an interrupt, preemption off); in
// VOLUNTARY it is a preemption point.
void might_sleep();

// What a running fiber knows about itself. On a plain thread: id 0, an empty name, cpu -1.
namespace this_fiber {
uint64_t id();
const char* name();
int cpu();
bool on_fiber();
// Bytes of its stack that this unit ever used, to the page.
size_t stack_high_water();
}  // namespace this_fiber

// A region that cannot be preempted by the scheduler; interrupts wait too. Bounded, non-blocking
// code only: a blocking call inside aborts.
class PreemptDisabled {
 public:
  PreemptDisabled();
  ~PreemptDisabled();
  PreemptDisabled(const PreemptDisabled&) = delete;
  PreemptDisabled& operator=(const PreemptDisabled&) = delete;
};

// Changes policy, nice, priority or slice of a fiber that has been spawned and not yet joined, as
// sched_setattr does. Errors name the range.
Status set_attributes(Fiber& fiber, const SpawnOptions& options);

}  // namespace jiffy
