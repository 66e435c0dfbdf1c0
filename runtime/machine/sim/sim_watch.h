// Looks, in real time, whether a simulation still moves.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace jiffy {

// In a simulation nothing may wait for the world outside: a fiber in a system call, or one that
// waits for another thread, stops virtual time for all. A thread looks every 100 ms: a simulation
// that runs, has handled no event for as long as it may, and whose thread used no CPU time
// meanwhile, is blocked, not busy. Looks are counted, not hours, so that a process that was stopped
// or starved accuses nobody.
//
//   SimWatch watch;
//   watch.begin(5'000'000'000, [](int64_t blocked_ns) { ...; std::abort(); });
//   while (...) { watch.moved(); ... }
//   watch.end();
//
// All calls by the simulation's thread. The looking thread exists from the first begin() on, and is
// never joined: in a child that was forked there is none, and nothing to wait for.
class SimWatch {
 public:
  SimWatch() = default;
  ~SimWatch();
  SimWatch(const SimWatch&) = delete;
  SimWatch& operator=(const SimWatch&) = delete;

  // The simulation runs from here to end(). `report` is called by the looking thread, with how long
  // it has been blocked. patience_ns 0: nobody looks.
  void begin(int64_t patience_ns, std::function<void(int64_t blocked_ns)> report);
  void end();

  // At each event.
  void moved() { events_.store(++count_, std::memory_order_relaxed); }

 private:
  class Shared;

  uint64_t count_ = 0;
  std::atomic<uint64_t> events_{0};  // relaxed: orders nothing. Read while the simulation runs
  std::shared_ptr<Shared> shared_;
};

}  // namespace jiffy
