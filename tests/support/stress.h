// What every stress test needs: a budget of time, a watchdog, and cheap random numbers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

namespace jiffy {

// How long a stress program may run: JIFFY_STRESS_SECONDS, 5 by default; a fraction is allowed.
std::chrono::nanoseconds stress_seconds();

// A share of the program's budget.
//
//   for (Budget budget(0.25); budget.left();) one_round();
class Budget {
 public:
  explicit Budget(double share) : end_(std::chrono::steady_clock::now() + part(share)) {}

  // At least one round is always run.
  bool left() {
    if (!started_) return started_ = true;
    return std::chrono::steady_clock::now() < end_;
  }

 private:
  static std::chrono::nanoseconds part(double share) {
    return std::chrono::nanoseconds(
        static_cast<int64_t>(static_cast<double>(stress_seconds().count()) * share));
  }

  std::chrono::steady_clock::time_point end_;
  bool started_ = false;
};

// Aborts the program with what `describe` says (a dump of the fibers) when nobody called progress()
// for 10 s, longer under a sanitizer: a lost wakeup ends the test instead of hanging it.
//
// progress(): any thread or fiber. `describe` runs in the watchdog's thread.
class Watchdog {
 public:
  explicit Watchdog(std::function<std::string()> describe);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void progress() { beats_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void watch();

  std::function<std::string()> describe_;
  std::atomic<uint64_t> beats_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// xorshift; one per fiber or thread.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  // 0 ... bound - 1.
  uint64_t below(uint64_t bound) { return (next() >> 11) % bound; }

 private:
  uint64_t state_;
};

// Does nothing for a random while, up to a microsecond or so: shifts two sides against each other.
void random_pause(Random& random);

}  // namespace jiffy
