// FairQueue against a second opinion: the rules of EEVDF, written down again without a tree, with
// sums in 128 bits and a scan over all entities, and applied to random histories.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sched/fair_queue.h"

namespace jiffy {
namespace {

constexpr uint64_t kSlice = 700'000;
constexpr int64_t kTick = 4'000'000;
// Integer divisions by weights and loads: a few nanoseconds of virtual time.
constexpr long double kRounding = 4;

using Int = __int128;

long double virtual_of(long double ns, const FairEntity& e) { return ns * 1024 / e.weight; }

// --- The second opinion. `members`: all that are queued, the current one included.

struct Oracle {
  std::vector<FairEntity*> members;
  FairEntity* current = nullptr;  // null when nobody runs

  Int load() const {
    Int sum = 0;
    for (const FairEntity* e : members) sum += e->weight;
    return sum;
  }
  // sum(w (v - origin)); its sign at origin = v_i says whether i is eligible.
  Int moment(int64_t origin) const {
    Int sum = 0;
    for (const FairEntity* e : members) sum += static_cast<Int>(e->weight) * (e->vruntime - origin);
    return sum;
  }
  long double average() const {
    const int64_t origin = members.empty() ? 0 : members[0]->vruntime;
    return static_cast<long double>(origin) +
           static_cast<long double>(moment(origin)) / static_cast<long double>(load());
  }
  bool eligible(const FairEntity& e) const { return moment(e.vruntime) >= 0; }
  bool queued(const FairEntity& e) const {
    return std::find(members.begin(), members.end(), &e) != members.end();
  }
  void add(FairEntity& e) { members.push_back(&e); }
  void remove(FairEntity& e) {
    members.erase(std::find(members.begin(), members.end(), &e));
    if (current == &e) current = nullptr;
  }
  uint64_t min_slice() const {
    uint64_t slice = UINT64_MAX;
    for (const FairEntity* e : members) slice = std::min(slice, e->slice);
    return slice;
  }
  long double lag_limit(const FairEntity& e) const {
    uint64_t slice = e.slice;
    for (const FairEntity* m : members) slice = std::max(slice, m->slice);
    return virtual_of(static_cast<long double>(slice) + kTick, e);
  }
  // Whether the pick may return `picked`: among equal deadlines any, but the current one loses.
  std::string refuses(const FairEntity* picked, bool protect) const {
    if (members.empty()) return picked == nullptr ? "" : "a pick from nothing";
    if (picked == nullptr) return "no pick, though somebody is queued";
    if (members.size() == 1) return picked == members[0] ? "" : "not the only one";
    const bool candidate = current != nullptr && eligible(*current);
    if (candidate && protect && current->vruntime < current->vprot) {
      return picked == current ? "" : "not the protected current entity";
    }
    int64_t earliest = INT64_MAX;
    bool only_current = true;
    for (const FairEntity* e : members) {
      if (!eligible(*e)) continue;
      if (e->deadline < earliest) {
        earliest = e->deadline;
        only_current = e == current;
      } else if (e->deadline == earliest && e != current) {
        only_current = false;
      }
    }
    if (!queued(*picked)) return "not queued";
    if (!eligible(*picked)) return "not eligible";
    if (picked->deadline != earliest) return "not the earliest deadline";
    if (picked == current && !only_current) return "the current entity won a tie";
    return "";
  }
};

// --- A random history.

enum class Where : uint8_t { kOut, kQueued, kDelayed };

class History {
 public:
  explicit History(uint32_t seed) : random_(seed) {
    queue_.configure(SchedFeatures(), kSlice, kTick);
    static constexpr std::array<uint32_t, 6> kWeights = {1024, 1024, 335, 110, 15, 3121};
    for (FairEntity& e : entities_) {
      e.weight = kWeights[pick_number(kWeights.size())];
      if (chance(4)) set_custom_slice(e);
    }
  }

  void step() {
    advance();
    switch (pick_number(8)) {
      case 0:
      case 1:
        wake_somebody();
        break;
      case 2:
      case 3:
        sleep_current();
        break;
      case 4:
        schedule(/*protect=*/true);
        break;
      case 5:
        yield();
        break;
      case 6:
        reweight();
        break;
      case 7:
        take_off_and_back();
        break;
    }
    check();
  }

 private:
  size_t pick_number(size_t n) { return random_() % n; }
  bool chance(uint32_t one_in) { return random_() % one_in == 0; }
  void set_custom_slice(FairEntity& e) {
    e.custom_slice = true;
    e.slice = 100'000 * (1 + pick_number(60));
  }

  FairEntity* somebody(Where where) {
    std::vector<FairEntity*> found;
    for (size_t i = 0; i < entities_.size(); ++i) {
      if (where_[i] == where) found.push_back(&entities_[i]);
    }
    return found.empty() ? nullptr : found[pick_number(found.size())];
  }
  Where& where(const FairEntity& e) { return where_[static_cast<size_t>(&e - entities_.data())]; }

  // Time passes for the current entity.
  void advance() {
    now_ += static_cast<int64_t>(pick_number(chance(5) ? 3'000'000 : 50'000));
    FairEntity* c = oracle_.current;
    if (c == nullptr) {
      EXPECT_FALSE(queue_.update_current(now_));
      charged_ = now_;
      return;
    }
    const FairEntity before = *c;
    const bool wants = queue_.update_current(now_);
    const long double v =
        static_cast<long double>(before.vruntime) + virtual_of(now_ - charged_, *c);
    EXPECT_NEAR(c->vruntime, v, 1);
    const bool over = c->vruntime >= before.deadline;
    if (over) {
      EXPECT_NEAR(c->deadline, c->vruntime + virtual_of(c->slice, *c), 1);
    } else {
      EXPECT_EQ(c->deadline, before.deadline);
    }
    EXPECT_EQ(c->sum_exec - before.sum_exec, static_cast<uint64_t>(now_ - charged_));
    EXPECT_EQ(wants, oracle_.members.size() > 1 && (over || c->vruntime >= c->vprot));
    charged_ = now_;
  }

  void enqueue(FairEntity& e, unsigned flags) {
    const FairEntity before = e;
    const bool alone = oracle_.members.empty();
    const long double v_before = alone ? 0 : oracle_.average();
    queue_.enqueue(e, flags);
    oracle_.add(e);
    where(e) = Where::kQueued;
    if (!e.custom_slice) {
      EXPECT_EQ(e.slice, kSlice);
    }
    if (!alone) {
      // What it was owed when it left is what it is owed now that it is part of the average.
      EXPECT_NEAR(oracle_.average() - e.vruntime, before.vlag, kRounding);
      if (before.vlag == 0) {
        EXPECT_NEAR(e.vruntime, v_before, kRounding);
      }
    }
    const long double request = virtual_of(e.slice, e);
    const long double distance = e.deadline - e.vruntime;
    if (before.rel_deadline && (flags & FairQueue::kInitial) == 0) {
      EXPECT_EQ(distance, before.deadline);
    } else {
      EXPECT_NEAR(distance, (flags & FairQueue::kInitial) != 0 ? request / 2 : request, 1);
    }
    EXPECT_FALSE(e.rel_deadline);
  }

  void wake_somebody() {
    FairEntity* e = somebody(chance(2) ? Where::kDelayed : Where::kOut);
    if (e == nullptr) return;
    const bool initial = where(*e) == Where::kOut && chance(6);
    if (where(*e) == Where::kDelayed) {
      requeue(*e);
    } else {
      if (initial) e->vlag = 0;
      enqueue(*e, initial ? FairQueue::kInitial : FairQueue::kWakeup);
    }
    wakeup_preempt(*e, !initial && !chance(5));
  }

  void requeue(FairEntity& e) {
    const long double lag_now =
        std::clamp(oracle_.average() - e.vruntime, -oracle_.lag_limit(e), oracle_.lag_limit(e));
    const long double owed =
        std::min<long double>(0, std::max(lag_now, static_cast<long double>(e.vlag)));
    queue_.requeue_delayed(e);
    where(e) = Where::kQueued;
    EXPECT_FALSE(e.delayed);
    EXPECT_NEAR(oracle_.average() - e.vruntime, owed, kRounding);
  }

  void wakeup_preempt(FairEntity& wakee, bool may) {
    for (;;) {
      FairEntity* c = oracle_.current;
      const int64_t vprot = c == nullptr ? 0 : c->vprot;
      const bool shorter = c != nullptr && wakee.slice < c->slice;
      FairEntity* found = nullptr;
      const bool preempts = queue_.wakeup_preempts(wakee, may, &found);
      if (!may || c == nullptr) {
        EXPECT_FALSE(preempts);
        return;
      }
      if (found != nullptr) {
        EXPECT_EQ(oracle_.refuses(found, !shorter), "");
        EXPECT_FALSE(preempts);
        finish_delayed(*found);
        continue;
      }
      if (preempts) {
        const int64_t after = c->vprot;
        c->vprot = vprot;
        EXPECT_EQ(oracle_.refuses(&wakee, !shorter), "");
        c->vprot = after;
        if (shorter) {
          EXPECT_LE(c->vprot, c->vruntime);
        }
      } else {
        // Not now, but protected no longer than for the smallest request.
        const long double shrunk = oracle_.min_slice() < c->slice
                                       ? c->vruntime + virtual_of(oracle_.min_slice(), *c)
                                       : 1e30L;
        EXPECT_NEAR(c->vprot, std::min<long double>(vprot, shrunk), 1);
      }
      return;
    }
  }

  void finish_delayed(FairEntity& e) {
    ASSERT_EQ(where(e), Where::kDelayed);
    // (A change of its weight may have met it after its debt was burnt.)
    const int64_t asleep_with = std::min<int64_t>(e.vlag, 0);
    const long double lag = oracle_.average() - e.vruntime;
    queue_.finish_delayed(e);
    oracle_.remove(e);
    where(e) = Where::kOut;
    EXPECT_LE(e.vlag, 0);
    EXPECT_GE(e.vlag, asleep_with);
    if (lag >= 0) {
      EXPECT_EQ(e.vlag, 0);
    }
  }

  void schedule(bool protect) {
    FairEntity* picked = nullptr;
    for (;;) {
      if (oracle_.members.empty()) break;
      picked = queue_.pick(protect);
      const std::string refusal = oracle_.refuses(picked, protect);
      EXPECT_EQ(refusal, "");
      if (!refusal.empty() || !picked->delayed) break;
      finish_delayed(*picked);
      picked = nullptr;
    }
    if (picked == nullptr || picked != oracle_.current) queue_.put_prev();
    oracle_.current = picked;
    if (picked == nullptr) return;
    queue_.set_next(*picked, now_);
    charged_ = now_;
    const long double protection = std::min<long double>(
        picked->deadline, oracle_.min_slice() < picked->slice
                              ? picked->vruntime + virtual_of(oracle_.min_slice(), *picked)
                              : 1e30L);
    EXPECT_NEAR(picked->vprot, protection, 1);
  }

  void sleep_current() {
    FairEntity* e = oracle_.current;
    if (e == nullptr) return schedule(true);
    const bool debt = !oracle_.eligible(*e);
    const long double lag = oracle_.average() - e->vruntime;
    const long double limit = oracle_.lag_limit(*e);
    EXPECT_EQ(queue_.dequeue(*e, /*sleep=*/true), !debt);
    EXPECT_NEAR(e->vlag, std::clamp(lag, -limit, limit), kRounding);
    EXPECT_EQ(e->delayed, debt);
    EXPECT_EQ(e->on_queue, debt);
    where(*e) = debt ? Where::kDelayed : Where::kOut;
    if (!debt) oracle_.remove(*e);
    schedule(true);
  }

  void yield() {
    FairEntity* e = oracle_.current;
    if (e == nullptr) return;
    const FairEntity before = *e;
    const bool jumps = oracle_.members.size() > 1 && oracle_.eligible(*e);
    queue_.yield_current();
    EXPECT_EQ(e->vruntime, jumps ? before.deadline : before.vruntime);
    EXPECT_NEAR(e->deadline, before.deadline + (jumps ? virtual_of(e->slice, *e) : 0), 1);
    schedule(/*protect=*/false);
  }

  void reweight() {
    FairEntity& e = entities_[pick_number(entities_.size())];
    static constexpr std::array<uint32_t, 4> kWeights = {1024, 335, 88, 3121};
    const uint32_t weight = kWeights[pick_number(kWeights.size())];
    const FairEntity before = e;
    const bool queued = oracle_.queued(e);
    const long double lag = queued ? oracle_.average() - e.vruntime : before.vlag;
    queue_.reweight(e, weight);
    EXPECT_EQ(e.weight, weight);
    const long double ratio = static_cast<long double>(before.weight) / weight;
    const bool alone = queued && oracle_.members.size() == 1;
    const long double after = queued ? oracle_.average() - e.vruntime : e.vlag;
    // A nanosecond of the old unit is `ratio` of the new one.
    EXPECT_NEAR(after, alone ? 0 : lag * ratio, kRounding + ratio);
    if (queued) {
      EXPECT_NEAR(e.deadline - e.vruntime, (before.deadline - before.vruntime) * ratio, 1 + ratio);
    }
  }

  // What a migration or a change of attributes does: no sleep, so the deadline stays relative.
  void take_off_and_back() {
    FairEntity* e = somebody(Where::kQueued);
    if (e == nullptr || e == oracle_.current) return;
    const int64_t distance = e->deadline - e->vruntime;
    const long double lag = oracle_.average() - e->vruntime;
    const long double limit = oracle_.lag_limit(*e);
    EXPECT_TRUE(queue_.dequeue(*e, /*sleep=*/false));
    oracle_.remove(*e);
    where(*e) = Where::kOut;
    EXPECT_NEAR(e->vlag, std::clamp(lag, -limit, limit), kRounding);
    check();
    enqueue(*e, FairQueue::kMigrated);
    EXPECT_EQ(e->deadline - e->vruntime, distance);
  }

  void check();

  std::mt19937 random_;
  FairQueue queue_;
  std::array<FairEntity, 14> entities_;
  std::array<Where, 14> where_{};
  Oracle oracle_;
  int64_t now_ = 1;
  int64_t charged_ = 1;
};

// What holds at any time.
void History::check() {
  int delayed = 0;
  for (FairEntity* e : oracle_.members) {
    delayed += e->delayed ? 1 : 0;
    EXPECT_TRUE(e->on_queue);
    EXPECT_EQ(e->in_tree, e != oracle_.current);
    EXPECT_EQ(queue_.eligible(*e), oracle_.eligible(*e));
  }
  EXPECT_EQ(queue_.nr_queued(), static_cast<int>(oracle_.members.size()));
  EXPECT_EQ(queue_.nr_delayed(), delayed);
  EXPECT_EQ(queue_.current(), oracle_.current);
  if (!oracle_.members.empty()) {
    // The average is the exact one, rounded down, so that all lags together are about zero.
    EXPECT_EQ(queue_.average(), std::floor(oracle_.average()));
    const Int total = oracle_.moment(queue_.average());
    EXPECT_TRUE(total >= 0 && total < oracle_.load());
    EXPECT_TRUE(std::any_of(oracle_.members.begin(), oracle_.members.end(),
                            [&](FairEntity* e) { return oracle_.eligible(*e); }));
  }
  // The tree holds all but the current one, and its summaries are right.
  std::set<FairEntity*> in_tree;
  (void)queue_.find([&](FairEntity& e) {
    in_tree.insert(&e);
    int64_t min_v = e.vruntime;
    uint64_t min_s = e.slice;
    uint64_t max_s = e.slice;
    using Tree = Treap<FairEntity, FairTreeTraits>;
    for (const FairEntity* child : {Tree::left(&e), Tree::right(&e)}) {
      if (child == nullptr) continue;
      min_v = std::min(min_v, child->min_vruntime);
      min_s = std::min(min_s, child->min_slice);
      max_s = std::max(max_s, child->max_slice);
    }
    EXPECT_EQ(e.min_vruntime, min_v);
    EXPECT_EQ(e.min_slice, min_s);
    EXPECT_EQ(e.max_slice, max_s);
    return false;
  });
  std::set<FairEntity*> expected(oracle_.members.begin(), oracle_.members.end());
  expected.erase(oracle_.current);
  EXPECT_EQ(in_tree, expected);
}

TEST(FairQueueOracle, RandomHistoriesFollowTheRules) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    History history(seed);
    for (int step = 0; step < 1500; ++step) {
      history.step();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace jiffy
