// Tests of the model build: a body for each of many seeds, and planted faults that must be found.
#pragma once

#include <gtest/gtest.h>
#include <jiffy/runtime.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "machine/model.h"

namespace jiffy {

// JIFFY_MODEL_SEEDS, 10,000 by default.
inline uint64_t model_seeds() {
  const char* text = std::getenv("JIFFY_MODEL_SEEDS");
  return text == nullptr ? 10'000 : std::strtoull(text, nullptr, 10);
}

using ModelBody = std::function<void(Runtime&)>;

inline void expect_all_seeds_pass(int cpus, const ModelBody& body) {
  const model::Explored e = model::explore(model_seeds(), cpus, model::Fault::kNone, body);
  std::printf("%llu seeds, %llu choices, %llu changes of Cpu\n",
              static_cast<unsigned long long>(e.seeds), static_cast<unsigned long long>(e.points),
              static_cast<unsigned long long>(e.switches));
  EXPECT_GT(e.switches, e.seeds) << "nothing was explored";
}

// With the fault, one of the seeds ends in an abort that names it.
inline void expect_found(model::Fault fault, int cpus, const ModelBody& body) {
  EXPECT_DEATH((void)model::explore(model_seeds(), cpus, fault, body), "JIFFY_SIM_SEED=[0-9]+");
}

inline void model_check(bool holds, const char* what) {
  if (!holds) model::fail(what);
}

inline SpawnOptions on_cpu(int cpu) {
  SpawnOptions options;
  options.cpu = cpu;
  return options;
}

}  // namespace jiffy
