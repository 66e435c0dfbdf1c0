// A deadline and what is waited for, at the same moment: each waiter gets exactly one outcome, and
// what was granted is never lost. For every primitive that takes a deadline.
#include <gtest/gtest.h>
#include <jiffy/condition_variable.h>
#include <jiffy/event_fd.h>
#include <jiffy/mutex.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "support/runtimes.h"
#include "support/stress.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

constexpr int kWaiters = 4;

// Sleeps until shortly before `when`, then spins: to the microsecond.
void wait_precisely(TimePoint when) {
  if (when - now() > 60us) (void)sleep_until(when - 50us);
  while (now() < when) cpu_relax();
}

// One race: waiters with the deadline T, a giver that gives `kWaiters` times at T +- 10 us.
struct Race {
  TimePoint deadline;
  std::atomic<int> ready{0}, timeout{0}, stopped{0};

  void count(WaitResult result) {
    (result == WaitResult::kReady ? ready : result == WaitResult::kTimeout ? timeout : stopped)++;
  }
};

// What a primitive gives and how it is waited for. `left` says how much was given and not taken.
struct Primitive {
  std::function<WaitResult(const Until&)> wait;
  std::function<void()> give;
  std::function<int64_t()> left;
};

class TimeoutStress : public ::testing::TestWithParam<Preemption> {
 protected:
  static Options options() {
    Options o = host_options(2);
    o.preemption = GetParam();
    return o;
  }
  static constexpr double kShare = 1.0 / (7 * 2);

  // The giver is a fiber or a plain thread, in turn.
  void race_all_the_time(const std::function<Primitive()>& make) {
    Random random(7);
    int64_t rounds = 0, ready = 0;
    for (Budget budget(kShare); budget.left(); ++rounds) {
      const Primitive p = make();
      Race race;
      race.deadline = now() + 150us + std::chrono::nanoseconds(random.below(50'000));
      const auto offset = std::chrono::nanoseconds(random.below(20'000)) - 10us;
      const bool giver_is_thread = random.below(2) == 0;
      const bool with_stop = random.below(4) == 0;
      std::stop_source stop;
      std::vector<JoinHandle<void>> waiters;
      for (int i = 0; i < kWaiters; ++i) {
        waiters.push_back(rt_->spawn(
            [&p, &race, &stop, with_stop] {
              race.count(p.wait(with_stop ? Until(race.deadline, stop.get_token())
                                          : Until(race.deadline)));
            },
            i % 2 == 0 ? migratable("waiter") : SpawnOptions{}));
      }
      const auto give_all = [&] {
        wait_precisely(race.deadline + offset);
        for (int i = 0; i < kWaiters; ++i) {
          p.give();
          if (with_stop && i == 1) stop.request_stop();
        }
      };
      if (giver_is_thread) {
        give_all();
      } else {
        rt_->run(give_all, pinned(1, "giver"));
      }
      for (auto& waiter : waiters) waiter.join();
      ASSERT_EQ(race.ready + race.timeout + race.stopped, kWaiters);
      ASSERT_TRUE(with_stop || race.stopped == 0);
      ASSERT_EQ(race.ready + p.left(), kWaiters) << "each grant was taken once or is left";
      ready += race.ready;
      dog_.progress();
    }
    std::printf("%lld rounds, %lld of %lld waits were granted\n", static_cast<long long>(rounds),
                static_cast<long long>(ready), static_cast<long long>(rounds * kWaiters));
  }

  CheckedRuntime rt_{options()};
  Watchdog dog_{[this] { return rt_->dump(); }};
};
INSTANTIATE_TEST_SUITE_P(, TimeoutStress, ::testing::Values(Preemption::kLazy, Preemption::kFull),
                         [](const auto& row) { return std::string(preemption_name(row.param)); });

int64_t drain(Semaphore& semaphore) {
  int64_t n = 0;
  while (semaphore.try_acquire()) ++n;
  return n;
}

TEST_P(TimeoutStress, SemaphoreUnitAtTheDeadline) {
  race_all_the_time([] {
    auto s = std::make_shared<Semaphore>();
    return Primitive{[s](const Until& u) { return s->acquire(u); }, [s] { s->release(); },
                     [s] { return drain(*s); }};
  });
}

TEST_P(TimeoutStress, SignalAtTheDeadline) {
  race_all_the_time([] {
    auto e = std::make_shared<EventFd>(0, /*semaphore=*/true);
    return Primitive{[e](const Until& u) { return e->read(u).result; }, [e] { e->signal(); },
                     [e] {
                       int64_t n = 0;
                       while (e->try_read().result == WaitResult::kReady) ++n;
                       return n;
                     }};
  });
}

TEST_P(TimeoutStress, RoomAtTheDeadline) {
  race_all_the_time([] {
    auto e = std::make_shared<EventFd>(EventFd::kMax, /*semaphore=*/true);
    return Primitive{[e](const Until& u) {
                       switch (e->write(1, u)) {
                         case EventFd::WriteError::kNone:
                           return WaitResult::kReady;
                         case EventFd::WriteError::kTimeout:
                           return WaitResult::kTimeout;
                         default:
                           return WaitResult::kStopped;
                       }
                     },
                     [e] { (void)e->try_read(); },
                     [e] {
                       int64_t n = 0;
                       while (e->try_write(1) == EventFd::WriteError::kNone) ++n;
                       return n;
                     }};
  });
}

TEST_P(TimeoutStress, TicketOfAWaitQueueAtTheDeadline) {
  struct State {
    WaitQueue queue;
    int64_t tickets = 0;
  };
  race_all_the_time([] {
    auto s = std::make_shared<State>();
    const auto take = [s] {
      if (s->tickets == 0) return false;
      --s->tickets;
      return true;
    };
    return Primitive{
        [s, take](const Until& u) { return s->queue.wait(take, u, WaitEntry::kExclusive); },
        [s] {
          s->queue.with_lock([&] {
            ++s->tickets;
            (void)s->queue.wake_locked(1);
          });
        },
        [s] { return s->tickets; }};
  });
}

// A notification that meets a deadline is reported, or left to another waiter.
TEST_P(TimeoutStress, NotificationAtTheDeadline) {
  struct State {
    Mutex mutex;
    ConditionVariable condition;
    int64_t tickets = 0;
  };
  race_all_the_time([] {
    auto s = std::make_shared<State>();
    return Primitive{[s](const Until& u) {
                       std::unique_lock lock(s->mutex);
                       const auto r = s->condition.wait(
                           lock, [&] { return s->tickets > 0; }, u);
                       if (r == WaitResult::kReady) --s->tickets;
                       return r;
                     },
                     [s] {
                       const std::lock_guard lock(s->mutex);
                       ++s->tickets;
                       s->condition.notify_one();
                     },
                     [s] { return s->tickets; }};
  });
}

// The mutex is free at the end, and was never held by two.
TEST_P(TimeoutStress, UnlockAtTheDeadline) {
  struct State {
    Mutex mutex;
    int inside = 0;
    std::atomic<int64_t> locked{0};
  };
  race_all_the_time([] {
    auto s = std::make_shared<State>();
    s->mutex.lock();
    auto given = std::make_shared<std::atomic<int>>(0);
    return Primitive{[s](const Until& u) {
                       const WaitResult r = s->mutex.lock(u);
                       if (r == WaitResult::kReady) {
                         EXPECT_EQ(++s->inside, 1);
                         --s->inside;
                         ++s->locked;
                         s->mutex.unlock();
                       }
                       return r;
                     },
                     [s, given] {
                       if (given->fetch_add(1) == 0) s->mutex.unlock();
                     },
                     [s] {
                       EXPECT_TRUE(s->mutex.try_lock()) << "nobody left it locked";
                       return kWaiters - s->locked.load();
                     }};
  });
}

TEST_P(TimeoutStress, EndOfAFiberAtTheDeadline) {
  Random random(9);
  for (Budget budget(kShare); budget.left(); dog_.progress()) {
    const TimePoint deadline = now() + 100us;
    const TimePoint end = deadline + std::chrono::nanoseconds(random.below(20'000)) - 10us;
    auto fiber = rt_->spawn(
        [end] {
          wait_precisely(end);
          return 5;
        },
        pinned(1));
    auto joiner = rt_->spawn(
        [&fiber, deadline] {
          const WaitResult result = fiber.wait(deadline);
          EXPECT_NE(result, WaitResult::kStopped);
          EXPECT_EQ(fiber.join(), 5);
        },
        migratable());
    joiner.join();
  }
}

}  // namespace
}  // namespace jiffy
