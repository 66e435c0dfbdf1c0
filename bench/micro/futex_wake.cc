#include "micro/futex_wake.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "micro/harness.h"

namespace jiffy::micro {

namespace {

void futex(std::atomic<uint32_t>& word, int op, uint32_t value) {
  (void)syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), op | FUTEX_PRIVATE_FLAG, value,
                nullptr, nullptr, 0);
}

}  // namespace

void spin_for(double ns) {
  const double end = now_ns() + ns;
  while (now_ns() < end) _mm_pause();
}

FutexWake::FutexWake() : thread_([this] { sleeper(); }) {}

FutexWake::~FutexWake() {
  stop_.store(true, std::memory_order_relaxed);
  // Release: partner is the acquire in sleeper().
  word_.store(1, std::memory_order_release);
  futex(word_, FUTEX_WAKE, 1);
  thread_.join();
}

void FutexWake::sleeper() {
  const PinnedHere pinned(0);
  while (!stop_.load(std::memory_order_relaxed)) {
    // Acquire: partner is the release in run().
    if (word_.load(std::memory_order_acquire) == 0) {
      futex(word_, FUTEX_WAIT, 0);
      continue;
    }
    word_.store(0, std::memory_order_relaxed);
    // Release: partner is the acquire in run().
    ran_at_.store(now_ns(), std::memory_order_release);
  }
}

double FutexWake::run(int wakes) {
  const PinnedHere pinned(1);
  std::vector<double> samples;
  for (int i = 0; i < wakes; ++i) {
    spin_for(kSilenceNs);
    ran_at_.store(0, std::memory_order_relaxed);
    const double start = now_ns();
    // Release: partner is the acquire in sleeper().
    word_.store(1, std::memory_order_release);
    futex(word_, FUTEX_WAKE, 1);
    double ran_at = 0;
    // Acquire: partner is the release in sleeper().
    while ((ran_at = ran_at_.load(std::memory_order_acquire)) == 0) _mm_pause();
    samples.push_back(ran_at - start);
  }
  return percentile(samples, 50);
}

}  // namespace jiffy::micro
