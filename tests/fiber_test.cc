// Fibers: spawning, joining, results and exceptions, what a fiber knows of itself.
#include "fiber/fiber.h"

#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>

#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/runtimes.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

class FiberTest : public ::testing::TestWithParam<MachineKind> {
 protected:
  CheckedRuntime rt_{GetParam(), 2};
};
INSTANTIATE_TEST_SUITE_P(, FiberTest, kBothMachines, kMachineNames);

struct Big {
  std::array<int, 1000> values{};
};

// Notes its end.
struct EndMark {
  explicit EndMark(std::atomic<bool>& flag) : ended(&flag) {}
  EndMark(EndMark&& other) noexcept : ended(std::exchange(other.ended, nullptr)) {}
  ~EndMark() {
    if (ended != nullptr) *ended = true;
  }
  std::atomic<bool>* ended;
};

// --- Results.

TEST_P(FiberTest, JoinReturnsWhatTheClosureReturned) {
  EXPECT_EQ(rt_->spawn([] { return 42; }).join(), 42);
  EXPECT_EQ(rt_->spawn([] { return std::string("text"); }).join(), "text");
  bool ran = false;
  rt_->spawn([&ran] { ran = true; }).join();
  EXPECT_TRUE(ran);
}

TEST_P(FiberTest, ResultAndClosureMayBeMoveOnly) {
  auto number = std::make_unique<int>(7);
  auto handle = rt_->spawn([number = std::move(number)]() mutable { return std::move(number); });
  EXPECT_EQ(*handle.join(), 7);
}

TEST_P(FiberTest, ResultNeedsNoDefaultConstructor) {
  struct Result {
    explicit Result(int v) : value(v) {}
    int value;
  };
  EXPECT_EQ(rt_->spawn([] { return Result(3); }).join().value, 3);
}

TEST_P(FiberTest, LargeClosuresAndResultsArriveWhole) {
  Big big;
  for (size_t i = 0; i < big.values.size(); ++i) big.values[i] = static_cast<int>(i);
  const Big back = rt_->spawn([big] { return big; }).join();
  EXPECT_EQ(back.values, big.values);
}

TEST_P(FiberTest, ClosureAndResultAreAligned) {
  struct alignas(128) Wide {
    char byte = 1;
  };
  Wide wide;
  const auto inside = [wide] {
    const auto address = reinterpret_cast<uintptr_t>(&wide);
    return std::pair(address % alignof(Wide), Wide{});
  };
  EXPECT_EQ(rt_->spawn(inside).join().first, 0u);
}

TEST_P(FiberTest, RunReturnsTheResultAndRethrows) {
  EXPECT_EQ(rt_->run([] { return 5; }), 5);
  EXPECT_THROW(rt_->run([] { throw std::out_of_range("far"); }), std::out_of_range);
}

// --- Exceptions.

TEST_P(FiberTest, JoinRethrowsTheVeryExceptionOfTheFiber) {
  const void* thrown = nullptr;
  auto handle = rt_->spawn([&thrown] {
    try {
      throw std::runtime_error("lost");
    } catch (const std::exception& e) {
      thrown = &e;
      throw;
    }
  });
  try {
    handle.join();
    FAIL() << "join() returned";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "lost");
    EXPECT_EQ(&e, thrown);
  }
  EXPECT_FALSE(handle.valid());
}

TEST_P(FiberTest, AnythingMayBeThrown) {
  EXPECT_THROW(rt_->spawn([] { throw 42; }).join(), int);
  EXPECT_THROW(rt_->spawn([]() -> int { throw std::string("text"); }).join(), std::string);
}

TEST_P(FiberTest, ExceptionPassesThroughAChainOfJoins) {
  const auto chain = [] {
    spawn([] { spawn([] { throw std::logic_error("deep"); }).join(); }).join();
  };
  EXPECT_THROW(rt_->run(chain), std::logic_error);
}

TEST_P(FiberTest, ClosureThatCannotBeCopiedStartsNothing) {
  struct Explosive {
    Explosive() = default;
    Explosive(const Explosive&) { throw std::runtime_error("copy"); }
    void operator()() const {}
  };
  const Explosive closure;
  EXPECT_THROW((void)rt_->spawn(closure), std::runtime_error);
  rt_->run([&closure] { EXPECT_THROW((void)spawn(closure), std::runtime_error); });
}

// --- Lifetimes.

TEST_P(FiberTest, ClosureEndsBeforeJoinReturns) {
  std::atomic<bool> ended{false};
  rt_->spawn([mark = EndMark(ended)] { EXPECT_FALSE(*mark.ended); }).join();
  EXPECT_TRUE(ended);
}

TEST_P(FiberTest, UnclaimedResultEndsWithTheHandle) {
  std::atomic<bool> ended{false};
  {
    auto handle = rt_->spawn([&ended] { return EndMark(ended); });
    EXPECT_EQ(handle.wait(), WaitResult::kReady);
    EXPECT_FALSE(ended);
  }
  EXPECT_TRUE(ended);
}

TEST_P(FiberTest, HandleDestructorJoins) {
  rt_->run([] {
    bool done = false;
    {
      auto handle = spawn([&done] {
        (void)sleep_for(1ms);
        done = true;
      });
    }
    EXPECT_TRUE(done);
  });
}

TEST_P(FiberTest, AssigningToAHandleJoinsWhatItHeld) {
  rt_->run([] {
    bool first = false;
    auto handle = spawn([&first] {
      (void)sleep_for(1ms);
      first = true;
    });
    handle = spawn([] {});
    EXPECT_TRUE(first);
    auto moved = std::move(handle);
    EXPECT_FALSE(handle.valid());
    moved.join();
  });
}

TEST_P(FiberTest, DetachedFiberRunsToItsEnd) {
  Semaphore done;
  std::atomic<bool> ended{false};
  rt_->run([&] {
    spawn([&done, mark = EndMark(ended)] {
      (void)sleep_for(1ms);
      done.release();
    }).detach();
    auto over = spawn([] {});
    EXPECT_EQ(over.wait(), WaitResult::kReady);
    over.detach();  // of one that has ended
    done.acquire();
  });
  rt_.expect_quiet();
  EXPECT_TRUE(ended);
}

TEST_P(FiberTest, WaitOnAHandleHasLimits) {
  rt_->run([] {
    Semaphore go;
    auto handle = spawn([&go] { go.acquire(); });
    EXPECT_EQ(handle.wait(now() + 1ms), WaitResult::kTimeout);
    std::stop_source stop;
    stop.request_stop();
    EXPECT_EQ(handle.wait(stop.get_token()), WaitResult::kStopped);
    EXPECT_TRUE(handle.valid());
    go.release();
    EXPECT_EQ(handle.wait(), WaitResult::kReady);
    EXPECT_EQ(handle.wait(now() - 1s), WaitResult::kReady);
    handle.join();
  });
}

// --- What a fiber knows of itself.

TEST(PlainThread, IsNoFiber) {
  EXPECT_FALSE(this_fiber::on_fiber());
  EXPECT_EQ(this_fiber::id(), 0u);
  EXPECT_STREQ(this_fiber::name(), "");
  EXPECT_EQ(this_fiber::cpu(), -1);
  EXPECT_EQ(this_fiber::stack_high_water(), 0u);
  yield();
  EXPECT_FALSE(cond_resched());
  might_sleep();
}

TEST_P(FiberTest, FiberKnowsItsIdNameCpuAndStack) {
  std::set<uint64_t> ids;
  for (int cpu = 0; cpu < 2; ++cpu) {
    ids.insert(rt_->spawn(
                      [cpu] {
                        EXPECT_TRUE(this_fiber::on_fiber());
                        EXPECT_EQ(this_fiber::cpu(), cpu);
                        EXPECT_STREQ(this_fiber::name(), "a name that is longer t");
                        EXPECT_GT(this_fiber::stack_high_water(), 0u);
                        EXPECT_LE(this_fiber::stack_high_water(), 64u * 1024);
                        return this_fiber::id();
                      },
                      pinned(cpu, "a name that is longer than 23 bytes"))
                   .join());
  }
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_EQ(ids.count(0), 0u);
}

TEST_P(FiberTest, IdsAreUniqueAcrossCpusAndThreads) {
  std::set<uint64_t> ids;
  const auto collect = [](int n, int cpu, auto spawn_one) {
    std::vector<uint64_t> got;
    for (int i = 0; i < n; ++i) {
      got.push_back(spawn_one([] { return this_fiber::id(); }, pinned(cpu)).join());
    }
    return got;
  };
  std::vector<uint64_t> all;
  for (int cpu = 0; cpu < 2; ++cpu) {
    const auto inside = [&] {
      return collect(50, cpu, [](auto fn, const auto& o) { return spawn(fn, o); });
    };
    for (uint64_t id : rt_->run(inside, pinned(cpu))) all.push_back(id);
    for (uint64_t id : collect(50, cpu, [&](auto fn, const auto&o) { return rt_->spawn(fn, o); })) {
      all.push_back(id);
    }
  }
  ids.insert(all.begin(), all.end());
  EXPECT_EQ(ids.size(), all.size());
}

TEST_P(FiberTest, AllowedCpusAreKept) {
  SpawnOptions only;
  only.allowed = {1};
  only.migratable = true;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(rt_->run(
                  [] {
                    (void)sleep_for(10us);
                    return this_fiber::cpu();
                  },
                  only),
              1);
  }
}

TEST_P(FiberTest, DumpShowsEachFiberAndItsState) {
  Semaphore ready, go;
  SpawnOptions options = pinned(1, "sleeper");
  options.kernel_mode = true;
  options.policy = Policy::kFifo;
  options.migratable = true;
  auto sleeper = rt_->spawn(
      [&] {
        ready.release();
        go.acquire();
      },
      options);
  const std::string text = rt_->run(
      [&] {
        ready.acquire();
        // It is asleep as soon as its Cpu switched.
        while (sleeper.native()->state.load() != FiberState::kSleeping) (void)sleep_for(10us);
        (void)sleep_for(100us);
        return rt_->dump();
      },
      pinned(0, "dumper"));
  const auto line_of = [&text](const std::string& name) {
    const size_t at = text.find(" " + name + " ");
    if (at == std::string::npos) return std::string();
    const size_t start = text.rfind('\n', at) + 1;
    return text.substr(start, text.find('\n', at) - start);
  };
  const std::string line = line_of("sleeper");
  for (const char* word : {"Cpu 1", "sleeping", "fifo", "kernel", "migratable"}) {
    EXPECT_NE(line.find(word), std::string::npos) << word << " is missing in: " << line;
  }
  EXPECT_NE(line_of("dumper").find("running"), std::string::npos) << text;
  EXPECT_NE(text.find("ksoftirqd/1"), std::string::npos) << text;
  go.release();
  sleeper.join();
  EXPECT_EQ(rt_->dump().find("sleeper"), std::string::npos) << "an ended fiber is shown";
}

// --- What spawn refuses.

TEST_P(FiberTest, SpawnNamesWhatIsWrongWithItsOptions) {
  struct Row {
    const char* needle;
    void (*change)(SpawnOptions&);
  };
  static constexpr Row kRows[] = {
      {"Cpu 2", [](SpawnOptions& o) { o.cpu = 2; }},
      {"-20 to 19", [](SpawnOptions& o) { o.nice = 20; }},
      {"-20 to 19", [](SpawnOptions& o) { o.nice = -21; }},
      {"1 to 99", [](SpawnOptions& o) { o.policy = Policy::kFifo, o.priority = 0; }},
      {"1 to 99", [](SpawnOptions& o) { o.policy = Policy::kFifo, o.priority = 100; }},
      {"0.1 to 100 ms", [](SpawnOptions& o) { o.slice = 99us; }},
      {"0.1 to 100 ms", [](SpawnOptions& o) { o.slice = 101ms; }},
      {"4096", [](SpawnOptions& o) { o.stack_size = 100; }},
      {"allowed Cpu 7",
       [](SpawnOptions& o) {
         o.allowed = {0, 7};
       }},
  };
  for (const Row& row : kRows) {
    SpawnOptions options;
    row.change(options);
    bool ran = false;
    const auto outside = rt_->spawn([&ran] { ran = true; }, options);
    EXPECT_FALSE(outside.valid());
    EXPECT_NE(outside.error().find(row.needle), std::string::npos) << outside.error();
    rt_->run([&] { EXPECT_FALSE(spawn([&ran] { ran = true; }, options).valid()); });
    EXPECT_FALSE(ran);
  }
}

TEST_P(FiberTest, StoppedRuntimeRefusesSpawnsAndStartsAgain) {
  rt_.finish();
  const auto refused = rt_->spawn([] {});
  EXPECT_FALSE(refused.valid());
  EXPECT_NE(refused.error(), "");
  EXPECT_TRUE(rt_->start().ok());
  EXPECT_EQ(rt_->run([] { return 1; }), 1);
  rt_->stop();
}

// --- Many.

TEST(FiberHost, PlainThreadsSpawnAndJoin) {
  CheckedRuntime rt(MachineKind::kHost, 2);
  std::atomic<int> sum{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&rt, &sum] {
      for (int i = 0; i < 100; ++i) sum += rt->spawn([i] { return i; }).join();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 4 * 4950);
}

TEST_P(FiberTest, FibersSpawnTrees) {
  struct Tree {
    static int leaves(int depth) {
      if (depth == 0) return 1;
      auto left = spawn([depth] { return leaves(depth - 1); });
      auto right = spawn([depth] { return leaves(depth - 1); });
      return left.join() + right.join();
    }
  };
  EXPECT_EQ(rt_->run([] { return Tree::leaves(9); }), 512);
}

TEST_P(FiberTest, AnotherRuntimeMaySpawnAndJoinHere) {
  if (GetParam() == MachineKind::kSim) GTEST_SKIP() << "two simulations do not run each other";
  CheckedRuntime other(MachineKind::kHost, 1);
  EXPECT_EQ(other->run([this] { return rt_->spawn([] { return 9; }).join(); }), 9);
}

// --- What aborts.

class FiberDeathTest : public FiberTest {
 protected:
  FiberDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
INSTANTIATE_TEST_SUITE_P(, FiberDeathTest, ::testing::Values(MachineKind::kHost), kMachineNames);

TEST_P(FiberDeathTest, ExceptionThatNobodyJoinsAbortsWithItsText) {
  EXPECT_DEATH({ auto dropped = rt_->spawn([] { throw std::runtime_error("unheard"); }); },
               "unheard");
  EXPECT_DEATH(
      {
        rt_->spawn([] { throw std::runtime_error("unheard"); }).detach();
        for (;;) std::this_thread::sleep_for(1s);
      },
      "unheard");
}

TEST_P(FiberDeathTest, JoinOfAnEmptyHandleAbortsAndSaysWhy) {
  SpawnOptions bad;
  bad.nice = 99;
  EXPECT_DEATH(rt_->spawn([] {}, bad).join(), "nice 99");
  EXPECT_DEATH(JoinHandle<int>().join(), "joined, detached or moved from");
}

TEST_P(FiberDeathTest, BlockingWhereNothingMayBlockAbortsAndNamesTheFiber) {
  const auto sleep_atomically = [] {
    const PreemptDisabled guard;
    (void)sleep_for(1ms);
  };
  EXPECT_DEATH(rt_->run(sleep_atomically, pinned(0, "culprit")), "culprit");
  EXPECT_DEATH(rt_->run(
                   [] {
                     const PreemptDisabled guard;
                     might_sleep();
                   },
                   pinned(0, "culprit")),
               "culprit");
}

}  // namespace
}  // namespace jiffy
