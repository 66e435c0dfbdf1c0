// How the pools run their items: concurrency and workers, in virtual time.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/work.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/work_world.h"

namespace jiffy {
namespace {

using namespace work_test;

// --- Concurrency.

TEST(WorkQueue, BlockedWorkerLetsTheNextItemStartASpinningOneDoesNot) {
  World w(1);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    nanoseconds started{};
    WorkItem blocks([] { sleep_for(10ms); });
    WorkItem spins([] { consume(10ms); });
    WorkItem next([&] { started = clock(); });
    wq.queue(blocks);
    wq.queue(next);
    wq.flush();
    EXPECT_EQ(started, 0ms);
    EXPECT_EQ(clock(), 10ms);
    wq.queue(spins);
    wq.queue(next);
    wq.flush();
    EXPECT_EQ(started, 20ms);
    EXPECT_EQ(w.count(Counter::kWorksStarted), 4u);
  });
}

TEST(WorkQueue, PreemptedWorkerStillCountsAsRunning) {
  World w(1, Preemption::kFull);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    std::vector<nanoseconds> starts;
    auto body = [&] {
      starts.push_back(clock());
      consume(20ms);
    };
    WorkItem a(body), b(body);
    auto rival = spawn([] { consume(100ms); }, on_cpu(0));
    wq.queue(a);
    wq.queue(b);
    wq.flush();
    ASSERT_EQ(starts.size(), 2u);
    // The rival took half of the Cpu meanwhile, and b waited for the end of a all the same.
    EXPECT_GE(starts[1] - starts[0], 30ms);
    rival.join();
  });
}

TEST(WorkQueue, UnboundItemsStartAtOnceWithoutConcurrencyManagement) {
  World w(4);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kUnbound});
    std::vector<nanoseconds> starts;
    std::vector<std::unique_ptr<WorkItem>> items;
    for (int i = 0; i < 3; ++i) {
      items.push_back(std::make_unique<WorkItem>([&] {
        starts.push_back(clock());
        consume(10ms);
      }));
    }
    for (auto& item : items) wq.queue(*item);
    wq.flush();
    EXPECT_EQ(starts, (std::vector<nanoseconds>{0ms, 0ms, 0ms}));
    EXPECT_EQ(clock(), 10ms);  // on three Cpus
  });
}

TEST(WorkQueue, PerCpuWorkerWaitsForTheTickBehindALazyProducerAnUnboundOneDoesNot) {
  struct Case {
    Preemption mode;
    WorkQueueKind kind;
    nanoseconds start;
  };
  const Case cases[] = {{Preemption::kLazy, WorkQueueKind::kPerCpu, 4ms},
                        {Preemption::kFull, WorkQueueKind::kPerCpu, 1ms},
                        {Preemption::kLazy, WorkQueueKind::kUnbound, 1ms}};
  for (const Case& c : cases) {
    World w(2, c.mode);
    nanoseconds start{};
    auto producer = w.rt.spawn(
        [&] {
          WorkQueue wq(w.rt, {.name = "t", .kind = c.kind});
          WorkItem item([&] { start = clock(); });
          consume(1ms);
          wq.queue(item);
          consume(10ms);
          wq.flush();
          EXPECT_EQ(wq.queue_latency().count(), 1u);
          EXPECT_EQ(wq.queue_latency().max(), static_cast<uint64_t>((c.start - 1ms).count()));
          wq.clear_queue_latency();
          EXPECT_EQ(wq.queue_latency().count(), 0u);
        },
        on_cpu(0, /*kernel=*/true));
    producer.join();
    EXPECT_EQ(start, c.start) << preemption_name(c.mode) << static_cast<int>(c.kind);
  }
}

TEST(WorkQueue, OneWorkerIsKeptIdleAndTheLastToIdleIsWokenFirst) {
  World w(1);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    EXPECT_EQ(w.workers(0), 1u);
    std::vector<std::unique_ptr<WorkItem>> items;
    for (int i = 0; i < 5; ++i) {
      items.push_back(std::make_unique<WorkItem>([i] { sleep_for(1ms + i * 1us); }));
      wq.queue(*items.back());
    }
    sleep_for(100us);
    EXPECT_EQ(w.workers(0), 6u);  // five sleep in their items, one is idle
    EXPECT_EQ(w.idle_workers(0), 1u);
    wq.flush();
    EXPECT_EQ(w.idle_workers(0), 6u);
    std::string last, next;
    WorkItem note([&] { next = this_fiber::name(); });
    last = w.rt.state().work->pools[0]->idle.front()->fiber->name;
    wq.queue(note);
    wq.flush();
    EXPECT_EQ(next, last);
    EXPECT_EQ(w.workers(0), 6u);
  });
}

TEST(WorkQueue, WorkersAreNamedAndRunInKernelMode) {
  World w(2);
  w.run([&] {
    WorkQueue bound(w.rt, {.name = "b", .kind = WorkQueueKind::kPerCpu});
    WorkQueue unbound(w.rt, {.name = "u", .kind = WorkQueueKind::kUnbound});
    std::vector<std::string> names;
    auto note = [&] {
      names.push_back(this_fiber::name());
      const Fiber& self = *this_cpu()->current;
      EXPECT_TRUE(self.kernel_mode);
      EXPECT_EQ(self.kind, LatencyKind::kWorker);
      EXPECT_EQ(self.migratable, self.pinned_cpu < 0);
    };
    WorkItem a(note), b(note);
    bound.queue_on(1, a);
    bound.flush();
    unbound.queue(b);
    unbound.flush();
    EXPECT_EQ(names, (std::vector<std::string>{"kworker/1:1", "kworker/u:1"}));
  });
}

TEST(WorkQueue, WithoutStacksThePoolGoesOnWithWhatItHasAndNothingIsLost) {
  World w(1);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    RuntimeState& state = w.rt.state();
    state.stacks->fail_next(1'000'000);
    std::vector<JoinHandle<void>> hold;  // what the Cpu's cache still has
    Semaphore release_all;
    for (;;) {
      auto fiber = spawn([&] { release_all.acquire(); }, on_cpu(0));
      if (!fiber.valid()) break;
      hold.push_back(std::move(fiber));
    }
    int ran = 0;
    WorkItem quick([&] { ++ran; });
    wq.queue(quick);
    wq.flush();
    EXPECT_EQ(ran, 1);
    EXPECT_EQ(w.workers(0), 1u);
    // The only worker sleeps for what the next item brings.
    Semaphore from_second;
    nanoseconds end{};
    WorkItem first([&] {
      from_second.acquire();
      end = clock();
    });
    WorkItem second([&] { from_second.release(); });
    wq.queue(first);
    wq.queue(second);
    sleep_for(2500ms);
    EXPECT_EQ(end, 0ms);
    state.stacks->fail_next(0);
    wq.flush();
    EXPECT_GT(end, 2500ms);
    EXPECT_LE(end, 3500ms);       // the retry of each second
    EXPECT_EQ(w.workers(0), 3u);  // one for each of the two, and one kept idle
    release_all.release(static_cast<int64_t>(hold.size()));
    for (auto& fiber : hold) fiber.join();
  });
}

}  // namespace
}  // namespace jiffy
