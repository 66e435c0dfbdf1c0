// What waking an idle thread on another CPU costs with nothing around it: a bare futex.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace jiffy::micro {

// A thread on the first allowed CPU sleeps in a futex; run() wakes it from the second.
class FutexWake {
 public:
  FutexWake();
  ~FutexWake();
  FutexWake(const FutexWake&) = delete;
  FutexWake& operator=(const FutexWake&) = delete;

  // `wakes` wakes, each of a thread that has slept for a while; the median of the ns from before
  // the wake until the thread runs.
  double run(int wakes);

 private:
  void sleeper();

  std::atomic<uint32_t> word_{0};
  std::atomic<double> ran_at_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// How long the woken one has been idle. Its CPU is halted then: the other one spins meanwhile.
inline constexpr double kSilenceNs = 200'000;
void spin_for(double ns);

}  // namespace jiffy::micro
