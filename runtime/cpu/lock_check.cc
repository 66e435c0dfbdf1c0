// Checks of spin locks, for debug builds (JIFFY_CHECK_LOCKS):
//
//   1. The order of detail/lock_class.h, so that no two Cpus can wait for each other. It is broken
//      by the first wrong nesting, whether or not another Cpu is there to deadlock with.
//   2. A Cpu takes a lock with preemption off: an interrupt, or the fiber that preempts the holder,
//      would otherwise wait for it on the same Cpu, for ever.
//   3. Who unlocks holds the lock, and a lock ends unheld.
//
// A lock may be released by another fiber than took it (the run queue's, across a switch), but on
// the same Cpu: so a Cpu keeps what it holds, and a thread that is no Cpu keeps its own.
#ifdef JIFFY_CHECK_LOCKS

#include <cstdio>
#include <cstdlib>

#include "cpu/cpu.h"

namespace jiffy {

namespace {

constexpr const char* kNames[] = {"list of work queues",
                                  "timers",
                                  "wait queue",
                                  "worker pool",
                                  "flush",
                                  "handoff",
                                  "service",
                                  "drain",
                                  "run queue",
                                  "list of stack pools",
                                  "stack pool",
                                  "other"};
static_assert(std::size(kNames) == static_cast<size_t>(LockClass::kOther) + 1);

thread_local constinit HeldLocks thread_held;

HeldLocks& held_here() {
  Cpu* cpu = this_cpu();
  return cpu == nullptr ? thread_held : cpu->held_locks;
}

const char* name_of(LockClass c) { return kNames[static_cast<size_t>(c)]; }

[[noreturn]] void die(const char* what, LockClass lock, const char* other = "") {
  const Cpu* cpu = this_cpu();
  std::fprintf(stderr, "jiffy: lock check on Cpu %d: %s%s%s (count %#x)\n",
               cpu == nullptr ? -1 : cpu->id, name_of(lock), what, other, preempt_count());
  std::abort();
}

}  // namespace

// Whether `lock` may be taken by who holds `held`.
bool RawSpinLock::may_nest(const HeldLocks::Held& held) const {
  if (held.lock == this) return false;
  if (held.lock_class != lock_class_) {
    return held.lock_class < lock_class_ || held.lock_class == LockClass::kOther ||
           lock_class_ == LockClass::kOther;
  }
  switch (lock_class_) {
    case LockClass::kRunQueue:
      return held.order < order_;
    case LockClass::kWaitQueue:  // a wake function that wakes the next queue
    case LockClass::kOther:
      return true;
    default:
      return false;
  }
}

RawSpinLock::~RawSpinLock() {
  if (is_locked()) die(" lock is destroyed while it is held", lock_class_);
}

void RawSpinLock::check_lock() const {
  if (this_cpu() != nullptr && preempt_count() == 0) {
    die(" lock taken with preemption on: an interrupt here could want it too", lock_class_);
  }
  const HeldLocks& held = held_here();
  for (int i = 0; i < held.count; ++i) {
    if (may_nest(held.locks[i])) continue;
    const bool again = held.locks[i].lock == this;
    die(again ? " lock taken again by who holds it" : " lock taken inside the lock of class ",
        lock_class_, again ? "" : name_of(held.locks[i].lock_class));
  }
}

void RawSpinLock::note_locked() const {
  HeldLocks& held = held_here();
  if (held.count == HeldLocks::kMost) die(" lock: too many locks are held", lock_class_);
  held.locks[held.count++] = {this, lock_class_, order_};
}

void RawSpinLock::note_unlocked() const {
  HeldLocks& held = held_here();
  int i = held.count - 1;
  while (i >= 0 && held.locks[i].lock != this) --i;
  if (i < 0) die(" lock released by who does not hold it", lock_class_);
  for (--held.count; i < held.count; ++i) held.locks[i] = held.locks[i + 1];
}

}  // namespace jiffy

#endif  // JIFFY_CHECK_LOCKS
