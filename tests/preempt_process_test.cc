// What asynchronous preemption stands on: with each piece the program lives, without it the fault
// that it is for appears. Each in a child process, which may crash or hang.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/time.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/context/detail/fcontext.hpp>
#include <csignal>
#include <functional>
#include <mutex>
#include <thread>

#include "cpu/this_cpu.h"
#include "fiber/fiber.h"
#include "fiber/tcb.h"
#include "support/hostile.h"

namespace jiffy {
namespace {

using std::chrono_literals::operator""ms;

enum class Fate : uint8_t { kLived, kFailed, kDied, kHung };

// Runs body() in a child, which says by returning true that all is well.
Fate fate_of(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    // Its crash is expected: no core file, no words.
    struct sigaction none = {};
    none.sa_handler = SIG_DFL;
    sigaction(SIGABRT, &none, nullptr);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(2);
    _exit(body() ? 0 : 1);
  }
  constexpr int kPatienceMs = 10'000;
  int status = 0;
  for (int waited = 0; waitpid(child, &status, WNOHANG) == 0; waited += 5) {
    if (waited > kPatienceMs) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return Fate::kHung;
    }
    usleep(5000);
  }
  if (WIFSIGNALED(status)) return Fate::kDied;
  return WEXITSTATUS(status) == 0 ? Fate::kLived : Fate::kFailed;
}

Options options_with(const PreemptChecks& checks, int cpus = 1) {
  Options options = Options::preemptible();
  options.cpus = cpus;
  options.hz = 10'000;
  options.spin_us = 0;
  options.preempt_checks = checks;
  return options;
}

class PreemptChecksTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status support = tcb_support(); !support.ok()) GTEST_SKIP() << support.message();
  }
};

void burn(std::chrono::nanoseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// --- Thread control blocks.

bool run_hostile(const PreemptChecks& checks) {
  Runtime rt(options_with(checks));
  if (!rt.start().ok()) return false;
  std::vector<JoinHandle<void>> fibers;
  std::vector<std::unique_ptr<HostileRun>> runs;
  for (const Hostile& workload : hostile_workloads()) {
    for (int i = 0; i < 2; ++i) {
      runs.push_back(std::make_unique<HostileRun>());
      HostileRun& run = *runs.back();
      run.file = "/dev/null";
      fibers.push_back(rt.spawn([&] { workload.run(run, runs.size()); }));
    }
  }
  std::this_thread::sleep_for(1500ms);
  bool well = true;
  for (auto& run : runs) run->stop = true;
  for (auto& fiber : fibers) fiber.join();
  for (auto& run : runs) well = well && run->error.load() == nullptr;
  return well;
}

TEST_F(PreemptChecksTest, WithoutThreadControlBlocksTheLibraryBreaks) {
  EXPECT_EQ(fate_of([] { return run_hostile({}); }), Fate::kLived);
  EXPECT_NE(fate_of([] { return run_hostile({.own_tls = false}); }), Fate::kLived);
}

TEST_F(PreemptChecksTest, WithoutTheCountTheRuntimeBreaks) {
  const auto body = [](const PreemptChecks& checks) {
    Runtime rt(options_with(checks, 2));
    if (!rt.start().ok()) return false;
    std::atomic<bool> stop{false};
    Semaphore ping, pong;
    std::vector<JoinHandle<void>> fibers;
    for (int i = 0; i < 4; ++i) {
      fibers.push_back(rt.spawn([&] {
        while (!stop) {
          ping.release();
          (void)pong.acquire(Until(now() + 1ms));
          yield();
        }
      }));
      fibers.push_back(rt.spawn([&] {
        while (!stop) {
          (void)ping.acquire(Until(now() + 1ms));
          pong.release();
          spawn([] {}).join();
        }
      }));
    }
    std::this_thread::sleep_for(1500ms);
    stop = true;
    for (auto& fiber : fibers) fiber.join();
    return true;
  };
  EXPECT_EQ(fate_of([&] { return body({}); }), Fate::kLived);
  EXPECT_NE(fate_of([&] { return body({.count = false}); }), Fate::kLived);
}

// --- The stack.

// Uses all of the stack but `left` bytes, and stays there for a while.
[[gnu::noinline]] size_t linger_deep(const char* bottom, size_t left) {
  volatile char frame[128];
  frame[0] = 1;
  if (static_cast<size_t>(const_cast<const char*>(frame) - bottom) <= left) {
    burn(300ms);
    return frame[0];
  }
  return linger_deep(bottom, left) + frame[0];
}

bool two_deep_fibers(const PreemptChecks& checks, size_t left) {
  Options options = options_with(checks);
  options.stack_size = 32 * 1024;
  Runtime rt(options);
  if (!rt.start().ok()) return false;
  const auto body = [left] {
    const char* bottom = static_cast<const char*>(current_fiber()->context.stack_bottom);
    return linger_deep(bottom, left) > 0;
  };
  auto a = rt.spawn(body), b = rt.spawn(body);
  return a.join() && b.join();
}

TEST_F(PreemptChecksTest, WithoutTheRoomCheckAnInjectedCallOverflowsTheStack) {
  constexpr size_t kTooLittle = 2500;
  EXPECT_EQ(fate_of([] { return two_deep_fibers({}, kTooLittle); }), Fate::kLived);
  EXPECT_EQ(fate_of([] { return two_deep_fibers({.stack_room = false}, kTooLittle); }),
            Fate::kDied);
}

TEST_F(PreemptChecksTest, WithoutTheAlternateStackAHandlerOverflowsTheFibersStack) {
  // Less than the frame of a signal.
  constexpr size_t kTooLittle = 1800;
  EXPECT_EQ(fate_of([] { return two_deep_fibers({}, kTooLittle); }), Fate::kLived);
  EXPECT_EQ(fate_of([] { return two_deep_fibers({.alternate_stack = false}, kTooLittle); }),
            Fate::kDied);
}

// A coroutine of the application's own, on a small stack with a guard.
bool own_stack(const PreemptChecks& checks) {
  namespace ctx = boost::context::detail;
  constexpr size_t kPage = 4096, kSize = 2 * kPage;
  Runtime rt(options_with(checks));
  if (!rt.start().ok()) return false;
  const auto body = [] {
    char* memory = static_cast<char*>(
        mmap(nullptr, kSize + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory, kPage, PROT_NONE);
    const ctx::fcontext_t context =
        ctx::make_fcontext(memory + kPage + kSize, kSize, [](ctx::transfer_t back) {
          burn(300ms);
          ctx::jump_fcontext(back.fctx, nullptr);
        });
    ctx::jump_fcontext(context, nullptr);
    munmap(memory, kSize + kPage);
  };
  auto a = rt.spawn(body), b = rt.spawn(body);
  a.join();
  b.join();
  return true;
}

TEST_F(PreemptChecksTest, WithoutTheStackPointerCheckCodeOnItsOwnStackOverflows) {
  EXPECT_EQ(fate_of([] { return own_stack({}); }), Fate::kLived);
  EXPECT_EQ(fate_of([] { return own_stack({.stack_pointer = false}); }), Fate::kDied);
}

// --- The application's own handlers.

std::atomic<uint64_t> other_ran{0};
std::atomic<bool> interleaved{false};

// On the fiber's stack: no SA_ONSTACK.
void long_handler(int) {
  const uint64_t before = other_ran.load();
  burn(50ms);
  if (other_ran.load() != before) interleaved = true;
}

bool handler_undisturbed(const PreemptChecks& checks) {
  struct sigaction action = {};
  action.sa_handler = long_handler;
  sigaction(SIGUSR1, &action, nullptr);
  Runtime rt(options_with(checks));
  if (!rt.start().ok()) return false;
  std::atomic<bool> stop{false};
  auto other = rt.spawn([&] {
    while (!stop) other_ran.fetch_add(1);
  });
  auto one = rt.spawn([&] {
    for (int i = 0; i < 5; ++i) raise(SIGUSR1);
    stop = true;
  });
  one.join();
  other.join();
  return !interleaved;
}

TEST_F(PreemptChecksTest, WithoutTheMaskCheckAHandlerOfTheApplicationIsPreempted) {
  EXPECT_EQ(fate_of([] { return handler_undisturbed({}); }), Fate::kLived);
  EXPECT_EQ(fate_of([] { return handler_undisturbed({.signal_mask = false}); }), Fate::kFailed);
}

// --- Locks of the library.

// A fair fiber holds a std::mutex when a FIFO fiber of the same Cpu comes to want it.
bool lower_class_holder(const PreemptChecks& checks) {
  Runtime rt(options_with(checks));
  if (!rt.start().ok()) return false;
  std::mutex mutex;
  std::atomic<bool> held{false};
  SpawnOptions fifo;
  fifo.policy = Policy::kFifo;
  auto holder = rt.spawn([&] {
    const std::lock_guard<std::mutex> lock(mutex);
    held = true;
    burn(100ms);
  });
  while (!held) std::this_thread::sleep_for(1ms);
  auto waiter = rt.spawn([&] { const std::lock_guard<std::mutex> lock(mutex); }, fifo);
  waiter.join();
  holder.join();
  return true;
}

TEST_F(PreemptChecksTest, WithoutTheFutexRuleAWaiterOfAHigherClassNeverGetsItsLock) {
  EXPECT_EQ(fate_of([] { return lower_class_holder({}); }), Fate::kLived);
  EXPECT_EQ(fate_of([] { return lower_class_holder({.futex_rule = false}); }), Fate::kHung);
}

}  // namespace
}  // namespace jiffy
