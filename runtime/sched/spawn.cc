// The start of a fiber: a unit of stack, its attributes, its first place in a queue. Its end and
// its joiner are in sync/join.cc.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "fiber/tcb.h"
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

StackPool* find_pool(RuntimeState& state, size_t size, bool with_tcb) {
  for (auto& pool : state.other_stacks) {
    if (pool->stack_size() == size && pool->with_tcb() == with_tcb) return pool.get();
  }
  return nullptr;
}

// Null: too many sizes.
StackPool* pool_of(RuntimeState& state, size_t size, bool with_tcb) {
  if (size == 0 || size == state.stacks->stack_size()) {
    return with_tcb ? state.tcb_stacks.get() : state.stacks.get();
  }
  const auto locked = [&state](auto&& fn) {
    const PreemptGuard guard;
    state.pools_lock.lock();
    StackPool* found = fn();
    state.pools_lock.unlock();
    return found;
  };
  if (StackPool* found = locked([&] { return find_pool(state, size, with_tcb); })) return found;
  auto made = std::make_unique<StackPool>(size, state.stacks->guard(), with_tcb);
  return locked([&]() -> StackPool* {
    if (StackPool* found = find_pool(state, size, with_tcb)) return found;  // another was faster
    if (state.other_stacks.size() == RuntimeState::kMostPools) return nullptr;
    state.other_stacks.push_back(std::move(made));
    return state.other_stacks.back().get();
  });
}

Cpu::StackCache* cache_for(RuntimeState& state, const StackPool& pool) {
  Cpu* cpu = local_cpu(state);
  if (cpu == nullptr) return nullptr;
  if (&pool == state.stacks.get()) return &cpu->stack_caches[0];
  return &pool == state.tcb_stacks.get() ? &cpu->stack_caches[1] : nullptr;
}

// One from the Cpu's cache, which is filled from the pool; null: the pool is empty.
Fiber* take_free_unit(RuntimeState& state, StackPool& pool) {
  const PreemptGuard guard;
  Cpu::StackCache* cache = cache_for(state, pool);
  Fiber* batch[kCacheBatch];
  if (cache == nullptr) return pool.take(batch, 1) == 1 ? batch[0] : nullptr;
  if (cache->first == nullptr) {
    const int got = pool.take(batch, kCacheBatch);
    for (int i = got - 1; i >= 0; --i) {
      batch[i]->next_free = cache->first;
      cache->first = batch[i];
    }
    cache->size += got;
    if (got == 0) return nullptr;
  }
  Fiber* unit = cache->first;
  cache->first = unit->next_free;
  --cache->size;
  return unit;
}

// Preemption off. True if the pool is to be deleted.
bool put_unit(RuntimeState& state, StackPool& pool, Fiber& fiber) {
  Cpu::StackCache* cache = cache_for(state, pool);
  if (cache == nullptr) {
    Fiber* unit = &fiber;
    return pool.release(&unit, 1);
  }
  fiber.next_free = cache->first;
  cache->first = &fiber;
  if (++cache->size < kCacheLimit) return false;
  // Keep the hottest half; the others may be wanted elsewhere.
  Fiber* keep = cache->first;
  for (int i = 1; i < kCacheLimit / 2; ++i) keep = keep->next_free;
  Fiber* rest = keep->next_free;
  keep->next_free = nullptr;
  cache->size = kCacheLimit / 2;
  while (rest != nullptr) {
    Fiber* batch[kCacheBatch];
    int n = 0;
    for (; n < kCacheBatch && rest != nullptr; rest = rest->next_free) batch[n++] = rest;
    (void)pool.release(batch, n);  // others are still in the cache
  }
  return false;
}

void give_back_unit(RuntimeState& state, Fiber& fiber) {
  StackPool* pool = fiber.slab->pool;
  preempt_disable();
  const bool last = put_unit(state, *pool, fiber);
  preempt_enable();
  if (last) delete pool;
}

// A control block for a unit that has none yet. Its count forbids a switch from the start.
Status equip(Fiber& unit) {
  void* tcb = tcb_create();
  if (tcb == nullptr) {
    return Status::error("no memory for the thread control block of a preemptible fiber");
  }
  words_of(tcb) = {.count = kPreemptUnit, .reserved = 0, .cpu = nullptr, .fiber = nullptr};
  {
    const PreemptGuard guard;  // the words of another block are in place for a moment
    tcb_init_locale(tcb);
  }
  unit.context.tcb = tcb;
  return Status();
}

// Allocates where the pool is empty: preemption is on.
Status take_unit(RuntimeState& state, size_t size, bool with_tcb, Fiber** out) {
  StackPool* pool = pool_of(state, size, with_tcb);
  if (pool == nullptr) {
    return Status::error("stack_size: fibers with more than 64 different sizes in one runtime");
  }
  if (pool->fails_now()) return pool->guard_error(ENOMEM);
  Fiber* unit = take_free_unit(state, *pool);
  while (unit == nullptr) {
    StackSlab* slab = nullptr;
    if (Status status = pool->make_slab(&slab); !status.ok()) return status;
    {
      const PreemptGuard guard;
      pool->adopt(*slab);
    }
    unit = take_free_unit(state, *pool);
  }
  if (with_tcb && unit->context.tcb == nullptr && state.options.preempt_checks.own_tls) {
    if (Status status = equip(*unit); !status.ok()) {
      give_back_unit(state, *unit);
      return status;
    }
  }
  *out = unit;
  return Status();
}

// Preemption off.
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
  if (state.accept_spawns.load(std::memory_order_seq_cst)) {
    state.machine->check_caller("a spawn");
    return true;
  }
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

void set_scheduling(Fiber& fiber, const SpawnOptions& o) {
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
}

// The cooperative kind, unless the options or the runtime ask for the other one.
bool wants_preemptible(const RuntimeState& state, const SpawnOptions& o) {
  const FiberKind kind =
      o.fiber_kind == FiberKind::kDefault ? state.options.fiber_kind : o.fiber_kind;
  return kind == FiberKind::kPreemptible;
}

CpuMask* mask_of(const RuntimeState& state, const SpawnOptions& o) {
  if (o.allowed.empty()) return nullptr;
  auto* mask = new CpuMask(static_cast<int>(state.cpus.size()));
  for (int cpu : o.allowed) mask->set(cpu);
  return mask;
}

// A unit comes back from its last fiber with these as that one left them.
void reset(Fiber& fiber) {
  fiber.on_rq = false;
  fiber.passed = false;
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

void free_mask(Fiber& fiber) {
  preempt_disable();
  CpuMask* mask = std::exchange(fiber.allowed, nullptr);
  preempt_enable();
  delete mask;
}

void give_back_caches(Cpu& cpu) {
  for (Cpu::StackCache& cache : cpu.stack_caches) {
    while (Fiber* unit = cache.first) {
      cache.first = unit->next_free;
      (void)unit->slab->pool->release(&unit, 1);  // not retired yet
    }
    cache.size = 0;
  }
}

namespace {

Status check_preemptible(const RuntimeState& state) {
  if (state.tcb_stacks != nullptr || state.shared_tls || state.machine->simulated())
    return Status();
  if (const Status support = tcb_support(); !support.ok()) return Status::error(support.message());
  return Status::error(
      "a preemptible fiber needs Options::delivery = Delivery::kSignals: this runtime sees "
      "requests "
      "at safe points only");
}

}  // namespace

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
  const bool preemptible = wants_preemptible(state, options);
  const bool with_tcb = preemptible && state.tcb_stacks != nullptr;
  Status status = preemptible ? check_preemptible(state) : Status();
  Fiber* fiber = nullptr;
  if (status.ok()) status = take_unit(state, options.stack_size, with_tcb, &fiber);
  if (!status.ok()) {
    if (foreign) end_foreign_spawn(state);
    return status;
  }
  reset(*fiber);
  fiber->allowed = mask_of(state, options);
  preempt_disable();
  set_identity(*fiber, state, options);
  preempt_enable();
  set_scheduling(*fiber, options);
  fiber->preemptible = with_tcb;
  // What it holds of a thread's moves with it; in a simulation there is one thread for all.
  if (preemptible && !state.shared_tls) fiber->migratable = true;
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
  // Before it can run and end: the shutdown compares spawns with exits.
  count_event(state, local, Counter::kSpawns);
  rq.enqueue(fiber, RunQueue::kInitial, now);
  rq.wakeup_preempt(fiber, RunQueue::kInitial);
  const int running = rq.nr_running();
  rq.unlock_and_notify();
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
  free_mask(fiber);
  fiber.state.store(FiberState::kFree, std::memory_order_relaxed);
  give_back_unit(*fiber.state_of_runtime, fiber);
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
