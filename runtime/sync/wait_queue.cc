#include <jiffy/wait_queue.h>

#include "sched/sched.h"

namespace jiffy {

// Wake functions run under the lock and take run-queue locks, so its holder must stay on its Cpu.
void WaitQueue::lock() {
  preempt_disable();
  lock_.lock();
}

void WaitQueue::unlock() {
  lock_.unlock();
  preempt_enable();
}

void WaitQueue::add(WaitEntry& entry) {
  const bool exclusive = (entry.flags & WaitEntry::kExclusive) != 0;
  const bool priority = (entry.flags & WaitEntry::kPriority) != 0;
  if (exclusive && !priority) {
    entries_.push_back(&entry);
    return;
  }
  // The contract orders those that are not exclusive before the others, and not among themselves:
  // a simulation tries either end.
  const Cpu* cpu = this_cpu();
  WaitEntry* last = entries_.front();
  if (priority || last == nullptr || (last->flags & WaitEntry::kExclusive) != 0 || cpu == nullptr ||
      cpu->machine->choose(2) == 0) {
    entries_.push_front(&entry);
    return;
  }
  for (WaitEntry* next = entries_.next(last);
       next != nullptr && (next->flags & WaitEntry::kExclusive) == 0; next = entries_.next(next)) {
    last = next;
  }
  entries_.insert_after(last, &entry);
}

int WaitQueue::wake_locked(int exclusive, uint64_t key) {
  int woken = 0;
  int left = exclusive == kAll ? -1 : exclusive;
  WaitEntry* next = nullptr;
  for (WaitEntry* entry = entries_.front(); entry != nullptr; entry = next) {
    next = entries_.next(entry);  // the entry may unlink itself
    const bool is_exclusive = (entry->flags & WaitEntry::kExclusive) != 0;
    const int result = entry->wake(*entry, key);
    if (result < 0) break;
    if (result == 0) continue;
    ++woken;
    if (is_exclusive && --left == 0) break;
  }
  return woken;
}

int WaitQueue::wake(int exclusive, uint64_t key) {
  const JiffyCall call;
  lock();
  const int woken = wake_locked(exclusive, key);
  unlock();
  return woken;
}

namespace detail {

void begin_call() { preempt_count_add(kCallUnit); }
void end_call() {
  if (!preempt_count_sub_and_test(kCallUnit)) return;
  const Cpu* cpu = this_cpu();
  if (cpu != nullptr && cpu_has_work(*cpu)) preempt_enable_slow();
}

BlockingWait::BlockingWait(WaitQueue& queue, const Until& until, uint8_t entry_flags)
    : queue_(queue), limited_(until.limited()), deadline_(until.deadline_ns()) {
  wake = wake_entry;
  flags = entry_flags;
  if (until.stop.stop_possible()) stop_ = until.stop;
}

BlockingWait::~BlockingWait() {
  if (!on_stop_) return;
  const PreemptibleInCall here;
  on_stop_.reset();
}

int BlockingWait::wake_entry(WaitEntry& entry, uint64_t) {
  BlockingWait& self = static_cast<BlockingWait&>(entry);
  // One that its deadline woke already leaves the wakeup to the next in line.
  if (!self.waiter_.wake()) return 0;
  self.node.unlink();
  return 1;
}

void BlockingWait::enqueue() {
  // Who lost a race for what it was woken for goes to the head at its second try.
  if (!node.linked()) queue_.add(*this);
  flags |= kPriority;
  waiter_.prepare(queue_.what());
}

void BlockingWait::leave() {
  if (node.linked()) queue_.remove(*this);
}

std::optional<WaitResult> BlockingWait::over() {
  if (!limited_) return std::nullopt;
  // The sleep is announced: a stop that is requested from here on finds a sleeper. seq_cst fence:
  // its partner stands in wake_for_stop().
  full_fence();
  std::optional<WaitResult> result;
  if (deadline_ != kNever && now().time_since_epoch() >= std::chrono::nanoseconds(deadline_)) {
    result = WaitResult::kTimeout;
  } else if (stop_.stop_requested()) {
    result = WaitResult::kStopped;
  }
  if (result) waiter_.cancel();
  return result;
}

void BlockingWait::StopWake::operator()() const { wake_for_stop(self->waiter_); }

void BlockingWait::sleep() {
  // Registered outside the lock: the callback runs at once if the stop was requested meanwhile.
  // It spins while another thread, or a preempted fiber, does the same.
  if (stop_.stop_possible() && !on_stop_) {
    const PreemptibleInCall here;
    on_stop_.emplace(stop_, StopWake{this});
  }
  (void)waiter_.block(deadline_);
}

}  // namespace detail

}  // namespace jiffy
