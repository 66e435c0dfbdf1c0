// What a decision of the fair class costs with few and with very many that are runnable: pick_10,
// pick_1000, pick_100000.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "micro/harness.h"
#include "sched/fair_queue.h"

namespace jiffy::micro {

namespace {

constexpr int64_t kSlice = 700'000;
constexpr int64_t kTick = 4'000'000;

// The queue of a Cpu on which all compute without end: a decision is what the end of a slice
// brings.
class Crowd {
 public:
  explicit Crowd(int entities) : entities_(static_cast<size_t>(entities)) {
    queue_.configure(SchedFeatures(), kSlice, kTick);
    for (FairEntity& e : entities_) queue_.enqueue(e, FairQueue::kInitial);
    decide();
  }

  void decide() {
    now_ += kSlice;
    (void)queue_.update_current(now_);
    queue_.put_prev();
    FairEntity* next = queue_.pick(/*protect=*/false);
    queue_.set_next(*next, now_);
    benchmark::DoNotOptimize(next);
  }

 private:
  uint64_t random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 33;
  }

  uint64_t state_ = 1;
  FairQueue queue_;
  std::vector<FairEntity> entities_;
  int64_t now_ = 0;
};

double time_of(Crowd& crowd) {
  constexpr int64_t kDecisions = 50'000;
  return time_per(kDecisions, [&crowd] { crowd.decide(); });
}

Outcome run_pick(const Row& row, const Settings& settings, int entities) {
  Crowd crowd(entities), few(10);
  // Every entity once, so that the tree has the shape that slices give it.
  for (int i = 0; i < entities; ++i) crowd.decide();
  if (entities == 10) return contend(row, settings, {[&] { return time_of(crowd); }, nullptr});
  return contend(row, settings, {[&] { return time_of(crowd); }, [&] { return time_of(few); }});
}

}  // namespace

// The bars: a decision goes down the tree, so it may grow as the logarithm of the crowd does, and
// each step may be twice as dear where the tree leaves the caches.
std::vector<Row> pick_rows() {
  return {
      {"pick_10",
       "a decision among 10 runnable fair fibers",
       nullptr,
       {Bar::kAbsolute, 100, "<= 100 ns"},
       {},
       1,
       [](const Row& row, const Settings& s) { return run_pick(row, s, 10); }},
      {"pick_1000",
       "... among 1,000",
       "... among 10",
       {Bar::kRatio, 6, "<= 6 x, twice the logarithm's growth"},
       {},
       1,
       [](const Row& row, const Settings& s) { return run_pick(row, s, 1'000); }},
      {"pick_100000",
       "... among 100,000",
       "... among 10",
       {Bar::kRatio, 10, "<= 10 x, twice the logarithm's growth"},
       {},
       1,
       [](const Row& row, const Settings& s) { return run_pick(row, s, 100'000); }},
  };
}

}  // namespace jiffy::micro
