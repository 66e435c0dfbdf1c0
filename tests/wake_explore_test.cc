// Parking and waking, over all Cpus' interleavings that the seeds reach.
#include <jiffy/event_fd.h>
#include <jiffy/fiber.h>
#include <jiffy/mutex.h>
#include <jiffy/semaphore.h>
#include <jiffy/sim.h>
#include <jiffy/time.h>
#include <jiffy/timer.h>

#include "sched/runtime_state.h"
#include "support/explore.h"

namespace jiffy {
namespace {

using model::Fault;
using namespace std::chrono_literals;

// Two fibers that hand a unit to and fro, each on a Cpu that parks in between.
void ping_pong(Runtime& rt) {
  Semaphore ping, pong;
  auto other = rt.spawn(
      [&] {
        for (int i = 0; i < 3; ++i) {
          ping.acquire();
          pong.release();
        }
      },
      on_cpu(1));
  auto one = rt.spawn(
      [&] {
        for (int i = 0; i < 3; ++i) {
          ping.release();
          pong.acquire();
        }
      },
      on_cpu(0));
  one.join();
  other.join();
}

TEST(Park, NoWakeupIsLost) { expect_all_seeds_pass(2, ping_pong); }
TEST(Park, AMissingFenceOfTheSleeperIsFound) {
  expect_found(Fault::kParkWithoutFence, 2, ping_pong);
}
TEST(Park, AMissingLookOfTheSleeperIsFound) { expect_found(Fault::kParkWithoutLook, 2, ping_pong); }
TEST(Park, AMissingFenceOfTheWakerIsFound) {
  expect_found(Fault::kNotifyWithoutFence, 2, ping_pong);
}
TEST(Park, AForgottenUnparkIsFound) { expect_found(Fault::kUnparkIsForgotten, 2, ping_pong); }

// A Cpu's one-shot timer fires for nothing, since what it was armed for is over, while the Cpu goes
// to sleep; then a timer is started from outside.
void timer_from_outside(Runtime& rt) {
  constexpr int kRounds = 4;
  Semaphore early, late;
  Timer timer(rt, [&] { late.release(); });
  Machine& machine = *rt.state().machine;
  for (int round = 1; round <= kRounds; ++round) {
    at(machine, round * 10us, [&] { early.release(); });
    at(machine, round * 10us + 5us, [&, round] { timer.start(TimePoint(round * 10us + 6us)); });
  }
  auto sleeper = rt.spawn([&] {
    for (int round = 1; round <= kRounds; ++round) {
      (void)early.acquire(TimePoint(round * 10us + 100ns));
      late.acquire();
    }
  });
  sleeper.join();
}

TEST(Park, ATimerFromOutsideIsNotLost) { expect_all_seeds_pass(1, timer_from_outside); }
TEST(Park, ATimersInterruptThatDoesNotUnparkIsFound) {
  expect_found(Fault::kTimerDoesNotUnpark, 1, timer_from_outside);
}

// A fiber that may move, and waits four times.
JoinHandle<void> take_four(Runtime& rt, Semaphore& units) {
  SpawnOptions anywhere;
  anywhere.migratable = true;
  return rt.spawn(
      [&units] {
        for (int i = 0; i < 4; ++i) units.acquire();
      },
      anywhere);
}

// A fiber that moves while two others wake it.
void wake_who_moves(Runtime& rt) {
  Semaphore units;
  auto mover = take_four(rt, units);
  JoinHandle<void> wakers[2];
  for (int cpu = 0; cpu < 2; ++cpu) {
    wakers[cpu] = rt.spawn(
        [&] {
          units.release();
          yield();
          units.release();
        },
        on_cpu(cpu));
  }
  for (auto& waker : wakers) waker.join();
  mover.join();
}

TEST(RemoteWake, AFiberThatMovesIsFound) { expect_all_seeds_pass(3, wake_who_moves); }

// The attributes of a fiber are changed while it is woken and moved.
void change_who_moves(Runtime& rt) {
  Semaphore units;
  auto mover = take_four(rt, units);
  auto waker = rt.spawn(
      [&] {
        for (int i = 0; i < 4; ++i) units.release();
      },
      on_cpu(1));
  auto changer = rt.spawn(
      [&] {
        SpawnOptions options;
        for (int nice : {5, 0, -5}) {
          options.nice = nice;
          (void)set_attributes(*mover.native(), options);
        }
      },
      on_cpu(2));
  waker.join();
  changer.join();
  mover.join();
}

TEST(RemoteWake, AttributesMayChangeMeanwhile) { expect_all_seeds_pass(3, change_who_moves); }

void lock_in_turn(Runtime& rt) {
  Mutex mutex;
  int inside = 0, sum = 0;
  JoinHandle<void> fibers[2];
  for (int cpu = 0; cpu < 2; ++cpu) {
    fibers[cpu] = rt.spawn(
        [&] {
          for (int i = 0; i < 3; ++i) {
            mutex.lock();
            model_check(++inside == 1, "Mutex: two are inside");
            model::point();
            ++sum;
            --inside;
            mutex.unlock();
          }
        },
        on_cpu(cpu));
  }
  for (auto& fiber : fibers) fiber.join();
  model_check(sum == 6, "Mutex: an increment was lost");
}

TEST(MutexModel, ExcludesAndWakes) { expect_all_seeds_pass(2, lock_in_turn); }
TEST(MutexModel, AnUnlockThatDoesNotLookIsFound) {
  expect_found(Fault::kMutexUnlockDoesNotLook, 2, lock_in_turn);
}

// A unit and a deadline arrive at once: the wait has one outcome, and no unit is lost. (Stops are
// not explored: std::stop_source knows who requests by his thread, and here all Cpus are one.)
void wake_against_deadline(Runtime& rt) {
  Semaphore units;
  auto sleeper = rt.spawn([&] { return units.acquire(now() + 2ns); }, on_cpu(0));
  auto giver = rt.spawn([&] { units.release(); }, on_cpu(1));
  giver.join();
  const bool got = sleeper.join() == WaitResult::kReady;
  model_check(units.try_acquire() != got, "a unit was lost, or given twice");
}

TEST(Cancel, AWaitHasOneOutcome) { expect_all_seeds_pass(2, wake_against_deadline); }

// A timer fires on its Cpu, or is cancelled on another one: once cancel() has returned, the
// callback has run to its end or never will.
void cancel_against_expiry(Runtime& rt) {
  int fired = 0;
  auto owner = rt.spawn(
      [&] {
        Timer timer(rt, [&] {
          ++fired;
          model::point();
          ++fired;
        });
        timer.start(now() + 2ns);
        auto other = spawn(
            [&] {
              const bool cancelled = timer.cancel();
              model_check(fired == (cancelled ? 0 : 2), "a timer was cancelled while it fired");
            },
            on_cpu(1));
        other.join();
      },
      on_cpu(0));
  owner.join();
}

TEST(Cancel, ATimerHasFiredOrNeverWill) { expect_all_seeds_pass(2, cancel_against_expiry); }
TEST(Cancel, ACancelThatDoesNotLookAgainIsFound) {
  expect_found(Fault::kCancelDoesNotLookAgain, 2, cancel_against_expiry);
}

void signal_event(Runtime& rt) {
  EventFd event;
  auto reader = rt.spawn(
      [&] {
        uint64_t sum = 0;
        while (sum < 4) sum += event.read().value;
        model_check(sum == 4, "EventFd: a signal counted twice");
      },
      on_cpu(0));
  JoinHandle<void> writers[2];
  for (int i = 0; i < 2; ++i) {
    writers[i] = rt.spawn(
        [&] {
          event.signal();
          event.signal();
        },
        on_cpu(i + 1));
  }
  for (auto& writer : writers) writer.join();
  reader.join();
}

TEST(EventFdModel, NoSignalIsLost) { expect_all_seeds_pass(3, signal_event); }

}  // namespace
}  // namespace jiffy
