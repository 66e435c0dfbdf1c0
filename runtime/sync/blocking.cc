#include <jiffy/blocking.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

#include "cpu/cpu.h"
#include "machine/host/signals.h"

namespace jiffy {

namespace {

constexpr unsigned long bit_of(int signal) { return 1ul << (signal - 1); }

// By the system call itself: the library's wrapper does no more.
void set_mask(int how, const unsigned long* mask, unsigned long* old) {
  (void)syscall(SYS_rt_sigprocmask, how, mask, old, sizeof *mask);
}

}  // namespace

BlockingRegion::BlockingRegion() : on_fiber_(current_fiber() != nullptr), mask_(0) {
  if (!on_fiber_) return;
  preempt_disable();
  const unsigned long ours = bit_of(tick_signal()) | bit_of(kReschedSignal);
  set_mask(SIG_BLOCK, &ours, &mask_);
}

BlockingRegion::~BlockingRegion() {
  if (!on_fiber_) return;
  set_mask(SIG_SETMASK, &mask_, nullptr);
  preempt_enable();  // what came meanwhile is taken here
}

}  // namespace jiffy
