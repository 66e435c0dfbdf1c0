// eventfd's semantics, in the process.
#pragma once

#include <jiffy/wait_queue.h>

#include <cstdint>

namespace jiffy {

// A 64-bit counter that signals add to and a read takes from.
//
//   EventFd event;
//   event.signal();                       // any context, a plain thread, an interrupt
//   uint64_t n = *event.read().value;     // how many signals came since the last read
//
// As in the kernel: many signals before a read are one wakeup with their sum (they coalesce); the
// entries of its wait queue run in the signaller's context, under the queue's lock; a signal from
// within such an entry on the same thread is refused.
// Ordering: a signal synchronises with the read that takes it. Lifetime: must outlive all calls.
class EventFd {
 public:
  static constexpr uint64_t kMax = UINT64_MAX - 1;  // the largest value; one more marks overflow

  // What a poll reports, and the key that wake functions get.
  enum Event : uint64_t { kIn = 1, kOut = 4, kErr = 8, kHup = 16 };

  struct ReadResult {
    WaitResult result;
    uint64_t value;  // valid with kReady
  };
  enum class WriteError : uint8_t { kNone, kInvalid, kWouldBlock, kTimeout, kStopped };

  // In semaphore mode a read takes one instead of all.
  explicit EventFd(uint64_t initial = 0, bool semaphore = false)
      : count_(initial), semaphore_(semaphore) {}
  // Wakes the entries with kHup.
  ~EventFd();

  // The kernel side's way to add: never blocks, saturates at the overflow marker. Returns what was
  // added: 0 when it was refused inside a wake function on this thread. Any context.
  uint64_t signal(uint64_t n = 1);

  // write(2): blocks while the sum would exceed kMax. UINT64_MAX is invalid.
  WriteError write(uint64_t n, const Until& until = {});
  WriteError try_write(uint64_t n);

  // read(2): blocks while the counter is zero.
  ReadResult read(const Until& until = {});
  // kTimeout for EAGAIN.
  ReadResult try_read();

  uint64_t poll();

  // For entries of one's own, such as an irqfd's. read_locked() takes the counter under the lock,
  // as a wake function does.
  WaitQueue& queue() { return waiters_; }
  uint64_t read_locked();
  // At most one irqfd sits on an eventfd. Under the queue's lock.
  bool claimed_by_irqfd = false;

 private:
  bool can_add(uint64_t n) const { return n <= kMax && count_ <= kMax - n; }

  WaitQueue waiters_{LockClass::kWaitQueue, "event"};
  uint64_t count_;  // under waiters_' lock
  const bool semaphore_;
};

}  // namespace jiffy
