#include "work/work_state.h"

#include <jiffy/runtime.h>

#include <chrono>
#include <thread>

#include "sched/sched.h"
#include "sched/service.h"
#include "work/work_queue_state.h"

namespace jiffy {

namespace {

constexpr std::chrono::seconds kCreationRetry{1};

// Under no lock. Whether all pools have what they need.
bool create_missing(WorkState& work) {
  bool all = true;
  for (auto& pool : work.pools) {
    pool->lock.lock();
    const bool failed = pool->creation_failed;
    pool->lock.unlock();
    if (!failed) continue;
    if (!create_worker(*pool)) {
      all = false;
      continue;
    }
    pool->lock.lock();
    pool->creation_failed = false;
    kick(*pool);
    pool->lock.unlock();
  }
  return all;
}

// A pool that cannot make a worker goes on with those it has. When all of them sleep there is
// nobody left to try again, so one fiber of its own does.
void creator_main(void* block) {
  WorkState& work = **static_cast<WorkState**>(block);
  bool complete = true;
  while (!work.stopping.load(std::memory_order_relaxed)) {
    (void)work.creation_wanted.acquire(complete ? Until() : Until(kCreationRetry));
    complete = create_missing(work);
  }
}

Status spawn_creator(WorkState& work) {
  SpawnOptions options;
  options.name = "kworker/create";
  options.kernel_mode = true;
  options.migratable = true;
  options.kind = LatencyKind::kOther;
  void* block = nullptr;
  Status status = detail::spawn_prepare(work.state, {sizeof(void*), alignof(void*), &options},
                                        &work.creator, &block);
  if (!status.ok()) return status;
  *static_cast<WorkState**>(block) = &work;
  detail::spawn_start(*work.creator, creator_main, nullptr);
  work.live.fetch_add(1, std::memory_order_release);
  return status;
}

void join(Fiber& fiber) {
  (void)detail::wait_done(fiber, Until());
  detail::release(fiber);
}

}  // namespace

void WorkState::make_system_queues() {
  percpu_wq.reset(new WorkQueue(state, {.name = "events", .kind = WorkQueueKind::kPerCpu}));
  dfl_wq.reset(new WorkQueue(
      state, {.name = "events_unbound", .kind = WorkQueueKind::kUnbound, .max_active = 2048}));
}

// After it nobody new enters the queue's pools, and plain threads have left them.
void WorkState::kill(WorkQueueState& wq) {
  wq.drain();
  // seq_cst, partner: the count of foreign callers, who look at the flags after they are counted.
  wq.flags.fetch_or(WorkQueueState::kDead, std::memory_order_seq_cst);
  while (wq.foreign.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
}

void WorkState::end_workers() {
  for (auto& pool : pools) {
    pool->lock.lock();
    pool->dying = true;
    while (Worker* worker = pool->all.pop_front()) {
      Fiber& fiber = *worker->fiber;
      (void)try_to_wake_up(fiber);
      pool->lock.unlock();
      join(fiber);
      pool->lock.lock();
    }
    pool->lock.unlock();
  }
}

Status create_work_state(RuntimeState& state) {
  state.ended_work.reset();
  auto work = std::make_unique<WorkState>(state);
  const int cpus = static_cast<int>(state.cpus.size());
  for (int i = 0; i <= cpus; ++i) {
    Cpu* cpu = i < cpus ? state.cpus[static_cast<size_t>(i)] : nullptr;
    work->pools.push_back(std::make_unique<WorkerPool>(*work, state, i, cpu));
    if (!create_worker(*work->pools.back())) {
      return Status::error("no stack for the first worker of each pool");
    }
  }
  if (Status status = spawn_creator(*work); !status.ok()) return status;
  state.work = work.release();
  state.work->make_system_queues();
  return Status();
}

namespace {

// Not counted as started, nor run: like an item that was queued after the end.
void disarm_delayed(Cpu& cpu) {
  const PreemptGuard guard;
  cpu.timers.disarm_if([](TimerNode& timer) {
    if (timer.fn != DelayedTimer::expired) return false;
    // Release: partner is the acquire in queue(), by the next owner.
    static_cast<DelayedTimer&>(timer).item->state.fetch_and(~WorkNode::kPending,
                                                            std::memory_order_release);
    return true;
  });
}

}  // namespace

void destroy_work_state(RuntimeState& state) {
  WorkState& work = *state.work;
  for (;;) {
    work.lock.lock();
    WorkQueueState* wq = work.queues.pop_front();
    work.lock.unlock();
    if (wq == nullptr) break;
    wq->flags.fetch_or(WorkQueueState::kDestroying, std::memory_order_seq_cst);
    work.kill(*wq);
  }
  // A timer's interrupt may have read a queue's flags before it was dead: let each Cpu come to a
  // point where it runs its stopper, hence nothing with preemption off.
  constexpr auto nothing = [](void*) {};
  for (Cpu* cpu : state.cpus) stop_one_cpu(*cpu, nothing, nullptr);
  work.stopping.store(true, std::memory_order_relaxed);
  work.creation_wanted.release();
  join(*work.creator);
  work.end_workers();
  // Timers of delayed work that was armed on a queue which is no more.
  for (Cpu* cpu : state.cpus) disarm_delayed(*cpu);
  state.ended_work.reset(&work);
  state.work = nullptr;
}

int64_t live_workers(const RuntimeState& state) {
  if (state.work == nullptr) return 0;  // the pools are gone: the shutdown's second look
  // Acquire: partner is the release after a worker's spawn was counted.
  return state.work->live.load(std::memory_order_acquire);
}

namespace {
WorkState& work_of(RuntimeState& state) {
  return state.work != nullptr ? *state.work : *state.ended_work;
}
}  // namespace

WorkQueue& system_percpu_wq(Runtime& runtime) { return *work_of(runtime.state()).percpu_wq; }
WorkQueue& system_dfl_wq(Runtime& runtime) { return *work_of(runtime.state()).dfl_wq; }

}  // namespace jiffy
