// Handing work to a pool: queue_work, submit_idle, submit_busy.
#include <jiffy/semaphore.h>
#include <jiffy/work.h>

#include <atomic>
#include <deque>

#include "micro/bench_runtime.h"
#include "micro/futex_wake.h"

namespace jiffy::micro {

namespace {

// One Cpu on the first allowed CPU; what submits is a plain thread on the second. Idle, it polls
// and then parks, as an application's would.
Options pool_options() {
  Options options = bench_options(1);
  options.spin_us = -1;
  return options;
}

Outcome skip(const Status& status) {
  Outcome outcome;
  outcome.skipped = status.message();
  return outcome;
}

// Batches of items, queued by an item of the same pool: it runs, so that nobody has to be woken.
// Only the queueing is timed; the items run between two batches.
class Batches {
 public:
  explicit Batches(WorkQueue& queue) : queue_(queue), producer_([this] { produce(); }) {
    for (int i = 0; i < kBatch; ++i) items_.emplace_back([] {});
  }

  double run() {
    left_ = kBatches;
    ns_ = 0;
    queue_.queue(producer_);
    done_.acquire();
    return ns_ / (static_cast<double>(kBatches) * kBatch);
  }

 private:
  static constexpr int kBatch = 512;
  static constexpr int kBatches = 400;

  void produce() {
    const double start = thread_cpu_ns();
    for (WorkItem& item : items_) queue_.queue(item);
    ns_ += thread_cpu_ns() - start;
    if (--left_ > 0) {
      queue_.queue(producer_);  // behind the batch
    } else {
      done_.release();
    }
  }

  WorkQueue& queue_;
  std::deque<WorkItem> items_;
  WorkItem producer_;
  Semaphore done_;
  int left_ = 0;
  double ns_ = 0;
};

Outcome run_queue_work(const Row& row, const Settings& settings) {
  Runtime rt(bench_options(1));
  if (const Status status = rt.start(); !status.ok()) return skip(status);
  WorkQueue queue(rt, {.name = "bench", .kind = WorkQueueKind::kPerCpu});
  Batches batches(queue);
  const Outcome outcome = contend(row, settings, {[&] { return batches.run(); }, nullptr});
  queue.flush();
  return outcome;
}

// The time from before queue() until the callback runs; p50. The reference is the same with a bare
// futex, after the same silence.
Outcome run_submit_idle(const Row& row, const Settings& settings) {
  constexpr int kSubmits = 200;
  Runtime rt(pool_options());
  if (const Status status = rt.start(); !status.ok()) return skip(status);
  WorkQueue queue(rt, {.name = "bench", .kind = WorkQueueKind::kPerCpu});
  std::atomic<double> ran_at{0};
  // Release: partner is the acquire below.
  WorkItem item([&ran_at] { ran_at.store(now_ns(), std::memory_order_release); });
  const auto ours = [&] {
    const PinnedHere pinned(1);
    std::vector<double> samples;
    for (int i = 0; i < kSubmits; ++i) {
      spin_for(kSilenceNs);
      ran_at.store(0, std::memory_order_relaxed);
      const double start = now_ns();
      queue.queue(item);
      double end = 0;
      // Acquire: partner is the release in the item.
      while ((end = ran_at.load(std::memory_order_acquire)) == 0) __builtin_ia32_pause();
      samples.push_back(end - start);
    }
    return percentile(samples, 50);
  };
  FutexWake wake;
  const Outcome outcome = contend(row, settings, {ours, [&wake] { return wake.run(kSubmits); }});
  queue.flush();
  return outcome;
}

// An item that knows when it was queued. Queued again only after it has run.
struct Stamped {
  Stamped(std::vector<double>& samples)
      : item([this, &samples] { samples.push_back(now_ns() - queued_at); }) {}
  double queued_at = 0;
  WorkItem item;
};

Outcome run_submit_busy(const Row& row, const Settings& settings) {
  constexpr int kSubmits = 50'000;
  constexpr size_t kItems = 256;
  constexpr double kEveryNs = 1000;
  Runtime rt(pool_options());
  if (const Status status = rt.start(); !status.ok()) return skip(status);
  WorkQueue queue(rt, {.name = "bench", .kind = WorkQueueKind::kPerCpu});
  std::vector<double> samples;  // by the pool's worker; read after a flush
  samples.reserve(kSubmits);
  std::deque<Stamped> items;
  for (size_t i = 0; i < kItems; ++i) items.emplace_back(samples);
  const auto ours = [&] {
    const PinnedHere pinned(1);
    samples.clear();
    double next = now_ns();
    for (size_t i = 0; i < kSubmits; ++i) {
      double now = 0;
      while ((now = now_ns()) < next) __builtin_ia32_pause();
      next = now + kEveryNs;
      Stamped& stamped = items[i % kItems];
      if (stamped.item.pending()) continue;  // the pool's thread has not run for long
      stamped.queued_at = now;
      queue.queue(stamped.item);
    }
    queue.flush();
    return percentile(samples, 50);
  };
  return contend(row, settings, {ours, nullptr});
}

}  // namespace

std::vector<Row> work_rows() {
  return {
      {"queue_work",
       "queue an item to a pool that runs",
       nullptr,
       {Bar::kAbsolute, 30, "<= 30 ns"},
       {.locked = 3},
       1,
       run_queue_work},
      {"submit_idle",
       "from queue() to the start of the callback, idle pool, p50",
       "a bare futex wake",
       {Bar::kRatio, 1.1, "<= 1.1 x"},
       {.wakeups = 1},
       2,
       run_submit_idle},
      {"submit_busy",
       "the same with an item each microsecond, p50",
       nullptr,
       {Bar::kAbsolute, 400, "<= 0.4 us"},
       // The item, the pool's lock and list, the worker, its run queue: there, and back again.
       {.locked = 5, .transfers = 8},
       2,
       run_submit_busy},
  };
}

}  // namespace jiffy::micro
