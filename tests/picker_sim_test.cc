// The run queue's choice against the rules of EEVDF, read word by word and decided by a scan over
// all who are queued: who runs next, who preempts at its wakeup, who stays queued in its sleep. How
// an entity is placed and charged is fair_queue_oracle_test.cc's matter; here its virtual runtime
// and its deadline are taken as they are.
#include <gtest/gtest.h>
#include <jiffy/sim.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "sched/runtime_state.h"
#include "support/sanitizer.h"
#include "support/seeds.h"

namespace jiffy {
namespace {

using Int = __int128;

int64_t to_virtual(uint64_t ns, const FairEntity& e) {
  return static_cast<int64_t>(ns * 1024 / e.weight);
}

// --- The rules.

// One who is queued, at the moment of a decision.
struct Member {
  Fiber* fiber;
  int64_t vruntime;
  int64_t deadline;
};

class Rules {
 public:
  explicit Rules(size_t fibers) : queued_(fibers), delayed_(fibers) {}

  // What the run queue is told, and what follows from it.
  void add(const Fiber& f) { queued_[f.id] = true; }
  bool queued(const Fiber& f) const { return queued_[f.id]; }
  bool delayed(const Fiber& f) const { return delayed_[f.id]; }
  bool requested() const { return requested_; }
  Fiber* current() const { return current_; }

  // Before each decision: `fibers` are all that there are.
  void look(std::vector<Fiber>& fibers) {
    members_.clear();
    for (Fiber& f : fibers) {
      if (queued_[f.id]) members_.push_back({&f, f.fair.vruntime, f.fair.deadline});
    }
    sum_up();
    tie_ = false;
  }
  size_t size() const { return members_.size(); }
  // Whether one of the last decision's picks had to choose among equal deadlines: any is right.
  bool tie() const { return tie_; }

  // The current one has run, and its deadline was `deadline`.
  void charged(int64_t deadline) {
    const int64_t v = current_->fair.vruntime;
    if (size() > 1 && (v >= deadline || v >= protection_)) requested_ = true;
  }

  // Who has had more than its share stays queued while it sleeps. Returns whether `f` leaves.
  bool sleep(Fiber& f) {
    const bool leaves = size() == 1 || eligible(*find(f));
    if (leaves) {
      remove(f);
    } else {
      delayed_[f.id] = true;
    }
    return leaves;
  }
  void woke_delayed(const Fiber& f) { delayed_[f.id] = false; }

  // It gives the rest of its request away, where there is somebody to take it.
  void yield() {
    Member& m = *find(*current_);
    if (size() == 1 || !eligible(m)) return;
    m.vruntime = m.deadline;
    m.deadline += to_virtual(current_->fair.slice, current_->fair);
    sum_up();
  }

  // The one to run next, if any; who is found asleep leaves.
  Fiber* next(bool protect) {
    for (;;) {
      Member* m = pick(protect);
      if (m == nullptr || !delayed_[m->fiber->id]) return m == nullptr ? nullptr : m->fiber;
      remove(*m->fiber);
    }
  }
  // It runs from now on, protected until its deadline or for the smallest request of all.
  void run(Fiber* f) {
    current_ = f;
    requested_ = false;
    if (f == nullptr) return;
    protection_ = f->fair.deadline;
    shorten_protection();
  }

  // `f` has become runnable, or is another one than before.
  void wakeup(const Fiber& f, bool is_new) {
    if (current_ == nullptr) requested_ = true;
    if (requested_) return;
    if (current_->policy == Policy::kIdle && f.policy != Policy::kIdle) {
      protection_ = current_->fair.vruntime;
      requested_ = true;
      return;
    }
    if (f.policy != Policy::kNormal || is_new || delayed_[f.id]) return;
    const bool protect = f.fair.slice >= current_->fair.slice;
    requested_ = next(protect) == &f;
    if (!requested_) {
      shorten_protection();
    } else if (!protect) {
      protection_ = current_->fair.vruntime;
    }
  }

  // Its weight was another one: its protection is as long as before, in real time.
  void reweighted(int64_t vruntime, uint32_t weight) {
    const FairEntity& e = current_->fair;
    protection_ = e.vruntime + (protection_ - vruntime) * weight / e.weight;
    requested_ = true;
  }

  // After a tie: what the run queue did is right.
  void adopt(const std::vector<Fiber>& fibers, bool requested) {
    for (const Fiber& f : fibers) {
      queued_[f.id] = f.on_rq;
      delayed_[f.id] = f.fair.delayed;
    }
    requested_ = requested;
    if (current_ != nullptr) protection_ = current_->fair.vprot;
  }

 private:
  void sum_up() {
    load_ = 0;
    moment_ = 0;
    if (members_.empty()) return;
    origin_ = members_[0].vruntime;
    for (const Member& m : members_) {
      load_ += m.fiber->fair.weight;
      moment_ += static_cast<Int>(m.fiber->fair.weight) * (m.vruntime - origin_);
    }
  }
  // Not ahead of the average of all who are queued, weighted: its lag is not negative.
  bool eligible(const Member& m) const { return moment_ >= (m.vruntime - origin_) * load_; }

  Member* find(const Fiber& f) {
    for (Member& m : members_) {
      if (m.fiber == &f) return &m;
    }
    return nullptr;
  }
  void remove(Fiber& f) {
    queued_[f.id] = delayed_[f.id] = false;
    members_.erase(members_.begin() + (find(f) - members_.data()));
    sum_up();
  }

  // The earliest deadline of the eligible, unless the current one is eligible and protected; it
  // loses a tie.
  Member* pick(bool protect) {
    if (size() <= 1) return members_.empty() ? nullptr : &members_[0];
    Member* running = current_ == nullptr ? nullptr : find(*current_);
    if (running != nullptr && !eligible(*running)) running = nullptr;
    if (running != nullptr && protect && running->vruntime < protection_) return running;
    Member* best = nullptr;
    bool tie = false;
    for (Member& m : members_) {
      if (m.fiber == current_ || !eligible(m)) continue;
      if (best != nullptr && m.deadline == best->deadline) tie = true;
      if (best != nullptr && m.deadline >= best->deadline) continue;
      best = &m;
      tie = false;
    }
    if (best == nullptr || (running != nullptr && running->deadline < best->deadline)) {
      return running;
    }
    tie_ = tie_ || tie;
    return best;
  }

  void shorten_protection() {
    uint64_t slice = current_->fair.slice;
    for (const Member& m : members_) slice = std::min(slice, m.fiber->fair.slice);
    if (slice == current_->fair.slice) return;
    const FairEntity& e = current_->fair;
    protection_ = std::min(protection_, e.vruntime + to_virtual(slice, e));
  }

  std::vector<bool> queued_, delayed_;  // by id
  Fiber* current_ = nullptr;            // null: idle
  int64_t protection_ = 0;
  bool requested_ = false;
  std::vector<Member> members_;
  int64_t origin_ = 0;
  Int load_ = 0;
  Int moment_ = 0;  // of the weights, about the origin
  bool tie_ = false;
};

// --- A random workload on the run queue of one Cpu, driven as wakeups and schedule() drive it.

Options full_on_sim() {
  Options options;
  options.preemption = Preemption::kFull;
  options.machine = make_sim_machine();
  return options;
}

class Workload {
 public:
  explicit Workload(uint64_t seed)
      : random_(seed),
        state_(full_on_sim()),
        unit_(0, with_machine(state_)),
        cpu_(unit_.cpu),
        rq_(unit_.rq),
        fibers_(static_cast<size_t>(2 * std::pow(100, static_cast<double>(uniform(1000)) / 999))),
        rules_(fibers_.size()),
        wakes_per_sleep_(1 + uniform(4)) {
    cpu_.current = &cpu_.idle;
    cpu_.idle.is_idle = true;
    cpu_.idle.sched_class = SchedClass::kIdle;
    rq_.fair().configure(SchedFeatures(), 700'000, 4'000'000);
    for (size_t i = 0; i < fibers_.size(); ++i) {
      fibers_[i].id = i;
      fibers_[i].pinned_cpu = 0;
      fibers_[i].sched_class = SchedClass::kFair;
      if (chance(2)) change_attributes(fibers_[i]);
    }
  }

  void step() {
    pass_time();
    const uint64_t what = uniform(8);
    if (cpu_.current->is_idle || what < wakes_per_sleep_) {
      wake(fibers_[uniform(fibers_.size())]);
    } else if (what < 5) {
      schedule(SwitchKind::kBlock);
    } else if (what == 5) {
      schedule(SwitchKind::kYield);
    } else if (what == 6) {
      change_attributes(fibers_[uniform(fibers_.size())]);
    }
    // A request may have to wait: interrupts are off, or a lock is held.
    if (rules_.requested() && chance(2)) schedule(SwitchKind::kPreempt);
  }
  uint64_t decisions() const { return decisions_; }
  uint64_t ties() const { return ties_; }

 private:
  // A run queue asks which machine it is on; nothing is started.
  static RuntimeState& with_machine(RuntimeState& state) {
    state.machine = state.options.machine;
    return state;
  }
  uint64_t uniform(uint64_t n) { return random_() % n; }
  bool chance(uint64_t one_in) { return uniform(one_in) == 0; }
  bool requested() const { return (cpu_.need.load() & kNeedResched) != 0; }

  void pass_time() {
    now_ += static_cast<int64_t>(1 + uniform(chance(10) ? 5'000'000 : 100'000));
    rules_.look(fibers_);
    const int64_t deadline = cpu_.current->fair.deadline;
    rq_.update_current(now_);
    if (rules_.current() == nullptr) return;
    rules_.charged(deadline);
    ASSERT_EQ(requested(), rules_.requested()) << "after a run of the current one";
  }

  void wake(Fiber& f) {
    const bool is_new = chance(10);
    const unsigned flags = is_new ? RunQueue::kInitial : RunQueue::kWakeup;
    if (rules_.delayed(f)) {
      rq_.requeue_delayed(f, now_);
      rules_.woke_delayed(f);
    } else if (!rules_.queued(f)) {
      rq_.enqueue(f, flags, now_);
      rules_.add(f);
    } else {
      return;
    }
    rq_.wakeup_preempt(f, flags);
    rules_.look(fibers_);
    rules_.wakeup(f, is_new);
    decided("at a wakeup");
  }

  void schedule(SwitchKind kind) {
    Fiber& prev = *cpu_.current;
    rules_.look(fibers_);
    if (kind == SwitchKind::kBlock && !prev.is_idle) {
      const bool leaves = rules_.sleep(prev);
      ASSERT_EQ(rq_.dequeue(prev, /*sleep=*/true), leaves) << "at a sleep";
    }
    if (kind == SwitchKind::kYield) rules_.yield();
    Fiber* expected = rules_.next(/*protect=*/kind != SwitchKind::kYield);
    Fiber* next = rq_.pick_next(prev, kind, now_);
    cpu_.current = next;
    cpu_.need.store(0);
    if (next->is_idle) next = nullptr;
    if (!rules_.tie()) {
      ASSERT_EQ(next, expected) << "decision " << decisions_ << ", a switch";
    }
    rules_.run(next);
    decided("at a switch");
  }

  void change_attributes(Fiber& f) {
    const bool running = &f == cpu_.current;
    const int64_t vruntime = f.fair.vruntime;
    const uint32_t weight = f.fair.weight;
    const Policy policy = chance(8) ? Policy::kIdle : chance(8) ? Policy::kBatch : Policy::kNormal;
    const int nice = static_cast<int>(uniform(40)) - 20;
    const auto slice = static_cast<int64_t>(chance(2) ? 0 : 100'000 + uniform(10'000'000));
    rq_.set_attributes(f, policy, nice, /*priority=*/0, slice, now_);
    rules_.look(fibers_);
    if (running) {
      rules_.reweighted(vruntime, weight);
    } else if (rules_.queued(f)) {
      rules_.wakeup(f, /*is_new=*/false);
    } else {
      return;
    }
    decided("at a change of attributes");
  }

  void decided(const char* when) {
    ++decisions_;
    if (rules_.tie()) {
      ++ties_;
      return rules_.adopt(fibers_, requested());
    }
    ASSERT_EQ(requested(), rules_.requested()) << "decision " << decisions_ << ", " << when;
    for (const Fiber& f : fibers_) {
      ASSERT_EQ(f.on_rq, rules_.queued(f)) << "decision " << decisions_ << ", " << when;
      ASSERT_EQ(f.fair.delayed, rules_.delayed(f)) << "decision " << decisions_ << ", " << when;
    }
  }

  std::mt19937_64 random_;
  RuntimeState state_;
  CpuUnit unit_;
  Cpu& cpu_;
  RunQueue& rq_;
  std::vector<Fiber> fibers_;
  Rules rules_;
  const uint64_t wakes_per_sleep_;
  int64_t now_ = 1;
  uint64_t decisions_ = 0;
  uint64_t ties_ = 0;
};

TEST(Picker, TheRunQueueDecidesByTheRules) {
  constexpr uint64_t kSeeds = 50;
  uint64_t ties = 0, decisions = 0;
  constexpr uint64_t kDecisions = 1'000'000 / kSeeds / kSlowdown;
  for_seeds(kSeeds, [&](uint64_t seed) {
    Workload workload(seed);
    while (workload.decisions() < kDecisions && !testing::Test::HasFailure()) workload.step();
    ties += workload.ties();
    decisions += workload.decisions();
  });
  EXPECT_LT(ties, decisions / 100) << "ties are not compared";
}

}  // namespace
}  // namespace jiffy
