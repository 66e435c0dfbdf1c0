// Waiting for work and taking it back: flush, cancel, disable, delayed work, in virtual time.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
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

// --- Waiting.

TEST(WorkQueue, FlushWaitsForWhatWasQueuedBeforeAndForNothingLater) {
  for (WorkQueueKind kind : kBothKinds) {
    World w(2);
    w.run([&] {
      WorkQueue wq(w.rt, {.name = "t", .kind = kind});
      WorkItem a([] { sleep_for(1ms); });
      WorkItem b([] { sleep_for(10ms); });
      wq.queue(a);
      sleep_for(100us);
      auto first = spawn([&] {
        wq.flush();
        EXPECT_EQ(clock(), 1ms);
      });
      sleep_for(100us);
      wq.queue(b);
      auto second = spawn([&] {
        wq.flush();
        EXPECT_EQ(clock(), 10200us);
      });
      first.join();
      second.join();
    });
  }
}

TEST(WorkQueue, FlushReturnsWhileOthersQueueWithoutEnd) {
  World w(2);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    bool stop = false;
    WorkItem item([&](WorkItem& self) {
      sleep_for(50us);
      if (!stop) wq.queue(self);
    });
    wq.queue(item);
    for (int i = 0; i < 100; ++i) wq.flush();
    EXPECT_LE(clock(), 100 * 60us);
    stop = true;
    wq.drain();
  });
}

TEST(WorkQueue, MoreFlushesThanColours) {
  World w(2);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    constexpr int kFlushes = 40;
    std::vector<std::unique_ptr<WorkItem>> items;
    std::vector<JoinHandle<void>> flushers;
    int flushed = 0;
    for (int i = 0; i < kFlushes; ++i) {
      const auto length = std::chrono::microseconds(100 + (i * 7 % 11) * 100);
      bool* ended = new bool(false);
      items.push_back(std::make_unique<WorkItem>([length, ended] {
        sleep_for(length);
        *ended = true;
      }));
      wq.queue_on(i % 2, *items.back());
      flushers.push_back(spawn([&wq, &flushed, ended] {
        wq.flush();
        EXPECT_TRUE(*ended);
        delete ended;
        ++flushed;
      }));
      sleep_for(10us);
    }
    for (auto& f : flushers) f.join();
    EXPECT_EQ(flushed, kFlushes);
    EXPECT_LE(clock(), kFlushes * 10us + 3 * 1200us);
  });
}

TEST(WorkQueue, FlushOfAnItemWaitsForItsLastInstanceOnly) {
  World w(1);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    WorkItem before([] { consume(1ms); });
    WorkItem item([] { sleep_for(1ms); });
    WorkItem after([] { sleep_for(50ms); });
    EXPECT_FALSE(wq.flush(item));
    wq.queue(before);
    wq.queue(item);
    wq.queue(after);
    EXPECT_TRUE(wq.flush(item));  // pending behind another
    EXPECT_EQ(clock(), 2ms);
    EXPECT_FALSE(wq.flush(item));
    wq.queue(item);
    sleep_for(100us);
    EXPECT_TRUE(wq.flush(item));  // running
    EXPECT_EQ(clock(), 3ms);
    wq.queue(item);
    sleep_for(100us);
    wq.queue(item);
    EXPECT_TRUE(wq.flush(item));  // running and pending
    EXPECT_EQ(clock(), 5ms);
    wq.flush();
  });
}

TEST(WorkQueue, CancelOfAFlushedItemEndsTheFlushes) {
  for (const bool inactive : {false, true}) {
    World w(1);
    w.run([&] {
      WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu, .max_active = 1});
      WorkItem blocks([] { sleep_for(5ms); });
      WorkItem spins([] { consume(5ms); });
      int ran = 0;
      WorkItem item([&] { ++ran; });
      WorkItem behind([&] { ++ran; });
      std::optional<PreemptDisabled> off(std::in_place);  // nothing starts before it is cancelled
      if (inactive) wq.queue(blocks);
      wq.queue(item);
      wq.queue(behind);
      off.reset();
      std::vector<JoinHandle<void>> flushers;
      int flushed = 0;
      {
        // Spawned fibers run before the worker where they are of a higher class.
        SpawnOptions fifo = on_cpu(0);
        fifo.policy = Policy::kFifo;
        for (int i = 0; i < 3; ++i) {
          flushers.push_back(spawn(
              [&] {
                EXPECT_TRUE(wq.flush(item));
                ++flushed;
              },
              fifo));
        }
        auto canceller = spawn([&] { EXPECT_TRUE(wq.cancel(item)); }, fifo);
        canceller.join();
      }
      for (auto& f : flushers) f.join();
      EXPECT_EQ(flushed, 3);
      EXPECT_LT(clock(), 5ms);
      EXPECT_FALSE(item.pending());
      wq.flush();
      EXPECT_EQ(ran, 1);  // `behind`
    });
  }
}

TEST(WorkQueue, CancelSyncEndsAnItemThatQueuesItself) {
  World w(2);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    int ran = 0;
    bool inside = false;
    WorkItem item([&](WorkItem& self) {
      inside = true;
      ++ran;
      wq.queue(self);
      sleep_for(100us);
      inside = false;
    });
    wq.queue(item);
    sleep_for(1050us);
    EXPECT_TRUE(inside);
    EXPECT_TRUE(wq.cancel_sync(item));
    EXPECT_FALSE(inside);
    const int at_cancel = ran;
    sleep_for(1ms);
    EXPECT_EQ(ran, at_cancel);
    EXPECT_FALSE(wq.cancel_sync(item));
    EXPECT_TRUE(wq.queue(item));  // enabled again
    sleep_for(50us);
    wq.cancel_sync(item);
    EXPECT_EQ(ran, at_cancel + 1);
  });
}

TEST(WorkQueue, DisableCounts) {
  World w(1);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    int ran = 0;
    WorkItem item([&] { ++ran; });
    wq.queue(item);
    EXPECT_TRUE(wq.disable(item));
    EXPECT_FALSE(wq.disable_sync(item));
    EXPECT_FALSE(wq.queue(item));
    EXPECT_FALSE(wq.enable(item));
    EXPECT_FALSE(wq.queue(item));
    EXPECT_FALSE(item.pending());
    EXPECT_TRUE(wq.enable(item));
    EXPECT_TRUE(wq.queue(item));
    wq.flush();
    EXPECT_EQ(ran, 1);
  });
}

// --- Delayed work.

TEST(DelayedWork, RunsAfterItsDelayOnce) {
  World w(2);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    std::vector<nanoseconds> runs;
    DelayedWork work([&] { runs.push_back(clock()); });
    EXPECT_TRUE(wq.queue_delayed(work, 3ms));
    EXPECT_TRUE(work.pending());
    EXPECT_FALSE(wq.queue_delayed(work, 1ms));
    sleep_for(5ms);
    EXPECT_TRUE(wq.queue_delayed(work, 0ms));
    wq.flush();
    EXPECT_EQ(runs, (std::vector<nanoseconds>{3ms, 5ms}));
    EXPECT_FALSE(work.pending());
  });
}

TEST(DelayedWork, ModMovesItFlushFiresItCancelTakesItBack) {
  World w(1);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    std::vector<nanoseconds> runs;
    DelayedWork work([&] { runs.push_back(clock()); });
    EXPECT_FALSE(wq.mod_delayed(work, 3ms));
    EXPECT_TRUE(wq.mod_delayed(work, 1ms));
    sleep_for(4ms);
    wq.queue_delayed(work, 10ms);
    EXPECT_TRUE(wq.flush(work));
    EXPECT_EQ(runs, (std::vector<nanoseconds>{1ms, 4ms}));
    wq.queue_delayed(work, 1ms);
    EXPECT_TRUE(wq.cancel(work));
    wq.queue_delayed(work, 1ms);
    EXPECT_TRUE(wq.cancel_sync(work));
    EXPECT_FALSE(wq.cancel_sync(work));
    sleep_for(5ms);
    EXPECT_EQ(runs.size(), 2u);
    DelayedWork armed([&] { runs.push_back(clock()); });
    wq.queue_delayed(armed, 1ms);  // disarmed by its destructor
  });
}

}  // namespace
}  // namespace jiffy
