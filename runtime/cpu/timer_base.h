// The timers of one Cpu: what the kernel calls its hrtimer base.
#pragma once

#include <jiffy/detail/atomic.h>
#include <jiffy/detail/spinlock.h>

#include <cstdint>

#include "base/treap.h"

namespace jiffy {

class Cpu;
class TimerBase;

// One armed callback, owned by the caller. `fn` runs in interrupt context of the Cpu that the
// timer was armed on, under the base's lock: it must not block, and must not arm or cancel timers.
// It returns the next expiry, or kNever: a periodic timer re-arms itself so.
struct TimerNode {
  TreapNode tree;
  int64_t expiry = 0;
  int64_t (*fn)(TimerNode& timer, int64_t now) = nullptr;
  Atomic<TimerBase*> base{nullptr};  // null when not armed; changed under the base's lock
};

struct TimerTraits {
  static TreapNode* node(TimerNode* t) { return &t->tree; }
  static TimerNode* item(TreapNode* n) { return reinterpret_cast<TimerNode*>(n); }
  static bool less(const TimerNode& a, const TimerNode& b) { return a.expiry < b.expiry; }
  static bool summarize(TimerNode&, const TimerNode*, const TimerNode*) { return false; }
};

// Lock order: a base's lock is taken before run-queue locks, never after. Armed and cancelled from
// anywhere, with preemption off.
class TimerBase {
 public:
  explicit TimerBase(Cpu& cpu) : cpu_(cpu) {}

  // Any context, preemption off.
  void arm(TimerNode& timer, int64_t expiry);
  // Any context. After it returns the callback is not running and will not. True if it was armed.
  static bool cancel(TimerNode& timer);

  // Disarms all timers for which pred(timer) holds, without calling them. Preemption off.
  template <class Pred>
  void disarm_if(Pred pred) {
    Treap<TimerNode, TimerTraits> others;
    lock_.lock();
    while (TimerNode* timer = timers_.first()) {
      timers_.erase(timer);
      if (!pred(*timer)) {
        others.insert(timer);
        continue;
      }
      // Release: partner is the acquire in cancel().
      timer->base.store(nullptr, std::memory_order_release);
    }
    while (TimerNode* timer = others.first()) {
      others.erase(timer);
      timers_.insert(timer);
    }
    update_next();
    lock_.unlock();
  }

  // By the owner, in interrupt context or idle: runs what has expired; returns how many.
  int expire(int64_t now);

  // The earliest expiry, kNever for none. A racy look for other Cpus, exact for the owner.
  int64_t next_expiry() const { return next_expiry_.load(std::memory_order_relaxed); }
  bool empty() const;

 private:
  void update_next();
  void check_not_in_callback() const;

  Cpu& cpu_;
  bool expiring_ = false;  // by the owner, read by the owner
  RawSpinLock lock_{LockClass::kTimers};
  Treap<TimerNode, TimerTraits> timers_;  // under lock_
  // Written under lock_; read without it. No partner: a stale value delays nothing, since whoever
  // makes it earlier is the owner itself.
  Atomic<int64_t> next_expiry_{INT64_MAX};
};

}  // namespace jiffy
