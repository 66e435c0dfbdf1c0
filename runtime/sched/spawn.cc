// The start of a fiber: a unit of stack, its attributes, its first place in a queue. Its end and
// its joiner are in sync/join.cc.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "sched/placement.h"
#include "sched/runtime_state.h"
#include "sched/sched.h"

namespace jiffy {

void fiber_entry(Context* previous);  // schedule.cc

namespace {

constexpr int kCacheBatch = 16;
constexpr int kCacheLimit = 64;
constexpr uint64_t kIdBlock = 1024;

// --- Units: a cache a Cpu, last in first out, before the shared pool.

StackPool& pool_of_size(RuntimeState& state, size_t size) {
  if (size == 0 || size == state.stacks->stack_size()) return *state.stacks;
  state.pools_lock.lock();
  for (auto& pool : state.other_stacks) {
    if (pool->stack_size() == size) {
      StackPool& found = *pool;
      state.pools_lock.unlock();
      return found;
    }
  }
  state.other_stacks.push_back(std::make_unique<StackPool>(size, state.stacks->guard()));
  StackPool& made = *state.other_stacks.back();
  state.pools_lock.unlock();
  return made;
}

Status take_unit(RuntimeState& state, size_t size, Fiber** out) {
  Cpu* cpu = this_cpu();
  const bool cached =
      cpu != nullptr && cpu->state == &state && (size == 0 || size == state.stacks->stack_size());
  int got = 0;
  if (!cached) return pool_of_size(state, size).allocate(out, 1, &got);
  if (cpu->stack_cache == nullptr) {
    Fiber* batch[kCacheBatch];
    if (Status status = state.stacks->allocate(batch, kCacheBatch, &got); !status.ok()) {
      return status;
    }
    for (int i = got - 1; i >= 0; --i) {
      batch[i]->next_free = cpu->stack_cache;
      cpu->stack_cache = batch[i];
    }
    cpu->stack_cache_size += got;
  }
  *out = cpu->stack_cache;
  cpu->stack_cache = (*out)->next_free;
  --cpu->stack_cache_size;
  return Status();
}

void give_back_unit(RuntimeState& state, Fiber& fiber) {
  Cpu* cpu = this_cpu();
  StackPool* pool = fiber.slab->pool;
  if (cpu == nullptr || cpu->state != &state || pool != state.stacks.get()) {
    Fiber* unit = &fiber;
    pool->release(&unit, 1);
    return;
  }
  fiber.next_free = cpu->stack_cache;
  cpu->stack_cache = &fiber;
  if (++cpu->stack_cache_size < kCacheLimit) return;
  // Keep the hottest half; the others may be wanted elsewhere.
  Fiber* keep = cpu->stack_cache;
  for (int i = 1; i < kCacheLimit / 2; ++i) keep = keep->next_free;
  Fiber* rest = keep->next_free;
  keep->next_free = nullptr;
  cpu->stack_cache_size = kCacheLimit / 2;
  while (rest != nullptr) {
    Fiber* batch[kCacheBatch];
    int n = 0;
    for (; n < kCacheBatch && rest != nullptr; rest = rest->next_free) batch[n++] = rest;
    pool->release(batch, n);
  }
}

uint64_t next_id(RuntimeState& state) {
  Cpu* cpu = this_cpu();
  if (cpu == nullptr || cpu->state != &state) {
    return state.next_fiber_id.fetch_add(1, std::memory_order_relaxed);
  }
  if (cpu->next_fiber_id == cpu->last_fiber_id) {
    cpu->next_fiber_id = state.next_fiber_id.fetch_add(kIdBlock, std::memory_order_relaxed);
    cpu->last_fiber_id = cpu->next_fiber_id + kIdBlock;
  }
  return cpu->next_fiber_id++;
}

bool is_foreign(const RuntimeState& state) {
  const Cpu* cpu = this_cpu();
  return cpu == nullptr || cpu->state != &state;
}

// A spawn from outside holds the shutdown off from its first look at the runtime to its last touch.
bool begin_foreign_spawn(RuntimeState& state) {
  state.foreign_spawns.fetch_add(1, std::memory_order_seq_cst);
  if (state.accept_spawns.load(std::memory_order_seq_cst)) return true;
  state.foreign_spawns.fetch_sub(1, std::memory_order_release);
  return false;
}

void end_foreign_spawn(RuntimeState& state) {
  // Release: partner is the acquire in the runtime's stop().
  state.foreign_spawns.fetch_sub(1, std::memory_order_release);
}

// The common case of check_spawn_options(), without the text that it would return.
bool plainly_valid(const SpawnOptions& o) {
  const bool priority = o.policy != Policy::kFifo || (o.priority >= 1 && o.priority <= 99);
  return o.cpu < 0 && o.nice == 0 && priority && o.slice.count() == 0 && o.stack_size == 0 &&
         o.allowed.empty();
}

void set_identity(Fiber& fiber, RuntimeState& state, const SpawnOptions& o) {
  fiber.id = next_id(state);
  const size_t n = std::min(o.name.size(), sizeof fiber.name - 1);
  std::memcpy(fiber.name, o.name.data(), n);
  fiber.name[n] = '\0';
  fiber.kind = o.kind;
  fiber.state_of_runtime = &state;
  fiber.kernel_mode = o.kernel_mode;
  fiber.migratable = o.migratable;
}

void set_scheduling(Fiber& fiber, RuntimeState& state, const SpawnOptions& o) {
  const bool fifo = o.policy == Policy::kFifo;
  fiber.policy = o.policy;
  fiber.sched_class = fifo ? SchedClass::kFifo : SchedClass::kFair;
  fiber.fifo_priority = static_cast<uint8_t>(fifo ? o.priority : 0);
  fiber.nice = static_cast<int8_t>(o.nice);
  fiber.pinned_cpu = o.cpu;
  FairEntity& e = fiber.fair;
  e.weight = o.policy == Policy::kIdle ? kIdlePolicyWeight
             : o.nice == 0             ? kNiceZeroWeight
                                       : weight_of_nice(o.nice);
  e.custom_slice = o.slice.count() != 0;
  if (e.custom_slice) e.slice = static_cast<uint64_t>(o.slice.count());
  if (!o.allowed.empty()) {
    auto* mask = new CpuMask(static_cast<int>(state.cpus.size()));
    for (int cpu : o.allowed) mask->set(cpu);
    fiber.allowed = mask;
  }
}

// A unit comes back from its last fiber with these as that one left them.
void reset(Fiber& fiber) {
  fiber.on_rq = false;
  fiber.started = false;
  fiber.done = false;
  fiber.detached = false;
  fiber.reap_at_exit = false;
  fiber.sleep_hook = nullptr;
  fiber.wake_stamp = 0;
  FairEntity& e = fiber.fair;
  e.vlag = 0;
  e.sum_exec = 0;
  e.rel_deadline = false;
  e.delayed = false;
}

}  // namespace

Status check_spawn_options(const RuntimeState& state, const SpawnOptions& o) {
  const int cpus = static_cast<int>(state.cpus.size());
  char text[256] = "";
  if (o.cpu >= cpus) {
    std::snprintf(text, sizeof text, "cannot pin a fiber to Cpu %d: the runtime has Cpus 0 to %d",
                  o.cpu, cpus - 1);
  } else if (o.nice < -20 || o.nice > 19) {
    std::snprintf(text, sizeof text, "nice %d is out of range: -20 to 19", o.nice);
  } else if (o.policy == Policy::kFifo && (o.priority < 1 || o.priority > 99)) {
    std::snprintf(text, sizeof text, "FIFO priority %d is out of range: 1 to 99", o.priority);
  } else if (o.slice.count() != 0 && (o.slice.count() < 100'000 || o.slice.count() > 100'000'000)) {
    std::snprintf(text, sizeof text, "slice of %lld ns is out of range: 0.1 to 100 ms",
                  static_cast<long long>(o.slice.count()));
  } else if (o.stack_size != 0 && o.stack_size < 4096) {
    std::snprintf(text, sizeof text, "stack_size %zu is too small: at least 4096 bytes",
                  o.stack_size);
  }
  for (int cpu : o.allowed) {
    if (cpu < 0 || cpu >= cpus) {
      std::snprintf(text, sizeof text, "allowed Cpu %d does not exist: the runtime has 0 to %d",
                    cpu, cpus - 1);
    }
  }
  return text[0] == '\0' ? Status() : Status::error(text);
}

namespace detail {

Status spawn_prepare(RuntimeState& state, const SpawnRequest& request, Fiber** out, void** block) {
  const bool foreign = is_foreign(state);
  if (foreign && !begin_foreign_spawn(state)) {
    return Status::error("the runtime takes no new fibers: it has not been started, or it stops");
  }
  const SpawnOptions& options = *request.options;
  if (!plainly_valid(options)) [[unlikely]] {
    if (Status status = check_spawn_options(state, options); !status.ok()) {
      if (foreign) end_foreign_spawn(state);
      return status;
    }
  }
  preempt_disable();
  Fiber* fiber = nullptr;
  Status status = take_unit(state, options.stack_size, &fiber);
  if (!status.ok()) {
    preempt_enable();
    if (foreign) end_foreign_spawn(state);
    return status;
  }
  reset(*fiber);
  set_identity(*fiber, state, options);
  set_scheduling(*fiber, state, options);
  preempt_enable();
  const uintptr_t top = reinterpret_cast<uintptr_t>(fiber->block_limit) - request.block_size;
  *block = fiber->block = reinterpret_cast<void*>(top & ~(uintptr_t{request.block_align} - 1));
  *out = fiber;
  return status;
}

void spawn_start(Fiber& fiber, void (*invoke)(void* block), void (*destroy)(void* block)) {
  const JiffyCall call;
  fiber.invoke = invoke;
  fiber.destroy = destroy;
  fiber.on_stack.store(true, std::memory_order_relaxed);
  context_init(fiber.context, fiber.block, fiber_entry);
  preempt_disable();
  RuntimeState& state = *fiber.state_of_runtime;
  Cpu* local = local_cpu(state);
  Cpu& target = select_cpu_for_spawn(state, fiber);
  RunQueue& rq = *target.rq;
  rq.lock.lock();
  // Release: partner is the acquire in the wakeup's lock_queue_of().
  fiber.cpu.store(&target, std::memory_order_release);
  fiber.state.store(FiberState::kRunning, std::memory_order_relaxed);
  const int64_t now = is_fair(fiber) ? clock_now(state) : 0;
  if (now != 0) rq.update_current(now);
  rq.enqueue(fiber, RunQueue::kInitial, now);
  rq.wakeup_preempt(fiber, RunQueue::kInitial);
  const int running = rq.nr_running();
  rq.unlock_and_notify();
  count_event(state, local, Counter::kSpawns);
  // One that waits alone will soon be reached by its spawner's own Cpu; more are worth a wakeup.
  if (running > 2) kick_balancer(state);
  preempt_enable();
  if (local == nullptr) end_foreign_spawn(state);
}

void spawn_abandon(Fiber& fiber) {
  RuntimeState& state = *fiber.state_of_runtime;
  fiber.destroy = nullptr;
  release(fiber);
  if (is_foreign(state)) end_foreign_spawn(state);
}

void release(Fiber& fiber) {
  if (fiber.destroy != nullptr) fiber.destroy(fiber.block);
  if (fiber.allowed != nullptr) {
    delete fiber.allowed;
    fiber.allowed = nullptr;
  }
  fiber.state.store(FiberState::kFree, std::memory_order_relaxed);
  preempt_disable();
  give_back_unit(*fiber.state_of_runtime, fiber);
  preempt_enable();
}

}  // namespace detail

void fiber_make_stopper(Fiber& fiber) {
  fiber_set_attributes(fiber, Policy::kFifo, 0, RunQueue::kStopPriority, 0);
}

void fiber_set_attributes(Fiber& fiber, Policy policy, int nice, int priority, int64_t slice_ns) {
  preempt_disable();
  // Until it holds still: one that moves is between its mover's two locks.
  spin_until([&] {
    // Acquire: partner is the release store of whoever moves the fiber.
    Cpu* cpu = fiber.cpu.load(std::memory_order_acquire);
    RunQueue& rq = *cpu->rq;
    rq.lock.lock();
    const bool still = fiber.cpu.load(std::memory_order_relaxed) == cpu &&
                       fiber.state.load(std::memory_order_relaxed) != FiberState::kWaking;
    if (still) {
      rq.set_attributes(fiber, policy, nice, priority, slice_ns, clock_now(*cpu->state));
    }
    rq.unlock_and_notify();
    return still;
  });
  preempt_enable();
}

}  // namespace jiffy
