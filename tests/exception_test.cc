// The state of exceptions in flight belongs to the fiber: switches inside catch blocks, inside
// destructors during unwinding, nested, among many fibers of one Cpu, and from Cpu to Cpu.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>
#include <jiffy/semaphore.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "fiber/tcb.h"
#include "support/migrate.h"
#include "support/runtimes.h"
#include "support/sanitizer.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

// An exception that knows whose it is; its payload makes a use after free visible.
struct Mine : std::runtime_error {
  Mine(uint64_t fiber, int n)
      : std::runtime_error("fiber " + std::to_string(fiber)), owner(fiber), depth(n) {}
  uint64_t owner;
  int depth;
  std::shared_ptr<std::string> payload = std::make_shared<std::string>(100, 'x');
};

// How the fiber gives up its Cpu in the middle of all that.
using Switch = void (*)();
void by_yield() { yield(); }
void by_sleep() { (void)sleep_for(10us); }
void by_join() {
  spawn([] { yield(); }).join();
}
void by_migration() { ASSERT_TRUE(migrate()); }

Mine make_mine(int depth) { return Mine(this_fiber::id(), depth); }

void expect_mine(const Mine& e, int depth) {
  EXPECT_EQ(e.owner, this_fiber::id());
  EXPECT_EQ(e.depth, depth);
  EXPECT_EQ(*e.payload, std::string(100, 'x'));
}

// --- The rows of the matrix. Each is one fiber's life.

void in_catch(Switch give_up) {
  try {
    throw make_mine(1);
  } catch (const Mine& e) {
    EXPECT_EQ(std::uncaught_exceptions(), 0);
    const Mine* before = &e;
    give_up();
    expect_mine(e, 1);
    EXPECT_EQ(std::uncaught_exceptions(), 0);
    try {
      throw;  // the current one, not that of whoever ran meanwhile
    } catch (const Mine& again) {
      EXPECT_EQ(&again, before);
      give_up();
      expect_mine(again, 1);
    }
  }
  EXPECT_EQ(std::current_exception(), nullptr);
}

// A destructor that gives up the Cpu while its frame is unwound.
struct SwitchesInDestructor {
  Switch give_up;
  int uncaught;
  ~SwitchesInDestructor() {
    EXPECT_EQ(std::uncaught_exceptions(), uncaught);
    give_up();
    EXPECT_EQ(std::uncaught_exceptions(), uncaught);
  }
};

void in_unwinding(Switch give_up) {
  try {
    const SwitchesInDestructor outer{give_up, 1};
    const SwitchesInDestructor inner{give_up, 1};
    throw make_mine(2);
  } catch (const Mine& e) {
    expect_mine(e, 2);
    EXPECT_EQ(std::uncaught_exceptions(), 0);
  }
  const SwitchesInDestructor calm{give_up, 0};
}

// A destructor that itself throws and catches while another exception is in flight.
struct ThrowsInDestructor {
  Switch give_up;
  ~ThrowsInDestructor() {
    try {
      const SwitchesInDestructor guard{give_up, 2};
      throw make_mine(4);
    } catch (const Mine& e) {
      give_up();
      expect_mine(e, 4);
      EXPECT_EQ(std::uncaught_exceptions(), 1);
    }
  }
};

void throw_during_unwinding(Switch give_up) {
  try {
    const ThrowsInDestructor thrower{give_up};
    throw make_mine(3);
  } catch (const Mine& e) {
    give_up();
    expect_mine(e, 3);
  }
}

void nested_three_deep(Switch give_up) {
  try {
    throw make_mine(1);
  } catch (const Mine& first) {
    give_up();
    try {
      throw make_mine(2);
    } catch (const Mine& second) {
      give_up();
      try {
        throw make_mine(3);
      } catch (const Mine& third) {
        give_up();
        expect_mine(third, 3);
      }
      give_up();
      expect_mine(second, 2);
      EXPECT_THROW(throw, Mine);
    }
    give_up();
    expect_mine(first, 1);
    try {
      throw;
    } catch (const Mine& again) {
      EXPECT_EQ(&again, &first);
    }
  }
}

void current_exception_is_kept(Switch give_up) {
  std::exception_ptr held;
  try {
    throw make_mine(5);
  } catch (...) {
    held = std::current_exception();
    give_up();
    EXPECT_EQ(std::current_exception(), held);
  }
  EXPECT_EQ(std::current_exception(), nullptr);
  give_up();
  try {
    std::rethrow_exception(held);
  } catch (const Mine& e) {
    give_up();
    expect_mine(e, 5);
  }
}

void child_starts_clean(Switch give_up) {
  try {
    throw make_mine(6);
  } catch (const Mine& e) {
    spawn([] {
      EXPECT_EQ(std::uncaught_exceptions(), 0);
      EXPECT_EQ(std::current_exception(), nullptr);
    }).join();
    give_up();
    expect_mine(e, 6);
  }
}

// The exception of a fiber may be caught by its joiner, in a catch block of its own.
void joined_in_catch(Switch give_up) {
  try {
    throw make_mine(7);
  } catch (const Mine& own) {
    try {
      spawn(
          [give_up] {
            const SwitchesInDestructor guard{give_up, 1};
            throw std::logic_error("the child's");
          },
          migratable())
          .join();
      ADD_FAILURE() << "join() returned";
    } catch (const std::logic_error& e) {
      give_up();
      EXPECT_STREQ(e.what(), "the child's");
    }
    expect_mine(own, 7);
  }
}

struct Row {
  const char* name;
  void (*life)(Switch);
};
constexpr Row kRows[] = {
    {"in a catch block", in_catch},
    {"in a destructor during unwinding", in_unwinding},
    {"throwing during unwinding", throw_during_unwinding},
    {"nested three deep", nested_three_deep},
    {"std::current_exception()", current_exception_is_kept},
    {"a child of a catch block", child_starts_clean},
    {"a child's exception joined in a catch block", joined_in_catch},
};

// Runs each row in `fibers` fibers at once, then all rows mixed.
void run_matrix(Runtime& rt, int fibers, const SpawnOptions& options, Switch give_up) {
  const auto run = [&](const std::function<const Row&(int)>& row_of) {
    rt.run(
        [&] {
          Scope scope;
          for (int i = 0; i < fibers; ++i) {
            const Status status = scope.spawn(
                [&row = row_of(i), give_up] {
                  EXPECT_EQ(std::uncaught_exceptions(), 0) << "at the start of a fiber";
                  EXPECT_EQ(std::current_exception(), nullptr) << "at the start of a fiber";
                  row.life(give_up);
                  EXPECT_EQ(std::uncaught_exceptions(), 0) << row.name;
                },
                options);
            ASSERT_TRUE(status.ok()) << status.message();
          }
          scope.join();
        },
        migratable());
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    run([&row](int) -> const Row& { return row; });
  }
  SCOPED_TRACE("all at once");
  run([](int i) -> const Row& { return kRows[static_cast<size_t>(i) % std::size(kRows)]; });
}

class ExceptionTest : public ::testing::TestWithParam<MachineKind> {};
INSTANTIATE_TEST_SUITE_P(, ExceptionTest, kBothMachines, kMachineNames);

TEST_P(ExceptionTest, StateIsTheFibersAcrossYieldsOnOneCpu) {
  CheckedRuntime rt(GetParam(), 1);
  run_matrix(*rt, 60, {}, by_yield);
}

TEST_P(ExceptionTest, StateIsTheFibersAcrossSleepsOnOneCpu) {
  CheckedRuntime rt(GetParam(), 1);
  run_matrix(*rt, 60, {}, by_sleep);
}

TEST_P(ExceptionTest, StateIsTheFibersAcrossJoins) {
  CheckedRuntime rt(GetParam(), 2);
  run_matrix(*rt, 30, {}, by_join);
}

TEST_P(ExceptionTest, StateTravelsWithTheFiberToAnotherCpu) {
  CheckedRuntime rt(migrating_options(options_for(GetParam(), 2)));
  run_matrix(*rt, 1, migratable(), by_migration);
  EXPECT_GT(rt->counters().at(Counter::kMigrations), 20u);
}

TEST_P(ExceptionTest, StateTravelsAmongManyMigratingFibers) {
  CheckedRuntime rt(migrating_options(options_for(GetParam(), 3)));
  run_matrix(*rt, kSlowdown > 1 ? 30 : 60, migratable(), by_sleep);
}

// A fiber that sleeps in a catch block and never sees the exception's end while others come and go:
// their exception objects are allocated and freed around it.
TEST_P(ExceptionTest, HeldExceptionSurvivesThousandsOfOthers) {
  CheckedRuntime rt(GetParam(), 1);
  rt->run([] {
    Semaphore go;
    auto holder = spawn([&go] {
      try {
        throw make_mine(8);
      } catch (const Mine& e) {
        go.acquire();
        expect_mine(e, 8);
        EXPECT_THROW(throw, Mine);
      }
    });
    for (int i = 0; i < 2000; ++i) {
      EXPECT_THROW(spawn([i] {
                     try {
                       throw make_mine(i);
                     } catch (const Mine& e) {
                       yield();
                       expect_mine(e, i);
                       throw;
                     }
                   }).join(),
                   Mine);
    }
    go.release();
    holder.join();
  });
}

TEST_P(ExceptionTest, ThreadsOwnStateIsUntouchedByTheFibersItWaitsFor) {
  CheckedRuntime rt(GetParam(), 2);
  try {
    throw make_mine(9);
  } catch (const Mine& e) {
    EXPECT_THROW(rt->run([] { throw std::logic_error("inside"); }), std::logic_error);
    EXPECT_EQ(e.depth, 9);
    EXPECT_THROW(throw, Mine);
  }
  EXPECT_EQ(std::uncaught_exceptions(), 0);
}

// The same of fibers that are interrupted anywhere, in the unwinder too.
TEST(ExceptionPreemptible, StateIsTheFibersWhereverItIsPreempted) {
  if (const Status support = tcb_support(); !support.ok()) GTEST_SKIP() << support.message();
  Options options = Options::preemptible();
  options.cpus = 2;
  options.hz = 10'000;
  options.spin_us = 0;
  CheckedRuntime rt(options);
  for (const Switch give_up : {by_yield, by_sleep, by_join}) run_matrix(*rt, 30, {}, give_up);
}

// --- Stacks that exceptions left.

[[gnu::noinline]] int throw_at_depth(int depth) {
  volatile char frame[200];
  frame[depth % 200] = static_cast<char>(depth);
  if (depth == 0) throw make_mine(0);
  return throw_at_depth(depth - 1) + frame[depth % 200];
}

[[gnu::noinline]] int touch_most_of_the_stack() {
  volatile char all[40'000];
  for (size_t i = 0; i < sizeof all; ++i) all[i] = static_cast<char>(i);
  return all[sizeof all / 2];
}

// The frames that the exception passed end without their own last instructions, which take back
// what the address sanitizer marked.
TEST_P(ExceptionTest, StackThatAnExceptionLeftIsCleanForTheNextFiber) {
  CheckedRuntime rt(GetParam(), 1);
  rt->run([] {
    const auto here = [] { return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); };
    int same = 0;
    for (int i = 0; i < 50; ++i) {
      uintptr_t first = 0, second = 0;
      EXPECT_THROW(spawn([&] {
                     first = here();
                     (void)throw_at_depth(60);
                   }).join(),
                   Mine);
      spawn([&] {
        second = here();
        EXPECT_EQ(touch_most_of_the_stack(), static_cast<char>(20'000));
      }).join();
      same += std::max(first, second) - std::min(first, second) < 4096 ? 1 : 0;
    }
    EXPECT_GT(same, 0) << "the second fiber should have the stack of the first";
  });
}

// The address sanitizer, where it is not told of a switch, says that it ignores a throw.
TEST(ExceptionDeathTest, SanitizersHaveNothingToSayOfFibersThatThrow) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        testing::internal::CaptureStderr();
        {
          Runtime rt(host_options(2));
          for (int i = 0; i < 20; ++i) {
            try {
              rt.run(
                  [] {
                    in_unwinding(by_sleep);
                    (void)throw_at_depth(60);
                  },
                  migratable());
            } catch (const Mine&) {
            }
          }
        }
        const std::string text = testing::internal::GetCapturedStderr();
        std::fputs(text.c_str(), stderr);
        std::exit(text.empty() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// --- Who switches the state.

// Boost's own classes switch it too, since 1.88, and twice corrupts the count: only the raw jump,
// which never does, may be used.
TEST(ExceptionState, OfBoostOnlyTheRawJumpIsUsed) {
  namespace fs = std::filesystem;
  const fs::path runtime = fs::path(__FILE__).parent_path().parent_path() / "runtime";
  if (!fs::exists(runtime)) GTEST_SKIP() << "the sources are not at " << runtime;
  int includes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(runtime)) {
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      if (line.find("#include <boost/") == std::string::npos) continue;
      ++includes;
      EXPECT_EQ(line, "#include <boost/context/detail/fcontext.hpp>") << entry.path();
    }
  }
  EXPECT_EQ(includes, 1);
}

}  // namespace
}  // namespace jiffy
