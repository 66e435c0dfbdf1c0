// Two fibers that wake each other, and a lock that nobody wants: pingpong_*, mutex_uncontended.
#include <benchmark/benchmark.h>
#include <jiffy/condition_variable.h>
#include <jiffy/mutex.h>
#include <jiffy/semaphore.h>

#include <atomic>
#include <boost/fiber/buffered_channel.hpp>
#include <boost/fiber/condition_variable.hpp>
#include <boost/fiber/fiber.hpp>
#include <boost/fiber/mutex.hpp>
#include <boost/fiber/operations.hpp>
#include <thread>

#include "micro/bench_runtime.h"

namespace jiffy::micro {

namespace {

namespace bf = boost::fibers;

constexpr int64_t kRounds = 300'000;

// --- One Cpu.

// Of Boost.Fiber's ways to hand over (it has no semaphore), the buffered channel is the fastest on
// one thread; the unbuffered one takes some 10 % more.
double boost_channel_rounds(int64_t rounds) {
  bf::buffered_channel<int> ping(2), pong(2);
  bf::fiber partner([&] {
    int value;
    while (ping.pop(value) == bf::channel_op_status::success) pong.push(value);
  });
  const double ns = time_per(rounds, [&] {
    int value = 1;
    ping.push(value);
    pong.pop(value);
  });
  ping.close();
  partner.join();
  return ns;
}

double semaphore_rounds(int64_t rounds, const SpawnOptions& options) {
  Semaphore ping, pong;
  auto partner = spawn(
      [&] {
        for (int64_t i = 0; i < rounds; ++i) {
          ping.acquire();
          pong.release();
        }
      },
      options);
  const double ns = time_per(rounds, [&] {
    ping.release();
    pong.acquire();
  });
  partner.join();
  return ns;
}

Outcome run_pingpong_semaphore(const Row& row, const Settings& settings) {
  Runtime rt(bench_options(1));
  const auto ours = [&rt](Policy policy) {
    const SpawnOptions options = options_of(policy);
    return in_fiber(
        rt, [options] { return semaphore_rounds(kRounds, options); }, options);
  };
  Outcome outcome =
      contend(row, settings,
              {ours(Policy::kFifo), on_first_cpu([] { return boost_channel_rounds(kRounds); })});
  outcome.notes.push_back(variant_note("in the fair class", settings, ours(Policy::kNormal)));
  return outcome;
}

// The same text for both libraries: the turn is a bool under the mutex, one condition variable for
// each side.
template <class MutexType, class Condvar, class Spawn>
double condvar_rounds(int64_t rounds, Spawn spawn_partner) {
  MutexType mutex;
  Condvar to_partner, to_me;
  bool partners_turn = false;
  const auto take_turn = [&](bool mine, Condvar& here, Condvar& there) {
    std::unique_lock<MutexType> lock(mutex);
    while (partners_turn != mine) here.wait(lock);
    partners_turn = !mine;
    there.notify_one();
  };
  auto partner = spawn_partner([&] {
    for (int64_t i = 0; i < rounds; ++i) take_turn(true, to_partner, to_me);
  });
  const double ns = time_per(rounds, [&] { take_turn(false, to_me, to_partner); });
  partner.join();
  return ns;
}

Outcome run_pingpong_condvar(const Row& row, const Settings& settings) {
  Runtime rt(bench_options(1));
  const auto ours = [&rt](Policy policy) {
    const SpawnOptions options = options_of(policy);
    const auto rounds = [options] {
      return condvar_rounds<Mutex, ConditionVariable>(
          kRounds, [&options](auto fn) { return spawn(fn, options); });
    };
    return in_fiber(rt, rounds, options);
  };
  const auto reference = [] {
    return condvar_rounds<bf::mutex, bf::condition_variable>(kRounds,
                                                             [](auto fn) { return bf::fiber(fn); });
  };
  Outcome outcome = contend(row, settings, {ours(Policy::kFifo), on_first_cpu(reference)});
  outcome.notes.push_back(variant_note("in the fair class", settings, ours(Policy::kNormal)));
  return outcome;
}

// --- Two Cpus, each kept awake by a fiber that does nothing but yield: the median round trip of a
// pair of which one lives on each. Both libraries read the same clock once a round.

constexpr int kTimedRounds = 20'000;
constexpr double kMostNs = 2e9;  // a repetition ends earlier then: on a machine with other work

template <class Round>
double median_round(Round round) {
  std::vector<double> samples;
  samples.reserve(kTimedRounds);
  const double begin = now_ns();
  double start = begin;
  for (int i = 0; i < kTimedRounds && start - begin < kMostNs; ++i) {
    round();
    const double end = now_ns();
    samples.push_back(end - start);
    start = end;
  }
  return percentile(samples, 50);
}

double two_cpus_ours(Runtime& rt, Policy policy) {
  Semaphore ping, pong;
  std::atomic<bool> stop{false};
  SpawnOptions on[2] = {options_of(policy), options_of(policy)};
  on[0].cpu = 0;
  on[1].cpu = 1;
  const auto busy = [&stop] {
    while (!stop.load(std::memory_order_relaxed)) yield();
  };
  auto busy0 = rt.spawn(busy, on[0]);
  auto busy1 = rt.spawn(busy, on[1]);
  auto partner = rt.spawn(
      [&] {
        for (;;) {
          ping.acquire();
          if (stop.load(std::memory_order_relaxed)) break;
          pong.release();
        }
      },
      on[1]);
  const double ns = rt.run(
      [&] {
        return median_round([&] {
          ping.release();
          pong.acquire();
        });
      },
      on[0]);
  stop = true;
  ping.release();
  partner.join();
  busy0.join();
  busy1.join();
  return ns;
}

// As above; Boost.Fiber's default scheduler keeps each fiber on its thread.
double two_cpus_boost() {
  bf::buffered_channel<int> ping(2), pong(2);
  std::atomic<bool> stop{false};
  const auto busy = [&stop] {
    while (!stop.load(std::memory_order_relaxed)) boost::this_fiber::yield();
  };
  std::thread other([&] {
    const PinnedHere pinned(1);
    bf::fiber spinner(busy);
    int value;
    while (ping.pop(value) == bf::channel_op_status::success) pong.push(value);
    spinner.join();
  });
  double ns = 0;
  std::thread mine([&] {
    const PinnedHere pinned(0);
    bf::fiber spinner(busy);
    ns = median_round([&] {
      int value = 1;
      ping.push(value);
      pong.pop(value);
    });
    stop = true;
    ping.close();
    spinner.join();
  });
  mine.join();
  other.join();
  return ns;
}

Outcome run_pingpong_two_cpus_busy(const Row& row, const Settings& settings) {
  Runtime rt(bench_options(2));
  if (const Status status = rt.start(); !status.ok()) {
    Outcome outcome;
    outcome.skipped = status.message();
    return outcome;
  }
  Outcome outcome =
      contend(row, settings, {[&rt] { return two_cpus_ours(rt, Policy::kFifo); }, two_cpus_boost});
  outcome.notes.push_back(variant_note("in the fair class", settings,
                                       [&rt] { return two_cpus_ours(rt, Policy::kNormal); }));
  return outcome;
}

// --- The mutex.

// What a lock and an unlock cannot do without: a compare and exchange, and an exchange that tells
// whether somebody waits.
double cas_and_xchg(int64_t operations) {
  std::atomic<uint32_t> word{0};
  bool contended = false;
  const double ns = time_per(operations, [&] {
    uint32_t expected = 0;
    contended |= !word.compare_exchange_strong(expected, 1, std::memory_order_acquire,
                                               std::memory_order_relaxed);
    benchmark::ClobberMemory();
    contended |= word.exchange(0, std::memory_order_release) == 2;
  });
  benchmark::DoNotOptimize(contended);
  return ns;
}

Outcome run_mutex_uncontended(const Row& row, const Settings& settings) {
  constexpr int64_t kPairs = 5'000'000;
  Runtime rt(bench_options(1));
  const auto ours = [] {
    Mutex mutex;
    return time_per(kPairs, [&] {
      mutex.lock();
      benchmark::ClobberMemory();
      mutex.unlock();
    });
  };
  return contend(row, settings,
                 {in_fiber(rt, ours), on_first_cpu([] { return cas_and_xchg(kPairs); })});
}

}  // namespace

std::vector<Row> sync_rows() {
  return {
      {"pingpong_semaphore",
       "two fibers of the FIFO class on one Cpu, a round trip by two semaphores",
       "Boost.Fiber's buffered_channel",
       {Bar::kRatio, 0.4, "<= 0.4 x"},
       {.jumps = 2, .locked = 8},
       1,
       run_pingpong_semaphore},
      {"pingpong_condvar",
       "the same by mutex and condition variable",
       "Boost.Fiber's condition_variable",
       {Bar::kRatio, 0.5, "<= 0.5 x"},
       {.jumps = 2, .locked = 12},
       1,
       run_pingpong_condvar},
      {"pingpong_two_cpus_busy",
       "fibers on two busy Cpus, a round trip by two semaphores, p50",
       "Boost.Fiber's buffered_channel",
       {Bar::kRatio, 1, "<= 1 x"},
       // Each way: the semaphore, the run queue's lock and list, and the sleeper's record.
       {.jumps = 4, .locked = 8, .transfers = 8},
       2,
       run_pingpong_two_cpus_busy},
      {"mutex_uncontended",
       "lock and unlock of a free mutex",
       "compare-exchange and exchange",
       {Bar::kRatio, 1.3, "<= 1.3 x"},
       {.locked = 2},
       1,
       run_mutex_uncontended},
  };
}

}  // namespace jiffy::micro
