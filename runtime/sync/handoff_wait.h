// A wait that ends by being granted something: a semaphore's unit, a notification.
#pragma once

#include <jiffy/wait_queue.h>

#include <optional>

#include "sched/sched.h"

namespace jiffy {

// The giver, under the queue's lock, unlinks the entry, sets granted_ and wakes. Whether a grant or
// a deadline came first is decided by who takes that lock first, so each wait has one outcome and
// no grant is lost. Lies on the waiter's stack.
class HandoffWait : public WaitEntry {
 public:
  HandoffWait() {
    wake = wake_entry;
    flags = kExclusive;
  }

  // Under the queue's lock, which the caller releases before block(), or by unlock_and_block().
  void enqueue(WaitQueue& queue) {
    queue_ = &queue;
    queue.add(*this);
    waiter_.prepare(queue.what());
  }

  // Under the queue's lock, by the giver.
  static void grant(WaitEntry& entry) { (void)wake_entry(entry, 0); }

  // Blocks until granted or `until`. After kReady the giver is done with the queue, so that the
  // caller may destroy it.
  WaitResult block(WaitQueue& queue, const Until& until) {
    if (until.limited()) return block_limited(queue, until);
    (void)waiter_.block(kNever);
    return await_giver(queue);
  }
  WaitResult unlock_and_block(WaitQueue& queue, const Until& until) {
    if (!until.limited()) [[likely]] {
      queue.unlock_to_sleep();
      waiter_.sleep_after_unlock();
      return await_giver(queue);
    }
    queue.unlock();
    return block_limited(queue, until);
  }

 private:
  struct WakeOnStop {
    Waiter* waiter;
    // Partner of the fence in wake_for_stop(): the announcement of the sleep under the lock, and
    // the look for the request under it again, below.
    void operator()() const { wake_for_stop(*waiter); }
  };

  static int wake_entry(WaitEntry& entry, uint64_t) {
    HandoffWait& self = static_cast<HandoffWait&>(entry);
    self.node.unlink();
    self.granted_ = true;
    self.granter_ = self.queue_->ticket();
    (void)self.waiter_.wake();
    return 1;
  }

  WaitResult await_giver(WaitQueue& queue) {
    // Nothing but the grant wakes. Its giver holds the lock from before the grant, and lets go of
    // it last.
    spin_until([this, &queue] { return queue.has_left(granter_); });
    return WaitResult::kReady;
  }

  // Registering and taking back spin while another thread, or a preempted fiber, does the same.
  struct OnStop {
    std::optional<std::stop_callback<WakeOnStop>> callback;
    OnStop(const std::stop_token& stop, Waiter* waiter) {
      if (!stop.stop_possible()) return;
      const PreemptibleInCall here;
      callback.emplace(stop, WakeOnStop{waiter});
    }
    ~OnStop() {
      if (!callback) return;
      const PreemptibleInCall here;
      callback.reset();
    }
  };

  WaitResult block_limited(WaitQueue& queue, const Until& until) {
    const OnStop on_stop(until.stop, &waiter_);
    for (;;) {
      const bool in_time = waiter_.block(until.deadline_ns());
      queue.lock();
      if (granted_) {
        queue.unlock();
        return WaitResult::kReady;
      }
      // A deadline goes before a stop, also where the stop woke first.
      const bool late = !in_time || (until.deadline != kForever && now() >= until.deadline);
      if (late || until.stop.stop_requested()) {
        queue.remove(*this);
        queue.unlock();
        return late ? WaitResult::kTimeout : WaitResult::kStopped;
      }
      waiter_.prepare(queue.what());
      // Announced, and then looked at again: partner is the fence in wake_for_stop().
      full_fence();
      if (until.stop.stop_requested()) {
        waiter_.cancel();
        queue.remove(*this);
        queue.unlock();
        return WaitResult::kStopped;
      }
      queue.unlock();
    }
  }

  Waiter waiter_;
  WaitQueue* queue_ = nullptr;
  bool granted_ = false;  // under the queue's lock
  uint32_t granter_ = 0;  // under the queue's lock: the ticket of who granted
};

}  // namespace jiffy
