#include <jiffy/irqfd.h>

#include <utility>

#include "work/work_queue_state.h"

namespace jiffy {

IrqFd::IrqFd(WorkQueue& pool, std::function<void()> inject,
             std::function<InjectResult()> inject_atomic)
    : pool_(pool),
      inject_(std::move(inject)),
      inject_atomic_(std::move(inject_atomic)),
      item_([this] {
        injected(/*atomic=*/false);
        inject_();
      }) {
  entry_.wake = on_event;
  // First in the queue, and uses up the wakeup: others who wait on the eventfd are not told.
  entry_.flags = WaitEntry::kPriority | WaitEntry::kExclusive;
  entry_.owner = this;
}

IrqFd::~IrqFd() { deassign(); }

Status IrqFd::assign(EventFd& event) {
  if (active()) {
    return Status::error("the irqfd is assigned to an eventfd already: deassign() it first");
  }
  const bool busy = [&] {
    const JiffyCall call;
    return attach(event);
  }();
  if (busy) {
    return Status::error("busy: the eventfd has an irqfd already, and can have only one");
  }
  return Status();
}

bool IrqFd::attach(EventFd& event) {
  return event.queue().with_lock([&] {
    if (std::exchange(event.claimed_by_irqfd, true)) return true;
    event_.store(&event, std::memory_order_relaxed);
    event.queue().add(entry_);
    // Attached first, looked at then, both under the lock: a signal comes before or after.
    if (event.read_locked() != 0) signalled();
    return false;
  });
}

void IrqFd::deassign() {
  if (EventFd* event = event_.load(std::memory_order_relaxed)) {
    event->queue().with_lock([&] {
      event->queue().remove(entry_);
      event->claimed_by_irqfd = false;
      event_.store(nullptr, std::memory_order_relaxed);
    });
  }
  // Nobody queues it any more.
  (void)pool_.flush(item_);
}

// In the signaller's context, under the queue's lock.
int IrqFd::on_event(WaitEntry& entry, uint64_t key) {
  IrqFd& self = *static_cast<Entry&>(entry).owner;
  EventFd& event = *self.event_.load(std::memory_order_relaxed);
  int consumed = 0;
  if ((key & EventFd::kIn) != 0) {
    (void)event.read_locked();
    self.signalled();
    consumed = 1;
  }
  if ((key & EventFd::kHup) != 0) {
    entry.node.unlink();
    event.claimed_by_irqfd = false;
    self.event_.store(nullptr, std::memory_order_relaxed);
  }
  return consumed;
}

void IrqFd::signalled() {
  if (inject_atomic_ && inject_atomic_() == InjectResult::kInjected) {
    injected(/*atomic=*/true);
  } else {
    (void)pool_.queue(item_);
  }
}

void IrqFd::injected(bool atomic) {
  RuntimeState& state = *WorkState::state_of(pool_).runtime;
  PreemptGuard guard;
  const Cpu* cpu = this_cpu();
  count_event(state, atomic ? Counter::kIrqfdInjectionsAtomic : Counter::kIrqfdInjectionsWork);
  trace_any(state, TraceEvent::kInject, atomic ? 1 : 0, cpu == nullptr ? 0 : cpu->current->id);
}

}  // namespace jiffy
