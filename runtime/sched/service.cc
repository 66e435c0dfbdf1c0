#include "sched/service.h"

#include <jiffy/detail/list.h>

#include <string>

#include "sched/runtime_state.h"
#include "sched/watchdog.h"

namespace jiffy {

struct StopRequest {
  ListNode node;
  void (*fn)(void*);
  void* arg;
  bool done = false;
  Waiter waiter;
};

struct ServiceFibers {
  Cpu& cpu;
  Fiber* stopper = nullptr;
  Fiber* ksoftirqd = nullptr;
  Atomic<bool> stopping{false};  // A; relaxed, written under lock, read under it
  SpinLock lock{LockClass::kService};
  List<StopRequest, &StopRequest::node> requests;  // under lock
};

namespace {

// Sleeps unless `ready()` holds; both under the lock that its wakers take.
template <class Ready>
void sleep_unless(SpinLock& lock, Ready ready) {
  Waiter waiter;
  lock.lock();
  const bool sleep = !ready();
  if (sleep) waiter.prepare("requests");
  lock.unlock();
  if (sleep) (void)waiter.block(kNever);
}

void stopper_main(void* block) {
  ServiceFibers& s = **static_cast<ServiceFibers**>(block);
  for (;;) {
    s.lock.lock();
    StopRequest* request = s.requests.pop_front();
    const bool stopping = s.stopping.load(std::memory_order_relaxed);
    watchdog_touch(s.cpu, s.cpu.now());
    s.lock.unlock();
    if (request != nullptr) {
      request->fn(request->arg);
      s.lock.lock();
      request->done = true;
      (void)request->waiter.wake();
      s.lock.unlock();
      continue;
    }
    if (stopping) return;
    sleep_unless(s.lock,
                 [&] { return !s.requests.empty() || s.stopping.load(std::memory_order_relaxed); });
  }
}

void ksoftirqd_main(void* block) {
  ServiceFibers& s = **static_cast<ServiceFibers**>(block);
  Cpu& cpu = s.cpu;
  while (!s.stopping.load(std::memory_order_relaxed)) {
    local_bh_disable();
    const bool work = cpu.softirq_pending != 0;
    local_bh_enable();  // runs them
    if (work) {
      (void)cond_resched();
      continue;
    }
    // Only this Cpu raises its soft interrupts, and wakes this fiber after it did: with preemption
    // off between the look and the announcement nothing is missed. The end comes under the lock.
    sleep_unless(s.lock, [&] {
      return cpu.softirq_pending != 0 || s.stopping.load(std::memory_order_relaxed);
    });
  }
}

Status spawn_service(RuntimeState& state, ServiceFibers* services, const SpawnOptions& options,
                     void (*main)(void*), Fiber** out) {
  void* block = nullptr;
  Status status = detail::spawn_prepare(
      state, {sizeof(ServiceFibers*), alignof(ServiceFibers*), &options}, out, &block);
  if (!status.ok()) return status;
  *static_cast<ServiceFibers**>(block) = services;
  detail::spawn_start(**out, main, nullptr);
  return status;
}

}  // namespace

Status start_service_fibers(RuntimeState& state) {
  if (state.options.soft_lockup.count() != 0) watchdog_prepare();
  for (auto& unit : state.units) {
    auto* s = new ServiceFibers{.cpu = unit->cpu, .requests = {}};
    unit->services = s;
    SpawnOptions options;
    options.cpu = unit->cpu.id;
    options.fiber_kind = FiberKind::kCooperative;
    options.kernel_mode = true;
    options.kind = LatencyKind::kOther;
    options.name = "ksoftirqd/" + std::to_string(unit->cpu.id);
    Status status = spawn_service(state, s, options, ksoftirqd_main, &s->ksoftirqd);
    if (!status.ok()) return status;
    unit->cpu.ksoftirqd = s->ksoftirqd;
    options.name = "stopper/" + std::to_string(unit->cpu.id);
    options.policy = Policy::kFifo;
    options.priority = 99;
    status = spawn_service(state, s, options, stopper_main, &s->stopper);
    if (!status.ok()) return status;
    fiber_make_stopper(*s->stopper);
    unit->cpu.stopper.store(s->stopper, std::memory_order_relaxed);
  }
  return Status();
}

void stop_service_fibers(RuntimeState& state) {
  for (auto& unit : state.units) {
    ServiceFibers* s = unit->services;
    if (s == nullptr) continue;
    unit->cpu.stopper.store(nullptr, std::memory_order_relaxed);
    s->lock.lock();
    s->stopping.store(true, std::memory_order_relaxed);
    for (Fiber* fiber : {s->stopper, s->ksoftirqd}) {
      if (fiber != nullptr) (void)try_to_wake_up(*fiber);
    }
    s->lock.unlock();
  }
}

void join_service_fibers(RuntimeState& state) {
  for (auto& unit : state.units) {
    ServiceFibers* s = unit->services;
    if (s == nullptr) continue;
    for (Fiber* fiber : {s->stopper, s->ksoftirqd}) {
      if (fiber == nullptr) continue;
      (void)detail::wait_done(*fiber, Until());
      detail::release(*fiber);
    }
    unit->cpu.ksoftirqd = nullptr;
    unit->services = nullptr;
    delete s;
  }
}

void stop_one_cpu(Cpu& cpu, void (*fn)(void* arg), void* arg) {
  RuntimeState& state = *cpu.state;
  ServiceFibers& s = *state.units[static_cast<size_t>(cpu.id)]->services;
  StopRequest request{{}, fn, arg, false, {}};
  s.lock.lock();
  s.requests.push_back(&request);
  request.waiter.prepare("a stopper");
  (void)try_to_wake_up(*s.stopper);
  s.lock.unlock();
  (void)request.waiter.block(kNever);
  // `request` lives on this stack: the stopper must be done with it.
  spin_until([&s] { return !s.lock.raw().is_locked(); });
}

}  // namespace jiffy
