// Work pools and the trace, over all Cpus' interleavings that the seeds reach.
#include <jiffy/fiber.h>
#include <jiffy/semaphore.h>
#include <jiffy/time.h>
#include <jiffy/trace.h>
#include <jiffy/work.h>

#include "support/explore.h"

namespace jiffy {
namespace {

using model::Fault;
using namespace std::chrono_literals;

// Two Cpus queue the same items; each call that was accepted makes one run, and none is at once
// with another of its item.
void hand_over(Runtime& rt, WorkQueueKind kind) {
  WorkQueue queue(rt, {.name = "q", .kind = kind});
  struct Counted {
    int inside = 0, runs = 0;
    WorkItem item{[this] {
      model_check(++inside == 1, "an item runs twice at once");
      model::point();
      ++runs;
      --inside;
    }};
  };
  Counted items[2];
  int accepted[2] = {0, 0};
  JoinHandle<void> fibers[2];
  for (int cpu = 0; cpu < 2; ++cpu) {
    fibers[cpu] = rt.spawn(
        [&] {
          for (int i = 0; i < 4; ++i) {
            if (queue.queue(items[i % 2].item)) ++accepted[i % 2];
          }
        },
        on_cpu(cpu));
  }
  for (auto& fiber : fibers) fiber.join();
  rt.run([&] { queue.flush(); });
  for (int i = 0; i < 2; ++i) {
    model_check(items[i].runs == accepted[i], "an item was lost, or ran once too often");
  }
}

void hand_over_per_cpu(Runtime& rt) { hand_over(rt, WorkQueueKind::kPerCpu); }
void hand_over_unbound(Runtime& rt) { hand_over(rt, WorkQueueKind::kUnbound); }

TEST(Work, APerCpuPoolRunsWhatItAccepts) { expect_all_seeds_pass(2, hand_over_per_cpu); }
TEST(Work, AnUnboundPoolRunsWhatItAccepts) { expect_all_seeds_pass(2, hand_over_unbound); }
TEST(Work, AWorkerThatDoesNotLookAgainIsFound) {
  expect_found(Fault::kWorkerDoesNotLookAgain, 2, hand_over_unbound);
}

// One Cpu queues and another one cancels: after cancel_sync() the item does not run.
void cancel_against_run(Runtime& rt) {
  WorkQueue queue(rt, {.name = "q", .kind = WorkQueueKind::kUnbound});
  int inside = 0, runs = 0;
  WorkItem item([&] {
    ++inside;
    model::point();
    ++runs;
    --inside;
  });
  bool accepted = false;
  auto queuer = rt.spawn([&] { accepted = queue.queue(item); }, on_cpu(0));
  auto canceller = rt.spawn(
      [&] {
        const bool cancelled = queue.cancel_sync(item);
        model_check(inside == 0, "an item runs after cancel_sync()");
        return cancelled;
      },
      on_cpu(1));
  queuer.join();
  const bool cancelled = canceller.join();
  rt.run([&] { queue.flush(); });
  // Refused while it is being cancelled, as in the kernel.
  model_check(runs == (accepted && !cancelled ? 1 : 0),
              "an item was cancelled and ran, or neither");
}

TEST(Work, ACancelledItemDoesNotRun) { expect_all_seeds_pass(2, cancel_against_run); }

// A flush ends after what was queued before it, and ends.
void flush_while_queueing(Runtime& rt) {
  WorkQueue queue(rt, {.name = "q", .kind = WorkQueueKind::kUnbound});
  int first_runs = 0, second_runs = 0;
  WorkItem first([&] { ++first_runs; }), second([&] { ++second_runs; });
  auto flusher = rt.spawn(
      [&] {
        queue.queue(first);
        queue.flush();
        model_check(first_runs == 1, "a flush did not wait for what was queued before it");
      },
      on_cpu(0));
  auto queuer = rt.spawn([&] { queue.queue(second); }, on_cpu(1));
  flusher.join();
  queuer.join();
  rt.run([&] { queue.flush(); });
  model_check(second_runs == 1, "an item was lost");
}

TEST(Work, AFlushEndsAfterWhatWasBeforeIt) { expect_all_seeds_pass(2, flush_while_queueing); }

// --- Trace. Each record says the same thing three times, so that a torn one is seen.

void read_while_writing(Runtime& rt) {
  TraceRing ring(0);
  model_check(ring.enable(4), "no memory");
  auto writer = rt.spawn(
      [&] {
        for (uint64_t i = 1; i <= 12; ++i) {
          ring.emit(i, TraceEvent::kTick, static_cast<uint32_t>(i), i, i);
        }
      },
      on_cpu(0));
  auto reader = rt.spawn(
      [&] {
        for (int i = 0; i < 3; ++i) {
          uint64_t last = 0;
          for (const TraceRecord& r : ring.snapshot()) {
            model_check(r.arg0 == r.time_ns && r.arg1 == r.time_ns && r.arg2 == r.time_ns,
                        "a torn record of the trace");
            model_check(last == 0 || r.time_ns == last + 1, "records of the trace out of order");
            last = r.time_ns;
          }
        }
      },
      on_cpu(1));
  writer.join();
  reader.join();
}

TEST(Trace, AReaderSeesWholeRecordsInOrder) { expect_all_seeds_pass(2, read_while_writing); }
TEST(Trace, AReaderThatDoesNotLookAgainIsFound) {
  expect_found(Fault::kTraceDoesNotLookAgain, 2, read_while_writing);
}

}  // namespace
}  // namespace jiffy
