// Runtimes for tests: on the host and simulated, and checked when they end.
#pragma once

#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/sim.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace jiffy {

enum class MachineKind : uint8_t { kSim, kHost };
inline std::string machine_name(MachineKind kind) {
  return kind == MachineKind::kSim ? "Sim" : "Host";
}

// For tests of what holds on each machine: INSTANTIATE_TEST_SUITE_P(, Suite, kBothMachines,
// kMachineNames).
inline const auto kBothMachines = ::testing::Values(MachineKind::kSim, MachineKind::kHost);
inline const auto kMachineNames = [](const ::testing::TestParamInfo<MachineKind>& info) {
  return machine_name(info.param);
};

// Options of a runtime with `cpus` Cpus on such a machine. On the host they do not poll, since the
// tests have more threads than the machine has CPUs.
Options options_for(MachineKind kind, int cpus, uint64_t seed = 1);
inline Options host_options(int cpus) { return options_for(MachineKind::kHost, cpus); }
inline Options sim_options(int cpus, uint64_t seed = 1) {
  return options_for(MachineKind::kSim, cpus, seed);
}

// Options for a fiber that may change Cpus, and for one that may not.
inline SpawnOptions migratable(std::string name = {}) {
  SpawnOptions options;
  options.name = std::move(name);
  options.migratable = true;
  return options;
}
inline SpawnOptions pinned(int cpu, std::string name = {}) {
  SpawnOptions options;
  options.name = std::move(name);
  options.cpu = cpu;
  return options;
}

// A started runtime. At its end it expects that each fiber has ended and gave its stack back.
class CheckedRuntime {
 public:
  explicit CheckedRuntime(Options options);
  CheckedRuntime(MachineKind kind, int cpus) : CheckedRuntime(options_for(kind, cpus)) {}
  ~CheckedRuntime() { finish(); }

  Runtime& operator*() { return rt_; }
  Runtime* operator->() { return &rt_; }

  // Waits until no fiber but the runtime's own is left; handles must have been joined.
  void expect_quiet();
  // expect_quiet(), and stops the runtime; what was spawned must have ended. Idempotent.
  void finish();

 private:
  size_t live_units();

  Runtime rt_;
  CounterSnapshot start_;
  size_t own_units_ = 0;  // stacks of the runtime's own fibers
};

}  // namespace jiffy
