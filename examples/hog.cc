// A hog tamed: a fiber that computes without end and makes no call, and one that must run each
// millisecond, on one virtual CPU.
//
// The hog is preemptible: the tick, which is a signal, interrupts it in the middle of its loop, and
// the other one runs. Were it cooperative, the first sleep would never end.
#include <jiffy/runtime.h>

#include <atomic>
#include <cstdio>

using namespace std::chrono_literals;

int main() {
  jiffy::Options options = jiffy::Options::preemptible();
  options.cpus = 1;
  jiffy::Runtime rt(options);
  if (const jiffy::Status status = rt.start(); !status.ok()) {
    std::printf("no preemptible fibers here: %s\n", status.message().c_str());
    return 0;
  }

  std::atomic<bool> stop{false};
  auto hog = rt.spawn([&stop] {
    unsigned long loops = 0;
    while (!stop.load(std::memory_order_relaxed)) ++loops;  // no call, no yield
    return loops;
  });
  const int turns = rt.run([] {
    int count = 0;
    for (const auto end = jiffy::now() + 100ms; jiffy::now() < end; ++count) {
      (void)jiffy::sleep_for(1ms);
    }
    return count;
  });
  stop = true;
  std::printf("the hog made %lu loops; beside it another fiber slept and woke %d times in 100 ms\n",
              hog.join(), turns);
  return turns > 0 ? 0 : 1;
}
