// The rules of the work queues, in virtual time.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/sim.h>
#include <jiffy/work.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sched/runtime_state.h"
#include "support/sanitizer.h"
#include "work/work_queue_state.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

template <class O>
concept KindMayBeLeftOut = requires {
  O{.name = "x"};
};
static_assert(!KindMayBeLeftOut<WorkQueueOptions>);

Options sim_options(int cpus, Preemption mode = Preemption::kLazy) {
  Options o;
  o.preemption = mode;
  o.cpus = cpus;
  o.latency_stats = true;
  o.trace_records = 1 << 12;
  o.machine = make_sim_machine({.cpus = cpus});
  return o;
}

SpawnOptions on_cpu(int cpu, bool kernel = false) {
  SpawnOptions o;
  o.cpu = cpu;
  o.kernel_mode = kernel;
  return o;
}

nanoseconds clock() { return now().time_since_epoch(); }

// Runs `body` in a fiber of Cpu 0.
class World {
 public:
  explicit World(int cpus = 1, Preemption mode = Preemption::kLazy) : rt(sim_options(cpus, mode)) {
    const Status status = rt.start();
    EXPECT_TRUE(status.ok()) << status.message();
    // The runtime's own fibers have run and sleep; no time has passed.
    const Status settled = rt.state().machine->run_until([this] {
      for (Cpu* cpu : rt.state().cpus) {
        if (cpu->idle_state.load() != IdleState::kParked) return false;
      }
      return true;
    });
    EXPECT_TRUE(settled.ok()) << settled.message();
  }
  template <class F>
  void run(F&& body) {
    rt.run(std::forward<F>(body), on_cpu(0));
  }
  uint64_t count(Counter c) const { return rt.counters().at(c); }
  size_t workers(int pool) const {
    WorkerPool& p = *rt.state().work->pools[static_cast<size_t>(pool)];
    size_t n = 0;
    for (Worker* w = p.all.front(); w != nullptr; w = p.all.next(w)) ++n;
    return n;
  }
  size_t idle_workers(int pool) const {
    WorkerPool& p = *rt.state().work->pools[static_cast<size_t>(pool)];
    size_t n = 0;
    for (Worker* w = p.idle.front(); w != nullptr; w = p.idle.next(w)) ++n;
    return n;
  }
  Runtime rt;
};

constexpr WorkQueueKind kBothKinds[] = {WorkQueueKind::kPerCpu, WorkQueueKind::kUnbound};

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
