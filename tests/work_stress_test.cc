// Work queues under load on the host: nothing lost, nothing twice at once, nothing after its end.
#include <gtest/gtest.h>
#include <jiffy/irqfd.h>
#include <jiffy/runtime.h>
#include <jiffy/work.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "support/stress.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

constexpr double kShare = 1.0 / 8;  // of the program's time, for each test
constexpr int kCpus = 3;
constexpr WorkQueueKind kBothKinds[] = {WorkQueueKind::kPerCpu, WorkQueueKind::kUnbound};

class WorkStress : public testing::Test {
 protected:
  WorkStress() : rt_(options()), dog_([this] { return rt_.dump(); }) {
    const Status status = rt_.start();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  static Options options() {
    Options o;
    o.cpus = kCpus;
    o.spin_us = 0;  // more Cpus than the machine has
    return o;
  }
  static SpawnOptions on_cpu(int cpu) {
    SpawnOptions o;
    o.cpu = cpu;
    return o;
  }
  // `body(worker number)` in a fiber of each Cpu and in two plain threads; waits for all.
  template <class F>
  void everywhere(F body) {
    std::vector<JoinHandle<void>> fibers;
    for (int i = 0; i < kCpus; ++i) fibers.push_back(rt_.spawn([=] { body(i); }, on_cpu(i)));
    std::thread a([=] { body(kCpus); }), b([=] { body(kCpus + 1); });
    for (auto& f : fibers) f.join();
    a.join();
    b.join();
  }

  Runtime rt_;
  Watchdog dog_;
};

// An item that knows what it must never see.
struct Checked {
  explicit Checked(std::atomic<uint64_t>& faults)
      : item([this, &faults] {
          if (inside.exchange(true)) ++faults;
          const uint64_t now_seen = published.load(std::memory_order_relaxed);
          if (now_seen < seen) ++faults;
          seen = now_seen;  // plain: executions are ordered
          ++runs;
          if (runs % 7 == 0) yield();
          if (runs % 31 == 0) sleep_for(20us);
          inside.store(false);
        }) {}
  std::atomic<bool> inside{false};
  std::atomic<uint64_t> published{0};
  std::atomic<uint64_t> accepted{0};
  uint64_t seen = 0;
  uint64_t runs = 0;
  WorkItem item;
};

TEST_F(WorkStress, EachAcceptedQueueingIsOneExecutionThatSeesWhatWasPublished) {
  for (WorkQueueKind kind : kBothKinds) {
    WorkQueue wq(rt_, {.name = "stress", .kind = kind});
    std::atomic<uint64_t> faults{0};
    std::vector<std::unique_ptr<Checked>> items;
    for (int i = 0; i < 8; ++i) items.push_back(std::make_unique<Checked>(faults));
    for (Budget budget(kShare / 2); budget.left();) {
      everywhere([&](int who) {
        Random random(static_cast<uint64_t>(who) + 1);
        for (int i = 0; i < 500; ++i) {
          Checked& c = *items[random.below(items.size())];
          c.published.fetch_add(1, std::memory_order_relaxed);
          const bool queued = random.below(2) == 0
                                  ? wq.queue(c.item)
                                  : wq.queue_on(static_cast<int>(random.below(kCpus)), c.item);
          if (queued) c.accepted.fetch_add(1, std::memory_order_relaxed);
          random_pause(random);
        }
        dog_.progress();
      });
      wq.flush();
      for (auto& c : items) {
        // The last queueing, accepted or not, was answered by a run that saw it.
        EXPECT_EQ(c->runs, c->accepted.load());
        EXPECT_EQ(c->seen, c->published.load());
      }
    }
    EXPECT_EQ(faults.load(), 0u);
  }
}

TEST_F(WorkStress, ItemsThatQueueThemselvesOnOtherCpusNeverOverlap) {
  WorkQueue wq(rt_, {.name = "stress", .kind = WorkQueueKind::kPerCpu});
  struct Hopper {
    std::atomic<bool> inside{false};
    std::atomic<bool>* stop = nullptr;
    uint64_t runs = 0;
    std::unique_ptr<WorkItem> item;
  };
  std::atomic<uint64_t> faults{0};
  for (Budget budget(kShare); budget.left();) {
    std::atomic<bool> stop{false};
    std::vector<std::unique_ptr<Hopper>> hoppers;
    for (int i = 0; i < 4; ++i) {
      auto h = std::make_unique<Hopper>();
      h->item = std::make_unique<WorkItem>([this, h = h.get(), &wq, &stop, &faults] {
        if (h->inside.exchange(true)) ++faults;
        if (++h->runs % 64 == 0) sleep_for(1us);
        if (!stop.load(std::memory_order_relaxed)) {
          wq.queue_on(static_cast<int>(h->runs % kCpus), *h->item);
        }
        h->inside.store(false);
        dog_.progress();
      });
      wq.queue(*h->item);
      hoppers.push_back(std::move(h));
    }
    everywhere([&](int who) {
      Random random(static_cast<uint64_t>(who) + 7);
      for (int i = 0; i < 100; ++i) {
        wq.queue_on(static_cast<int>(random.below(kCpus)),
                    *hoppers[random.below(hoppers.size())]->item);
        random_pause(random);
      }
    });
    stop.store(true);
    wq.drain();
    for (auto& h : hoppers) EXPECT_GT(h->runs, 0u);
  }
  EXPECT_EQ(faults.load(), 0u);
}

TEST_F(WorkStress, ItemsFreedInTheirCallbacks) {
  for (WorkQueueKind kind : kBothKinds) {
    WorkQueue wq(rt_, {.name = "stress", .kind = kind, .max_active = 16});
    std::atomic<uint64_t> made{0}, ran{0};
    for (Budget budget(kShare / 2); budget.left();) {
      everywhere([&](int) {
        for (int i = 0; i < 300; ++i) {
          ++made;
          ASSERT_TRUE(wq.queue(*new WorkItem([&ran](WorkItem& self) {
            ++ran;
            delete &self;
          })));
        }
        dog_.progress();
      });
      wq.flush();
      EXPECT_EQ(ran.load(), made.load());
    }
  }
}

TEST_F(WorkStress, CancelSyncAndFlushRaceWithQueueing) {
  for (WorkQueueKind kind : kBothKinds) {
    WorkQueue wq(rt_, {.name = "stress", .kind = kind, .max_active = 2});
    for (Budget budget(kShare / 2); budget.left();) {
      everywhere([&](int who) {
        Random random(static_cast<uint64_t>(who) * 31 + 3);
        for (int i = 0; i < 50; ++i) {
          // On the stack: nothing may touch it after the last call.
          std::atomic<bool> inside{false};
          uint64_t runs = 0, accepted = 0, cancelled = 0;
          WorkItem item([&](WorkItem& self) {
            inside.store(true);
            ++runs;
            if (runs % 4 == 1 && wq.queue(self)) ++accepted;
            if (runs % 3 == 0) sleep_for(5us);
            inside.store(false);
          });
          for (int k = 0; k < 5; ++k) {
            const bool queued = wq.queue_on(static_cast<int>(random.below(kCpus)), item);
            random_pause(random);
            if (random.below(2) == 0) (void)wq.flush(item);
            cancelled += wq.cancel_sync(item);
            EXPECT_FALSE(inside.load());
            EXPECT_FALSE(item.pending());
            // Now it is ours alone, so plain numbers are safe.
            accepted += queued;
            EXPECT_EQ(runs + cancelled, accepted);
          }
        }
        dog_.progress();
      });
    }
  }
}

TEST_F(WorkStress, SharedItemIsCancelledDisabledAndQueuedByAll) {
  WorkQueue wq(rt_, {.name = "stress", .kind = WorkQueueKind::kPerCpu});
  std::atomic<uint64_t> faults{0};
  std::atomic<uint64_t> accepted{0}, cancelled{0};
  std::atomic<bool> inside{false};
  std::atomic<uint64_t> runs{0};
  WorkItem item([&] {
    if (inside.exchange(true)) ++faults;
    ++runs;
    if (runs % 5 == 0) sleep_for(3us);
    inside.store(false);
  });
  for (Budget budget(kShare); budget.left();) {
    everywhere([&](int who) {
      Random random(static_cast<uint64_t>(who) * 17 + 5);
      for (int i = 0; i < 200; ++i) {
        switch (random.below(8)) {
          case 0:
            cancelled += wq.cancel(item);
            break;
          case 1:
            cancelled += wq.cancel_sync(item);
            break;
          case 2:
            cancelled += wq.disable(item);
            random_pause(random);
            wq.enable(item);
            break;
          case 3:
            (void)wq.flush(item);
            break;
          default:
            accepted += wq.queue_on(static_cast<int>(random.below(kCpus)), item);
        }
      }
      dog_.progress();
    });
    (void)wq.flush(item);
    EXPECT_EQ(runs + cancelled, accepted.load());
  }
  EXPECT_EQ(faults.load(), 0u);
}

TEST_F(WorkStress, FlushUnderLoadCoversWhatItsCallerQueued) {
  WorkQueue wq(rt_, {.name = "stress", .kind = WorkQueueKind::kPerCpu, .max_active = 4});
  for (Budget budget(kShare); budget.left();) {
    everywhere([&](int who) {
      Random random(static_cast<uint64_t>(who) * 13 + 11);
      for (int i = 0; i < 20; ++i) {
        std::atomic<int> ran{0};
        std::vector<std::unique_ptr<WorkItem>> items;
        for (int k = 0; k < 10; ++k) {
          items.push_back(std::make_unique<WorkItem>([&ran, k] {
            if (k % 4 == 0) sleep_for(5us);
            ++ran;
          }));
          wq.queue_on(static_cast<int>(random.below(kCpus)), *items.back());
        }
        wq.flush();
        EXPECT_EQ(ran.load(), 10);
        dog_.progress();
      }
    });
  }
}

TEST_F(WorkStress, DelayedWorkRacesWithItsCancel) {
  WorkQueue wq(rt_, {.name = "stress", .kind = WorkQueueKind::kUnbound});
  for (Budget budget(kShare); budget.left();) {
    everywhere([&](int who) {
      Random random(static_cast<uint64_t>(who) * 5 + 1);
      for (int i = 0; i < 20; ++i) {
        uint64_t runs = 0, accepted = 0, cancelled = 0;
        DelayedWork work([&] { ++runs; });
        for (int k = 0; k < 3; ++k) {
          const auto delay = std::chrono::microseconds(random.below(30));
          accepted += wq.queue_delayed(work, delay);
          if (random.below(3) == 0) accepted += !wq.mod_delayed(work, delay);
          if (random.below(2) == 0) sleep_for(delay);
          if (random.below(3) == 0) (void)wq.flush(work);
          cancelled += wq.cancel_sync(work);
          EXPECT_EQ(runs + cancelled, accepted);
        }
      }
      dog_.progress();
    });
  }
}

TEST_F(WorkStress, QueuesAreMadeUsedAndDestroyed) {
  for (Budget budget(kShare); budget.left();) {
    everywhere([&](int who) {
      for (int i = 0; i < 10; ++i) {
        std::atomic<int> ran{0};
        std::vector<std::unique_ptr<WorkItem>> items;
        {
          WorkQueue wq(
              rt_, {.name = "short", .kind = kBothKinds[(who + i) % 2], .max_active = 1 + i % 3});
          for (int k = 0; k < 8; ++k) {
            items.push_back(std::make_unique<WorkItem>([&ran, k] {
              if (k == 3) sleep_for(2us);
              ++ran;
            }));
            wq.queue(*items.back());
          }
        }
        EXPECT_EQ(ran.load(), 8);
      }
      dog_.progress();
    });
  }
}

TEST_F(WorkStress, IrqFdsAreAssignedAndDeassignedUnderSignals) {
  for (Budget budget(kShare); budget.left();) {
    EventFd event;
    std::atomic<bool> stop{false};
    std::atomic<bool> attached{false};
    std::atomic<uint64_t> faults{0};
    std::thread signaller([&] {
      Random random(1);
      while (!stop.load(std::memory_order_relaxed)) {
        event.signal();
        random_pause(random);
        // The lock is not fair: without a pause the others starve where processors are few.
        if (random.below(8) == 0) std::this_thread::sleep_for(20us);
      }
    });
    rt_.run([&] {
      for (int i = 0; i < 20; ++i) {
        std::atomic<uint64_t> injected{0};
        IrqFd irqfd(i % 2 == 0 ? system_percpu_wq(rt_) : system_dfl_wq(rt_), [&] {
          if (!attached.load()) ++faults;
          ++injected;
        });
        attached.store(true);
        EXPECT_TRUE(irqfd.assign(event).ok());
        while (injected.load() < 3) sleep_for(20us);
        irqfd.deassign();
        attached.store(false);
        dog_.progress();
      }
    });
    stop.store(true);
    signaller.join();
    EXPECT_EQ(faults.load(), 0u);
  }
}

TEST(WorkStressRuntime, StopsWithWorkQueuedAndPlainThreadsQueueing) {
  std::unique_ptr<Runtime> rt;
  Watchdog dog([&] { return rt != nullptr ? rt->dump() : std::string("no runtime"); });
  for (Budget budget(kShare); budget.left();) {
    std::atomic<int> ran{0}, accepted{0};
    std::vector<std::unique_ptr<WorkItem>> items;
    for (int i = 0; i < 64; ++i) {
      items.push_back(std::make_unique<WorkItem>([&ran] {
        ++ran;
        yield();
      }));
    }
    Options o;
    o.cpus = 2;
    o.spin_us = 0;
    rt = std::make_unique<Runtime>(o);
    ASSERT_TRUE(rt->start().ok());
    {
      WorkQueue bound(*rt, {.name = "bound", .kind = WorkQueueKind::kPerCpu});
      WorkQueue unbound(*rt, {.name = "unbound", .kind = WorkQueueKind::kUnbound});
      std::thread plain([&] {
        for (int round = 0; round < 20; ++round) {
          for (size_t i = 0; i < items.size(); ++i) {
            accepted += (i % 2 == 0 ? bound : unbound).queue(*items[i]);
          }
        }
      });
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      testing::internal::CaptureStderr();  // that items were dropped
      rt->stop();
      plain.join();
      (void)testing::internal::GetCapturedStderr();
    }
    EXPECT_EQ(ran.load(), accepted.load());
    rt.reset();
    dog.progress();
  }
}

}  // namespace
}  // namespace jiffy
