#pragma once
// Event counters of a Cpu, as the kernel's per-CPU vmstat, softirq and /proc/schedstat counters:
// always on, never reset (take two snapshots and subtract), summed over Cpus only when read.
//
// Locking classes:
//   P: written by the owner Cpu's thread only (load + store), read by all
//   A: atomic, written by all

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace jiffy {

// What each one counts is said by the table in counters.cc, which counter_doc() reads.
enum class Counter : std::uint8_t {
  kContextSwitches,
  kVoluntarySwitches,
  kForcedSwitches,
  kYields,
  kWakeupsReal,
  kWakeupsNoop,
  kWakeupsRemote,
  kLazyRequests,
  kHardRequests,
  kLazyUpgradedIdle,
  kPromotions,
  kTicks,
  kIpisSent,
  kIpisReceived,
  kIpisElided,
  kUnparks,
  kParks,
  kMigrations,
  kSteals,
  kSoftirqRuns,
  kSoftirqDeferred,
  kWorksQueued,
  kWorksCoalesced,
  kWorksStarted,
  kTimersFired,
  kSpawns,
  kExits,
  kEventfdSignals,
  kIrqfdInjectionsAtomic,
  kIrqfdInjectionsWork,
  kHrtickFired,
  kDelayedDequeues,
  kSoftLockups,
  kCount,  // Not a counter.
};

inline constexpr std::size_t kCounterCount = static_cast<std::size_t>(Counter::kCount);

// "context_switches" for kContextSwitches; static storage.
std::string_view counter_name(Counter counter);
// One line for a person, without a full stop; static storage.
std::string_view counter_doc(Counter counter);

// Values at one moment. Plain integers.
struct CounterSnapshot {
  std::array<std::uint64_t, kCounterCount> values{};

  std::uint64_t at(Counter counter) const { return values[static_cast<std::size_t>(counter)]; }
  CounterSnapshot& operator+=(const CounterSnapshot& other);
  // What happened since `earlier`, an earlier snapshot of the same Cpus.
  CounterSnapshot operator-(const CounterSnapshot& earlier) const;
  bool operator==(const CounterSnapshot&) const = default;

  static CounterSnapshot sum(std::span<const CounterSnapshot> cpus);
};

// The counters of one Cpu. Nothing blocks or allocates.
class alignas(64) Counters {
 public:
  Counters() = default;
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  // Owner Cpu's thread only: a load and a store, no locked instruction. The caller cannot be
  // preempted in between (preempt_count is raised, or the fiber is cooperative), and interrupt code
  // that may interrupt an add() of the same counter uses add_shared(): otherwise a count is lost.
  void add(Counter counter, std::uint64_t n = 1) {
    Word& word = own_[static_cast<std::size_t>(counter)];
    word.store(word.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }

  // Any thread, and signal handlers: a locked add. Kept in words of its own, because the plain
  // store of add() would erase an add that came between its load and store.
  void add_shared(Counter counter, std::uint64_t n = 1) {
    shared_[static_cast<std::size_t>(counter)].fetch_add(n, std::memory_order_relaxed);
  }

  // Any thread. Each value is exact and never goes back; two of them are not from the same instant.
  std::uint64_t get(Counter counter) const {
    const auto i = static_cast<std::size_t>(counter);
    return own_[i].load(std::memory_order_relaxed) + shared_[i].load(std::memory_order_relaxed);
  }
  CounterSnapshot snapshot() const;

 private:
  using Word = std::atomic<std::uint64_t>;
  // On lines apart, so that foreign writers do not take the owner's lines away.
  alignas(64) std::array<Word, kCounterCount> own_{};     // P
  alignas(64) std::array<Word, kCounterCount> shared_{};  // A
};

}  // namespace jiffy
