// The measuring harness of jiffy_micro: rows, each with its reference, measured by turns.
//
// Google Benchmark runs its benchmarks one after the other, and on a shared machine the minute
// between two of them is worth more than the difference that we look for. So the driver here is our
// own: repetition by repetition it runs ours, then the reference, then the reference, then ours ...
// What Google Benchmark is good at is used: DoNotOptimize() and ClobberMemory().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace jiffy::micro {

// --- Numbers.

struct Range {
  double median, min, max;
};
// Of at least one value.
Range range_of(std::vector<double> values);
// `percent` of 0 ... 100, nearest rank; reorders the values.
double percentile(std::vector<double>& values, double percent);

// --- Rows.

// What must hold of ours: at most `limit` ns, or at most `limit` times the reference.
struct Bar {
  enum Kind : uint8_t { kAbsolute, kRatio } kind;
  double limit;
  const char* text;
  double least = 0;  // where both sides are a miss
};

// The least that a row can cost: how often it must do each of the primitives. Printed, as measured
// here, where a row misses its bar.
struct Floor {
  int jumps = 0;      // jump_fcontext
  int locked = 0;     // locked instructions (xchg on a line of one's own)
  int clocks = 0;     // rdtsc
  int wakeups = 0;    // futex wakes of an idle thread on another CPU, until it runs
  int transfers = 0;  // cache lines that come from another CPU
};

// Two things to measure. Each call is one repetition, and returns ns for one operation; the first
// of each is a warm-up. An empty reference is none.
struct Contest {
  std::function<double()> ours;
  std::function<double()> reference;
};

struct Outcome {
  Range ours{};
  std::optional<Range> reference;
  std::optional<double> ratio;  // of the medians
  bool met = false;
  std::string skipped;             // why it could not be measured; the rest is then empty
  std::vector<std::string> notes;  // what a reader should know beside the numbers
};

struct Settings {
  int repetitions = 7;
};

struct Row {
  const char* name;
  const char* what;       // one line
  const char* reference;  // its name; null for none
  Bar bar;
  Floor floor;
  int host_cpus;  // how many CPUs the process must be allowed
  // Sets up, calls contend() once, and cleans up.
  Outcome (*run)(const Row& row, const Settings& settings);
};

// All rows, in the order of the report.
const std::vector<Row>& all_rows();
// The parts of all_rows().
std::vector<Row> switch_rows();
std::vector<Row> sync_rows();
std::vector<Row> work_rows();
std::vector<Row> cost_rows();
std::vector<Row> preempt_rows();
std::vector<Row> pick_rows();

// Measures by turns, and judges by the row's bar.
Outcome contend(const Row& row, const Settings& settings, const Contest& contest);

// A note "<what>: <median> (<min> - <max>)" of as many repetitions, where the row has a variant
// that is worth a look but has no bar.
std::string variant_note(const char* what, const Settings& settings,
                         const std::function<double()>& measure);

// --- Time and place.

// For what happens between threads.
inline double now_ns() {
  using std::chrono::steady_clock;
  return std::chrono::duration<double, std::nano>(steady_clock::now().time_since_epoch()).count();
}

// The CPU time of the calling thread. What one thread does by itself is measured with it: it leaves
// out what other processes take on a shared machine, and contains the signals of the tick. For a
// fiber it is that of its Cpu's thread. A system call: read it once around many operations.
double thread_cpu_ns();

// Runs `operations` of fn and returns ns of this thread's CPU time for each.
template <class Fn>
double time_per(int64_t operations, Fn&& fn) {
  const double start = thread_cpu_ns();
  for (int64_t i = 0; i < operations; ++i) fn();
  return (thread_cpu_ns() - start) / static_cast<double>(operations);
}

// The host CPUs that this process may use, and the calling thread kept on one of them for a while:
// ours and the reference must run on the same one. `index` counts through the allowed CPUs, as
// Options::pin does.
int allowed_cpus();
class PinnedHere {
 public:
  explicit PinnedHere(int index);
  ~PinnedHere();
  PinnedHere(const PinnedHere&) = delete;
  PinnedHere& operator=(const PinnedHere&) = delete;

 private:
  std::vector<unsigned long> saved_;
};

// --- The primitives, measured once and on demand.

struct Primitives {
  double jump, locked, clock, wakeup, transfer;  // ns
};
const Primitives& primitives();
double floor_ns(const Floor& floor);
std::string floor_text(const Floor& floor);

}  // namespace jiffy::micro
