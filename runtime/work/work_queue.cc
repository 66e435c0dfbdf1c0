// Queueing, flushing a whole queue, draining, and a queue's beginning and end.
#include <jiffy/runtime.h>
#include <jiffy/work.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "sched/sched.h"
#include "work/work_queue_state.h"

namespace jiffy {

namespace {

constexpr int kMaxActive = 2048;
constexpr int kDefaultActive = 1024;

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "jiffy: %s\n", text.c_str());
  std::abort();
}

// The flags are not all zero: may this caller still queue?
[[gnu::noinline]] bool accepts(WorkQueueState& wq) {
  const uint32_t flags = wq.flags.load(std::memory_order_seq_cst);
  if (flags == 0) return true;
  if ((flags & WorkQueueState::kDead) == 0) {
    const Worker* worker = current_worker();
    if (worker != nullptr && worker->pwq != nullptr && worker->pwq->wq == &wq) return true;
  }
  if (wq.dropped.fetch_add(1, std::memory_order_relaxed) == 0) {
    // Not by stdio, whose lock a preempted fiber may hold: this may be an interrupt.
    char text[512];
    const int n = std::snprintf(
        text, sizeof text,
        "jiffy: work queue '%s' %s, so an item queued from outside was dropped (said once "
        "a queue). Rule: stop those who queue before drain, destruction and stop().\n",
        wq.name.c_str(),
        (flags & WorkQueueState::kDead) != 0 ? "has ended with its runtime" : "drains");
    if (n > 0) [[maybe_unused]]
      const ssize_t written = write(STDERR_FILENO, text, std::min<size_t>(size_t(n), sizeof text));
  }
  return false;
}

// An item that still runs on another pool goes there. Returns where it goes, that pool locked.
[[gnu::noinline]] PoolWorkQueue& lock_where_it_runs(WorkQueueState& wq, PoolWorkQueue& wanted,
                                                    WorkNode& item, size_t last) {
  if (last < wq.work->pools.size()) {
    WorkerPool& pool = *wq.work->pools[last];
    pool.lock.raw().lock();
    const Worker* worker = find_executing(pool, item);
    if (worker != nullptr && worker->pwq->wq == &wq) return *worker->pwq;
    pool.lock.raw().unlock();
  }
  wanted.pool->lock.raw().lock();
  return wanted;
}

bool queue_to(WorkQueueState& wq, WorkNode& item, int cpu) {
  preempt_disable();
  const Cpu* self = this_cpu();
  const bool foreign = self == nullptr || self->state != wq.runtime;
  // Partner: WorkState::kill().
  if (foreign) [[unlikely]]
    wq.foreign.fetch_add(1, std::memory_order_seq_cst);
  const bool queued =
      claim_item(wq, item) &&
      insert_item(wq, cpu < 0 ? local_pwq(wq) : *wq.pwqs[wq.per_cpu ? static_cast<size_t>(cpu) : 0],
                  item);
  if (foreign) [[unlikely]]
    wq.foreign.fetch_sub(1, std::memory_order_seq_cst);
  preempt_enable();
  return queued;
}

std::string problem_with(const WorkQueueOptions& o, const RuntimeState& state) {
  const std::string who = "work queue '" + o.name + "': ";
  if (state.work == nullptr) return who + "its runtime has not been started: call start() first";
  if (o.max_active < 0 || o.max_active > kMaxActive) {
    return who + "max_active is " + std::to_string(o.max_active) + ": allowed are 1 to " +
           std::to_string(kMaxActive) + ", and 0 for " + std::to_string(kDefaultActive);
  }
  if (o.ordered && o.kind.value == WorkQueueKind::kPerCpu) {
    return who + "an ordered queue is unbound: there is no order across Cpus";
  }
  if (o.ordered && o.max_active > 1) return who + "an ordered queue has a max_active of 1";
  return "";
}

}  // namespace

bool claim_item(WorkQueueState& wq, WorkNode& item) {
  // acq_rel. Release: what the caller wrote before is for the execution to see. Acquire: what the
  // last owner left in the item. Partner: the worker's clearing of the bit.
  const uint32_t old = item.state.fetch_or(WorkNode::kPending, std::memory_order_acq_rel);
  if (old == 0) [[likely]]
    return true;
  if ((old & WorkNode::kPending) == 0) {
    item.state.fetch_and(~WorkNode::kPending, std::memory_order_release);  // disabled
  } else if (!wq.dead()) {
    count_event(*wq.runtime, Counter::kWorksCoalesced);
  }
  return false;
}

PoolWorkQueue& local_pwq(WorkQueueState& wq) {
  if (!wq.per_cpu) return *wq.pwqs[0];
  const Cpu* cpu = this_cpu();
  const bool local = cpu != nullptr && cpu->state == wq.runtime;
  return *wq.pwqs[local ? static_cast<size_t>(cpu->id) : 0];
}

bool insert_item(WorkQueueState& wq, PoolWorkQueue& wanted, WorkNode& item) {
  // seq_cst: see WorkQueueState::foreign.
  if (wq.flags.load(std::memory_order_seq_cst) != 0 && !accepts(wq)) [[unlikely]] {
    item.state.fetch_and(~WorkNode::kPending, std::memory_order_release);
    return false;
  }
  RuntimeState& state = *wq.runtime;
  const Cpu* cpu = this_cpu();
  if (cpu == nullptr || cpu->state != &state) [[unlikely]]
    state.machine->check_caller("a queued work item");
  const int32_t last = item.last_pool.load(std::memory_order_relaxed);
  item.queued_at = stamp_of(state);
  PoolWorkQueue* pwq = &wanted;
  if (last >= 0 && last != wanted.pool->id && !wq.ordered) [[unlikely]] {
    pwq = &lock_where_it_runs(wq, wanted, item, static_cast<size_t>(last));
  } else {
    wanted.pool->lock.raw().lock();
  }
  WorkerPool& pool = *pwq->pool;
  count_event(state, Counter::kWorksQueued);
  trace_any(state, TraceEvent::kWorkQueued, static_cast<uint32_t>(pool.id),
            reinterpret_cast<uintptr_t>(&item), cpu == nullptr ? 0 : cpu->current->id);
  enqueue_item(*pwq, item);
  pool.lock.raw().unlock();
  return true;
}

bool WorkQueue::queue(WorkItem& item) { return queue_to(*state_, item, -1); }

bool WorkQueue::queue_on(int cpu, WorkItem& item) {
  const int cpus = state_->cpus;
  if (cpu < 0 || cpu >= cpus) {
    die("work queue '" + state_->name + "': cannot queue on Cpu " + std::to_string(cpu) +
        ": the runtime has Cpus 0 to " + std::to_string(cpus - 1));
  }
  return queue_to(*state_, item, cpu);
}

// --- Flushing. Each item counts in the colour of the time it was queued in; a flush begins a new
// colour and waits until the old ones have no items left.

void WorkQueueState::put(Flusher& flusher) {
  flush_lock.lock();
  --flusher.pwqs;
  // In order, since an older colour's items were queued before this flush, too.
  for (Flusher* first = flushers.front(); first != nullptr && first->pwqs == 0;
       first = flushers.front()) {
    flushers.pop_front();
    flusher_of[first->colour] = nullptr;
    free_colours.release();
    first->done.release();  // the last touch
  }
  flush_lock.unlock();
}

void WorkQueueState::colour_done(uint8_t colour_of_items) {
  put(*flusher_of[colour_of_items]);  // F: it stays until this puts it
}

void WorkQueueState::flush() {
  Flusher self;
  free_colours.acquire();
  mutex.lock();
  self.colour = colour;
  colour = static_cast<uint8_t>((colour + 1) % kFlushColours);
  preempt_disable();
  flush_lock.lock();
  flushers.push_back(&self);
  flusher_of[self.colour] = &self;
  flush_lock.unlock();
  preempt_enable();
  for (auto& pwq : pwqs) {
    pwq->pool->lock.lock();
    pwq->colour = colour;
    if (pwq->in_flight[self.colour] != 0) {
      pwq->flushing = static_cast<uint16_t>(pwq->flushing | 1u << self.colour);
      flush_lock.lock();
      ++self.pwqs;
      flush_lock.unlock();
    }
    pwq->pool->lock.unlock();
  }
  mutex.unlock();
  preempt_disable();
  put(self);
  preempt_enable();
  self.done.acquire();
}

bool WorkQueueState::empty() {
  bool empty = true;
  for (auto& pwq : pwqs) {
    pwq->pool->lock.lock();
    for (int32_t n : pwq->in_flight) empty = empty && n == 0;
    pwq->pool->lock.unlock();
  }
  return empty;
}

void WorkQueueState::drain() {
  mutex.lock();
  if (drainers++ == 0) flags.fetch_or(kDraining, std::memory_order_seq_cst);
  mutex.unlock();
  for (int round = 1, report = 10;; ++round) {
    flush();
    if (empty()) break;
    if (round < report) continue;
    report *= 10;
    std::fprintf(stderr,
                 "jiffy: work queue '%s' is not empty after %d rounds of draining: its "
                 "items go on queueing items\n",
                 name.c_str(), round);
  }
  mutex.lock();
  if (--drainers == 0) flags.fetch_and(~uint32_t{kDraining}, std::memory_order_relaxed);
  mutex.unlock();
}

void check_not_inside(const WorkQueueState& wq, const char* call) {
  const Worker* worker = current_worker();
  if (worker == nullptr || worker->pwq == nullptr || worker->pwq->wq != &wq) return;
  die(std::string("a callback of work queue '") + wq.name + "' (fiber '" + worker->fiber->name +
      "') calls " + call + " of its own queue, and would wait for itself");
}

void WorkQueue::flush() {
  check_not_inside(*state_, "flush()");
  if (state_->dead()) return;
  blocking_call(*state_->runtime, [this] { state_->flush(); });
}

void WorkQueue::drain() {
  check_not_inside(*state_, "drain()");
  if (state_->dead()) return;
  blocking_call(*state_->runtime, [this] { state_->drain(); });
}

uint64_t WorkQueue::dropped() const { return state_->dropped.load(std::memory_order_relaxed); }

// --- Beginning and end.

WorkQueue::WorkQueue(Runtime& runtime, const WorkQueueOptions& options)
    : WorkQueue(runtime.state(), options) {}

WorkQueue::WorkQueue(RuntimeState& state, const WorkQueueOptions& options)
    : state_(std::make_unique<WorkQueueState>()) {
  if (const std::string problem = problem_with(options, state); !problem.empty()) die(problem);
  WorkQueueState& wq = *state_;
  wq.runtime = &state;
  wq.work = state.work;
  wq.name = options.name;
  wq.per_cpu = options.kind.value == WorkQueueKind::kPerCpu;
  wq.ordered = options.ordered;
  const size_t pools = wq.work->pools.size();
  wq.cpus = static_cast<int>(pools) - 1;
  for (size_t i = wq.per_cpu ? 0 : pools - 1; i < (wq.per_cpu ? pools - 1 : pools); ++i) {
    auto pwq = std::make_unique<PoolWorkQueue>();
    pwq->pool = wq.work->pools[i].get();
    pwq->wq = &wq;
    pwq->max_active = options.ordered           ? 1
                      : options.max_active == 0 ? kDefaultActive
                                                : options.max_active;
    if (state.options.latency_stats) pwq->latency = std::make_unique<Histogram>();
    wq.pwqs.push_back(std::move(pwq));
  }
  wq.work->lock.lock();
  wq.work->queues.push_back(&wq);
  wq.work->lock.unlock();
}

WorkQueue::~WorkQueue() {
  WorkQueueState& wq = *state_;
  if (wq.dead()) return;
  check_not_inside(wq, "the destructor");
  wq.flags.fetch_or(WorkQueueState::kDestroying, std::memory_order_seq_cst);
  if (!wq.empty()) blocking_call(*wq.runtime, [&wq] { wq.drain(); });
  wq.work->lock.lock();
  wq.registered.unlink();
  wq.work->lock.unlock();
}

// --- What it shows.

HistogramSnapshot WorkQueue::queue_latency() const {
  HistogramSnapshot sum;
  for (const auto& pwq : state_->pwqs) {
    if (pwq->latency != nullptr) sum.merge_from(pwq->latency->snapshot());
  }
  return sum;
}

void WorkQueue::clear_queue_latency() {
  if (state_->dead()) return;
  for (auto& pwq : state_->pwqs) {
    if (pwq->latency == nullptr) continue;
    pwq->pool->lock.lock();
    pwq->latency->clear();
    pwq->pool->lock.unlock();
  }
}

const std::string& WorkQueue::name() const { return state_->name; }
WorkQueueKind WorkQueue::kind() const {
  return state_->per_cpu ? WorkQueueKind::kPerCpu : WorkQueueKind::kUnbound;
}

}  // namespace jiffy
