// `jiffy sim FILE`: a scenario of a few fibers in virtual time. What a file says, what its run is
// made of, and what comes out.
#pragma once

#include <jiffy/counters.h>
#include <jiffy/options.h>
#include <jiffy/sim.h>
#include <jiffy/status.h>
#include <jiffy/trace.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace jiffy {

// ns; the seed chooses where the two differ.
struct TimeRange {
  int64_t least = 0, most = 0;
};

struct ScenarioStep {
  enum Kind : uint8_t { kRun, kSleep, kWake, kWait, kYield, kCondResched };
  Kind kind = kRun;
  TimeRange time;   // of kRun and kSleep
  int target = -1;  // of kWake: a fiber
};

struct ScenarioFiber {
  SpawnOptions options;
  int64_t starts = 0;   // ns
  uint64_t repeat = 0;  // 0: to the end
  std::vector<ScenarioStep> steps;
};

// A device: wakes a fiber again and again, from outside of all Cpus.
struct ScenarioDevice {
  int64_t first = 0;  // ns
  TimeRange every;
  int wakes = -1;
};

struct Scenario {
  std::string question;
  int cpus = 1;
  int hz = 250;
  Preemption preemption = Preemption::kLazy;
  bool hrtick = false;
  int64_t duration = 0;  // ns
  SimOptions sim;        // costs and seed
  std::vector<ScenarioFiber> fibers;
  std::vector<ScenarioDevice> devices;
};

// sim_parse.cc. Errors name the place in the file and the field, and what is allowed there.
Status read_scenario(const std::string& file, Scenario* scenario);

// A stretch of a fiber's time.
struct Stretch {
  enum State : uint8_t { kAsleep, kWaiting, kRunning };
  State state = kAsleep;
  int cpu = 0;
  int64_t from = 0, to = 0;  // ns
};

struct FiberTimeline {
  std::string name;
  std::vector<Stretch> stretches;                 // in order, without gaps
  int64_t ran = 0, waited = 0, longest_wait = 0;  // ns
  int turns = 0, waits = 0;                       // how often it came to run, and waited for it
  int preempted = 0, blocked = 0;
  int noop_wakeups = 0;  // that found it awake, and were kept for its next wait
};

struct ScenarioOptions {
  std::string file;
  std::string trace_file;
  int events = 40;  // lines of the list
  bool json = false;
  // Over what the file says, where they were given.
  bool seed_given = false, mode_given = false;
  uint64_t seed = 1;
  Preemption mode = Preemption::kLazy;
  std::string command_line;
};

struct SimReport {
  ScenarioOptions options;
  Scenario scenario;
  std::vector<TraceRecord> records;
  std::map<uint64_t, std::string> names;  // of the scenario's fibers, by id
  CounterSnapshot counts;
  std::vector<FiberTimeline> timelines;
  int64_t complete_from = 0;  // ns; later than 0 if the trace was too small for the beginning
  bool interrupted = false;
  bool refused = false;  // the file asks for what cannot be simulated
};

// sim_run.cc
Status run_scenario(SimReport* report);
// sim_timeline.cc
std::vector<FiberTimeline> timelines_of(const SimReport& report);
// Of one Cpu, over the time that the trace is complete for.
double share_percent(const SimReport& report, const FiberTimeline& line);
std::string sim_text(const SimReport& report);

// Exit code 2 for a file that says something wrong.
int run_sim(const ScenarioOptions& options);

}  // namespace jiffy
