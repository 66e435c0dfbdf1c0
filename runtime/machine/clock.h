// The clock of one Cpu: CLOCK_MONOTONIC, read by rdtsc, or the virtual time of a simulation.
#pragma once

#include <cstdint>
#include <ctime>

namespace jiffy {

inline int64_t monotonic_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

// Reads nanoseconds of CLOCK_MONOTONIC. A reading costs one rdtsc and a multiplication; the scale
// is measured against CLOCK_MONOTONIC at start and corrected at ticks (resync), so that it follows
// the host's own corrections. Where the TSC is not usable the vDSO is read instead.
//
// One instance a Cpu; read and corrected by its owner only. Other Cpus may read it (now() is then
// off by what the next correction would change, microseconds), so the fields that a correction
// writes are not torn: they are used by the owner alone.
class Clock {
 public:
  // The host's clock.
  static Clock host();
  // The same by a call of the system for each reading: exact without correction.
  static Clock monotonic() { return Clock(); }
  // A simulation's: reads *now.
  static Clock virtual_time(const int64_t* now) {
    Clock clock;
    clock.virtual_now_ = now;
    return clock;
  }

  int64_t now() const {
    if (virtual_now_ != nullptr) return *virtual_now_;
    if (!tsc_usable_) return monotonic_ns();
    const int64_t cycles = static_cast<int64_t>(__builtin_ia32_rdtsc() - base_tsc_);
    return base_ns_ + static_cast<int64_t>((static_cast<__int128>(cycles) * scale_) >> kScaleShift);
  }

  // Corrects the scale so that the clock meets CLOCK_MONOTONIC again after about kResyncNs, without
  // a step unless they are more than 10 ms apart. Called by the owner, at most every kResyncNs.
  void resync();
  bool resync_due(int64_t now_ns) const {
    return virtual_now_ == nullptr && tsc_usable_ && now_ns - last_sync_ns_ >= kResyncNs;
  }

  bool uses_tsc() const { return tsc_usable_; }
  // Cycles per second, as measured at start; 0 where the TSC is not used.
  double tsc_hz() const;

 private:
  static constexpr int kScaleShift = 32;
  static constexpr int64_t kResyncNs = 100'000'000;

  const int64_t* virtual_now_ = nullptr;
  bool tsc_usable_ = false;
  uint64_t base_tsc_ = 0;
  int64_t base_ns_ = 0;
  int64_t scale_ = 0;  // ns per cycle, fixed point
  int64_t last_sync_ns_ = 0;
  // The uncorrected pair of the start: the longer the baseline, the better the scale.
  uint64_t first_tsc_ = 0;
  int64_t first_ns_ = 0;
};

// Whether the CPU promises a TSC of constant rate that does not stop, and the host kernel itself
// keeps time by it; with the reason when it does not.
bool tsc_is_usable(const char** why_not);

}  // namespace jiffy
