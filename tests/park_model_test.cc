// How an idle Cpu parks and how it is woken, as a model whose interleavings are all explored.
//
// Each side stores and then looks: the sleeper announces that it parks and looks for work, the
// waker publishes work and looks whether the other is parked. On x86 a store waits in the store
// buffer of its processor while later loads go ahead, so without a full fence in between both sides
// may miss each other, and the work lies there while the Cpu sleeps. The model has such buffers: at
// any time a processor takes its next step or writes the oldest entry of its buffer to memory.
// This is the argument, to the last interleaving; wake_explore_test.cc explores the code itself.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace jiffy {
namespace {

// --- The model: processors with programs of a few instructions over shared words.

enum Word : uint8_t { kWork, kState, kUnparked, kWords };
enum StateValue : uint8_t { kBusyState, kPollingState, kParkedState };

enum class Op : uint8_t {
  kStore,     // word = value, through the store buffer
  kFence,     // waits until the buffer is empty
  kExchange,  // fence, then atomically: reg = word, word = value
  kGotoIf,    // if word == value: jump
  kGotoIfNot,
  kGoto,
  kPark,      // sleeps until kUnparked is 1, then takes it back
  kTakeWork,  // the program ends well: work was found
};

struct Step {
  Op op;
  Word word = kWork;
  uint8_t value = 0;
  uint8_t target = 0;
};
using Program = std::vector<Step>;

struct Processor {
  uint8_t pc = 0;
  std::vector<std::pair<Word, uint8_t>> buffer;  // oldest first
  auto operator<=>(const Processor&) const = default;
};

struct World {
  std::array<uint8_t, kWords> memory{};
  std::vector<Processor> processors;
  auto operator<=>(const World&) const = default;
};

class Explorer {
 public:
  explicit Explorer(std::vector<Program> programs, uint8_t first_state = kBusyState)
      : programs_(std::move(programs)) {
    World start;
    start.memory[kState] = first_state;
    start.processors.resize(programs_.size());
    explore(start);
  }

  // Ways to end with a processor that sleeps for ever, the sleeper being program 0.
  int lost() const { return lost_; }
  int ended_well() const { return ended_well_; }
  size_t states() const { return seen_.size(); }

 private:
  static uint8_t read(const World& world, const Processor& p, Word word) {
    for (auto it = p.buffer.rbegin(); it != p.buffer.rend(); ++it) {
      if (it->first == word) return it->second;  // its own stores first
    }
    return world.memory[word];
  }

  void explore(const World& world) {
    if (!seen_.insert(world).second) return;
    bool moved = false;
    for (size_t i = 0; i < programs_.size(); ++i) {
      const Processor& p = world.processors[i];
      if (!p.buffer.empty()) {
        moved = true;
        World next = world;
        const auto [word, value] = next.processors[i].buffer.front();
        next.processors[i].buffer.erase(next.processors[i].buffer.begin());
        next.memory[word] = value;
        explore(next);
      }
      World next = world;
      if (step(next, i)) {
        moved = true;
        explore(next);
      }
    }
    if (moved) return;
    // Nobody can move: each has ended, or the sleeper sleeps.
    const bool sleeper_ended = world.processors[0].pc >= programs_[0].size();
    ++(sleeper_ended ? ended_well_ : lost_);
  }

  // False if the processor cannot take its next step now.
  bool step(World& world, size_t i) const {
    Processor& p = world.processors[i];
    if (p.pc >= programs_[i].size()) return false;
    const Step& s = programs_[i][p.pc];
    switch (s.op) {
      case Op::kStore:
        p.buffer.emplace_back(s.word, s.value);
        break;
      case Op::kFence:
        if (!p.buffer.empty()) return false;
        break;
      case Op::kExchange:
        if (!p.buffer.empty()) return false;
        world.memory[s.word] = s.value;
        break;
      case Op::kGotoIf:
      case Op::kGotoIfNot:
        if ((read(world, p, s.word) == s.value) == (s.op == Op::kGotoIf)) {
          p.pc = s.target;
          return true;
        }
        break;
      case Op::kGoto:
        p.pc = s.target;
        return true;
      case Op::kPark:
        if (!p.buffer.empty() || world.memory[kUnparked] == 0) return false;
        world.memory[kUnparked] = 0;
        break;
      case Op::kTakeWork:
        if (!p.buffer.empty()) return false;
        p.pc = static_cast<uint8_t>(programs_[i].size());
        return true;
    }
    ++p.pc;
    return true;
  }

  const std::vector<Program> programs_;
  std::set<World> seen_;
  int lost_ = 0;
  int ended_well_ = 0;
};

// --- The idle loop's programs.

// sched/idle.cc: announce, fence, look again, park; after a park, look again.
Program sleeper() {
  return {
      /*0*/ {Op::kGotoIf, kWork, 1, 7},
      /*1*/ {Op::kStore, kState, kParkedState},
      /*2*/ {Op::kFence},
      /*3*/ {Op::kGotoIf, kWork, 1, 5},
      /*4*/ {Op::kPark},
      /*5*/ {Op::kExchange, kState, kBusyState},
      /*6*/ {Op::kGoto, kWork, 0, 0},
      /*7*/ {Op::kTakeWork},
  };
}

// The same, polling first: a waker that sees it poll only stores.
Program polling_sleeper() {
  return {
      /*0*/ {Op::kExchange, kState, kPollingState},
      /*1*/ {Op::kGotoIf, kWork, 1, 7},
      /*2*/ {Op::kStore, kState, kParkedState},
      /*3*/ {Op::kFence},
      /*4*/ {Op::kGotoIf, kWork, 1, 7},
      /*5*/ {Op::kPark},
      /*6*/ {Op::kGoto, kWork, 0, 0},
      /*7*/ {Op::kExchange, kState, kBusyState},
      /*8*/ {Op::kTakeWork},
  };
}

// RunQueue::unlock_and_notify(): publish, fence, look, unpark.
Program waker() {
  return {
      /*0*/ {Op::kStore, kWork, 1},
      /*1*/ {Op::kFence},
      /*2*/ {Op::kGotoIfNot, kState, kParkedState, 4},
      /*3*/ {Op::kExchange, kUnparked, 1},
  };
}

Program without(Program program, size_t step) {
  program[step] = {Op::kGoto, kWork, 0, static_cast<uint8_t>(step + 1)};
  return program;
}

Program swapped(Program program, size_t a, size_t b) {
  std::swap(program[a], program[b]);
  return program;
}

// --- What holds, and what each piece is for.

TEST(ParkModel, NoInterleavingLosesAWakeup) {
  const Explorer one({sleeper(), waker()});
  EXPECT_EQ(one.lost(), 0);
  EXPECT_GT(one.ended_well(), 0);
  EXPECT_GT(one.states(), 30u) << "the model explores something";
  EXPECT_EQ(Explorer({sleeper(), waker(), waker()}).lost(), 0);
}

TEST(ParkModel, NoInterleavingLosesAWakeupOfAPollingCpu) {
  EXPECT_EQ(Explorer({polling_sleeper(), waker()}).lost(), 0);
  EXPECT_EQ(Explorer({polling_sleeper(), waker(), waker()}).lost(), 0);
}

TEST(ParkModel, WakeupBetweenTheStartAndTheFirstParkIsKept) {
  // The waker has run to its end before the sleeper takes its first step: both orders are among the
  // interleavings, here it is the only one.
  const Program prompt_waker = {{Op::kExchange, kWork, 1}};
  EXPECT_EQ(Explorer({sleeper(), prompt_waker}, kParkedState).lost(), 1)
      << "a waker that does not look at the state may come after the last look at the work";
  EXPECT_EQ(Explorer({sleeper(), waker()}, kParkedState).lost(), 0)
      << "an unpark that nobody needed is remembered, not lost";
}

TEST(ParkModel, SleeperWithoutItsFenceLosesAWakeup) {
  EXPECT_GT(Explorer({without(sleeper(), 2), waker()}).lost(), 0);
  EXPECT_GT(Explorer({without(polling_sleeper(), 3), waker()}).lost(), 0);
}

TEST(ParkModel, WakerWithoutItsFenceLosesAWakeup) {
  EXPECT_GT(Explorer({sleeper(), without(waker(), 1)}).lost(), 0);
}

TEST(ParkModel, SleeperThatLooksBeforeItAnnouncesLosesAWakeup) {
  // Steps 1 and 3 the other way round: the last look at the work comes first.
  Program early = swapped(sleeper(), 1, 3);
  EXPECT_GT(Explorer({early, waker()}).lost(), 0);
}

TEST(ParkModel, WakerThatLooksBeforeItPublishesLosesAWakeup) {
  const Program early = {
      /*0*/ {Op::kGotoIf, kState, kParkedState, 3},
      /*1*/ {Op::kStore, kWork, 1},
      /*2*/ {Op::kGoto, kWork, 0, 5},
      /*3*/ {Op::kStore, kWork, 1},
      /*4*/ {Op::kExchange, kUnparked, 1},
  };
  EXPECT_GT(Explorer({sleeper(), early}).lost(), 0);
}

TEST(ParkModel, SleeperThatDoesNotLookAgainLosesAWakeup) {
  EXPECT_GT(Explorer({without(sleeper(), 3), waker()}).lost(), 0);
}

TEST(ParkModel, SequentialConsistencyAloneWouldHideTheMissingFences) {
  // With every store followed by a full fence the variants without the named fence are right: the
  // loss comes from the store buffers, and a test on a machine without them would not see it.
  const auto fenced = [](Program program) {
    for (Step& s : program) {
      if (s.op == Op::kStore) s.op = Op::kExchange;
    }
    return program;
  };
  EXPECT_EQ(Explorer({fenced(without(sleeper(), 2)), fenced(waker())}).lost(), 0);
  EXPECT_EQ(Explorer({fenced(sleeper()), fenced(without(waker(), 1))}).lost(), 0);
}

}  // namespace
}  // namespace jiffy
