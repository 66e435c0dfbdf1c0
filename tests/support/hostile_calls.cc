// jiffy's own calls, as work that is preempted at any instruction. Each fiber has what it waits
// for in its own frame, so that a wakeup which comes too late is one into a dead frame.
#include <jiffy/event_fd.h>
#include <jiffy/fiber.h>
#include <jiffy/mutex.h>
#include <jiffy/scope.h>
#include <jiffy/semaphore.h>
#include <jiffy/time.h>

#include <chrono>
#include <stop_token>

#include "support/hostile.h"
#include "support/stress.h"

namespace jiffy {

namespace {

using namespace std::chrono_literals;

void use_mutex(HostileRun& run, uint64_t) {
  static Mutex mutex;
  static uint64_t first = 0, second = 0;
  while (run.more()) {
    mutex.lock();
    ++first;
    for (int i = 0; i < 200; ++i) asm volatile("" ::: "memory");
    if (++second != first) run.fail("Mutex: two were inside");
    mutex.unlock();
  }
}

void use_stop_tokens(HostileRun& run, uint64_t seed) {
  Random random(seed);
  while (run.more()) {
    std::stop_source stop;
    Semaphore never;
    Scope scope;
    for (int i = 0; i < 3; ++i) {
      (void)scope.spawn([&run, &never, token = stop.get_token()] {
        if (never.acquire(token) != WaitResult::kStopped) run.fail("stop: it was no stop");
      });
    }
    random_pause(random);
    stop.request_stop();
    scope.join();
  }
}

void use_deadlines(HostileRun& run, uint64_t seed) {
  Random random(seed);
  while (run.more()) {
    Semaphore units;
    auto other = spawn([&] { units.release(); });
    const auto wait = std::chrono::microseconds(random.below(120));
    bool got = units.acquire(now() + wait) == WaitResult::kReady;
    other.join();
    if (!got) got = units.acquire(now() + 1h) == WaitResult::kReady;
    if (!got) run.fail("deadline: a unit was lost");
  }
}

void use_spawn(HostileRun& run, uint64_t) {
  while (run.more()) {
    if (spawn([] { return 7; }).join() != 7) run.fail("spawn: another one's result");
    spawn([] { yield(); }).detach();
  }
}

void use_event_fd(HostileRun& run, uint64_t) {
  while (run.more()) {
    EventFd event;
    auto other = spawn([&] {
      for (int i = 0; i < 10; ++i) event.signal();
    });
    uint64_t sum = 0;
    while (sum < 10) sum += event.read().value;
    other.join();
    if (sum != 10) run.fail("EventFd: counted wrongly");
  }
}

void use_sleep(HostileRun& run, uint64_t seed) {
  Random random(seed);
  while (run.more()) {
    const TimePoint before = now();
    const auto length = std::chrono::microseconds(random.below(300));
    if (sleep_for(length) != WaitResult::kTimeout) run.fail("sleep: not a timeout");
    if (now() < before + length) run.fail("sleep: too short");
  }
}

// A loop that reads jiffy's clock, which takes what interrupts it itself.
void use_now(HostileRun& run, uint64_t) {
  TimePoint last = now();
  while (run.more()) {
    for (int i = 0; i < 100; ++i) {
      const TimePoint t = now();
      if (t < last) run.fail("now: went back");
      last = t;
    }
  }
}

}  // namespace

const std::vector<Hostile>& hostile_calls() {
  static const std::vector<Hostile> all = {
      {"mutex", use_mutex}, {"stop_tokens", use_stop_tokens}, {"deadlines", use_deadlines},
      {"spawn", use_spawn}, {"event_fd", use_event_fd},       {"sleep", use_sleep},
      {"now", use_now},
  };
  return all;
}

}  // namespace jiffy
