// The command line of `jiffy`: the only file that sees CLI11.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "doctor.h"
#include "exit_codes.h"
#include "hog.h"
#include "interrupted.h"
#include "kworker.h"
#include "kworker_sim.h"
#include "pingpong.h"
#include "sim_scenario.h"

namespace jiffy {

namespace {

const std::map<std::string, Preemption> kModes = {{"none", Preemption::kNone},
                                                  {"voluntary", Preemption::kVoluntary},
                                                  {"lazy", Preemption::kLazy},
                                                  {"full", Preemption::kFull}};
const std::map<std::string, Delivery> kDeliveries = {{"signals", Delivery::kSignals},
                                                     {"safe_points", Delivery::kSafePoints}};
const std::map<std::string, Pool> kPools = {
    {"percpu", Pool::kPerCpu}, {"unbound", Pool::kUnbound}, {"inatomic", Pool::kInAtomic}};

// One of the names, and if not so the error lists them; the library's own check would also take the
// numbers behind the names.
template <class Value>
CLI::Validator one_of(const std::map<std::string, Value>& names) {
  std::string list;
  for (const auto& [name, value] : names) list += (list.empty() ? "" : ", ") + name;
  return CLI::Validator(
      [&names, list](std::string& text) {
        return names.count(text) == 1 ? std::string() : "'" + text + "' is none of " + list;
      },
      "", "name");
}

template <class Value>
void list_option(CLI::App* app, const char* flags, std::vector<Value>* values,
                 const std::map<std::string, Value>& names, const char* help) {
  app->add_option_function<std::vector<std::string>>(
         flags,
         [values, &names](const std::vector<std::string>& chosen) {
           values->clear();
           for (const std::string& name : chosen) values->push_back(names.at(name));
         },
         help)
      ->delimiter(',')
      ->check(one_of(names))
      ->type_name("LIST");
}

constexpr const char* kKworkerExamples = R"(
Examples:
  jiffy kworker                                  the whole matrix, about a minute
  jiffy kworker --preemption lazy,full --pool percpu --runs 5
  jiffy kworker --hz 1000 --block-every 900      as P1 may have been: a tick of 1 ms, a worker that sleeps
  jiffy kworker --busy --preemption lazy --pool percpu,unbound
  jiffy kworker --ring-sweep                     what a larger ring hides
  jiffy kworker --json > result.json
  jiffy kworker --preemption lazy --pool percpu --trace lazy.json     for ui.perfetto.dev
  jiffy kworker --plot p1.svg
  jiffy kworker --machine sim --seed 7           the same on an ideal machine, exactly, in virtual time
)";

constexpr const char* kPingpongExamples = R"(
Examples:
  jiffy pingpong
  jiffy pingpong --exchanges 2000 --json
)";

constexpr const char* kSimExamples = R"(
Examples:
  jiffy sim examples/sim/starved.json                        why does the kworker wait?
  jiffy sim examples/sim/starved.json --preemption full      and in full preemption?
  jiffy sim lesson.json --events 0 --trace lesson-trace.json     for ui.perfetto.dev
The file's format: docs/scenarios.md
)";

constexpr const char* kHogExamples = R"(
Examples:
  jiffy hog
  jiffy hog --preemption lazy,full --nice 0,0,0,10 --seconds 2
)";

constexpr const char* kDoctorExamples = R"(
Examples:
  jiffy doctor
  jiffy doctor --json
)";

constexpr const char* kExamples = R"(
Examples:
  jiffy doctor         what this machine offers
  jiffy kworker        a kworker starved behind a lazily preempted producer, and its cures
  jiffy pingpong       why lazy preemption costs a block and a wakeup
  jiffy hog            for(;;) and who else gets a turn
  jiffy sim FILE       a scenario of a few fibers, as a timeline
  jiffy kworker --help
)";

void footer(CLI::App* app, const char* examples) {
  app->footer(std::string(examples + 1) + "\n" + kExitCodesHelp);
}

void add_delivery(CLI::App* app, Delivery* delivery) {
  app->add_option_function<std::string>(
         "--delivery", [delivery](const std::string& name) { *delivery = kDeliveries.at(name); },
         "How requests reach the host's fibers: signals (preemptible fibers), safe_points "
         "[signals]")
      ->check(one_of(kDeliveries));
}

void add_hog(CLI::App* app, HogOptions* o) {
  list_option(app, "--preemption", &o->modes, kModes, "Modes: none, voluntary, lazy, full [all]");
  app->add_option("--nice", o->nice, "Nice levels of the hogs, one for each [0,0,5]")
      ->delimiter(',')
      ->check(CLI::Range(-20, 19))
      ->type_name("LIST");
  app->add_option("--hz", o->hz, "Ticks per second: 100, 250, 1000")
      ->check(CLI::IsMember({100, 250, 1000}))
      ->capture_default_str();
  app->add_option("--seconds", o->seconds, "Of each row")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  app->add_flag("--json", o->json, "The result as JSON on stdout");
  footer(app, kHogExamples);
}

void add_sim(CLI::App* app, ScenarioOptions* o) {
  app->add_option("file", o->file, "The scenario")->required()->type_name("FILE");
  app->add_option_function<uint64_t>(
      "--seed",
      [o](uint64_t seed) {
        o->seed = seed;
        o->seed_given = true;
      },
      "Instead of the file's");
  app->add_option_function<std::string>(
         "--preemption",
         [o](const std::string& name) {
           o->mode = kModes.at(name);
           o->mode_given = true;
         },
         "Instead of the file's: none, voluntary, lazy, full")
      ->check(one_of(kModes));
  app->add_option("--events", o->events, "Lines of the list of events; 0: no list")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app->add_option("--trace", o->trace_file, "Write a Chrome trace to FILE")->type_name("FILE");
  app->add_flag("--json", o->json, "The result as JSON on stdout");
  footer(app, kSimExamples);
}

void add_kworker(CLI::App* app, KworkerOptions* o) {
  list_option(app, "--preemption", &o->modes, kModes, "Modes: none, voluntary, lazy, full [all]");
  list_option(app, "--pool", &o->pools, kPools,
              "Who injects the interrupt: percpu, unbound (a kworker), inatomic [all]");
  add_delivery(app, &o->delivery);
  app->add_option("--hz", o->hz, "Ticks per second: 100, 250, 1000")
      ->check(CLI::IsMember({100, 250, 1000}))
      ->capture_default_str();
  app->add_flag("--hrtick", o->hrtick, "End slices by a precise timer, with a hard request");
  app->add_option("--ring", o->ring_entries, "Entries of the guest's ring")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app->add_flag("!--no-mergeable", o->mergeable,
                "An entry holds a whole packet; by default it is a page, and a packet takes many");
  app->add_option("--packet", o->packet_bytes, "Bytes of a packet")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  app->add_option_function<std::string>(
         "--full", [o](const std::string& what) { o->block_when_full = what == "block"; },
         "What the producer does with a full ring: drop, block [drop]")
      ->check(CLI::IsMember({"drop", "block"}));
  app->add_option("--block-every", o->block_every_us,
                  "The producer sleeps 20 us each time it has run for so many us; 0: never")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app->add_option("--queues", o->queues, "Producers, each with ring, eventfd and consumer: 1, 4")
      ->check(CLI::IsMember({1, 4}))
      ->capture_default_str();
  app->add_flag("--busy", o->busy, "A fiber spins on each Cpu but the producer's: none is idle");
  app->add_option("--seconds", o->seconds, "Of each run of each cell")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  app->add_option("--runs", o->runs, "Of each cell, interleaved")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_flag(
      "--ring-sweep", o->ring_sweep,
      "Instead of the matrix: full/percpu and lazy/percpu with rings of 256 KiB to 16 MiB");
  app->add_option_function<std::string>(
         "--machine", [o](const std::string& name) { o->sim = name == "sim"; },
         "host, or sim: in virtual time, at HZ 100, 250 and 1000, with and without HRTICK [host]")
      ->check(CLI::IsMember({"host", "sim"}));
  app->add_option("--seed", o->seed, "Of a simulation")->capture_default_str();
  app->add_flag("--json", o->json, "The result as JSON on stdout");
  app->add_option("--trace", o->trace_file,
                  "Write the end of each cell's last run as a Chrome trace; with several cells, to "
                  "FILE with the cell's name before its ending")
      ->type_name("FILE");
  app->add_option("--plot", o->plot_file, "Draw the table into FILE, an .svg or .png, by gnuplot")
      ->type_name("FILE");
  footer(app, kKworkerExamples);
}

// What single options cannot say; empty if all is well.
std::string inconsistency(const KworkerOptions& o) {
  if (!o.plot_file.empty()) {
    if (const std::string problem = plot_problem(o.plot_file); !problem.empty()) return problem;
  }
  const int entries_needed = o.mergeable ? (o.packet_bytes + 4095) / 4096 : 1;
  if (o.ring_entries >= entries_needed) return "";
  return "--ring: a packet of " + std::to_string(o.packet_bytes) + " bytes takes " +
         std::to_string(entries_needed) +
         " entries of a page; the ring must have as many, or use "
         "--no-mergeable";
}

// Of options that a simulation has no use for.
constexpr const char* kNotSimulated[] = {"--hz",    "--hrtick", "--block-every", "--delivery",
                                         "--trace", "--plot",   "--ring-sweep"};

// The defaults of a simulation are its own: it repeats nothing by chance.
std::string prepare_simulation(const CLI::App& app, KworkerOptions* o) {
  for (const char* option : kNotSimulated) {
    if (app.count(option) == 0) continue;
    return std::string(option) +
           ": --machine sim runs each tick, with and without HRTICK, on its "
           "own two tables, and draws and traces nothing (see jiffy sim for timelines)";
  }
  if (app.count("--preemption") == 0) o->modes = {Preemption::kLazy, Preemption::kFull};
  if (app.count("--runs") == 0) o->runs = 1;
  return "";
}

int usage_error(const std::string& message, const CLI::App& app) {
  std::fprintf(stderr, "jiffy: %s\n", message.c_str());
  std::string options;
  for (const CLI::Option* option : app.get_options()) options += " " + option->get_name();
  for (const CLI::App* sub : app.get_subcommands({})) options += " " + sub->get_name();
  std::fprintf(stderr, "Known to %s:%s\nMore by --help.\n", app.get_name().c_str(),
               options.c_str());
  return kExitUsage;
}

const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : *chosen.front();
}

int run(int argc, char** argv) {
  std::string command_line = "jiffy";
  for (int i = 1; i < argc; ++i) command_line += std::string(" ") + argv[i];

  CLI::App app("Kernel scheduling findings, reproduced on this machine.", "jiffy");
  app.set_version_flag("--version", JIFFY_VERSION);
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of all subcommands");
  footer(&app, kExamples);

  KworkerOptions kworker;
  CLI::App* kworker_app = app.add_subcommand(
      "kworker", "P1: a kworker starved behind a lazily preempted producer, and its cures");
  add_kworker(kworker_app, &kworker);

  PingpongOptions pingpong;
  CLI::App* pingpong_app =
      app.add_subcommand("pingpong", "P1's two ramifications of lazy preemption, as counts");
  pingpong_app->add_option("--exchanges", pingpong.exchanges, "On each machine, in each mode")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  add_delivery(pingpong_app, &pingpong.delivery);
  pingpong_app->add_flag("--json", pingpong.json, "The result as JSON on stdout");
  footer(pingpong_app, kPingpongExamples);

  HogOptions hog;
  CLI::App* hog_app = app.add_subcommand(
      "hog", "Fibers that compute without end beside one that sleeps, in each mode");
  add_hog(hog_app, &hog);

  ScenarioOptions sim;
  CLI::App* sim_app =
      app.add_subcommand("sim", "A scenario of a few fibers in virtual time, as a timeline");
  add_sim(sim_app, &sim);

  DoctorOptions doctor;
  CLI::App* doctor_app =
      app.add_subcommand("doctor", "What this machine offers, and what a missing piece costs");
  doctor_app->add_flag("--json", doctor.json, "The result as JSON on stdout");
  footer(doctor_app, kDoctorExamples);

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked_for_help) {
    return app.exit(asked_for_help);
  } catch (const CLI::ParseError& error) {
    return usage_error(error.what(), innermost(app));
  }
  kworker.command_line = pingpong.command_line = doctor.command_line = command_line;
  hog.command_line = sim.command_line = command_line;
  catch_interrupts();
  if (doctor_app->parsed()) return run_doctor(doctor);
  if (pingpong_app->parsed()) return run_pingpong(pingpong);
  if (hog_app->parsed()) return run_hog(hog);
  if (sim_app->parsed()) return run_sim(sim);
  std::string wrong = inconsistency(kworker);
  if (!kworker.sim && kworker_app->count("--seed") != 0) wrong = "--seed: only with --machine sim";
  if (wrong.empty() && kworker.sim) wrong = prepare_simulation(*kworker_app, &kworker);
  if (!wrong.empty()) return usage_error(wrong, *kworker_app);
  if (kworker.sim) return run_kworker_sim(kworker);
  return run_kworker(kworker);
}

}  // namespace

}  // namespace jiffy

int main(int argc, char** argv) { return jiffy::run(argc, argv); }
