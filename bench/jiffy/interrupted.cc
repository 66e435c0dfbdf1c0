#include "interrupted.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <ctime>

namespace jiffy {

namespace {

volatile std::sig_atomic_t interrupt_seen = 0;

constexpr int kEnough = 3;
constexpr int kKilledByInterrupt = 128 + SIGINT;

// The handler stays: a second interrupt finds the run ending already, and changes nothing. A third
// is somebody who does not want to wait.
void on_interrupt(int) {
  interrupt_seen = interrupt_seen + 1;
  if (interrupt_seen >= kEnough) _exit(kKilledByInterrupt);
}

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART | SA_ONSTACK;  // it may come on a fiber's small stack
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return interrupt_seen != 0; }

bool sleep_unless_interrupted(std::chrono::nanoseconds duration) {
  // In steps, because the signal may be delivered to any thread of the process.
  constexpr std::chrono::nanoseconds kStep = std::chrono::milliseconds(20);
  const auto end = std::chrono::steady_clock::now() + duration;
  while (!interrupted()) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left.count() <= 0) return true;
    const auto step = std::min<std::chrono::nanoseconds>(left, kStep);
    const timespec wait = {0, static_cast<long>(step.count())};
    nanosleep(&wait, nullptr);
  }
  return false;
}

}  // namespace jiffy
