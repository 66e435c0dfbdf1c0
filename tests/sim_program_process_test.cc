// `jiffy sim`: the six questions of examples/sim have their answers, and a bad file is told where.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

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
};

constexpr double kMs = 1e6;

// --- The questions.

TEST_F(SimProgram, AStarvedKworkerWaitsForTheTickInLazyAndIsOwedInFull) {
  const JsonValue lazy = simulate("starved");
  EXPECT_GT(number(lazy, "K", "waited_mean_ns"), 3.5 * kMs);
  EXPECT_LE(number(lazy, "K", "turns"), 6);
  EXPECT_GT(lazy.at("counts").at("promotions").number, 0);
  const JsonValue full = simulate("starved", "--preemption full");
  EXPECT_GT(number(full, "K", "turns"), 100);
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
  const JsonValue result = simulate("fifo");
  EXPECT_EQ(number(result, "fifo", "longest_wait_ns"), 0);
  EXPECT_GT(number(result, "fair", "longest_wait_ns"), 0.4 * kMs);
}

TEST_F(SimProgram, LazyCostsABlockAndAWakeup) {
  const JsonValue full = simulate("no-op-wakeup"),
                  lazy = simulate("no-op-wakeup", "--preemption lazy");
  EXPECT_EQ(number(full, "A", "blocked"), 0);
  EXPECT_GT(number(lazy, "A", "blocked"), 10);
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
  const std::string file = testing::TempDir() + "/jiffy_random.json";
  std::ofstream(file) << R"({"question": "?", "for": "20ms", "cpus": 2, "fibers": [
      {"name": "a", "do": [{"run": ["10us", "900us"]}, {"sleep": ["10us", "900us"]}]},
      {"name": "b", "do": [{"run": ["10us", "900us"]}, {"sleep": ["10us", "900us"]}]},
      {"name": "c", "do": [{"run": ["10us", "900us"]}, {"wake": "d"}]},
      {"name": "d", "do": [{"wait": true}, {"run": ["10us", "900us"]}]}]})";
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

// --- Bad files: what is wrong, and the error that says so.

struct BadFile {
  const char* text;
  const char* error;
};
constexpr BadFile kBadFiles[] = {
    {"{\"question\": \"?\",\n \"for\": }", "line 2, column 9"},
    {R"({"for": "1ms", "fibers": []})", "the key \"question\" is missing"},
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
  const std::string file = testing::TempDir() + "/jiffy_bad.json";
  for (const BadFile& bad : kBadFiles) {
    std::ofstream(file) << bad.text;
    const Outcome o = run("sim " + file);
    EXPECT_EQ(o.exit_code, 2) << bad.text;
    EXPECT_TRUE(contains(o.err, file + ": ")) << o.err;
    EXPECT_TRUE(contains(o.err, bad.error)) << bad.text << "\n" << o.err;
  }
  const Outcome missing = run("sim /nowhere.json");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_TRUE(contains(missing.err, "cannot read /nowhere.json: No such file")) << missing.err;
}

}  // namespace
}  // namespace jiffy
