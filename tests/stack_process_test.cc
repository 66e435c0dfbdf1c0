// Stacks: their size, their guards, what happens at their end and when no more can be had.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <jiffy/fiber.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/time.h>
#include <jiffy/timer.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "fiber/fiber.h"
#include "fiber/stack_pool.h"
#include "fiber/tcb.h"
#include "sched/runtime_state.h"

namespace jiffy {
namespace {

using std::chrono_literals::operator""ms;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

Options one_cpu() {
  Options options;
  options.cpus = 1;
  return options;
}

// What the kernel says to a read of that byte: it never faults us.
bool readable(int pipe_end, const void* address) {
  return write(pipe_end, address, 1) == 1 || errno != EFAULT;
}

// Takes at least `bytes` of stack, frame by frame, and returns how much.
[[gnu::noinline]] size_t descend(const char* top, size_t bytes) {
  volatile char frame[256];
  frame[0] = 1;
  const auto used = static_cast<size_t>(top - const_cast<const char*>(&frame[0]));
  if (used >= bytes) return used;
  const size_t deepest = descend(top, bytes);
  return frame[0] == 1 ? deepest : 0;  // after the call: not a tail call
}

size_t use_stack(size_t bytes) {
  return descend(static_cast<const char*>(__builtin_frame_address(0)), bytes);
}

class StackDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

// --- Its end.

// Not under a sanitizer: those report such a fault in their own words.
TEST_F(StackDeathTest, OverflowIsReportedWithTheFibersNameAndKills) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's own stack check comes first";
  const auto overflow = [] {
    Runtime rt(one_cpu());
    SpawnOptions options;
    options.name = "tower";
    rt.run([] { (void)use_stack(1 << 20); }, options);
  };
  EXPECT_EXIT(overflow(), testing::KilledBySignal(SIGSEGV),
              "stack overflow in fiber 'tower' \\([0-9]+\\) on Cpu 0.*stack_size");
}

TEST_F(StackDeathTest, OverflowOfAnOddSizedStackIsReportedToo) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's own stack check comes first";
  const auto overflow = [] {
    Runtime rt(one_cpu());
    SpawnOptions options;
    options.name = "annex";
    options.stack_size = 100'001;
    rt.run([] { (void)use_stack(1 << 20); }, options);
  };
  EXPECT_EXIT(overflow(), testing::KilledBySignal(SIGSEGV), "stack overflow in fiber 'annex'");
}

// Its handlers run with the fiber's own thread-local words.
TEST_F(StackDeathTest, OverflowOfAPreemptibleFiberIsReportedToo) {
  if (const Status support = tcb_support(); !support.ok()) GTEST_SKIP() << support.message();
  const auto overflow = [] {
    Options options = Options::preemptible();
    options.cpus = 1;
    Runtime rt(options);
    rt.run([] { (void)use_stack(1 << 20); }, SpawnOptions{.name = "spire"});
  };
  EXPECT_EXIT(overflow(), testing::KilledBySignal(SIGSEGV),
              "stack overflow in fiber 'spire' \\([0-9]+\\) on Cpu 0.*stack_size");
}

// A fault elsewhere is no overflow, and must not be called one.
TEST_F(StackDeathTest, OtherFaultsKillWithoutOurMessage) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer reports it";
  const auto fault = [] {
    Runtime rt(one_cpu());
    volatile uintptr_t nowhere = 8;
    rt.run([&nowhere] { *reinterpret_cast<volatile int*>(nowhere) = 1; });
  };
  EXPECT_EXIT(fault(), testing::KilledBySignal(SIGSEGV), "^$");
}

TEST(Stack, EachUnitOfEachSlabHasAGuardBelow) {
  int null_pipe[2];
  ASSERT_EQ(pipe2(null_pipe, O_NONBLOCK), 0);
  for (const bool mprotect_guards : {false, true}) {
    Options options = one_cpu();
    options.force_mprotect_guards = mprotect_guards;
    Runtime rt(options);
    Semaphore leave;
    std::vector<JoinHandle<void>> fibers;
    (void)rt.start();
    for (int i = 0; i < 200; ++i) {  // some slabs
      SpawnOptions spawn_options;
      if (i % 10 == 0) spawn_options.stack_size = 10'000;
      fibers.push_back(rt.spawn([&leave] { leave.acquire(); }, spawn_options));
    }
    for (auto& fiber : fibers) {
      ASSERT_TRUE(fiber.valid()) << fiber.error();
      const char* bottom = static_cast<const char*>(fiber.native()->context.stack_bottom);
      EXPECT_FALSE(readable(null_pipe[1], bottom - 1));
      EXPECT_FALSE(readable(null_pipe[1], bottom - sysconf(_SC_PAGESIZE)));
      EXPECT_TRUE(readable(null_pipe[1], bottom));
    }
    leave.release(static_cast<int64_t>(fibers.size()));
    for (auto& fiber : fibers) fiber.join();
  }
  close(null_pipe[0]);
  close(null_pipe[1]);
}

// --- Its size.

class StackOfSize : public testing::TestWithParam<size_t> {};

// What a caller asks for is what its function can use, whatever the unit needs besides.
TEST_P(StackOfSize, AllOfItIsUsable) {
  const size_t size = GetParam();
  SpawnOptions options;
  options.stack_size = size;
  Runtime rt(one_cpu());
  // Several: the units of a slab lie differently.
  for (int i = 0; i < 9; ++i) {
    // Not the very last bytes: the frame that finds out that it is deep enough is one too many.
    EXPECT_GE(rt.run([size] { return use_stack(size - 512); }, options), size - 512);
  }
}

TEST_P(StackOfSize, AllOfItIsUsableAsTheRuntimesDefault) {
  Options options = one_cpu();
  options.stack_size = GetParam();
  // Of the runtime's own fibers too, which must do with it.
  Runtime rt(options);
  const size_t size = GetParam();
  EXPECT_GE(rt.run([size] { return use_stack(size - 512); }), size - 512);
}

// The least, odd ones, a page more and less, the default, and a large one.
INSTANTIATE_TEST_SUITE_P(Sizes, StackOfSize,
                         testing::Values(kSanitized ? 16384 : 4096, kSanitized ? 16385 : 4097,
                                         20'000, 65535, 65536, 65537, 100'001, 1'000'000),
                         [](const auto& param) { return std::to_string(param.param); });

TEST(Stack, LargeClosuresDoNotTakeItAway) {
  struct Large {
    char bytes[900];
  };
  constexpr size_t kSize = 16'384;
  SpawnOptions options;
  options.stack_size = kSize;
  Runtime rt(one_cpu());
  const Large large{};
  const auto dig = [large] { return use_stack(kSize - 512) + static_cast<size_t>(large.bytes[0]); };
  EXPECT_GE(rt.run(dig, options), kSize - 512);
}

// Units of one size go back to their own, and what a fiber gets is what it asked for: the default
// by its number is the default, and nobody gets the unit of a smaller one.
TEST(Stack, SizesMixedInOneRuntimeAreEachTheirOwn) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t least = kSanitized ? 16'384 : 4096;
  const size_t sizes[] = {least, 20'000, 32'768, 65'535, 65'536, 0, 65'537, 100'001, 300'000};
  Runtime rt(one_cpu());
  (void)rt.start();
  std::mt19937 random(1);
  const auto round = [&](auto spawn_one) {
    std::vector<JoinHandle<void>> fibers;
    for (int i = 0; i < 40; ++i) {
      SpawnOptions options;
      options.stack_size = sizes[random() % std::size(sizes)];
      const size_t size = options.stack_size != 0 ? options.stack_size : 65'536;
      fibers.push_back(spawn_one(
          [size] {
            yield();
            EXPECT_GE(use_stack(size - 512), size - 512);
          },
          options));
      ASSERT_TRUE(fibers.back().valid()) << fibers.back().error();
      const Context& context = fibers.back().native()->context;
      EXPECT_GE(context.stack_size, size);
      EXPECT_LE(context.stack_size, size + 3 * page) << "not much more, either";
    }
    std::shuffle(fibers.begin(), fibers.end(), random);
    for (auto& fiber : fibers) fiber.join();
  };
  for (int i = 0; i < 10; ++i) {
    round([&](auto fn, const SpawnOptions& o) { return rt.spawn(fn, o); });
    rt.run([&] { round([](auto fn, const SpawnOptions& o) { return spawn(fn, o); }); });
  }
}

// --- Many of them.

bool kernel_has_guard_regions() {
  constexpr int kGuardInstall = 102;  // MADV_GUARD_INSTALL
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool has = madvise(memory, page, kGuardInstall) == 0;
  munmap(memory, page);
  return has;
}

long max_map_count() {
  long value = 0;
  if (std::FILE* file = std::fopen("/proc/sys/vm/max_map_count", "re")) {
    if (std::fscanf(file, "%ld", &value) != 1) value = 0;
    std::fclose(file);
  }
  return value;
}

struct Crowd {
  std::vector<JoinHandle<void>> suspended;
  std::string error;  // of the first spawn that failed
};

// Up to `wanted` fibers that all sleep at the same time; then all are ended and joined.
Crowd gather(Runtime& rt, int wanted) {
  Semaphore leave, arrived;
  Crowd crowd;
  for (int i = 0; i < wanted; ++i) {
    auto fiber = rt.spawn([&] {
      arrived.release();
      leave.acquire();
    });
    if (!fiber.valid()) {
      crowd.error = fiber.error();
      break;
    }
    crowd.suspended.push_back(std::move(fiber));
  }
  for (size_t i = 0; i < crowd.suspended.size(); ++i) arrived.acquire();
  leave.release(static_cast<int64_t>(crowd.suspended.size()));
  for (auto& fiber : crowd.suspended) fiber.join();
  return crowd;
}

constexpr int kMany =
    40'000;  // guarded by mappings they would need 80,000; the default limit is 65,530

TEST(ManyStacks, GuardRegionsNeedNoMappings) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own record of so many stacks is too large";
  if (!kernel_has_guard_regions()) GTEST_SKIP() << "needs MADV_GUARD_INSTALL (Linux 6.13)";
  Runtime rt(one_cpu());
  (void)rt.start();
  const Crowd crowd = gather(rt, kMany);
  EXPECT_EQ(crowd.error, "");
  EXPECT_EQ(crowd.suspended.size(), static_cast<size_t>(kMany));
}

size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

// The same where vm.max_map_count is high.
TEST(ManyStacks, ThousandsShareAMapping) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer adds mappings of its own";
  if (!kernel_has_guard_regions()) GTEST_SKIP() << "needs MADV_GUARD_INSTALL (Linux 6.13)";
  Runtime rt(one_cpu());
  (void)rt.start();
  Semaphore leave;
  std::vector<JoinHandle<void>> fibers;
  const size_t before = count_mappings();
  for (int i = 0; i < 5000; ++i) {
    fibers.push_back(rt.spawn([&leave] { leave.acquire(); }));
    ASSERT_TRUE(fibers.back().valid()) << fibers.back().error();
  }
  EXPECT_LT(count_mappings() - before, 500u) << "two each would be 10,000";
  leave.release(static_cast<int64_t>(fibers.size()));
  for (auto& fiber : fibers) fiber.join();
}

TEST(ManyStacks, WithGuardMappingsTheErrorNamesTheLimitAndNothingElseFails) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own record of so many stacks is too large";
  if (max_map_count() > 2 * kMany) GTEST_SKIP() << "vm.max_map_count is " << max_map_count();
  Options options = one_cpu();
  options.force_mprotect_guards = true;
  Runtime rt(options);
  (void)rt.start();
  const Crowd crowd = gather(rt, kMany);
  EXPECT_NE(crowd.error.find("vm.max_map_count"), std::string::npos) << crowd.error;
  EXPECT_GT(crowd.suspended.size(), static_cast<size_t>(max_map_count()) / 4);
  // Those that ended made room.
  EXPECT_EQ(gather(rt, 1000).error, "");
}

// --- None to be had.

class NoStacks : public testing::Test {
 protected:
  NoStacks() : rt_(one_cpu()) {
    (void)rt_.start();
    // The one of the fiber that looks on, before they run out.
    sleeper_ = rt_.spawn([this] {
      while (!over_.load()) {
        (void)sleep_for(1ms);
        ++naps_;
      }
    });
  }
  ~NoStacks() override {
    over_ = true;
    sleeper_.join();
  }

  // The fiber that sleeps goes on, and a timer fires.
  void expect_timers_fire() {
    const int before = naps_.load();
    for (int i = 0; i < 5000 && naps_.load() < before + 3; ++i) usleep(1000);
    EXPECT_GE(naps_.load(), before + 3);
  }

  void run_out() { rt_.state().stacks->fail_next(1'000'000'000); }
  void recover() { rt_.state().stacks->fail_next(0); }

  Runtime rt_;
  std::atomic<bool> over_{false};
  std::atomic<int> naps_{0};
  JoinHandle<void> sleeper_;
};

TEST_F(NoStacks, SpawnOfAPlainThreadSaysWhyAndTimersStillFire) {
  run_out();
  auto fiber = rt_.spawn([] { return 1; });
  EXPECT_FALSE(fiber.valid());
  EXPECT_NE(fiber.error().find("cannot map another slab of fiber stacks"), std::string::npos)
      << fiber.error();
  expect_timers_fire();
  recover();
  EXPECT_EQ(rt_.run([] { return 2; }), 2);
}

TEST_F(NoStacks, SpawnOfAFiberSaysWhyAndTimersStillFire) {
  std::atomic<bool> failed{false}, checked{false};
  auto spawner = rt_.spawn([&] {
    run_out();
    // What its Cpu has in its cache is handed out first.
    Semaphore leave;
    std::vector<JoinHandle<void>> last;
    for (;;) {
      auto fiber = spawn([&leave] { leave.acquire(); });
      if (!fiber.valid()) {
        EXPECT_NE(fiber.error().find("cannot map another slab"), std::string::npos)
            << fiber.error();
        break;
      }
      last.push_back(std::move(fiber));
      if (last.size() > 10'000) {
        ADD_FAILURE() << "spawns still succeed";
        break;
      }
    }
    failed = true;
    while (!checked.load()) (void)sleep_for(1ms);
    leave.release(static_cast<int64_t>(last.size()));
    for (auto& fiber : last) fiber.join();
    recover();
    spawn([] {}).join();
  });
  while (!failed.load()) usleep(1000);
  expect_timers_fire();
  checked = true;
  spawner.join();
}

TEST_F(NoStacks, DetachAndDestructionOfAFailedHandleDoNothing) {
  run_out();
  rt_.spawn([] {}).detach();
  {
    auto dropped = rt_.spawn([] {});
  }
  recover();
  rt_.run([] {});
}

TEST_F(StackDeathTest, JoinOfAFailedSpawnAbortsWithItsError) {
  const auto join_failed = [] {
    Runtime rt(one_cpu());
    (void)rt.start();
    SpawnOptions options;
    options.stack_size = 1;
    rt.spawn([] {}, options).join();
  };
  EXPECT_DEATH(join_failed(), "holds no fiber: its spawn failed: stack_size 1 is too small");
}

}  // namespace
}  // namespace jiffy
