// What must survive being preempted at any instruction: code that uses what belongs to a thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace jiffy {

// One kind of work. run() does a bounded piece of it over and over until `stop`, checks itself, and
// counts in `rounds`. `error` says what was found wrong, once.
struct Hostile {
  const char* name;
  void (*run)(struct HostileRun& run, uint64_t seed);
};

struct HostileRun {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> rounds{0};
  std::atomic<const char*> error{nullptr};
  std::string file;  // where the printing workload writes

  void fail(const char* what) {
    const char* none = nullptr;
    error.compare_exchange_strong(none, what);
  }
  bool more() {
    rounds.fetch_add(1, std::memory_order_relaxed);
    return !stop.load(std::memory_order_relaxed) &&
           error.load(std::memory_order_relaxed) == nullptr;
  }
};

// malloc, printf, exceptions, avx512 (where present), errno, std_mutex, static_init, clock, spin.
const std::vector<Hostile>& hostile_workloads();

// The same for jiffy's own calls: mutex, waits, spawn, stop.
const std::vector<Hostile>& hostile_calls();

// After the run: each line of the file is whole and says what was written.
bool file_is_intact(const std::string& file, uint64_t* lines);

}  // namespace jiffy
