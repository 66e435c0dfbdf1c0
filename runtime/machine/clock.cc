#include "machine/clock.h"

#include <cpuid.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace jiffy {

namespace {

struct Pair {
  uint64_t tsc;
  int64_t ns;
};

// The two clocks read as closely together as this thread managed in a few tries: an interrupt
// between them would look like drift.
Pair read_pair() {
  Pair best{0, 0};
  uint64_t best_width = UINT64_MAX;
  for (int i = 0; i < 8; ++i) {
    const uint64_t before = __builtin_ia32_rdtsc();
    const int64_t ns = monotonic_ns();
    const uint64_t after = __builtin_ia32_rdtsc();
    if (after - before < best_width) {
      best_width = after - before;
      best = Pair{before + (after - before) / 2, ns};
    }
  }
  return best;
}

struct Calibration {
  bool usable = false;
  Pair first{0, 0};
  int64_t scale = 0;
};

Calibration calibrate() {
  Calibration result;
  const char* why_not = nullptr;
  if (!tsc_is_usable(&why_not)) return result;
  constexpr int64_t kBaselineNs = 5'000'000;
  const Pair a = read_pair();
  Pair b = a;
  while (b.ns - a.ns < kBaselineNs) b = read_pair();
  if (b.tsc <= a.tsc) return result;
  result.usable = true;
  result.first = a;
  result.scale = static_cast<int64_t>((static_cast<__int128>(b.ns - a.ns) << 32) /
                                      static_cast<__int128>(b.tsc - a.tsc));
  return result;
}

}  // namespace

bool tsc_is_usable(const char** why_not) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0x80000007u, &eax, &ebx, &ecx, &edx) == 0 || (edx & (1u << 8)) == 0) {
    *why_not = "the CPU does not promise an invariant TSC";
    return false;
  }
  char source[64] = {};
  if (std::FILE* f =
          std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re")) {
    if (std::fgets(source, sizeof source, f) == nullptr) source[0] = '\0';
    std::fclose(f);
  }
  // A kernel that found the TSC unstable left it; kvm-clock and hyperv pages stand on it.
  if (source[0] != '\0' && std::strncmp(source, "tsc", 3) != 0 &&
      std::strncmp(source, "kvm-clock", 9) != 0 && std::strncmp(source, "hyperv", 6) != 0) {
    *why_not = "the kernel keeps its time by another clock source";
    return false;
  }
  *why_not = nullptr;
  return true;
}

Clock Clock::host() {
  // Measured once a process: a constant of the machine, not state.
  static const Calibration calibration = calibrate();
  Clock clock;
  clock.tsc_usable_ = calibration.usable;
  clock.scale_ = calibration.scale;
  clock.first_tsc_ = calibration.first.tsc;
  clock.first_ns_ = calibration.first.ns;
  const Pair now = read_pair();
  clock.base_tsc_ = now.tsc;
  clock.base_ns_ = now.ns;
  clock.last_sync_ns_ = now.ns;
  return clock;
}

void Clock::resync() {
  const Pair pair = read_pair();
  const int64_t ours =
      base_ns_ + static_cast<int64_t>(
                     (static_cast<__int128>(static_cast<int64_t>(pair.tsc - base_tsc_)) * scale_) >>
                     kScaleShift);
  const int64_t error = pair.ns - ours;
  // One of the two stood still or jumped (a suspended machine): a step, either way, since deadlines
  // are kept by the other clock. The time before it says nothing about the rate.
  if (std::abs(error) > kResyncNs / 10) {
    base_tsc_ = first_tsc_ = pair.tsc;
    base_ns_ = first_ns_ = last_sync_ns_ = pair.ns;
    return;
  }
  // The true rate since the start or the last step, bent so that the error is gone at the next
  // correction. Without a step the clock never goes backwards: the bend is bounded to one part in a
  // thousand.
  __int128 rate = (static_cast<__int128>(pair.ns - first_ns_) << kScaleShift) /
                  static_cast<__int128>(std::max<uint64_t>(pair.tsc - first_tsc_, 1));
  base_tsc_ = pair.tsc;
  base_ns_ = ours;
  const int64_t bend = std::clamp<int64_t>(error, -kResyncNs / 1000, kResyncNs / 1000);
  rate += rate * bend / kResyncNs;
  scale_ = static_cast<int64_t>(rate);
  last_sync_ns_ = pair.ns;
}

double Clock::tsc_hz() const {
  if (!tsc_usable_ || scale_ == 0) return 0;
  return 1e9 * static_cast<double>(int64_t{1} << 32) / static_cast<double>(scale_);
}

}  // namespace jiffy
