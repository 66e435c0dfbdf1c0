// The tick of a Cpu is started by whoever queues a second fiber, from anywhere, and stopped by the
// Cpu itself when it is about to idle. No order of the two may leave fibers waiting without a tick.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/sim.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support/runtimes.h"
#include "support/stress.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

// Only a tick ends the hog: a new fiber preempts nobody, and the hog never blocks.
TEST(TickStress, CpuThatGoesIdleWhileFibersAreQueuedStillGetsItsTick) {
  Options options = host_options(2);
  options.hz = 1000;
  options.spin_us = 20;  // so that stopping the tick and queueing meet
  CheckedRuntime rt(options);
  Random random(1);
  std::atomic<int> lost{0};
  for (Budget budget(1); budget.left();) {
    std::atomic<bool> done{false};
    auto hog = rt->spawn(
        [&] {
          const TimePoint patience = now() + 10s;
          while (!done.load(std::memory_order_relaxed)) {
            consume(5us);
            if (now() < patience) continue;
            ++lost;
            return;
          }
        },
        pinned(1, "hog"));
    auto other =
        rt->spawn([&] { done.store(true, std::memory_order_relaxed); }, pinned(1, "other"));
    hog.join();
    other.join();
    ASSERT_EQ(lost.load(), 0) << "ten seconds without a tick";
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(60)));
  }
}

}  // namespace
}  // namespace jiffy
