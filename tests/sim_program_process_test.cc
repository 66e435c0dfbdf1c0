// `jiffy sim`: the six questions of examples/sim have their answers, and a bad file is told where.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/mini_json.h"
#include "support/program.h"

namespace jiffy {
namespace {

std::string example(const char* name) {
  return std::string(JIFFY_SOURCE_DIR) + "/examples/sim/" + name + ".json";
}

class SimProgram : public testing::Test {
 protected:
  void SetUp() override {
    if (kProgram == nullptr) GTEST_SKIP() << "built without the program";
  }

  static JsonValue simulate(const char* name, const std::string& options = "") {
    const Outcome o = run("sim " + example(name) + " --json " + options);
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return JsonReader::parse(o.out);
  }
  static const JsonValue& fiber(const JsonValue& result, const std::string& name) {
    for (const JsonValue& f : result.at("fibers").array) {
      if (f.at("name").string == name) return f;
    }
    throw std::out_of_range("no fiber " + name);
  }
  static double number(const JsonValue& result, const std::string& name, const char* key) {
    return fiber(result, name).at(key).number;
  }
  // When each turn of a fiber began, us.
  static std::vector<double> turns_us(const JsonValue& result, const std::string& name) {
    std::vector<double> all;
    for (const JsonValue& turn : fiber(result, name).at("runs").array) {
      all.push_back(turn.at("from_ns").number / 1e3);
    }
    return all;
  }

  void TearDown() override { std::remove(file_.c_str()); }
  // A scenario of the test's own, for 10 ms on one Cpu, with these fibers and other keys.
  const std::string& scenario(const std::string& fibers, const std::string& more = "") const {
    return write(R"({"question": "?", "for": "10ms", "fibers": [)" + fibers + "]" + more + "}");
  }
  const std::string& write(const std::string& text) const {
    std::ofstream(file_) << text;
    return file_;
  }

 private:
  const std::string file_ =
      testing::TempDir() + "jiffy_scenario_" + std::to_string(getpid()) + ".json";
};

constexpr double kMs = 1e6;
using Times = std::vector<double>;

// --- The questions.

TEST_F(SimProgram, AStarvedKworkerWaitsForTheTickInLazyAndIsOwedInFull) {
  const JsonValue lazy = simulate("starved");
  EXPECT_GT(number(lazy, "K", "waited_mean_ns"), 3.5 * kMs);
  EXPECT_LE(number(lazy, "K", "turns"), 6);
  EXPECT_EQ(turns_us(lazy, "K"), (Times{8000, 12000})) << "at ticks";
  EXPECT_EQ(lazy.at("counts").at("promotions").number, 2);
  const JsonValue full = simulate("starved", "--preemption full");
  EXPECT_GT(number(full, "K", "turns"), 100);
  Times first = turns_us(full, "K");
  first.resize(4);
  EXPECT_EQ(first, (Times{4000, 4003, 4106, 4209})) << "once late, then at each wakeup";
  EXPECT_EQ(full.at("counts").at("promotions").number, 0);
}

TEST_F(SimProgram, NiceLevelsShareByWeight) {
  const JsonValue result = simulate("nice");
  const double sum = 1024 + 335 + 110;
  EXPECT_NEAR(number(result, "nice 0", "share_percent"), 100 * 1024 / sum, 1.5);
  EXPECT_NEAR(number(result, "nice 5", "share_percent"), 100 * 335 / sum, 1.5);
  EXPECT_NEAR(number(result, "nice 10", "share_percent"), 100 * 110 / sum, 1.5);
}

TEST_F(SimProgram, AShorterSliceWaitsLessAndGetsNoMore) {
  const JsonValue result = simulate("short-slice");
  EXPECT_LT(number(result, "short", "waited_mean_ns"),
            0.75 * number(result, "plain", "waited_mean_ns"));
  EXPECT_NEAR(number(result, "short", "ran_ns"), number(result, "plain", "ran_ns"), 0.5 * kMs);
}

TEST_F(SimProgram, WhoIsPinnedWaitsWhereWhoIsFreeMovesToAnIdleCpu) {
  const JsonValue result = simulate("pinned");
  EXPECT_GT(number(result, "pinned", "longest_wait_ns"), 2 * kMs);
  EXPECT_EQ(number(result, "free", "longest_wait_ns"), 0);
  for (const JsonValue& turn : fiber(result, "free").at("runs").array) {
    EXPECT_EQ(turn.at("cpu").number, 1);
  }
}

TEST_F(SimProgram, FifoPreemptsKernelCodeAtOnceInLazyToo) {
  const JsonValue lazy = simulate("fifo"), full = simulate("fifo", "--preemption full");
  for (const JsonValue* result : {&lazy, &full}) {
    EXPECT_EQ(turns_us(*result, "fifo"), (Times{1500, 6500, 11500}));
  }
  EXPECT_EQ(turns_us(lazy, "fair"), (Times{4000, 8000})) << "at ticks";
  EXPECT_EQ(turns_us(full, "fair"), (Times{2500, 7500, 12500}));
}

TEST_F(SimProgram, LazyCostsABlockAndAWakeup) {
  const JsonValue full = simulate("no-op-wakeup"),
                  lazy = simulate("no-op-wakeup", "--preemption lazy");
  EXPECT_EQ(number(full, "A", "blocked"), 0);
  EXPECT_EQ(number(full, "A", "noop_wakeups"), 18);
  EXPECT_EQ(number(lazy, "A", "blocked"), 16);
  EXPECT_EQ(number(lazy, "A", "noop_wakeups"), 1);
  EXPECT_TRUE(contains(run("sim " + example("no-op-wakeup")).out,
                       "0.250 ms  Cpu 0   A need not be woken by B: it is awake"));
  EXPECT_GT(lazy.at("counts").at("wakeups_real").number,
            1.5 * full.at("counts").at("wakeups_real").number);
}

// --- The output.

TEST_F(SimProgram, TheTextHasTheQuestionTheChartTheEventsAndTheTable) {
  const Outcome o = run("sim " + example("starved") + " --events 5");
  ASSERT_EQ(o.exit_code, 0) << o.err;
  for (const char* part :
       {"Why does the kworker K", "K|", "A|", "more (--events)", "waited, mean"}) {
    EXPECT_TRUE(contains(o.out, part)) << part << "\n" << o.out;
  }
  EXPECT_TRUE(
      contains(run("sim " + example("starved")).out, "the tick makes the lazy request hard"));
  EXPECT_FALSE(contains(run("sim " + example("starved") + " --events 0").out, "tick, while"));
}

TEST_F(SimProgram, TheSameSeedIsTheSameTimeline) {
  const std::string& file = write(R"({"question": "?", "for": "20ms", "cpus": 2, "fibers": [
      {"name": "a", "do": [{"run": ["10us", "900us"]}, {"sleep": ["10us", "900us"]}]},
      {"name": "b", "do": [{"run": ["10us", "900us"]}, {"sleep": ["10us", "900us"]}]},
      {"name": "c", "do": [{"run": ["10us", "900us"]}, {"wake": "d"}]},
      {"name": "d", "do": [{"wait": true}, {"run": ["10us", "900us"]}]}]})");
  const auto text = [&file](const char* seed) {
    return run("sim " + file + " --events 1000 --seed " + seed).out;
  };
  const std::string once = text("7");
  EXPECT_EQ(text("7"), once);
  EXPECT_NE(text("8"), once);
}

TEST_F(SimProgram, TheTraceHasTheFibersNames) {
  const std::string file = testing::TempDir() + "/jiffy_sim_trace.json";
  ASSERT_EQ(run("sim " + example("fifo") + " --trace " + file).exit_code, 0);
  std::ifstream stream(file);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  EXPECT_TRUE(contains(text, "fifo")) << text.substr(0, 300);
  EXPECT_NO_THROW((void)JsonReader::parse(text));
  EXPECT_EQ(run("sim " + example("fifo") + " --trace /nowhere/t.json").exit_code, 1);
}

TEST_F(SimProgram, TheChartHasATimeAxis) {
  const std::string out = run("sim " + example("nice") + " --events 0").out;
  EXPECT_TRUE(contains(out, "        0         10        20        30 ")) << out;
  EXPECT_TRUE(contains(out, "        |---------|---------|---------|--")) << out;
}

TEST_F(SimProgram, AWakeOfAFiberThatIsAwakeIsKeptForItsNextWait) {
  const std::string& file =
      scenario(R"({"name": "A", "do": [{"run": "4ms"}, {"wait": true}]})",
               R"(, "devices": [{"first": "1ms", "every": "9ms", "wakes": "A"}])");
  const JsonValue result = JsonReader::parse(run("sim --json " + file).out);
  EXPECT_EQ(number(result, "A", "ran_ns"), 8 * kMs);
  EXPECT_EQ(number(result, "A", "noop_wakeups"), 1);
  EXPECT_TRUE(contains(run("sim " + file).out,
                       "1.000 ms  device  A need not be woken by the device: it is awake"));
}

TEST_F(SimProgram, CostsTakeTime) {
  const std::string fibers = R"({"name": "A", "do": [{"run": "1ms"}, {"sleep": "1ms"}]})";
  EXPECT_EQ(turns_us(JsonReader::parse(run("sim --json " + scenario(fibers)).out), "A"),
            (Times{0, 2000, 4000, 6000, 8000}));
  const std::string costs =
      R"(, "costs": {"idle_exit": "10us", "switch": "1us", "wakeup": "2us", "offload": "1us"})";
  const JsonValue result = JsonReader::parse(run("sim --json " + scenario(fibers, costs)).out);
  EXPECT_EQ(result.at("costs_ns").at("idle_exit").at("most").number, 10'000);
  EXPECT_EQ(turns_us(result, "A").at(0), 10) << "the runtime's own start is not counted";
  EXPECT_GT(turns_us(result, "A").at(1), 2010);
}

TEST_F(SimProgram, ATraceThatWasTooSmallSaysFromWhenOnItCounts) {
  const std::string& file = write(R"({"question": "?", "for": "20s", "hz": 1000, "cpus": 64, "fibers": [
      {"name": "A", "cpus": [0], "do": [{"run": "500us"}, {"yield": true}]},
      {"name": "B", "cpus": [0], "do": [{"run": "500us"}, {"yield": true}]}]})");
  const JsonValue result = JsonReader::parse(run("sim --json " + file).out);
  EXPECT_TRUE(result.at("truncated").boolean);
  EXPECT_GT(result.at("complete_from_ns").number, 0);
  EXPECT_NEAR(number(result, "A", "share_percent"), 50, 0.1);
  EXPECT_LT(number(result, "A", "longest_wait_ns"), 4 * kMs);
  EXPECT_TRUE(contains(run("sim " + file).out, "! The trace was too small: what was before "));
}

TEST_F(SimProgram, AnInterruptEndsItWithWhatWasSimulated) {
  Child child("sim --json --events 0 " +
              write(R"({"question": "?", "for": "3600s", "hz": 1000, "fibers": [
      {"name": "A", "do": [{"run": "1ms"}]}, {"name": "B", "do": [{"run": "1ms"}]}]})"));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  child.signal(SIGINT);
  const Outcome outcome = child.wait();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const JsonValue result = JsonReader::parse(outcome.out);
  EXPECT_TRUE(result.at("interrupted").boolean);
  EXPECT_LT(result.at("options").at("duration_ns").number, 3600e9);
}

// --- Bad files: what is wrong, and the error that says so.

struct BadFile {
  const char* text;
  const char* error;
};
constexpr BadFile kBadFiles[] = {
    {"{\"question\": \"?\",\n \"for\": }", "line 2, column 9"},
    {R"({"for": "1ms", "fibers": []})", "the key \"question\" is missing"},
    {R"({"for": "1ms", "question": "?", "fibers": []})", "the key \"question\" comes first"},
    {R"({"question": "?", "for": "1ms", "for": "2ms"})", "for: the key \"for\" stands twice"},
    {R"({"question": "?", "fibers": [{"name": "A", "nice": 1, "nice": 2}]})",
     "fibers.nice: the key \"nice\" stands twice"},
    {"[1]", "[1] is no object"},
    {R"({"question": "?", "for": "1ms", "fibers": [], "cpu": 2})",
     "unknown key \"cpu\"; known here: question, cpus"},
    {R"({"question": "?", "for": "1ms", "fibers": []})", "fibers: 0 fibers"},
    {R"({"question": "?", "for": "3 parsecs", "fibers": []})",
     "for: \"3 parsecs\" is no duration (write \"250us\""},
    {R"({"question": "?", "for": "2000000s", "fibers": []})", "for: 2000000s is more than an hour"},
    {R"({"question": "?", "for": "1ms", "hz": 300, "fibers": []})", "hz: 100, 250 and 1000"},
    {R"({"question": "?", "for": "1ms", "preemption": "lazier", "fibers": []})",
     "preemption: \"lazier\" is none of none, voluntary, lazy, full"},
    {R"({"question": "?", "for": "1ms", "fibers": [{"name": "A", "do": [{"run": "1ms"}, {"wake": "B"}]}]})",
     "fibers[0].do[1].wake: no fiber is called \"B\""},
    {R"({"question": "?", "for": "1ms", "fibers": [{"name": "A", "do": [{"jump": true}]}]})",
     "fibers[0].do[0]: unknown step \"jump\"; known: run, sleep"},
    {R"({"question": "?", "for": "1ms", "fibers": [{"name": "A", "do": [{"run": ["2ms", "1ms"]}]}]})",
     "fibers[0].do[0].run: the range ends before it begins"},
    {R"({"question": "?", "for": "1ms", "fibers": [{"name": "A", "nice": 20, "do": [{"run": "1ms"}]}]})",
     "fibers[0].nice: 20 is no whole number from -20 to 19"},
    {R"({"question": "?", "for": "1ms", "cpus": 2, "fibers": [{"name": "A", "cpus": [2], "do": [{"run": "1ms"}]}]})",
     "fibers[0].cpus[0]: 2 is no whole number from 0 to 1"},
    {R"({"question": "?", "for": "1ms", "fibers": [{"name": "A", "do": [{"run": "1ms"}]}, {"name": "A", "do": []}]})",
     "fibers[1].name: two fibers are called A"},
    {R"({"question": "?", "for": "1ms", "fibers": [{"name": "A", "do": [{"yield": true}]}]})",
     "fibers[0].do: no time passes in it"},
    {R"({"question": "?", "for": "1ms", "fibers": [{"name": "A", "do": [{"run": "1ms"}]}], "devices": [{"every": "0ms", "wakes": "A"}]})",
     "devices[0].every: it would come for ever"},
};

TEST_F(SimProgram, ABadFileIsToldThePlaceAndTheField) {
  for (const BadFile& bad : kBadFiles) {
    const std::string& file = write(bad.text);
    const Outcome o = run("sim " + file);
    EXPECT_EQ(o.exit_code, 2) << bad.text;
    EXPECT_TRUE(contains(o.err, file + ": ")) << o.err;
    EXPECT_TRUE(contains(o.err, bad.error)) << bad.text << "\n" << o.err;
  }
  const Outcome directory = run("sim " + testing::TempDir());
  EXPECT_EQ(directory.exit_code, 2);
  EXPECT_TRUE(contains(directory.err, "Is a directory")) << directory.err;
  const Outcome missing = run("sim /nowhere.json");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_TRUE(contains(missing.err, "cannot read /nowhere.json: No such file")) << missing.err;
}

// What would be ignored is refused too: a timeline must show what its file says.
TEST_F(SimProgram, ABadFiberIsToldThePlaceAndTheField) {
  const struct {
    const char* keys;  // of a fiber
    const char* error;
  } cases[] = {
      {R"("do": [])", "do: it has no steps"},
      {R"("do": [{"run": "0x10us"}])", "do[0].run: \"0x10us\" is no duration"},
      {R"("do": [{"run": "-1us"}])", "do[0].run: \"-1us\" is no duration"},
      {R"("do": [{"run": ".us"}])", "do[0].run: \".us\" is no duration"},
      {R"("do": [{"run": "1.2.3us"}])", "do[0].run: \"1.2.3us\" is no duration"},
      {R"("do": [{"run": 5}])", "do[0].run: 5 is no duration"},
      {R"("do": [{"run": "1ms", "sleep": "1ms"}])",
       "do[0]: {\"run\":\"1ms\",\"sleep\":\"1ms\"} is no"},
      {R"("do": [{"wait": false}])", "do[0].wait: write true"},
      {R"("do": 3)", "do: 3 is no list"},
      {R"("colour": 1, "do": [{"run": "1ms"}])",
       ": unknown key \"colour\"; known here: name, kernel"},
      {R"("policy": "rt", "do": [{"run": "1ms"}])", "policy: \"rt\" is none of fair, batch, idle"},
      {R"("priority": 3, "do": [{"run": "1ms"}])", "priority: only policy fifo has one"},
      {R"("policy": "fifo", "nice": 1, "do": [{"run": "1ms"}])", "nice: only fair and batch"},
      {R"("policy": "fifo", "slice": "1ms", "do": [{"run": "1ms"}])",
       "slice: policy fifo has none"},
      {R"("slice": "1us", "do": [{"run": "1ms"}])", "slice: a slice is 0.1 to 100 ms long"},
      {R"("starts": "10ms", "do": [{"run": "1ms"}])", "starts: the simulation is over by then"},
      {R"("repeat": 0, "do": [{"run": "1ms"}])", "repeat: 0 is no whole number from 1"},
  };
  for (const auto& c : cases) {
    const Outcome o = run("sim " + scenario(R"({"name": "A", )" + std::string(c.keys) + "}"));
    EXPECT_EQ(o.exit_code, 2) << c.keys;
    const bool of_the_fiber = c.error[0] == ':';
    EXPECT_TRUE(contains(o.err, std::string("fibers[0]") + (of_the_fiber ? "" : ".") + c.error))
        << c.keys << "\n"
        << o.err;
  }
}

TEST_F(SimProgram, WhatWouldGoOnForEverIsRefused) {
  const struct {
    const char* fibers;
    const char* error;
  } cases[] = {
      {R"({"name": "A", "do": [{"wake": "A"}, {"wait": true}]})",
       "100000 steps at 0.000 ms without time passing, the last by A: add run"},
      {R"({"name": "A", "do": [{"wake": "B"}, {"wait": true}]},
          {"name": "B", "do": [{"wake": "A"}, {"wait": true}]})",
       "100000 steps at 0.000 ms without time passing, the last by "},
      {R"({"name": "A", "do": [{"run": "1ns"}, {"wake": "A"}]})",
       "more than 10000000 steps in the first 5.000 ms"},
  };
  for (const auto& c : cases) {
    const Outcome o = run("sim " + scenario(c.fibers));
    EXPECT_EQ(o.exit_code, 2) << c.fibers;
    EXPECT_TRUE(contains(o.err, c.error)) << o.err;
  }
}

}  // namespace
}  // namespace jiffy
