// irqfd: an eventfd whose signals become interrupts of a guest, or of whatever is on the other
// side.
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/event_fd.h>
#include <jiffy/status.h>
#include <jiffy/work.h>

#include <cstdint>
#include <functional>

namespace jiffy {

// What an injection in the signaller's context came to.
enum class InjectResult : uint8_t {
  kInjected,    // done, or not necessary
  kWouldBlock,  // not possible without sleeping: a work item has to
};

// The kernel's irqfd: sits on an EventFd, takes each signal before anybody else, and injects.
//
//   IrqFd irqfd(system_dfl_wq(rt), [&] { guest.inject(); });
//   if (Status s = irqfd.assign(event); !s.ok()) ...
//   event.signal();   // guest.inject() runs in a kworker, once for all signals until then
//
// In the signaller's context it zeroes the counter and tries the target's own way, `inject_atomic`;
// where there is none, or it would block, it queues a work item on the pool that was chosen.
// Signals between its queueing and its start are one injection.
//
// `inject` runs in a worker and may block; `inject_atomic` runs under the lock of the eventfd's
// wait queue with preemption off: it must not block, allocate, or touch that eventfd. assign() and
// deassign() are used by one fiber or thread at a time, and block (deassign).
class IrqFd {
 public:
  // `pool` outlives the IrqFd. There is no default pool: which one is what P1 is about.
  IrqFd(WorkQueue& pool, std::function<void()> inject,
        std::function<InjectResult()> inject_atomic = {});
  // deassign().
  ~IrqFd();
  IrqFd(const IrqFd&) = delete;
  IrqFd& operator=(const IrqFd&) = delete;

  // Attaches. An eventfd that was signalled before is injected at once: no event is lost. Errors:
  // the eventfd has an irqfd already (the kernel's EBUSY); this one is assigned.
  Status assign(EventFd& event);
  // Detaches, and waits for an injection under way: after it none runs. Signals that come later
  // stay in the eventfd. Idempotent.
  void deassign();
  // Whether it is attached: false also after the eventfd was destroyed, which detaches it. The
  // eventfd is not destroyed at the same time as assign() or deassign() run.
  bool active() const { return event_.load(std::memory_order_relaxed) != nullptr; }

 private:
  struct Entry : WaitEntry {
    IrqFd* owner = nullptr;
  };
  static int on_event(WaitEntry& entry, uint64_t key);
  bool attach(EventFd& event);  // true: it is taken
  void signalled();
  void injected(bool atomic);

  WorkQueue& pool_;
  const std::function<void()> inject_;
  const std::function<InjectResult()> inject_atomic_;
  WorkItem item_;
  Entry entry_;                      // under the lock of the eventfd's queue
  Atomic<EventFd*> event_{nullptr};  // relaxed; written under that lock
};

}  // namespace jiffy
