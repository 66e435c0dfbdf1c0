// Queueing, its rules and its contexts, in virtual time.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/work.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/sanitizer.h"
#include "support/work_world.h"

namespace jiffy {
namespace {

using namespace work_test;

template <class O>
concept KindMayBeLeftOut = requires {
  O{.name = "x"};
};
static_assert(!KindMayBeLeftOut<WorkQueueOptions>);

// --- Queueing.

TEST(WorkQueue, QueueIsTrueOncePerExecution) {
  for (WorkQueueKind kind : kBothKinds) {
    World w(3);
    w.run([&] {
      WorkQueue wq(w.rt, {.name = "t", .kind = kind});
      int ran = 0, accepted = 0;
      WorkItem item([&] {
        ++ran;
        consume(7us);
      });
      auto queue_often = [&] {
        for (int i = 0; i < 500; ++i) {
          accepted += wq.queue(item);
          sleep_for(3us);
        }
      };
      auto a = spawn(queue_often, on_cpu(1));
      auto b = spawn(queue_often, on_cpu(2));
      a.join();
      b.join();
      wq.flush();
      EXPECT_EQ(ran, accepted);
      EXPECT_GT(ran, 100);
      EXPECT_EQ(w.count(Counter::kWorksQueued), static_cast<uint64_t>(accepted));
      EXPECT_EQ(w.count(Counter::kWorksCoalesced), static_cast<uint64_t>(1000 - accepted));
      EXPECT_EQ(w.count(Counter::kWorksStarted), static_cast<uint64_t>(ran));
    });
  }
}

TEST(WorkQueue, ItemThatQueuesItselfOnAlternatingCpusNeverOverlaps) {
  World w(2);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    constexpr int kRounds = kSlowdown > 1 ? 50'000 : 1'000'000;
    int ran = 0, inside = 0, most = 0;
    WorkItem item([&](WorkItem& self) {
      most = std::max(most, ++inside);
      if (++ran < kRounds) {
        EXPECT_TRUE(wq.queue_on(ran % 2, self));
      }
      if (ran % 1000 == 0) consume(1us);
      --inside;
    });
    wq.queue(item);
    wq.flush(item);
    while (item.pending()) wq.flush(item);
    wq.drain();
    EXPECT_EQ(ran, kRounds);
    EXPECT_EQ(most, 1);
  });
}

TEST(WorkQueue, RunningItemQueuedElsewhereRunsAgainWhereItRuns) {
  World w(2);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    std::vector<int> cpus;
    std::vector<nanoseconds> starts;
    WorkItem item([&] {
      cpus.push_back(this_fiber::cpu());
      starts.push_back(clock());
      sleep_for(1ms);
    });
    wq.queue_on(1, item);
    sleep_for(100us);
    EXPECT_TRUE(wq.queue_on(0, item));
    EXPECT_FALSE(wq.queue_on(0, item));
    wq.flush();
    // Idle again: now the Cpu that was named.
    EXPECT_TRUE(wq.queue_on(0, item));
    wq.flush();
    EXPECT_EQ(cpus, (std::vector<int>{1, 1, 0}));
    EXPECT_EQ(starts, (std::vector<nanoseconds>{0ms, 1ms, 2ms}));
  });
}

TEST(WorkQueue, ItemFreedInItsCallbackAndReusedWithAnotherCallbackMayOverlap) {
  World w(1);
  w.run([&] {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kUnbound});
    std::optional<WorkItem> room;
    Semaphore second_runs, done;
    bool overlapped = false;
    room.emplace([&] {
      auto& wq_ref = wq;
      auto& room_ref = room;
      auto& second = second_runs;
      auto& finished = done;
      bool* over = &overlapped;
      room_ref.reset();  // this callback's captures are gone
      room_ref.emplace([&second] { second.release(); });
      wq_ref.queue(*room_ref);
      // Would wait for ever if the new item counted as this one.
      *over = second.acquire(Until(1s)) == WaitResult::kReady;
      finished.release();
    });
    wq.queue(*room);
    done.acquire();
    wq.flush();
    EXPECT_TRUE(overlapped);
  });
}

TEST(WorkQueue, DeletedInItsCallback) {
  World w(1);
  w.run([&] {
    int ran = 0;
    std::array<char, 200> large{};  // a callback that does not fit into the item
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    for (int i = 0; i < 100; ++i) {
      wq.queue(*new WorkItem([&ran](WorkItem& self) {
        ++ran;
        delete &self;
      }));
      wq.queue(*new WorkItem([&ran, large](WorkItem& self) {
        ran += 1 + large[0];
        delete &self;
      }));
    }
    wq.flush();
    EXPECT_EQ(ran, 200);
  });
}

TEST(WorkQueue, QueuedFromInterruptsTimersDevicesAndWakeFunctions) {
  World w(2);
  WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
  std::vector<int> cpus;
  WorkItem from_device([&] { cpus.push_back(this_fiber::cpu()); });
  WorkItem from_timer([&] { cpus.push_back(this_fiber::cpu()); });
  WorkItem from_wake([&] { cpus.push_back(this_fiber::cpu()); });
  at(*w.rt.state().machine, 1ms, [&] { wq.queue(from_device); });
  struct Entry : WaitEntry {
    std::function<void()> fn;
  } entry;
  entry.fn = [&] { wq.queue(from_wake); };
  entry.wake = [](WaitEntry& e, uint64_t) {
    static_cast<Entry&>(e).fn();
    return 1;
  };
  w.rt.run(
      [&] {
        sleep_for(2ms);
        WorkQueue timers(w.rt, {.name = "timers", .kind = WorkQueueKind::kPerCpu});
        DelayedWork delayed([&] { cpus.push_back(10 + this_fiber::cpu()); });
        timers.queue_delayed(delayed, 1ms);
        sleep_for(2ms);
        WaitQueue queue;
        queue.with_lock([&] {
          queue.add(entry);
          queue.wake_locked(1);
          queue.remove(entry);
        });
        wq.flush();
      },
      on_cpu(1));
  // A device is no Cpu: its items go to the home Cpu.
  EXPECT_EQ(cpus, (std::vector<int>{0, 11, 1}));
}

TEST(WorkQueue, PlainThreadQueuesFlushesAndDestroysInASimulation) {
  World w(2);
  int ran = 0;
  WorkItem item([&] {
    EXPECT_EQ(this_fiber::cpu(), 0);
    sleep_for(1ms);
    ++ran;
  });
  {
    WorkQueue wq(w.rt, {.name = "t", .kind = WorkQueueKind::kPerCpu});
    EXPECT_TRUE(wq.queue(item));
    EXPECT_TRUE(wq.flush(item));
    EXPECT_EQ(ran, 1);
    EXPECT_TRUE(wq.queue(item));
    wq.flush();
    EXPECT_EQ(ran, 2);
    EXPECT_TRUE(wq.queue(item));
    EXPECT_TRUE(wq.cancel_sync(item));
    EXPECT_TRUE(wq.queue(item));
  }
  EXPECT_EQ(ran, 3);
}

// --- max_active and order.

TEST(WorkQueue, MaxActiveBoundsAPerCpuQueuePerCpuAndAnUnboundOneInAll) {
  for (WorkQueueKind kind : kBothKinds) {
    World w(2);
    w.run([&] {
      WorkQueue wq(w.rt, {.name = "t", .kind = kind, .max_active = 2});
      int inside = 0, most = 0;
      std::vector<int> order;
      std::vector<std::unique_ptr<WorkItem>> items;
      for (int i = 0; i < 12; ++i) {
        items.push_back(std::make_unique<WorkItem>([&, i] {
          order.push_back(i);
          most = std::max(most, ++inside);
          sleep_for(1ms);
          --inside;
        }));
        wq.queue_on(i % 2, *items.back());
      }
      wq.flush();
      EXPECT_EQ(most, kind == WorkQueueKind::kPerCpu ? 4 : 2);
      EXPECT_EQ(clock(), kind == WorkQueueKind::kPerCpu ? 3ms : 6ms);
      // Those that wait start in the order in which they came.
      std::vector<int> even;
      for (int i : order) {
        if (i % 2 == 0) even.push_back(i);
      }
      EXPECT_TRUE(std::is_sorted(even.begin(), even.end()));
    });
  }
}

TEST(WorkQueue, OnlyAnOrderedQueueKeepsTheOrderAcrossCpus) {
  for (const bool ordered : {false, true}) {
    World w(2);
    w.run([&] {
      WorkQueueOptions options{.name = "t", .kind = WorkQueueKind::kPerCpu, .max_active = 1};
      if (ordered) options = {.name = "t", .kind = WorkQueueKind::kUnbound, .ordered = true};
      WorkQueue wq(w.rt, options);
      std::vector<int> order;
      int inside = 0;
      std::vector<std::unique_ptr<WorkItem>> items;
      for (int i = 0; i < 10; ++i) {
        items.push_back(std::make_unique<WorkItem>([&, i] {
          ++inside;
          EXPECT_TRUE(!ordered || inside == 1);
          sleep_for(i < 5 ? 1ms : 100us);
          order.push_back(i);
          --inside;
        }));
      }
      for (int i = 0; i < 10; ++i) wq.queue_on(i / 5, *items[static_cast<size_t>(i)]);
      wq.flush();
      EXPECT_EQ(std::is_sorted(order.begin(), order.end()), ordered);
    });
  }
}

}  // namespace
}  // namespace jiffy
