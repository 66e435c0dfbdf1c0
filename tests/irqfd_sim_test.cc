// The irqfd's rules, in virtual time.
#include <gtest/gtest.h>
#include <jiffy/irqfd.h>
#include <jiffy/runtime.h>
#include <jiffy/sim.h>
#include <jiffy/work.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace jiffy {
namespace {

using namespace std::chrono_literals;

class IrqFdTest : public testing::Test {
 protected:
  IrqFdTest() : rt_(options()) {
    const Status status = rt_.start();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  static Options options() {
    Options o;
    o.trace_records = 1 << 12;
    o.machine = make_sim_machine({.cpus = 2});
    return o;
  }
  template <class F>
  void run(F&& body) {
    SpawnOptions on_first;
    on_first.cpu = 0;
    rt_.run(std::forward<F>(body), on_first);
  }
  uint64_t count(Counter c) const { return rt_.counters().at(c); }

  Runtime rt_;
};

TEST_F(IrqFdTest, SignalsUntilTheWorkStartsAreOneInjection) {
  run([&] {
    EventFd event;
    int injected = 0;
    IrqFd irqfd(system_percpu_wq(rt_), [&] {
      ++injected;
      sleep_for(1ms);
    });
    ASSERT_TRUE(irqfd.assign(event).ok());
    for (int i = 0; i < 10; ++i) event.signal();
    EXPECT_EQ(event.poll() & EventFd::kIn, 0u);  // they never pile up in the counter
    sleep_for(100us);
    EXPECT_EQ(injected, 1);
    event.signal();  // while it runs: one more
    event.signal();
    sleep_for(5ms);
    EXPECT_EQ(injected, 2);
    EXPECT_EQ(count(Counter::kEventfdSignals), 12u);
    EXPECT_EQ(count(Counter::kWorksQueued), 2u);
    EXPECT_EQ(count(Counter::kWorksCoalesced), 10u);
    EXPECT_EQ(count(Counter::kIrqfdInjectionsWork), 2u);
    EXPECT_EQ(count(Counter::kIrqfdInjectionsAtomic), 0u);
  });
}

TEST_F(IrqFdTest, TheTargetsOwnWayIsTakenForEachSignalInItsContext) {
  run([&] {
    EventFd event;
    int injected = 0;
    IrqFd irqfd(
        system_percpu_wq(rt_), [] { ADD_FAILURE() << "a work item"; },
        [&] {
          ++injected;
          return InjectResult::kInjected;
        });
    ASSERT_TRUE(irqfd.assign(event).ok());
    for (int i = 1; i <= 10; ++i) {
      event.signal();
      EXPECT_EQ(injected, i);
    }
    EXPECT_EQ(count(Counter::kIrqfdInjectionsAtomic), 10u);
    EXPECT_EQ(count(Counter::kWorksQueued), 0u);
  });
}

TEST_F(IrqFdTest, AWorkItemStepsInWhereTheTargetWouldBlock) {
  run([&] {
    EventFd event;
    bool can = false;
    int by_work = 0;
    IrqFd irqfd(
        system_percpu_wq(rt_), [&] { ++by_work; },
        [&] { return can ? InjectResult::kInjected : InjectResult::kWouldBlock; });
    ASSERT_TRUE(irqfd.assign(event).ok());
    event.signal();
    sleep_for(1us);
    EXPECT_EQ(by_work, 1);
    can = true;
    event.signal();
    sleep_for(1us);
    EXPECT_EQ(by_work, 1);
    EXPECT_EQ(count(Counter::kIrqfdInjectionsAtomic), 1u);
    EXPECT_EQ(count(Counter::kIrqfdInjectionsWork), 1u);
  });
}

TEST_F(IrqFdTest, TheWorkRunsOnTheChosenPool) {
  for (const bool unbound : {false, true}) {
    run([&] {
      EventFd event;
      std::string worker;
      IrqFd irqfd(unbound ? system_dfl_wq(rt_) : system_percpu_wq(rt_),
                  [&] { worker = this_fiber::name(); });
      ASSERT_TRUE(irqfd.assign(event).ok());
      event.signal();
      sleep_for(1us);
      EXPECT_EQ(worker.substr(0, 10), unbound ? "kworker/u:" : "kworker/0:");
    });
  }
}

TEST_F(IrqFdTest, AnEventFdThatWasSignalledBeforeIsInjectedAtOnce) {
  run([&] {
    EventFd event;
    event.signal(3);
    int injected = 0;
    IrqFd irqfd(system_percpu_wq(rt_), [&] { ++injected; });
    ASSERT_TRUE(irqfd.assign(event).ok());
    EXPECT_EQ(event.poll() & EventFd::kIn, 0u);
    sleep_for(1us);
    EXPECT_EQ(injected, 1);
  });
}

TEST_F(IrqFdTest, ItGoesBeforeOtherWaitersAndUsesUpTheWakeup) {
  run([&] {
    EventFd event;
    int injected = 0;
    auto reader = spawn([&] { return event.read(Until(1ms)).result; });
    sleep_for(10us);
    IrqFd irqfd(system_percpu_wq(rt_), [&] { ++injected; });
    ASSERT_TRUE(irqfd.assign(event).ok());
    event.signal();
    EXPECT_EQ(reader.join(), WaitResult::kTimeout);
    EXPECT_EQ(injected, 1);
  });
}

TEST_F(IrqFdTest, AnEventFdHasOneIrqFdAtMost) {
  run([&] {
    EventFd event, other;
    IrqFd first(system_percpu_wq(rt_), [] {});
    IrqFd second(system_percpu_wq(rt_), [] {});
    ASSERT_TRUE(first.assign(event).ok());
    const Status busy = second.assign(event);
    EXPECT_FALSE(busy.ok());
    EXPECT_NE(busy.message().find("busy"), std::string::npos);
    EXPECT_FALSE(second.active());
    EXPECT_FALSE(first.assign(other).ok());  // it is assigned
    first.deassign();
    EXPECT_TRUE(second.assign(event).ok());
  });
}

TEST_F(IrqFdTest, TheEndOfTheEventFdDetachesIt) {
  run([&] {
    int injected = 0;
    IrqFd irqfd(system_percpu_wq(rt_), [&] { ++injected; });
    auto event = std::make_unique<EventFd>();
    ASSERT_TRUE(irqfd.assign(*event).ok());
    event->signal();
    event.reset();
    EXPECT_FALSE(irqfd.active());
    sleep_for(1us);
    EXPECT_EQ(injected, 1);  // what was signalled before is not lost
    irqfd.deassign();
    EventFd next;
    ASSERT_TRUE(irqfd.assign(next).ok());
    next.signal();
    irqfd.deassign();
    EXPECT_EQ(injected, 2);
  });
}

TEST_F(IrqFdTest, AfterDeassignNoInjectionRuns) {
  run([&] {
    EventFd event;
    int injected = 0;
    bool inside = false;
    std::optional<IrqFd> irqfd;
    irqfd.emplace(system_percpu_wq(rt_), [&] {
      inside = true;
      ++injected;
      sleep_for(1ms);
      inside = false;
    });
    ASSERT_TRUE(irqfd->assign(event).ok());
    event.signal();
    sleep_for(100us);
    EXPECT_TRUE(inside);
    irqfd->deassign();
    EXPECT_FALSE(inside);
    event.signal();
    sleep_for(5ms);
    EXPECT_EQ(injected, 1);
    EXPECT_EQ(event.try_read().value, 1u);  // it is the eventfd's again
    ASSERT_TRUE(irqfd->assign(event).ok());
    event.signal();
    irqfd.reset();  // the destructor does the same, also for one that has not started
    EXPECT_FALSE(inside);
    EXPECT_EQ(injected, 2);
  });
}

TEST_F(IrqFdTest, SignalledByTimersDevicesAndOtherEventFds) {
  EventFd event, chained;
  int injected = 0;
  IrqFd irqfd(system_percpu_wq(rt_), [&] {
    ++injected;
    chained.signal();  // from a worker, so no recursion
  });
  ASSERT_TRUE(irqfd.assign(event).ok());
  at(*rt_.options().machine, 1ms, [&] { event.signal(); });
  run([&] {
    EXPECT_EQ(chained.read().value, 1u);
    EXPECT_EQ(injected, 1);
  });
}

TEST_F(IrqFdTest, TraceTellsHowItWasInjected) {
  run([&] {
    EventFd event;
    bool can = true;
    IrqFd irqfd(
        system_percpu_wq(rt_), [] {},
        [&] { return can ? InjectResult::kInjected : InjectResult::kWouldBlock; });
    ASSERT_TRUE(irqfd.assign(event).ok());
    event.signal();
    can = false;
    event.signal();
  });
  std::vector<uint32_t> how;
  for (const TraceRecord& r : rt_.trace()) {
    if (r.event == TraceEvent::kInject) how.push_back(r.arg0);
  }
  EXPECT_EQ(how, (std::vector<uint32_t>{1, 0}));
}

}  // namespace
}  // namespace jiffy
