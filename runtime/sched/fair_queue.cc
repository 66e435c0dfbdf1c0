#include "sched/fair_queue.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace jiffy {

namespace {

// Real time to virtual time of an entity, and back.
int64_t to_virtual(int64_t ns, uint32_t weight) {
  return weight == kNiceZeroWeight ? ns : ns * kNiceZeroWeight / weight;
}
int64_t to_real(int64_t virtual_ns, uint32_t weight) {
  return weight == kNiceZeroWeight ? virtual_ns : virtual_ns * weight / kNiceZeroWeight;
}

// Loads are often powers of two (that many fibers of nice 0), and a division takes longer than all
// else that a wakeup does with the average.
int64_t floor_div(int64_t a, int64_t b) {
  if ((b & (b - 1)) == 0) {
    return a >> std::countr_zero(static_cast<uint64_t>(b));
  }
  const int64_t q = a / b;
  return q * b > a ? q - 1 : q;
}

}  // namespace

uint32_t weight_of_nice(int nice) {
  return static_cast<uint32_t>(
      std::lround(kNiceZeroWeight * std::pow(1.25, -std::clamp(nice, -20, 19))));
}

uint64_t base_slice_ns(int cpus) {
  const auto bounded = static_cast<unsigned>(std::clamp(cpus, 1, 8));
  return 700'000ull * static_cast<unsigned>(std::bit_width(bounded));
}

bool FairTreeTraits::summarize(FairEntity& e, const FairEntity* l, const FairEntity* r) {
  int64_t min_v = e.vruntime;
  uint64_t min_s = e.slice;
  uint64_t max_s = e.slice;
  const auto include = [&](const FairEntity& child) {
    min_v = std::min(min_v, child.min_vruntime);
    min_s = std::min(min_s, child.min_slice);
    max_s = std::max(max_s, child.max_slice);
  };
  if (l != nullptr) include(*l);
  if (r != nullptr) include(*r);
  if (min_v == e.min_vruntime && min_s == e.min_slice && max_s == e.max_slice) return false;
  e.min_vruntime = min_v;
  e.min_slice = min_s;
  e.max_slice = max_s;
  return true;
}

// --- The average, and who is eligible.

int64_t FairQueue::average() const {
  int64_t load = load_;
  int64_t weighted = weighted_;
  if (current_ != nullptr && current_->on_queue && features_.average_with_current) {
    load += current_->weight;
    weighted += current_->weight * (current_->vruntime - zero_);
  }
  // The division floors: the average leans to the left, so that somebody is always eligible.
  return load == 0 ? zero_ : zero_ + floor_div(weighted, load);
}

// v <= V without the division, which would round: sum(w_j (v_j - v0)) >= (v - v0) sum(w_j).
bool FairQueue::vruntime_eligible(int64_t vruntime) const {
  int64_t load = load_;
  int64_t weighted = weighted_;
  if (current_ != nullptr && current_->on_queue && features_.average_with_current) {
    load += current_->weight;
    weighted += current_->weight * (current_->vruntime - zero_);
  }
  return weighted >= static_cast<__int128>(vruntime - zero_) * load;
}

void FairQueue::rebase(int64_t zero) {
  weighted_ -= load_ * (zero - zero_);
  zero_ = zero;
}

uint64_t FairQueue::min_slice() const {
  uint64_t slice = tree_.root() == nullptr ? UINT64_MAX : tree_.root()->min_slice;
  if (current_ != nullptr && current_->on_queue) slice = std::min(slice, current_->slice);
  return slice;
}

uint64_t FairQueue::max_slice() const {
  uint64_t slice = tree_.root() == nullptr ? 0 : tree_.root()->max_slice;
  if (current_ != nullptr && current_->on_queue) slice = std::max(slice, current_->slice);
  return slice;
}

// --- The tree.

void FairQueue::tree_insert(FairEntity& e) {
  load_ += e.weight;
  weighted_ += e.weight * (e.vruntime - zero_);
  e.in_tree = true;
  tree_.insert(&e);
}

void FairQueue::tree_erase(FairEntity& e) {
  tree_.erase(&e);
  e.in_tree = false;
  load_ -= e.weight;
  weighted_ -= e.weight * (e.vruntime - zero_);
}

// --- Lag.

// Without a bound a fiber that waited long could later keep the Cpu for as long.
int64_t FairQueue::clamp_lag(const FairEntity& e, int64_t lag) const {
  if (!features_.clamp_lag) return lag;
  const uint64_t slice = std::max(max_slice(), e.slice);
  const int64_t limit = to_virtual(static_cast<int64_t>(slice) + tick_ns_, e.weight);
  return std::clamp(lag, -limit, limit);
}

void FairQueue::save_lag(FairEntity& e) {
  int64_t lag = clamp_lag(e, average() - e.vruntime);
  if (e.delayed) {
    // It slept while it burned its debt: the debt may shrink, but never turn into credit.
    lag = std::max(lag, e.vlag);
    if (features_.delay_zero) lag = std::min<int64_t>(lag, 0);
  }
  e.vlag = lag;
}

// --- In and out.

void FairQueue::place(FairEntity& e, unsigned flags) {
  const int64_t v = average();
  rebase(v);
  int64_t lag = 0;
  if (features_.place_lag && nr_queued_ != 0 && e.vlag != 0) {
    lag = e.vlag;
    if (features_.inflate_lag) {
      // Adding the entity moves the average towards it; scaled up first, the lag after the
      // insertion is the lag that was saved.
      int64_t load = load_;
      if (current_ != nullptr && current_->on_queue) load += current_->weight;
      if (load > 0) {
        lag = static_cast<int64_t>(static_cast<__int128>(lag) * (load + e.weight) / load);
      }
    }
  }
  e.vruntime = v - lag;
  if (!e.custom_slice) e.slice = base_slice_;
  if (e.rel_deadline && (flags & kInitial) == 0) {
    e.deadline += e.vruntime;
    e.rel_deadline = false;
    return;
  }
  e.rel_deadline = false;
  int64_t vslice = to_virtual(static_cast<int64_t>(e.slice), e.weight);
  if ((flags & kInitial) != 0) vslice /= 2;  // eases a new fiber into the competition
  e.deadline = e.vruntime + vslice;
}

void FairQueue::enqueue(FairEntity& e, unsigned flags) {
  place(e, flags);
  e.on_queue = true;
  e.delayed = false;
  ++nr_queued_;
  tree_insert(e);
}

bool FairQueue::dequeue(FairEntity& e, bool sleep) {
  if (sleep && features_.delay_dequeue && !e.delayed && nr_queued_ > 1 && !eligible(e)) {
    save_lag(e);
    e.delayed = true;
    ++nr_delayed_;
    return false;
  }
  save_lag(e);
  if (e.delayed) {
    e.delayed = false;
    --nr_delayed_;
  }
  if (!sleep) {
    // It moves or changes its attributes: it keeps how far its deadline is.
    e.deadline -= e.vruntime;
    e.rel_deadline = true;
  }
  if (e.in_tree) tree_erase(e);
  if (&e == current_) current_ = nullptr;
  e.on_queue = false;
  --nr_queued_;
  return true;
}

void FairQueue::finish_delayed(FairEntity& e) { (void)dequeue(e, /*sleep=*/true); }

void FairQueue::requeue_delayed(FairEntity& e) {
  save_lag(e);  // clips to no credit
  e.delayed = false;
  --nr_delayed_;
  const int64_t vruntime = average() - e.vlag;
  if (vruntime == e.vruntime) return;
  if (e.in_tree) tree_erase(e);
  --nr_queued_;
  e.on_queue = false;
  if (&e == current_) {
    // Woken between its sleep and the switch: it is still the current one.
    place(e, kWakeup);
    e.on_queue = true;
    ++nr_queued_;
    return;
  }
  enqueue(e, kWakeup);
}

// --- The pick.

FairEntity* FairQueue::pick(bool protect) {
  FairEntity* current = current_ != nullptr && current_->on_queue ? current_ : nullptr;
  if (nr_queued_ == 1) return current != nullptr ? current : tree_.first();
  if (current != nullptr && !eligible(*current)) current = nullptr;
  if (current != nullptr && protect && is_protected(*current)) return current;

  FairEntity* best = nullptr;
  FairEntity* e = tree_.first();
  if (e != nullptr && eligible(*e)) {
    best = e;
  } else {
    // Somewhere below is an eligible entity; go left as long as the left side has one.
    e = tree_.root();
    while (e != nullptr) {
      FairEntity* left = Treap<FairEntity, FairTreeTraits>::left(e);
      if (left != nullptr && vruntime_eligible(left->min_vruntime)) {
        e = left;
        continue;
      }
      if (eligible(*e)) {
        best = e;
        break;
      }
      e = Treap<FairEntity, FairTreeTraits>::right(e);
    }
  }
  if (best == nullptr || (current != nullptr && current->deadline < best->deadline)) {
    best = current;
  }
  if (best != nullptr) return best;
  // With the average taken without the current entity nobody may be eligible (a switched-off
  // feature): the queue still has to run somebody.
  return tree_.first() != nullptr ? tree_.first() : current_;
}

void FairQueue::set_next(FairEntity& e, int64_t now) {
  if (e.in_tree) tree_erase(e);
  current_ = &e;
  exec_start_ = now;
  // Protected until its deadline, or for the smallest slice that somebody asked for.
  e.vprot = e.deadline;
  const uint64_t slice = min_slice();
  if (slice < e.slice) {
    e.vprot = std::min(e.vprot, e.vruntime + to_virtual(static_cast<int64_t>(slice), e.weight));
  }
}

void FairQueue::put_prev() {
  FairEntity* e = current_;
  current_ = nullptr;
  if (e != nullptr && e->on_queue) tree_insert(*e);
}

bool FairQueue::update_current(int64_t now) {
  FairEntity* e = current_;
  if (e == nullptr) return false;
  const int64_t delta = now - exec_start_;
  bool slice_over = false;
  if (delta > 0) {
    exec_start_ = now;
    e->sum_exec += static_cast<uint64_t>(delta);
    e->vruntime += to_virtual(delta, e->weight);
  }
  if (e->vruntime >= e->deadline) {
    if (!e->custom_slice) e->slice = base_slice_;
    e->deadline = e->vruntime + to_virtual(static_cast<int64_t>(e->slice), e->weight);
    slice_over = true;
  }
  if (nr_queued_ == 1 || !features_.slice_check) return false;
  return slice_over || !is_protected(*e);
}

bool FairQueue::wakeup_preempts(FairEntity& wakee, bool may_preempt, FairEntity** found) {
  *found = nullptr;
  if (!may_preempt || current_ == nullptr || wakee.delayed) return false;
  bool protect = true;
  if (features_.preempt_short && wakee.slice < current_->slice) protect = false;
  FairEntity* picked = pick(protect);
  if (picked == &wakee) {
    if (!protect) cancel_protection();
    return true;
  }
  if (picked != nullptr && picked->delayed && picked != current_) {
    *found = picked;
    return false;
  }
  // Not now; but the current entity need not be protected for longer than the smallest request.
  const uint64_t slice = min_slice();
  if (slice < current_->slice) {
    current_->vprot =
        std::min(current_->vprot,
                 current_->vruntime + to_virtual(static_cast<int64_t>(slice), current_->weight));
  }
  return false;
}

void FairQueue::yield_current() {
  FairEntity* e = current_;
  // Alone there is nobody to give to; its virtual time would run ahead by a slice each time.
  if (e == nullptr || nr_queued_ == 1) return;
  if (eligible(*e)) {
    e->vruntime = e->deadline;
    e->deadline += to_virtual(static_cast<int64_t>(e->slice), e->weight);
  }
  cancel_protection();
}

void FairQueue::set_slice(FairEntity& e, uint64_t slice) {
  e.custom_slice = slice != 0;
  e.slice = slice != 0 ? slice : base_slice_;
  if (e.in_tree) tree_.refresh(&e);
}

void FairQueue::reweight(FairEntity& e, uint32_t weight) {
  if (!e.on_queue) {
    e.vlag = e.vlag * e.weight / weight;
    if (e.rel_deadline) e.deadline = e.deadline * e.weight / weight;
    e.weight = weight;
    return;
  }
  const bool is_current = &e == current_;
  const int64_t lag = average() - e.vruntime;
  const int64_t distance = e.deadline - e.vruntime;
  const int64_t protection = e.vprot - e.vruntime;
  if (e.in_tree) tree_erase(e);
  e.on_queue = false;
  --nr_queued_;
  // The same service in the new unit; then placed as if it had just come with that lag.
  const int64_t scaled = lag * e.weight / weight;
  e.vlag = scaled;
  e.deadline = distance * e.weight / weight;
  e.vprot = protection * e.weight / weight;
  e.weight = weight;
  e.rel_deadline = true;
  place(e, 0);
  e.vprot += e.vruntime;
  e.on_queue = true;
  ++nr_queued_;
  if (!is_current) tree_insert(e);
}

int64_t FairQueue::current_remaining() const {
  if (current_ == nullptr) return INT64_MAX;
  return to_real(current_->deadline - current_->vruntime, current_->weight);
}

}  // namespace jiffy
