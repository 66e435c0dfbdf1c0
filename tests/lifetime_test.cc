// What may outlive what: handles, timers, delayed work and the system's queues after stop(),
// results that nobody wants.
#include <gtest/gtest.h>
#include <jiffy/event_fd.h>
#include <jiffy/irqfd.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/time.h>
#include <jiffy/timer.h>
#include <jiffy/work.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "support/runtimes.h"

namespace jiffy {
namespace {

using std::chrono_literals::operator""h;
using std::chrono_literals::operator""ms;

class LifetimeTest : public testing::TestWithParam<MachineKind> {
 protected:
  std::unique_ptr<Runtime> started() {
    auto rt = std::make_unique<Runtime>(options_for(GetParam(), 2));
    EXPECT_TRUE(rt->start().ok());
    return rt;
  }
};
INSTANTIATE_TEST_SUITE_P(, LifetimeTest, kBothMachines, kMachineNames);

TEST_P(LifetimeTest, AHandleMayBeJoinedAfterItsRuntimeStopped) {
  auto rt = started();
  auto handle = rt->spawn([] { return 7; });
  rt->stop();
  EXPECT_EQ(handle.join(), 7);
}

TEST_P(LifetimeTest, AHandleMayBeJoinedOrDetachedAfterItsRuntimeIsGone) {
  auto rt = started();
  std::vector<JoinHandle<int>> joined;
  std::vector<JoinHandle<int>> dropped;
  SpawnOptions small;
  small.stack_size = 16 * 1024;  // of a pool of its own
  for (int i = 0; i < 200; ++i) {
    joined.push_back(rt->spawn([i] { return i; }));
    dropped.push_back(rt->spawn([i] { return i; }, small));
  }
  rt.reset();
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(joined[static_cast<size_t>(i)].join(), i);
    dropped[static_cast<size_t>(i)].detach();
  }
}

TEST_P(LifetimeTest, AnArmedTimerMayBeDestroyedAfterItsRuntimeStopped) {
  auto rt = started();
  auto timer = std::make_unique<Timer>(*rt, [] {});
  timer->start(now() + 1h);
  rt->stop();
  EXPECT_FALSE(timer->cancel());
  timer.reset();
}

TEST_P(LifetimeTest, ArmedDelayedWorkOnASystemQueueEndsWithIt) {
  auto rt = started();
  std::atomic<int> ran{0};
  DelayedWork work([&ran] { ++ran; });
  EXPECT_TRUE(system_dfl_wq(*rt).queue_delayed(work, 1h));
  EXPECT_TRUE(work.pending());
  rt->stop();
  EXPECT_FALSE(work.pending());
  EXPECT_EQ(ran, 0);
}

TEST_P(LifetimeTest, SystemQueuesRefuseAfterStop) {
  auto rt = started();
  std::atomic<int> ran{0};
  WorkItem item([&ran] { ++ran; });
  WorkQueue& queue = system_dfl_wq(*rt);
  rt->stop();
  EXPECT_FALSE(queue.queue(item));
  EXPECT_FALSE(system_percpu_wq(*rt).queue(item));
  EXPECT_FALSE(item.pending());
  EXPECT_EQ(ran, 0);
}

TEST_P(LifetimeTest, AnIrqFdOnASystemQueueMayBeDestroyedAfterStop) {
  auto rt = started();
  EventFd event;
  auto irqfd = std::make_unique<IrqFd>(system_dfl_wq(*rt), [] {});
  ASSERT_TRUE(irqfd->assign(event).ok());
  rt->stop();
  (void)event.signal();
  irqfd.reset();
}

TEST_P(LifetimeTest, ARuntimeStartsAgainAfterAHandleOutlivedItsFirstLife) {
  auto rt = started();
  auto handle = rt->spawn([] { return 1; });
  rt->stop();
  ASSERT_TRUE(rt->start().ok());
  EXPECT_EQ(rt->run([] { return 2; }), 2);
  EXPECT_EQ(handle.join(), 1);
  rt->stop();
}

// The result of a detached fiber is destroyed by the fiber itself: its destructor may block, and
// name whom it belongs to.
TEST_P(LifetimeTest, ADetachedFibersResultMayBlockInItsDestructor) {
  CheckedRuntime rt(GetParam(), 1);
  struct Result {
    std::shared_ptr<Semaphore> gate;
    std::shared_ptr<std::string> where;
    Semaphore* destroyed;
    Result(std::shared_ptr<Semaphore> g, std::shared_ptr<std::string> w, Semaphore* d)
        : gate(std::move(g)), where(std::move(w)), destroyed(d) {}
    Result(Result&&) = default;
    ~Result() {
      if (gate == nullptr) return;
      gate->acquire();
      *where = this_fiber::name();
      destroyed->release();
    }
  };
  const auto gate = std::make_shared<Semaphore>(0);
  const auto where = std::make_shared<std::string>();
  SpawnOptions options;
  options.name = "owner";
  Semaphore detached(0), destroyed(0);
  rt->run([&] {
    auto owner = spawn(
        [&] {
          detached.acquire();
          return Result(gate, where, &destroyed);
        },
        options);
    owner.detach();
    detached.release();
    yield();
    yield();
    gate->release();
    destroyed.acquire();
  });
  EXPECT_EQ(*where, "owner");
}

TEST_P(LifetimeTest, ADetachedFiberMayReturnTheHandleOfASlowOne) {
  CheckedRuntime rt(GetParam(), 1);
  std::atomic<bool> ended{false};
  rt->run([&] {
    spawn([&] {
      return spawn([&] {
        (void)sleep_for(5ms);
        ended = true;
      });
    }).detach();
  });
  rt.expect_quiet();
  EXPECT_TRUE(ended);
}

// The timer's lock is held around its callback.
TEST(LifetimeDeathTest, ATimersCallbackThatQueuesDelayedWorkIsTold) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto body = [] {
    Runtime rt(sim_options(1));
    if (!rt.start().ok()) return;
    DelayedWork work([] {});
    rt.run([&] {
      Timer timer(rt, [&] { (void)system_dfl_wq(rt).queue_delayed(work, 1ms); });
      timer.start(now() + 1ms);
      (void)sleep_for(10ms);
    });
  };
  EXPECT_DEATH(body(), "a timer's callback on Cpu 0.*delayed work");
}

// Waking entries is marked by one bit of the count word, however deep they nest.
TEST_P(LifetimeTest, AnEventFdsEntryMayWriteToAnotherEventFd) {
  CheckedRuntime rt(GetParam(), 1);
  EventFd first, second;
  struct Forward : WaitEntry {
    EventFd* to;
  } forward;
  forward.to = &second;
  forward.flags = WaitEntry::kPriority;
  forward.wake = [](WaitEntry& entry, uint64_t) {
    (void)static_cast<Forward&>(entry).to->try_write(1);
    return 0;
  };
  rt->run([&] {
    first.queue().with_lock([&] { first.queue().add(forward); });
    auto reader = spawn([&] { return second.read().value; });
    yield();
    (void)first.signal();
    EXPECT_EQ(reader.join(), 1u);
    (void)first.signal();
    EXPECT_EQ(second.read().value, 1u);
    first.queue().with_lock([&] { first.queue().remove(forward); });
  });
}

}  // namespace
}  // namespace jiffy
