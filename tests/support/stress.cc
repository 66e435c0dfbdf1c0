#include "support/stress.h"

#include <jiffy/detail/spinlock.h>

#include <cstdio>
#include <cstdlib>

#include "support/sanitizer.h"

namespace jiffy {

std::chrono::nanoseconds stress_seconds() {
  double seconds = 5;
  if (const char* text = std::getenv("JIFFY_STRESS_SECONDS")) {
    char* end = nullptr;
    const double wanted = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(wanted > 0)) {
      std::fprintf(stderr, "JIFFY_STRESS_SECONDS is '%s': a number of seconds above 0\n", text);
      std::exit(2);
    }
    seconds = wanted;
  }
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

Watchdog::Watchdog(std::function<std::string()> describe)
    : describe_(std::move(describe)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

void Watchdog::watch() {
  using std::chrono::steady_clock;
  constexpr auto kPatience = std::chrono::seconds(kSlowdown > 1 ? 40 : 10);
  uint64_t seen = beats_.load(std::memory_order_relaxed);
  auto since = steady_clock::now();
  while (!stop_.load(std::memory_order_relaxed)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const uint64_t beats = beats_.load(std::memory_order_relaxed);
    if (beats != seen) {
      seen = beats;
      since = steady_clock::now();
    } else if (steady_clock::now() - since > kPatience) {
      std::fprintf(stderr, "watchdog: no progress for %lld s after %llu beats\n%s",
                   static_cast<long long>(kPatience.count()), static_cast<unsigned long long>(seen),
                   describe_().c_str());
      std::abort();
    }
  }
}

void random_pause(Random& random) {
  for (uint64_t n = random.below(8) == 0 ? random.below(512) : random.below(32); n > 0; --n) {
    cpu_relax();
  }
}

}  // namespace jiffy
