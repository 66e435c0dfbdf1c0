// A scenario's file. Whatever is wrong in it is an error that names the place.
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sim_scenario.h"
#include "text_table.h"

namespace jiffy {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLongestNs = 3'600'000'000'000;  // an hour
constexpr size_t kMostFibers = 1000;
constexpr uint64_t kMostTimelessRounds = 10'000;

// The names of a choice, in the order that an error lists them.
template <class Value>
struct Named {
  const char* name;
  Value value;
};
constexpr Named<Preemption> kModes[] = {{"none", Preemption::kNone},
                                        {"voluntary", Preemption::kVoluntary},
                                        {"lazy", Preemption::kLazy},
                                        {"full", Preemption::kFull}};
constexpr Named<Policy> kPolicies[] = {{"fair", Policy::kNormal},
                                       {"batch", Policy::kBatch},
                                       {"idle", Policy::kIdle},
                                       {"fifo", Policy::kFifo}};
constexpr Named<ScenarioStep::Kind> kSteps[] = {
    {"run", ScenarioStep::kRun},     {"sleep", ScenarioStep::kSleep},
    {"wake", ScenarioStep::kWake},   {"wait", ScenarioStep::kWait},
    {"yield", ScenarioStep::kYield}, {"cond_resched", ScenarioStep::kCondResched}};
constexpr Named<std::chrono::nanoseconds SimOptions::*> kCosts[] = {
    {"wakeup", &SimOptions::wakeup_cost},
    {"switch", &SimOptions::switch_cost},
    {"interrupt", &SimOptions::interrupt_cost},
    {"offload", &SimOptions::offload_cost}};
constexpr Named<SimDelay SimOptions::*> kDelays[] = {{"ipi", &SimOptions::ipi_latency},
                                                     {"idle_exit", &SimOptions::wake_latency}};
constexpr Named<double> kUnits[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};

[[noreturn]] void fail(const std::string& place, const std::string& what) {
  throw std::runtime_error((place.empty() ? "" : place + ": ") + what);
}

template <class Value, size_t kCount>
std::string list_of(const Named<Value> (&names)[kCount]) {
  std::string list;
  for (const auto& one : names) list += (list.empty() ? "" : ", ") + std::string(one.name);
  return list;
}

template <class Value, size_t kCount>
const Value* find_named(const Named<Value> (&names)[kCount], const std::string& name) {
  for (const auto& one : names) {
    if (name == one.name) return &one.value;
  }
  return nullptr;
}

// A value in the file and where it stands.
class Place {
 public:
  Place(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  [[noreturn]] void wrong(const std::string& what) const { fail(path_, what); }
  [[noreturn]] void not_a(const char* what) const { wrong(json_.dump() + " is no " + what); }

  bool has(const char* key) const { return json_.contains(key); }
  Place operator[](const char* key) const {
    return {json_.at(key), path_.empty() ? key : path_ + "." + key};
  }
  std::vector<Place> elements() const {
    if (!json_.is_array()) not_a("list: write [ ... ]");
    std::vector<Place> all;
    for (size_t i = 0; i < json_.size(); ++i) {
      all.emplace_back(json_[i], path_ + "[" + std::to_string(i) + "]");
    }
    return all;
  }
  // An object with no other keys than these.
  void expect_keys(std::initializer_list<const char*> allowed) const {
    if (!json_.is_object()) not_a("object: write { ... }");
    std::string list;
    for (const char* key : allowed) list += (list.empty() ? "" : ", ") + std::string(key);
    for (const std::string& key : keys()) {
      if (std::none_of(allowed.begin(), allowed.end(), [&](const char* a) { return key == a; })) {
        wrong(format("unknown key \"%s\"; known here: %s", key.c_str(), list.c_str()));
      }
    }
  }
  // In the file's order.
  std::vector<std::string> keys() const {
    if (!json_.is_object()) return {};
    std::vector<std::string> all;
    for (const auto& [key, value] : json_.items()) all.push_back(key);
    return all;
  }

  std::string text() const {
    if (!json_.is_string()) not_a("text");
    return json_.get<std::string>();
  }
  bool boolean() const {
    if (!json_.is_boolean()) not_a("truth value: write true or false");
    return json_.get<bool>();
  }
  int64_t integer(int64_t least, int64_t most) const {
    const bool inside =
        json_.is_number_integer() && json_.get<int64_t>() >= least && json_.get<int64_t>() <= most;
    if (!inside)
      wrong(format("%s is no whole number from %lld to %lld", json_.dump().c_str(),
                   static_cast<long long>(least), static_cast<long long>(most)));
    return json_.get<int64_t>();
  }
  template <class Value, size_t kCount>
  Value one_of(const Named<Value> (&names)[kCount]) const {
    const Value* value = json_.is_string() ? find_named(names, text()) : nullptr;
    if (value == nullptr) wrong(json_.dump() + " is none of " + list_of(names));
    return *value;
  }

  int64_t duration() const {
    const std::string written = json_.is_string() ? text() : "";
    // Decimal figures only: from_chars() would also read a sign, inf and 1e3.
    const size_t figures = std::min(written.find_first_not_of("0123456789."), written.size());
    double number = 0;
    const auto [end, error] = std::from_chars(written.data(), written.data() + figures, number);
    const bool is_number = error == std::errc() && end == written.data() + figures && written[0] != '.';
    const double* scale = is_number ? find_named(kUnits, written.substr(figures)) : nullptr;
    if (scale == nullptr) {
      wrong(json_.dump() + " is no duration (write \"250us\", \"1.5ms\" or \"2s\")");
    }
    const double ns = number * *scale;
    if (ns > static_cast<double>(kLongestNs)) wrong(written + " is more than an hour");
    return std::llround(ns);
  }
  TimeRange range() const {
    if (!json_.is_array()) return {duration(), duration()};
    const std::vector<Place> ends = elements();
    if (ends.size() != 2) wrong("a range has two ends: [\"1ms\", \"2ms\"]");
    const TimeRange range{ends[0].duration(), ends[1].duration()};
    if (range.least > range.most) wrong("the range ends before it begins");
    return range;
  }

 private:
  const Json& json_;
  const std::string path_;
};

class Parser {
 public:
  Parser(const Json& json, Scenario* scenario) : root_(json, ""), s_(*scenario) {}

  void parse() {
    root_.expect_keys({"question", "cpus", "hz", "preemption", "hrtick", "seed", "for", "costs",
                       "fibers", "devices"});
    for (const char* key : {"question", "for", "fibers"}) {
      if (!root_.has(key)) fail("", std::string("the key \"") + key + "\" is missing");
    }
    if (root_.keys().front() != "question") {
      fail("", "the key \"question\" comes first: it says what the rest is for");
    }
    s_.question = root_["question"].text();
    if (root_.has("cpus")) s_.cpus = static_cast<int>(root_["cpus"].integer(1, 1024));
    if (root_.has("hz")) parse_hz(root_["hz"]);
    if (root_.has("preemption")) s_.preemption = root_["preemption"].one_of(kModes);
    if (root_.has("hrtick")) s_.hrtick = root_["hrtick"].boolean();
    if (root_.has("seed")) s_.sim.seed = static_cast<uint64_t>(root_["seed"].integer(1, INT64_MAX));
    s_.duration = root_["for"].duration();
    if (s_.duration == 0) root_["for"].wrong("nothing happens in no time");
    if (root_.has("costs")) parse_costs(root_["costs"]);
    parse_fibers(root_["fibers"]);
    if (root_.has("devices")) {
      for (const Place& device : root_["devices"].elements()) parse_device(device);
    }
  }

 private:
  void parse_hz(const Place& hz) {
    s_.hz = static_cast<int>(hz.integer(100, 1000));
    if (s_.hz != 100 && s_.hz != 250 && s_.hz != 1000) hz.wrong("100, 250 and 1000 are possible");
  }

  void parse_costs(const Place& costs) {
    costs.expect_keys({"wakeup", "switch", "interrupt", "offload", "ipi", "idle_exit"});
    for (const auto& [name, member] : kCosts) {
      if (costs.has(name)) s_.sim.*member = std::chrono::nanoseconds(costs[name].duration());
    }
    for (const auto& [name, member] : kDelays) {
      if (!costs.has(name)) continue;
      const TimeRange range = costs[name].range();
      s_.sim.*member =
          SimDelay(std::chrono::nanoseconds(range.least), std::chrono::nanoseconds(range.most));
    }
  }

  // Names first: a step may wake a fiber that comes later.
  void parse_fibers(const Place& fibers) {
    const std::vector<Place> all = fibers.elements();
    if (all.empty() || all.size() > kMostFibers) {
      fibers.wrong(format("%zu fibers; 1 to %zu are possible", all.size(), kMostFibers));
    }
    for (const Place& fiber : all) {
      fiber.expect_keys({"name", "kernel", "policy", "priority", "nice", "slice", "cpus", "starts",
                         "repeat", "do"});
      if (!fiber.has("name")) fiber.wrong("the key \"name\" is missing");
      const std::string name = fiber["name"].text();
      if (name.empty() || name.size() > 23) fiber["name"].wrong("a name has 1 to 23 bytes");
      if (index_of(name) >= 0) fiber["name"].wrong("two fibers are called " + name);
      s_.fibers.push_back({});
      s_.fibers.back().options.name = name;
    }
    for (size_t i = 0; i < all.size(); ++i) parse_fiber(all[i], &s_.fibers[i]);
  }

  int index_of(const std::string& name) const {
    for (size_t i = 0; i < s_.fibers.size(); ++i) {
      if (s_.fibers[i].options.name == name) return static_cast<int>(i);
    }
    return -1;
  }
  int fiber_named(const Place& place) const {
    const int index = index_of(place.text());
    if (index < 0) place.wrong("no fiber is called \"" + place.text() + "\"");
    return index;
  }

  void parse_fiber(const Place& place, ScenarioFiber* fiber) {
    SpawnOptions& o = fiber->options;
    if (place.has("kernel")) o.kernel_mode = place["kernel"].boolean();
    parse_policy(place, &o);
    o.migratable = true;
    if (place.has("cpus")) parse_affinity(place["cpus"], &o);
    if (place.has("starts")) fiber->starts = place["starts"].duration();
    if (fiber->starts >= s_.duration) place["starts"].wrong("the simulation is over by then");
    if (place.has("repeat")) {
      fiber->repeat = static_cast<uint64_t>(place["repeat"].integer(1, INT64_MAX));
    }
    if (!place.has("do")) place.wrong("the key \"do\" is missing");
    for (const Place& step : place["do"].elements()) fiber->steps.push_back(parse_step(step));
    if (fiber->steps.empty()) place["do"].wrong("it has no steps");
    check_that_time_passes(place, *fiber);
  }

  // What a policy would ignore is refused: the timeline would not show what the file seems to say.
  static void parse_policy(const Place& place, SpawnOptions* o) {
    if (place.has("policy")) o->policy = place["policy"].one_of(kPolicies);
    const bool fifo = o->policy == Policy::kFifo;
    if (place.has("priority")) {
      if (!fifo) place["priority"].wrong("only policy fifo has one; see nice");
      o->priority = static_cast<int>(place["priority"].integer(1, 99));
    }
    if (place.has("nice")) {
      if (fifo || o->policy == Policy::kIdle) place["nice"].wrong("only fair and batch have it");
      o->nice = static_cast<int>(place["nice"].integer(-20, 19));
    }
    if (place.has("slice")) {
      if (fifo) place["slice"].wrong("policy fifo has none");
      o->slice = std::chrono::nanoseconds(place["slice"].duration());
      if (o->slice < std::chrono::microseconds(100) || o->slice > std::chrono::milliseconds(100)) {
        place["slice"].wrong("a slice is 0.1 to 100 ms long");
      }
    }
  }

  void parse_affinity(const Place& cpus, SpawnOptions* o) const {
    for (const Place& cpu : cpus.elements()) {
      o->allowed.push_back(static_cast<int>(cpu.integer(0, s_.cpus - 1)));
    }
    if (o->allowed.empty()) cpus.wrong("a fiber must be allowed on some Cpu");
    if (o->allowed.size() > 1) return;
    o->cpu = o->allowed.front();
    o->allowed.clear();
    o->migratable = false;
  }

  ScenarioStep parse_step(const Place& place) const {
    const std::vector<std::string> keys = place.keys();
    if (keys.size() != 1) place.not_a("step: write {\"run\": \"1ms\"} or the like");
    const std::string& key = keys.front();
    const ScenarioStep::Kind* kind = find_named(kSteps, key);
    if (kind == nullptr) place.wrong("unknown step \"" + key + "\"; known: " + list_of(kSteps));
    ScenarioStep step;
    step.kind = *kind;
    const Place value = place[key.c_str()];
    if (*kind == ScenarioStep::kRun || *kind == ScenarioStep::kSleep) {
      step.time = value.range();
    } else if (*kind == ScenarioStep::kWake) {
      step.target = fiber_named(value);
    } else if (!value.boolean()) {
      value.wrong("write true, or leave the step out");
    }
    return step;
  }

  // A round without time would be repeated for ever at one instant.
  static void check_that_time_passes(const Place& place, const ScenarioFiber& fiber) {
    for (const ScenarioStep& step : fiber.steps) {
      if (step.kind == ScenarioStep::kWait || step.time.least > 0) return;
    }
    if (fiber.repeat == 0 || fiber.repeat > kMostTimelessRounds) {
      place["do"].wrong(
          "no time passes in it, so it would go on for ever at one instant: add run, "
          "sleep or wait");
    }
  }

  void parse_device(const Place& place) {
    place.expect_keys({"first", "every", "wakes"});
    for (const char* key : {"every", "wakes"}) {
      if (!place.has(key)) place.wrong(std::string("the key \"") + key + "\" is missing");
    }
    ScenarioDevice device;
    device.every = place["every"].range();
    if (device.every.least == 0) place["every"].wrong("it would come for ever at one instant");
    device.first = place.has("first") ? place["first"].duration() : device.every.least;
    device.wakes = fiber_named(place["wakes"]);
    s_.devices.push_back(device);
  }

  const Place root_;
  Scenario& s_;
};

// 0, or why it cannot be read: a directory is opened and then not read.
int read_file(const std::string& name, std::string* text) {
  std::FILE* file = std::fopen(name.c_str(), "re");
  if (file == nullptr) return errno;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text->append(buffer, n);
  const int error = std::ferror(file) != 0 ? errno : 0;
  std::fclose(file);
  return error;
}

// The library keeps one of two equal keys and says nothing.
Json parse_json(const std::string& text) {
  struct Level {
    std::set<std::string> keys;
    std::string latest;
  };
  std::vector<Level> levels;  // of objects, outermost first
  return Json::parse(text, [&levels](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) levels.emplace_back();
    if (event == Json::parse_event_t::object_end) levels.pop_back();
    if (event != Json::parse_event_t::key) return true;
    levels.back().latest = value.get<std::string>();
    if (levels.back().keys.insert(levels.back().latest).second) return true;
    std::string place;
    for (const Level& level : levels) place += (place.empty() ? "" : ".") + level.latest;
    fail(place, "the key " + value.dump() + " stands twice in one object");
  });
}

// "parse error at line 3, column 7: ..." from the library's longer text.
std::string syntax_error(const std::string& what) {
  const size_t at = what.find("parse error at ");
  return at == std::string::npos ? what : what.substr(at + 15);
}

}  // namespace

Status read_scenario(const std::string& file, Scenario* scenario) {
  std::string text;
  if (const int error = read_file(file, &text); error != 0) {
    return Status::error("cannot read " + file + ": " + std::strerror(error));
  }
  try {
    const Json json = parse_json(text);
    Parser(json, scenario).parse();
  } catch (const Json::parse_error& error) {
    return Status::error(file + ": " + syntax_error(error.what()));
  } catch (const std::exception& error) {
    return Status::error(file + ": " + error.what());
  }
  return Status();
}

}  // namespace jiffy
