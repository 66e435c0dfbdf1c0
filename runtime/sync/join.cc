// The end of a fiber, and those who wait for it.
#include <jiffy/fiber.h>
#include <jiffy/sim.h>

#include <cstdio>
#include <cstdlib>

#include "sched/runtime_state.h"
#include "sched/sched.h"
#include "sync/handoff_wait.h"

namespace jiffy {

namespace {

bool has_leftovers(const Fiber& fiber) {
  return fiber.destroy != nullptr || fiber.allowed != nullptr;
}

// Where nobody will come for the result, it ends here: on its own stack, where its destructor may
// block; and nothing is left to be freed in the switch, since a preempted fiber may hold a lock of
// malloc's.
void drop_leftovers(Fiber& self) {
  if (self.destroy != nullptr) std::exchange(self.destroy, nullptr)(self.block);
  free_mask(self);  // it is about to end, so any Cpu will do
}

}  // namespace

void fiber_exit() {
  Fiber* self = current_fiber();
  RuntimeState& state = *self->state_of_runtime;
  preempt_disable();
  self->join_queue.lock();
  while (self->detached && has_leftovers(*self)) {
    self->join_queue.unlock();
    preempt_enable();
    drop_leftovers(*self);
    preempt_disable();
    self->join_queue.lock();
  }
  this_cpu()->counters.add(Counter::kExits);
  self->done = true;
  self->reap_at_exit = self->detached;
  (void)self->join_queue.wake_locked(WaitQueue::kAll);
  self->join_queue.unlock();
  // Relaxed: an interrupt to each Cpu stands between the store and the count that waits.
  if (state.draining.load(std::memory_order_relaxed)) [[unlikely]] {
    state.drain_lock.lock();
    if (state.drain_waiter != nullptr) (void)state.drain_waiter->wake();
    state.drain_lock.unlock();
  }
  self->state.store(FiberState::kDead, std::memory_order_relaxed);
  schedule_locked_out(SwitchKind::kExit);
  std::abort();  // an ended fiber is never resumed
}

namespace detail {

namespace {

// A simulation runs while somebody outside waits for it.
WaitResult run_sim_until_done(Fiber& fiber, const Until& until) {
  RuntimeState& state = *fiber.state_of_runtime;
  state.machine->check_caller("a join");
  const auto left_stack = [&] { return !fiber.on_stack.load(std::memory_order_relaxed); };
  const int64_t deadline = until.deadline_ns();
  // Time passes up to the deadline though nothing else may be due.
  if (deadline != kNever) {
    at(*state.machine, std::chrono::nanoseconds(deadline), [] {});
  }
  const Status ran = state.machine->run_until(
      [&] { return left_stack() || state.clock.now() >= deadline || until.stop.stop_requested(); });
  if (!ran.ok()) {
    std::fprintf(stderr, "jiffy: waiting for fiber '%s': %s\n%s", fiber.name, ran.message().c_str(),
                 dump_fibers(state).c_str());
    std::abort();
  }
  if (left_stack()) return WaitResult::kReady;
  return state.clock.now() >= deadline ? WaitResult::kTimeout : WaitResult::kStopped;
}

}  // namespace

WaitResult wait_done(Fiber& fiber, const Until& until) {
  // Acquire: partner is the release in finish_switch(). Its runtime may have ended since.
  if (!fiber.on_stack.load(std::memory_order_acquire)) return WaitResult::kReady;
  if (this_cpu() == nullptr && fiber.state_of_runtime->machine->simulated()) {
    return run_sim_until_done(fiber, until);
  }
  const JiffyCall call;
  fiber.join_queue.lock();
  if (fiber.done) {
    fiber.join_queue.unlock();
  } else {
    HandoffWait self;
    self.enqueue(fiber.join_queue);
    const WaitResult result = self.unlock_and_block(fiber.join_queue, until);
    if (result != WaitResult::kReady) return result;
  }
  // Acquire: partner is the release in finish_switch(). A few instructions away, on another Cpu.
  spin_until([&fiber] { return !fiber.on_stack.load(std::memory_order_acquire); });
  return WaitResult::kReady;
}

void detach(Fiber& fiber) {
  fiber.join_queue.lock();
  const bool done = fiber.done;
  fiber.detached = true;
  fiber.join_queue.unlock();
  if (!done) return;  // it may be no more
  spin_until([&fiber] { return !fiber.on_stack.load(std::memory_order_acquire); });
  release(fiber);
}

void die_of_exception(const std::exception_ptr& error) {
  const char* what = "an exception that is no std::exception";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    what = e.what();
    std::fprintf(stderr, "jiffy: a fiber ended by an exception that nobody joined: %s\n", what);
  } catch (...) {
    std::fprintf(stderr, "jiffy: a fiber ended by an exception that nobody joined: %s\n", what);
  }
  std::abort();
}

void die_of_invalid_join(const std::string& error) {
  std::fprintf(
      stderr, "jiffy: join() of a handle that holds no fiber%s%s\n",
      error.empty() ? " (joined, detached or moved from)" : ": its spawn failed: ", error.c_str());
  std::abort();
}

RuntimeState& current_runtime() {
  Cpu* cpu = this_cpu();
  if (cpu == nullptr) {
    std::fprintf(stderr,
                 "jiffy: jiffy::spawn() on a thread that is no Cpu: use Runtime::spawn()\n");
    std::abort();
  }
  return *cpu->state;
}

}  // namespace detail

namespace this_fiber {

bool on_fiber() { return current_fiber() != nullptr; }
uint64_t id() {
  const Fiber* f = current_fiber();
  return f == nullptr ? 0 : f->id;
}
const char* name() {
  const Fiber* f = current_fiber();
  return f == nullptr ? "" : f->name;
}
int cpu() {
  const Cpu* c = this_cpu();
  return c == nullptr ? -1 : c->id;
}
size_t stack_high_water() {
  const Fiber* f = current_fiber();
  return f == nullptr ? 0 : jiffy::stack_high_water(*f);
}

}  // namespace this_fiber

PreemptDisabled::PreemptDisabled() { preempt_disable(); }
PreemptDisabled::~PreemptDisabled() { preempt_enable(); }

Status set_attributes(Fiber& fiber, const SpawnOptions& o) {
  if (Status status = check_spawn_options(*fiber.state_of_runtime, o); !status.ok()) return status;
  fiber_set_attributes(fiber, o.policy, o.nice, o.policy == Policy::kFifo ? o.priority : 0,
                       o.slice.count());
  return Status();
}

}  // namespace jiffy
