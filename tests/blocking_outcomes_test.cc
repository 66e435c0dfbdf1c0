// Every blocking call ends in exactly one way: what it waited for, its deadline, or a stop, in this
// order of precedence. One table of primitives, one of cases, on each machine, from fibers and from
// plain threads.
#include <gtest/gtest.h>
#include <jiffy/condition_variable.h>
#include <jiffy/event_fd.h>
#include <jiffy/mutex.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>
#include <jiffy/semaphore.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/runtimes.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;

// --- The primitives.

class Primitive {
 public:
  virtual ~Primitive() = default;
  // The blocking call.
  virtual WaitResult wait(const Until& until) = 0;
  // Makes what it waits for happen, once. By a fiber or a plain thread.
  virtual void make_ready() {}
  // Blocks until it has happened.
  virtual void settle() {}
};

class MutexWait : public Primitive {
 public:
  explicit MutexWait(Runtime& rt)
      : holder_(rt.spawn([this] {
          const std::lock_guard lock(mutex_);
          held_.release();
          free_.acquire();
        })) {}
  ~MutexWait() override { free_.release(); }
  WaitResult wait(const Until& until) override {
    if (!std::exchange(started_, true)) held_.acquire();
    const WaitResult result = mutex_.lock(until);
    if (result == WaitResult::kReady) mutex_.unlock();
    return result;
  }
  void make_ready() override { free_.release(); }
  void settle() override {
    if (!std::exchange(started_, true)) held_.acquire();
    (void)holder_.wait();
  }

 private:
  Mutex mutex_;
  Semaphore held_, free_;
  bool started_ = false;
  JoinHandle<void> holder_;
};

class ConditionWait : public Primitive {
 public:
  explicit ConditionWait(Runtime&) {}
  WaitResult wait(const Until& until) override {
    std::unique_lock lock(mutex_);
    const WaitResult result = condition_.wait(
        lock, [this] { return tickets_ > 0; }, until);
    if (result == WaitResult::kReady) --tickets_;
    return result;
  }
  void make_ready() override {
    const std::lock_guard lock(mutex_);
    ++tickets_;
    condition_.notify_one();
  }

 private:
  Mutex mutex_;
  ConditionVariable condition_;
  int tickets_ = 0;
};

class SemaphoreWait : public Primitive {
 public:
  explicit SemaphoreWait(Runtime&) {}
  WaitResult wait(const Until& until) override { return semaphore_.acquire(until); }
  void make_ready() override { semaphore_.release(); }

 private:
  Semaphore semaphore_;
};

class EventFdReadWait : public Primitive {
 public:
  explicit EventFdReadWait(Runtime&) {}
  WaitResult wait(const Until& until) override { return event_.read(until).result; }
  void make_ready() override { event_.signal(); }

 private:
  EventFd event_;
};

class EventFdWriteWait : public Primitive {
 public:
  explicit EventFdWriteWait(Runtime&) {}
  WaitResult wait(const Until& until) override {
    switch (event_.write(EventFd::kMax, until)) {
      case EventFd::WriteError::kNone:
        return WaitResult::kReady;
      case EventFd::WriteError::kTimeout:
        return WaitResult::kTimeout;
      case EventFd::WriteError::kStopped:
        return WaitResult::kStopped;
      default:
        ADD_FAILURE() << "an error that a blocking write does not have";
        return WaitResult::kReady;
    }
  }
  void make_ready() override { EXPECT_EQ(event_.try_read().value, EventFd::kMax); }

 private:
  EventFd event_{EventFd::kMax};
};

class QueueWait : public Primitive {
 public:
  explicit QueueWait(Runtime&) {}
  WaitResult wait(const Until& until) override {
    return queue_.wait(
        [this] {
          if (tickets_ == 0) return false;
          --tickets_;
          return true;
        },
        until, WaitEntry::kExclusive);
  }
  void make_ready() override {
    queue_.with_lock([this] {
      ++tickets_;
      (void)queue_.wake_locked(1);
    });
  }

 private:
  WaitQueue queue_;
  int tickets_ = 0;  // under queue_'s lock
};

class JoinWait : public Primitive {
 public:
  explicit JoinWait(Runtime& rt) : handle_(rt.spawn([this] { end_.acquire(); })) {}
  ~JoinWait() override { end_.release(); }
  WaitResult wait(const Until& until) override { return handle_.wait(until); }
  void make_ready() override { end_.release(); }
  void settle() override { (void)handle_.wait(); }

 private:
  Semaphore end_;
  JoinHandle<void> handle_;
};

class ScopeWait : public Primitive {
 public:
  explicit ScopeWait(Runtime& rt) : scope_(rt.state()) {
    EXPECT_TRUE(scope_.spawn([this] { end_.acquire(); }).ok());
  }
  ~ScopeWait() override { end_.release(); }
  WaitResult wait(const Until& until) override { return scope_.wait(until); }
  void make_ready() override { end_.release(); }
  void settle() override { (void)scope_.wait(Until()); }

 private:
  Semaphore end_;
  Scope scope_;
};

class SleepWait : public Primitive {
 public:
  explicit SleepWait(Runtime&) {}
  WaitResult wait(const Until& until) override { return sleep_until(until); }
};

struct PrimitiveRow {
  const char* name;
  std::unique_ptr<Primitive> (*make)(Runtime& rt);
  bool becomes_ready;  // a sleep never does
  bool is_taken;       // a second wait does not find it again
};

template <class P>
std::unique_ptr<Primitive> make(Runtime& rt) {
  return std::make_unique<P>(rt);
}

constexpr PrimitiveRow kPrimitives[] = {
    {"Mutex", make<MutexWait>, true, false},
    {"ConditionVariable", make<ConditionWait>, true, true},
    {"Semaphore", make<SemaphoreWait>, true, true},
    {"EventFdRead", make<EventFdReadWait>, true, true},
    {"EventFdWrite", make<EventFdWriteWait>, true, true},
    {"WaitQueue", make<QueueWait>, true, true},
    {"Join", make<JoinWait>, true, false},
    {"ScopeWait", make<ScopeWait>, true, false},
    {"Sleep", make<SleepWait>, false, false},
};

// --- The cases.

enum class When : uint8_t { kNever, kBefore, kDuring, kAtTheDeadline };

struct CaseRow {
  const char* what;
  When ready, stop;
  std::chrono::nanoseconds timeout;  // negative: passed before the call; 0: no deadline
  std::vector<WaitResult> allowed;
};

constexpr WaitResult kReady = WaitResult::kReady;
constexpr WaitResult kTimeout = WaitResult::kTimeout;
constexpr WaitResult kStopped = WaitResult::kStopped;

const std::vector<CaseRow>& cases() {
  static const std::vector<CaseRow> rows = {
      {"ready before the call", When::kBefore, When::kNever, 1h, {kReady}},
      {"ready during the call", When::kDuring, When::kNever, 1h, {kReady}},
      {"ready during a call without limits", When::kDuring, When::kNever, 0ns, {kReady}},
      {"a deadline", When::kNever, When::kNever, 300us, {kTimeout}},
      {"a deadline that has passed", When::kNever, When::kNever, -1ms, {kTimeout}},
      {"stop during the call", When::kNever, When::kDuring, 1h, {kStopped}},
      {"stop during a call without a deadline", When::kNever, When::kDuring, 0ns, {kStopped}},
      {"stop before the call", When::kNever, When::kBefore, 1h, {kStopped}},
      {"ready and stopped before the call", When::kBefore, When::kBefore, 1h, {kReady}},
      {"ready, stopped and late before the call", When::kBefore, When::kBefore, -1ms, {kReady}},
      {"stopped and late before the call", When::kNever, When::kBefore, -1ms, {kTimeout}},
      {"ready at the deadline", When::kAtTheDeadline, When::kNever, 300us, {kReady, kTimeout}},
      {"stop at the deadline", When::kNever, When::kAtTheDeadline, 300us, {kTimeout, kStopped}},
      {"all at the deadline",
       When::kAtTheDeadline,
       When::kAtTheDeadline,
       300us,
       {kReady, kTimeout, kStopped}},
  };
  return rows;
}

std::string text(const std::vector<WaitResult>& results) {
  static constexpr const char* kNames[] = {"ready", "timeout", "stopped"};
  std::string all;
  for (WaitResult r : results)
    all += std::string(all.empty() ? "" : " or ") + kNames[static_cast<int>(r)];
  return all;
}

// One wait. Runs in the context under test, which may migrate (so no SCOPED_TRACE: it is the
// thread's); the other side is always a fiber.
void run_case(Runtime& rt, const PrimitiveRow& row, const CaseRow& c) {
  const auto primitive = row.make(rt);
  std::stop_source stop;
  Until until;
  until.stop = stop.get_token();
  if (c.timeout != 0ns) until.deadline = now() + c.timeout;
  if (c.ready == When::kBefore) {
    primitive->make_ready();
    primitive->settle();
  }
  if (c.stop == When::kBefore) stop.request_stop();

  const auto at_its_time = [&](When when, const std::function<void()>& fn) {
    return rt.spawn([&until, when, fn] {
      if (when == When::kDuring) (void)sleep_for(100us);
      if (when == When::kAtTheDeadline) (void)sleep_until(until.deadline);
      if (when != When::kNever && when != When::kBefore) fn();
    });
  };
  auto readier = at_its_time(c.ready, [&] { primitive->make_ready(); });
  auto stopper = at_its_time(c.stop, [&] { stop.request_stop(); });
  const WaitResult result = primitive->wait(until);
  EXPECT_NE(std::find(c.allowed.begin(), c.allowed.end(), result), c.allowed.end())
      << c.what << ": " << text({result}) << " instead of " << text(c.allowed);
  readier.join();
  stopper.join();
  if (c.ready == When::kNever) return;
  // What was not taken is still there; what was taken is gone.
  if (result != WaitResult::kReady) {
    EXPECT_EQ(primitive->wait(now() + 30s), WaitResult::kReady) << c.what << ": it was lost";
  }
  if (row.is_taken) {
    EXPECT_EQ(primitive->wait(now() + 50us), WaitResult::kTimeout) << c.what << ": given twice";
  }
}

void run_cases(Runtime& rt, const PrimitiveRow& row, int rounds) {
  for (const CaseRow& c : cases()) {
    if (c.ready != When::kNever && !row.becomes_ready) continue;
    const bool race = c.ready == When::kAtTheDeadline || c.stop == When::kAtTheDeadline;
    for (int i = 0; i < (race ? rounds : 1); ++i) run_case(rt, row, c);
  }
}

class BlockingOutcomes : public ::testing::TestWithParam<PrimitiveRow> {};
INSTANTIATE_TEST_SUITE_P(, BlockingOutcomes, ::testing::ValuesIn(kPrimitives),
                         [](const auto& row) { return std::string(row.param.name); });

// With each seed, what happens at one instant happens in another order.
TEST_P(BlockingOutcomes, OfAFiberInTheSimulation) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    for (const Preemption mode : {Preemption::kLazy, Preemption::kFull}) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Options options = sim_options(2, seed);
      options.preemption = mode;
      CheckedRuntime rt(options);
      rt->run([&] { run_cases(*rt, GetParam(), 3); });
    }
  }
}

TEST_P(BlockingOutcomes, OfAFiberOnTheHost) {
  CheckedRuntime rt(MachineKind::kHost, 2);
  rt->run([&] { run_cases(*rt, GetParam(), 20); });
}

TEST_P(BlockingOutcomes, OfAMigratableFiberOnTheHost) {
  Options options = host_options(2);
  options.preemption = Preemption::kFull;
  CheckedRuntime rt(options);
  rt->run([&] { run_cases(*rt, GetParam(), 20); }, migratable());
}

TEST_P(BlockingOutcomes, OfAPlainThread) {
  CheckedRuntime rt(MachineKind::kHost, 2);
  run_cases(*rt, GetParam(), 20);
}

}  // namespace
}  // namespace jiffy
