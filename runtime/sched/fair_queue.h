// The fair class of one Cpu: EEVDF, as the kernel runs it. Only the algorithm: the run queue calls
// it under its lock, and turns its answers into requests and switches.
#pragma once

#include <jiffy/options.h>

#include <cstdint>

#include "base/treap.h"
#include "fiber/fiber.h"

namespace jiffy {

inline constexpr uint32_t kNiceZeroWeight = 1024;
inline constexpr uint32_t kIdlePolicyWeight = 3;

// Each step of nice is a factor of 1.25: ten per cent of a CPU between two that differ by one.
uint32_t weight_of_nice(int nice);

// 0.7 ms, growing with the logarithm of the number of Cpus, up to eight.
uint64_t base_slice_ns(int cpus);

struct FairTreeTraits {
  static TreapNode* node(FairEntity* e) { return &e->node; }
  static FairEntity* item(TreapNode* n) { return reinterpret_cast<FairEntity*>(n); }
  static bool less(const FairEntity& a, const FairEntity& b) { return a.deadline < b.deadline; }
  static bool summarize(FairEntity& e, const FairEntity* l, const FairEntity* r);
};

// Terms. An entity's virtual runtime advances by its time on the Cpu over its weight. V is the
// weighted average of the virtual runtimes in the queue; V - v is an entity's lag, what the queue
// owes it; with a lag of at least zero it is eligible. Its virtual deadline is the virtual time at
// which it will have had the slice it asked for. The pick: the earliest deadline among the
// eligible. docs/eevdf.md tells it at length.
//
// The current entity stays queued but is kept outside the tree. O(log n) for all operations.
//
// Invariants:
//  1. nr_queued() counts the tree, plus the current entity if it is queued.
//  2. load_ and weighted_ sum over the tree only, weighted_ relative to zero_.
//  3. A delayed entity is in the tree, and its fiber is asleep.
class FairQueue {
 public:
  enum EnqueueFlag : unsigned { kWakeup = 1, kInitial = 2, kMigrated = 4 };

  void configure(const SchedFeatures& features, uint64_t base_slice, int64_t tick_ns) {
    features_ = features;
    base_slice_ = base_slice;
    tick_ns_ = tick_ns;
  }

  int nr_queued() const { return nr_queued_; }
  int nr_delayed() const { return nr_delayed_; }
  FairEntity* current() const { return current_; }
  const SchedFeatures& features() const { return features_; }

  // Charges the current entity for the time since the last call. Returns whether it should be
  // rescheduled: its slice or its protection is over, and others wait.
  bool update_current(int64_t now);

  // The callers below have called update_current() before.

  // Places `e` at V less its lag and queues it.
  void enqueue(FairEntity& e, unsigned flags);
  // Takes `e` off the queue; if it sleeps with a debt it stays, delayed, and false is returned.
  bool dequeue(FairEntity& e, bool sleep);
  // Removes a delayed entity for good; the pick found it.
  void finish_delayed(FairEntity& e);
  // A delayed entity woke up: it competes again, without credit.
  void requeue_delayed(FairEntity& e);

  // The entity to run next; may be a delayed one, which the caller finishes before it asks again.
  // `protect`: the current entity keeps the Cpu while it is protected.
  FairEntity* pick(bool protect);
  // Makes `e`, which is queued, the current one / puts the current one back into the tree.
  void set_next(FairEntity& e, int64_t now);
  void put_prev();

  // Whether `wakee`, just queued, should preempt the current entity. Adjusts its protection.
  // `may_preempt` is false for batch and idle policies. May return a delayed entity by `found`:
  // the pick met it first, and the caller must finish it and ask again.
  bool wakeup_preempts(FairEntity& wakee, bool may_preempt, FairEntity** found);
  void cancel_protection() {
    if (current_ != nullptr) current_->vprot = current_->vruntime;
  }

  // The current entity gives up the rest of its slice: it becomes ineligible.
  void yield_current();
  // What it asks for from its next request on; 0: the base slice.
  void set_slice(FairEntity& e, uint64_t slice);
  // Changes the weight, keeping the lag in real time and the scaled distance to the deadline.
  void reweight(FairEntity& e, uint32_t weight);

  bool eligible(const FairEntity& e) const { return vruntime_eligible(e.vruntime); }
  int64_t average() const;
  // Real time until the current entity's deadline: what HRTICK is armed for.
  int64_t current_remaining() const;

  // The first entity of the tree for which fn returns true, in no particular order.
  template <class Fn>
  FairEntity* find(Fn&& fn) {
    return find_below(tree_.root(), fn);
  }

 private:
  template <class Fn>
  static FairEntity* find_below(FairEntity* e, Fn& fn) {
    if (e == nullptr) return nullptr;
    if (fn(*e)) return e;
    FairEntity* l = find_below(Treap<FairEntity, FairTreeTraits>::left(e), fn);
    return l != nullptr ? l : find_below(Treap<FairEntity, FairTreeTraits>::right(e), fn);
  }

  bool vruntime_eligible(int64_t vruntime) const;
  void place(FairEntity& e, unsigned flags);
  void tree_insert(FairEntity& e);
  void tree_erase(FairEntity& e);
  void save_lag(FairEntity& e);
  int64_t clamp_lag(const FairEntity& e, int64_t lag) const;
  uint64_t min_slice() const;
  uint64_t max_slice() const;
  void rebase(int64_t zero);
  bool is_protected(const FairEntity& e) const {
    return features_.run_to_parity && e.vruntime < e.vprot;
  }

  SchedFeatures features_;
  uint64_t base_slice_ = 700'000;
  int64_t tick_ns_ = 4'000'000;

  Treap<FairEntity, FairTreeTraits> tree_;
  FairEntity* current_ = nullptr;
  int nr_queued_ = 0;
  int nr_delayed_ = 0;
  int64_t exec_start_ = 0;  // up to when current_ is charged
  int64_t zero_ = 0;        // keeps the products below small
  int64_t load_ = 0;        // sum of weights
  int64_t weighted_ = 0;    // sum of weight * (vruntime - zero_)
};

}  // namespace jiffy
