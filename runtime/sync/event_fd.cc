#include <jiffy/event_fd.h>

#include "sched/runtime_state.h"
#include "sched/sched.h"

namespace jiffy {

namespace {

// Set in the count word while this context wakes an eventfd's entries: a signal from one of them
// on the same thread could recurse without end, so it is refused, as in the kernel.
constexpr uint32_t kInEventFdWake = 1u << 28;

int wake_guarded(WaitQueue& queue, uint64_t key) {
  // One bit, not a count: an entry may write to another eventfd.
  const bool nested = (preempt_count() & kInEventFdWake) != 0;
  if (!nested) preempt_count_add(kInEventFdWake);
  const int woken = queue.wake_locked(1, key);
  if (!nested) preempt_count_sub(kInEventFdWake);
  return woken;
}

}  // namespace

EventFd::~EventFd() {
  waiters_.with_lock([this] { (void)wake_guarded(waiters_, kHup); });
}

uint64_t EventFd::signal(uint64_t n) {
  if ((preempt_count() & kInEventFdWake) != 0) return 0;
  const JiffyCall call;
  if (Cpu* cpu = this_cpu()) cpu->counters.add_shared(Counter::kEventfdSignals);
  waiters_.lock();
  const uint64_t added = n > UINT64_MAX - count_ ? UINT64_MAX - count_ : n;
  count_ += added;
  if (!waiters_.empty()) (void)wake_guarded(waiters_, count_ == UINT64_MAX ? kIn | kErr : kIn);
  waiters_.unlock();
  return added;
}

// Readers and writers wait on one queue and are not exclusive, as in the kernel: a wakeup that
// reached the first of them only could reach one that it does not help, such as a writer of too
// large a value.
EventFd::WriteError EventFd::write(uint64_t n, const Until& until) {
  if (n == UINT64_MAX) return WriteError::kInvalid;
  const WaitResult result = waiters_.wait(
      [&] {
        if (!can_add(n)) return false;
        count_ += n;
        if (!waiters_.empty()) (void)wake_guarded(waiters_, kIn);
        return true;
      },
      until);
  switch (result) {
    case WaitResult::kReady:
      return WriteError::kNone;
    case WaitResult::kTimeout:
      return WriteError::kTimeout;
    case WaitResult::kStopped:
      break;
  }
  return WriteError::kStopped;
}

EventFd::WriteError EventFd::try_write(uint64_t n) {
  if (n == UINT64_MAX) return WriteError::kInvalid;
  return waiters_.with_lock([&] {
    if (!can_add(n)) return WriteError::kWouldBlock;
    count_ += n;
    if (!waiters_.empty()) (void)wake_guarded(waiters_, kIn);
    return WriteError::kNone;
  });
}

uint64_t EventFd::read_locked() {
  const uint64_t value = semaphore_ && count_ > 0 ? 1 : count_;
  count_ -= value;
  return value;
}

EventFd::ReadResult EventFd::read(const Until& until) {
  uint64_t value = 0;
  const WaitResult result = waiters_.wait(
      [&] {
        if (count_ == 0) return false;
        value = read_locked();
        // Room for a writer that waits.
        if (!waiters_.empty()) (void)wake_guarded(waiters_, kOut);
        return true;
      },
      until);
  return {result, value};
}

EventFd::ReadResult EventFd::try_read() {
  return waiters_.with_lock([&]() -> ReadResult {
    if (count_ == 0) return {WaitResult::kTimeout, 0};
    const uint64_t value = read_locked();
    if (!waiters_.empty()) (void)wake_guarded(waiters_, kOut);
    return {WaitResult::kReady, value};
  });
}

uint64_t EventFd::poll() {
  return waiters_.with_lock([&] {
    uint64_t events = 0;
    if (count_ > 0) events |= kIn;
    if (count_ < kMax) events |= kOut;
    if (count_ == UINT64_MAX) events |= kErr;
    return events;
  });
}

}  // namespace jiffy
