// A simulation is a function of its seed: the same one gives the same run again, to the last event
// and counter, and another one another run. All that a run is made of takes part: wakeups, work
// queues, timers, devices, pulls by idle Cpus, delays that the seed chooses.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>
#include <jiffy/mutex.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/sim.h>
#include <jiffy/timer.h>
#include <jiffy/work.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/runtimes.h"
#include "support/sanitizer.h"
#include "support/seeds.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

constexpr int kCpus = 4;

// The program's own random times: the same in each run, so that only the machine's seed differs.
class Times {
 public:
  explicit Times(uint32_t who) : random_(who) {}
  nanoseconds up_to(nanoseconds most) {
    return nanoseconds(1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(most.count())));
  }
  bool chance(uint32_t one_in) { return random_() % one_in == 0; }
  size_t index(size_t n) { return random_() % n; }

 private:
  std::mt19937 random_;
};

Options machine_of(uint64_t seed) {
  SimOptions sim;
  sim.seed = seed;
  sim.cpus = kCpus;
  sim.ipi_latency = SimDelay(500ns, 3us);
  sim.wake_latency = SimDelay(2us, 40us);
  sim.wakeup_cost = 200ns;
  sim.switch_cost = 300ns;
  Options o;
  o.cpus = kCpus;
  o.preemption = seed % 2 == 0 ? Preemption::kFull : Preemption::kLazy;
  o.hz = 1000;
  o.hrtick = seed % 3 == 0;
  o.trace_records = 1 << 13;
  o.machine = make_sim_machine(sim);
  return o;
}

// The queues need a runtime that runs.
struct Started : Runtime {
  explicit Started(const Options& options) : Runtime(options) {
    const Status status = start();
    EXPECT_TRUE(status.ok()) << status.message();
  }
};

class World {
 public:
  explicit World(uint64_t seed)
      : rt_(machine_of(seed)),
        percpu_(rt_, {.name = "percpu", .kind = WorkQueueKind::kPerCpu}),
        unbound_(rt_, {.name = "unbound", .kind = WorkQueueKind::kUnbound, .max_active = 2}),
        tick_(rt_, [this] { ticks_.release(); }),
        later_([] { consume(15us); }) {
    for (uint32_t i = 0; i < 6; ++i) {
      items_.push_back(std::make_unique<WorkItem>([times = std::make_shared<Times>(i)] {
        consume(times->up_to(60us));
        if (times->chance(3)) (void)sleep_for(times->up_to(200us));
      }));
    }
  }

  void run() {
    for (int i = 0; i < 20; ++i) jiffy::at(*rt_.options().machine, i * 250us, [this] { device(); });
    for (uint32_t i = 0; i < 10; ++i) {
      SpawnOptions o = i < 4 ? pinned(static_cast<int>(i)) : migratable();
      o.kernel_mode = i % 2 == 0;
      o.nice = static_cast<int>(i % 3) * 5;
      if (i % 3 == 1) o.slice = 100us;
      fibers_.push_back(rt_.spawn([this, i] { wander(i); }, o));
    }
    SpawnOptions fifo = pinned(1);
    fifo.policy = Policy::kFifo;
    fibers_.push_back(rt_.spawn([this] { serve(); }, fifo));
    for (auto& f : fibers_) f.join();
    (void)tick_.cancel();
    (void)percpu_.cancel_sync(later_);
    percpu_.drain();
    unbound_.drain();
  }

  // An item's address is another one in each run; which of them it was is not.
  std::vector<TraceRecord> trace() {
    std::vector<TraceRecord> records = rt_.trace();
    std::map<uint64_t, uint64_t> numbers;
    for (TraceRecord& r : records) {
      if (r.event != TraceEvent::kWorkQueued && r.event != TraceEvent::kWorkStarted &&
          r.event != TraceEvent::kWorkDone) {
        continue;
      }
      r.arg1 = numbers.emplace(r.arg1, numbers.size()).first->second;
    }
    return records;
  }
  CounterSnapshot counters() { return rt_.counters(); }

 private:
  // In no Cpu's context.
  void device() {
    data_.release(2);
    (void)unbound_.queue(*items_[5]);
  }
  // Each thing that a fiber can do, now and then.
  void wander(uint32_t who) {
    Times times(who);
    for (int step = 0; step < 25; ++step) {
      consume(times.up_to(150us));
      if (times.chance(3)) (void)sleep_for(times.up_to(300us));
      if (times.chance(4)) yield();
      if (times.chance(3)) (void)percpu_.queue(*items_[times.index(3)]);
      if (times.chance(3)) (void)unbound_.queue(*items_[3 + times.index(3)]);
      if (times.chance(6)) (void)percpu_.mod_delayed(later_, times.up_to(400us));
      if (times.chance(4)) (void)data_.acquire(Until(times.up_to(100us)));
      if (times.chance(4)) {
        mutex_.lock();
        consume(times.up_to(20us));
        mutex_.unlock();
      }
      if (times.chance(5)) spawn([] { consume(50us); }, migratable()).detach();
    }
  }
  void serve() {
    tick_.start(now() + 100us, 700us);
    for (int i = 0; i < 5; ++i) {
      ticks_.acquire();
      consume(20us);
    }
  }

  Started rt_;
  Mutex mutex_;
  Semaphore ticks_, data_;
  std::vector<std::unique_ptr<WorkItem>> items_;
  WorkQueue percpu_, unbound_;
  Timer tick_;
  DelayedWork later_;
  std::vector<JoinHandle<void>> fibers_;
};

struct Played {
  std::vector<TraceRecord> trace;
  CounterSnapshot counters;
};

Played run_with(uint64_t seed) {
  World world(seed);
  world.run();
  return {world.trace(), world.counters()};
}

TEST(SimReplay, TheSameSeedIsTheSameRunAndAnotherOneIsNot) {
  constexpr uint64_t kSeeds = 200 / kSlowdown;
  std::set<std::string> runs;
  uint64_t played = 0;
  CounterSnapshot all;
  for_seeds(kSeeds, [&](uint64_t seed) {
    const Played run = run_with(seed);
    const Played again = run_with(seed);
    EXPECT_TRUE(run.trace == again.trace);
    EXPECT_TRUE(run.counters == again.counters);
    runs.insert(trace_to_text(run.trace));
    all += run.counters;
    ++played;
  });
  EXPECT_EQ(runs.size(), played);
  if (played < kSeeds) return;
  // All of it took part.
  for (const Counter c : {Counter::kPromotions, Counter::kIpisReceived, Counter::kSteals,
                          Counter::kMigrations, Counter::kHrtickFired, Counter::kTimersFired,
                          Counter::kWorksCoalesced, Counter::kYields, Counter::kWakeupsRemote}) {
    EXPECT_GT(all.at(c), 0u) << counter_name(c);
  }
}

}  // namespace
}  // namespace jiffy
