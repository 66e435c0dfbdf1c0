#include "support/migrate.h"

#include <jiffy/fiber.h>
#include <jiffy/semaphore.h>
#include <jiffy/time.h>

#include <cerrno>
#include <chrono>

#include "support/runtimes.h"

namespace jiffy {

Options migrating_options(Options options) {
  options.features.delay_dequeue = false;
  return options;
}

// While the fiber sleeps, a helper runs on its Cpu and wakes it: the placement then finds the
// previous Cpu busy, and takes an idle one.
bool migrate() {
  constexpr int kTries = 10'000;
  const int from = this_fiber::cpu();
  for (int i = 0; i < kTries; ++i) {
    Semaphore moved;
    auto helper = spawn([&moved] { moved.release(); }, pinned(from, "mover"));
    moved.acquire();
    helper.join();
    if (this_fiber::cpu() != from) return true;
    (void)sleep_for(std::chrono::microseconds(1));  // until the others idle
  }
  return false;
}

[[gnu::noinline]] void* errno_address() {
  int* address = &errno;
  asm volatile("" : "+r"(address));
  return address;
}

}  // namespace jiffy
