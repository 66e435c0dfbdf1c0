#include "micro/harness.h"

#include <benchmark/benchmark.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <thread>

#include "micro/futex_wake.h"
#include "micro/raw_contexts.h"

namespace jiffy::micro {

Range range_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const double median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  return {median, values.front(), values.back()};
}

double percentile(std::vector<double>& values, double percent) {
  const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
  const auto nth = values.begin() + std::max<ptrdiff_t>(static_cast<ptrdiff_t>(rank) - 1, 0);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

Outcome contend(const Row& row, const Settings& settings, const Contest& contest) {
  std::vector<double> ours, reference;
  for (int i = -1; i < settings.repetitions; ++i) {
    // Who goes first changes each time, so that neither always inherits the other's caches, nor a
    // drift of the machine.
    const bool ours_first = i % 2 == 0;
    for (const bool turn_of_ours : {ours_first, !ours_first}) {
      const std::function<double()>& measure = turn_of_ours ? contest.ours : contest.reference;
      if (!measure) continue;
      const double ns = measure();
      if (i >= 0) (turn_of_ours ? ours : reference).push_back(ns);
    }
  }
  Outcome outcome;
  outcome.ours = range_of(ours);
  double value = outcome.ours.median;
  if (!reference.empty()) {
    outcome.reference = range_of(reference);
    outcome.ratio = outcome.ours.median / outcome.reference->median;
    if (row.bar.kind == Bar::kRatio) value = *outcome.ratio;
  }
  outcome.met = value >= row.bar.least && value <= row.bar.limit;
  return outcome;
}

const std::vector<Row>& all_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all;
    for (auto* part : {switch_rows, sync_rows, work_rows, cost_rows, preempt_rows, pick_rows}) {
      for (const Row& row : part()) all.push_back(row);
    }
    return all;
  }();
  return rows;
}

std::string variant_note(const char* what, const Settings& settings,
                         const std::function<double()>& measure) {
  (void)measure();  // a warm-up
  std::vector<double> values;
  for (int i = 0; i < settings.repetitions; ++i) values.push_back(measure());
  const Range range = range_of(values);
  char text[160];
  std::snprintf(text, sizeof text, "%s: %.1f ns (%.1f - %.1f)", what, range.median, range.min,
                range.max);
  return text;
}

// --- Time and place.

double thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

namespace {

constexpr size_t kMaskWords = 1024;  // 65536 CPUs: more than the kernel can have

std::vector<unsigned long> affinity() {
  std::vector<unsigned long> mask(kMaskWords);
  (void)syscall(SYS_sched_getaffinity, 0, mask.size() * sizeof(long), mask.data());
  return mask;
}

void set_affinity(const std::vector<unsigned long>& mask) {
  (void)syscall(SYS_sched_setaffinity, 0, mask.size() * sizeof(long), mask.data());
}

}  // namespace

int allowed_cpus() {
  int count = 0;
  for (const unsigned long word : affinity()) count += __builtin_popcountl(word);
  return count;
}

PinnedHere::PinnedHere(int index) : saved_(affinity()) {
  std::vector<unsigned long> one(saved_.size());
  for (size_t cpu = 0; cpu < saved_.size() * 64; ++cpu) {
    const unsigned long bit = 1ul << (cpu % 64);
    if ((saved_[cpu / 64] & bit) == 0 || index-- > 0) continue;
    one[cpu / 64] = bit;
    break;
  }
  set_affinity(one);
}

PinnedHere::~PinnedHere() { set_affinity(saved_); }

// --- The primitives.

namespace {

double measure_median(const std::function<double()>& measure) {
  std::vector<double> values;
  for (int i = 0; i < 5; ++i) values.push_back(measure());
  return range_of(values).median;
}

// A line that two CPUs write by turns: the time of one move.
double bounce_line() {
  constexpr uint32_t kMoves = 100'000;
  alignas(64) std::atomic<uint32_t> turn{0};
  const auto play = [&turn](int cpu) {
    const PinnedHere pinned(cpu);
    for (uint32_t i = static_cast<uint32_t>(cpu); i < kMoves; i += 2) {
      // Acquire and release: each side's partner is the other side.
      while (turn.load(std::memory_order_acquire) != i) __builtin_ia32_pause();
      turn.store(i + 1, std::memory_order_release);
    }
  };
  std::thread other([&play] { play(1); });
  const double start = now_ns();
  play(0);
  other.join();
  return (now_ns() - start) / kMoves;
}

Primitives measure_primitives() {
  constexpr int64_t kOperations = 200'000;
  Primitives p{};
  {
    const PinnedHere pinned(0);
    RawRing ring(2);
    p.jump = measure_median([&] { return ring.run(kOperations / 2); });
    std::atomic<uint32_t> word{0};
    p.locked = measure_median([&] {
      return time_per(kOperations, [&] { word.exchange(1, std::memory_order_acquire); });
    });
    p.clock = measure_median(
        [] { return time_per(kOperations, [] { benchmark::DoNotOptimize(__rdtsc()); }); });
  }
  if (allowed_cpus() >= 2) {
    FutexWake wake;
    p.wakeup = measure_median([&] { return wake.run(50); });
    p.transfer = measure_median(bounce_line);
  }
  return p;
}

}  // namespace

const Primitives& primitives() {
  static const Primitives measured = measure_primitives();
  return measured;
}

double floor_ns(const Floor& floor) {
  const Primitives& p = primitives();
  return floor.jumps * p.jump + floor.locked * p.locked + floor.clocks * p.clock +
         floor.wakeups * p.wakeup + floor.transfers * p.transfer;
}

std::string floor_text(const Floor& floor) {
  const Primitives& p = primitives();
  std::string text;
  const auto add = [&text](int count, const char* name, double ns) {
    if (count == 0) return;
    char part[80];
    std::snprintf(part, sizeof part, "%s%d %s of %.1f", text.empty() ? "" : " + ", count, name, ns);
    text += part;
  };
  add(floor.jumps, "jump_fcontext", p.jump);
  add(floor.locked, "locked", p.locked);
  add(floor.clocks, "rdtsc", p.clock);
  add(floor.wakeups, "futex wake", p.wakeup);
  add(floor.transfers, "line from the other CPU", p.transfer);
  return text;
}

}  // namespace jiffy::micro
