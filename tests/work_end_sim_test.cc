// The ends: drain, destruction, shutdown; the trace; and what aborts.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/work.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/work_world.h"

namespace jiffy {
namespace {

using namespace work_test;

// --- Drain, destruction, shutdown.

TEST(WorkQueue, DrainAcceptsChainedQueueingOnlyAndReportsTheRest) {
  World w(2);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    int chained = 0, outside = 0;
    WorkItem chain([&](WorkItem& self) {
      sleep_for(100us);
      if (++chained < 20) {
        EXPECT_TRUE(wq.queue(self));
      }
    });
    WorkItem other([&] { ++outside; });
    wq.queue(chain);
    auto drainer = spawn([&] { wq.drain(); });
    sleep_for(500us);
    testing::internal::CaptureStderr();
    EXPECT_FALSE(wq.queue(other));
    EXPECT_FALSE(wq.queue(other));
    EXPECT_NE(testing::internal::GetCapturedStderr().find("work queue 't' drains"),
              std::string::npos);
    EXPECT_FALSE(other.pending());
    EXPECT_EQ(wq.dropped(), 2u);
    drainer.join();
    EXPECT_EQ(chained, 20);
    EXPECT_EQ(clock(), 2ms);
    EXPECT_TRUE(wq.queue(other));  // afterwards all is as before
    wq.flush();
    EXPECT_EQ(outside, 1);
  });
}

TEST(WorkQueue, ItsEndAndTheRuntimesEndRunWhatIsQueued) {
  int ran = 0;
  WorkItem a([&] {
    sleep_for(1ms);
    ++ran;
  });
  WorkItem b([&] { ++ran; });
  {
    World w(2);
    w.run([&] {
      WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kUnbound});
      wq.queue(a);
    });
    EXPECT_EQ(ran, 1);
    w.run([&] { system_percpu_wq(w.rt).queue(b); });
    auto outlives = std::make_unique<WorkQueue>(
        w.rt, WorkQueueOptions{.name = "o", .kind = WorkQueueKind::kPerCpu});
    outlives->queue(a);
    w.rt.stop();
    EXPECT_EQ(ran, 3);
    testing::internal::CaptureStderr();
    EXPECT_FALSE(outlives->queue(a));  // refused, and harmless
    outlives->flush();
    EXPECT_FALSE(outlives->cancel_sync(a));
    (void)testing::internal::GetCapturedStderr();
  }
  // An item may be used again with another runtime.
  World w(1);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    wq.queue(a);
  });
  EXPECT_EQ(ran, 4);
}

TEST(WorkQueue, SystemQueuesAreOneOfEachKind) {
  World w(2);
  EXPECT_EQ(system_percpu_wq(w.rt).kind(), WorkQueueKind::kPerCpu);
  EXPECT_EQ(system_percpu_wq(w.rt).name(), "events");
  EXPECT_EQ(system_dfl_wq(w.rt).kind(), WorkQueueKind::kUnbound);
}

TEST(WorkQueue, TraceTellsPoolItemAndWorker) {
  World w(2);
  WorkItem item([] {});
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    wq.queue_on(1, item);
    wq.flush();
  });
  std::vector<TraceEvent> events;
  for (const TraceRecord& r : w.rt.trace()) {
    if (r.event != TraceEvent::kWorkQueued && r.event != TraceEvent::kWorkStarted &&
        r.event != TraceEvent::kWorkDone) {
      continue;
    }
    events.push_back(r.event);
    EXPECT_EQ(r.arg0, 1u);
    EXPECT_EQ(r.arg1, reinterpret_cast<uintptr_t>(&item));
    EXPECT_NE(r.arg2, 0u);
    EXPECT_EQ(r.cpu, r.event == TraceEvent::kWorkQueued ? 0 : 1);
  }
  EXPECT_EQ(events, (std::vector<TraceEvent>{TraceEvent::kWorkQueued, TraceEvent::kWorkStarted,
                                             TraceEvent::kWorkDone}));
}

// --- What aborts.

TEST(WorkQueueDeathTest, WaitingForOneself) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        World w(1);
        w.run([&] {
          WorkQueue wq(w.rt, {.name = "self", .kind = WorkQueueKind::kPerCpu});
          WorkItem item([&] { wq.flush(); });
          wq.queue(item);
          wq.flush();
        });
      },
      "callback of work queue 'self'.*flush");
  EXPECT_DEATH(
      {
        World w(1);
        w.run([&] {
          WorkQueue wq(w.rt, {.name = "self", .kind = WorkQueueKind::kPerCpu});
          WorkItem item([&](WorkItem& self) { wq.cancel_sync(self); });
          wq.queue(item);
          wq.flush();
        });
      },
      "cancel_sync.* of its own item");
}

TEST(WorkQueueDeathTest, BrokenRulesAreNamed) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  World w(1);
  EXPECT_DEATH(WorkQueue(w.rt, {.name = "x", .kind = WorkQueueKind::kPerCpu, .max_active = 3000}),
               "max_active is 3000: allowed are 1 to 2048");
  EXPECT_DEATH(WorkQueue(w.rt, {.name = "x", .kind = WorkQueueKind::kPerCpu, .ordered = true}),
               "ordered queue is unbound");
  EXPECT_DEATH(
      {
        Runtime idle;
        WorkQueue(idle, {.name = "x", .kind = WorkQueueKind::kPerCpu});
      },
      "call start\\(\\) first");
  EXPECT_DEATH(
      {
        WorkItem item([] {});
        system_percpu_wq(w.rt).queue(item);
      },
      "destroyed while it is queued");
  EXPECT_DEATH(w.run([&] {
    WorkItem item([] { preempt_disable(); });
    system_percpu_wq(w.rt).queue(item);
    sleep_for(1ms);
  }),
               "with preemption or interrupts disabled");
  EXPECT_DEATH(w.run([&] {
    WorkItem item([] { throw std::runtime_error("broken pump"); });
    system_percpu_wq(w.rt).queue(item);
    sleep_for(1ms);
  }),
               "broken pump");
}

}  // namespace
}  // namespace jiffy
