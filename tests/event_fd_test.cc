// eventfd's semantics: counting, coalescing, overflow, semaphore mode, poll, hang-up, and the guard
// against signals from within a wakeup.
#include <gtest/gtest.h>
#include <jiffy/event_fd.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "support/runtimes.h"
#include "support/sanitizer.h"

namespace jiffy {
namespace {

using namespace std::chrono_literals;
using WriteError = EventFd::WriteError;

// --- The counter. No fiber needed.

TEST(EventFd, ReadTakesTheWholeCounterAndZeroesIt) {
  EventFd event(3);
  event.signal();
  event.signal(5);
  const auto read = event.try_read();
  EXPECT_EQ(read.result, WaitResult::kReady);
  EXPECT_EQ(read.value, 9u) << "many signals are one read with their sum";
  EXPECT_EQ(event.try_read().result, WaitResult::kTimeout) << "EAGAIN";
}

TEST(EventFd, SemaphoreModeReadsOneAtATime) {
  EventFd event(2, /*semaphore=*/true);
  EXPECT_EQ(event.try_write(1), WriteError::kNone);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(event.try_read().value, 1u);
  EXPECT_EQ(event.try_read().result, WaitResult::kTimeout);
}

TEST(EventFd, WriteRefusesTheOverflowMarkerAndWhatDoesNotFit) {
  EventFd event;
  EXPECT_EQ(event.try_write(UINT64_MAX), WriteError::kInvalid);
  EXPECT_EQ(event.write(UINT64_MAX), WriteError::kInvalid);
  EXPECT_EQ(event.try_write(EventFd::kMax), WriteError::kNone);
  EXPECT_EQ(event.try_write(1), WriteError::kWouldBlock) << "EAGAIN";
  EXPECT_EQ(event.try_write(0), WriteError::kNone) << "nothing always fits";
  EXPECT_EQ(event.try_read().value, EventFd::kMax);
}

TEST(EventFd, WriteAddsUpToTheLargestValueExactly) {
  EventFd event(EventFd::kMax - 10);
  EXPECT_EQ(event.try_write(11), WriteError::kWouldBlock);
  EXPECT_EQ(event.try_write(10), WriteError::kNone);
  EXPECT_EQ(event.poll(), EventFd::kIn);
}

TEST(EventFd, SignalSaturatesAndThenPollReportsAnError) {
  EventFd event(EventFd::kMax);
  EXPECT_EQ(event.poll(), EventFd::kIn) << "full, but no error";
  EXPECT_EQ(event.signal(), 1u);
  EXPECT_EQ(event.poll(), EventFd::kIn | EventFd::kErr);
  EXPECT_EQ(event.signal(7), 0u) << "saturated";
  EXPECT_EQ(event.try_write(1), WriteError::kWouldBlock);
  EXPECT_EQ(event.try_read().value, UINT64_MAX);
  EXPECT_EQ(event.poll(), EventFd::kOut);
}

TEST(EventFd, PollReportsReadableAndWritable) {
  EventFd event;
  EXPECT_EQ(event.poll(), EventFd::kOut);
  event.signal();
  EXPECT_EQ(event.poll(), EventFd::kIn | EventFd::kOut);
}

// --- Entries of one's own.

struct Entry : WaitEntry {
  explicit Entry(std::function<void(uint64_t)> f) : fn(std::move(f)) { wake = called; }
  static int called(WaitEntry& entry, uint64_t key) {
    auto& self = static_cast<Entry&>(entry);
    self.keys.push_back(key);
    if (self.fn) self.fn(key);
    return 1;
  }
  std::function<void(uint64_t)> fn;
  std::vector<uint64_t> keys;
};

TEST(EventFd, EntriesGetWhatHappenedAsTheirKey) {
  Entry entry(nullptr);
  {
    EventFd event;
    event.queue().with_lock([&] { event.queue().add(entry); });
    event.signal();
    (void)event.try_read();
    EXPECT_EQ(event.try_write(EventFd::kMax), WriteError::kNone);
    event.signal();
    event.queue().with_lock([&] {
      EXPECT_EQ(event.read_locked(), UINT64_MAX);
      event.queue().remove(entry);
      event.queue().add(entry);
    });
  }
  EXPECT_EQ(entry.keys, (std::vector<uint64_t>{EventFd::kIn, EventFd::kOut, EventFd::kIn,
                                               EventFd::kIn | EventFd::kErr, EventFd::kHup}));
}

TEST(EventFd, SignalFromWithinAWakeupOnTheSameThreadIsRefused) {
  EventFd first, second;
  std::vector<uint64_t> added;
  Entry entry([&](uint64_t) { added.push_back(second.signal()); });
  first.queue().with_lock([&] { first.queue().add(entry); });
  EXPECT_EQ(first.signal(), 1u);
  EXPECT_EQ(added, std::vector<uint64_t>{0});
  EXPECT_EQ(second.poll(), EventFd::kOut) << "nothing arrived";
  EXPECT_EQ(second.signal(), 1u) << "afterwards it is as before";
  first.queue().with_lock([&] { first.queue().remove(entry); });
}

TEST(EventFd, SignalFromAnotherThreadDuringAWakeupIsTaken) {
  EventFd first, second;
  Entry entry([&](uint64_t) { std::thread([&] { EXPECT_EQ(second.signal(), 1u); }).join(); });
  first.queue().with_lock([&] { first.queue().add(entry); });
  first.signal();
  EXPECT_EQ(second.try_read().value, 1u);
  first.queue().with_lock([&] { first.queue().remove(entry); });
}

// --- Blocking.

class EventFdTest : public ::testing::TestWithParam<MachineKind> {
 protected:
  CheckedRuntime rt_{GetParam(), 2};
};
INSTANTIATE_TEST_SUITE_P(, EventFdTest, kBothMachines, kMachineNames);

TEST_P(EventFdTest, SignalsWhileTheReaderIsAwayCoalesce) {
  rt_->run(
      [] {
        EventFd event;
        std::vector<uint64_t> values;
        auto reader = spawn(
            [&] {
              for (uint64_t sum = 0; sum < 10;) {
                values.push_back(event.read().value);
                sum += values.back();
              }
            },
            pinned(0));
        (void)sleep_for(200us);
        {
          const PreemptDisabled guard;  // the reader's Cpu is ours
          for (int i = 0; i < 10; ++i) event.signal();
        }
        reader.join();
        EXPECT_EQ(values, std::vector<uint64_t>{10});
      },
      pinned(0));
}

TEST_P(EventFdTest, ReadMakesRoomForTheWriterThatWaits) {
  rt_->run([] {
    EventFd event(EventFd::kMax);
    auto writer = spawn([&] { return event.write(5); });
    (void)sleep_for(100us);
    EXPECT_EQ(event.read().value, EventFd::kMax);
    EXPECT_EQ(writer.join(), WriteError::kNone);
    EXPECT_EQ(event.read().value, 5u);
  });
}

TEST_P(EventFdTest, RoomThatIsTooSmallForTheFirstWriterServesTheNext) {
  rt_->run([] {
    EventFd event(EventFd::kMax, /*semaphore=*/true);
    auto large = spawn([&] { return event.write(3); });
    (void)sleep_for(50us);
    auto small = spawn([&] { return event.write(1); });
    (void)sleep_for(50us);
    EXPECT_EQ(event.read().value, 1u);
    EXPECT_EQ(small.join(), WriteError::kNone);
    for (int i = 0; i < 3; ++i) (void)event.read();
    EXPECT_EQ(large.join(), WriteError::kNone);
  });
}

TEST_P(EventFdTest, EachUnitOfASemaphoreModeSignalReachesAReader) {
  rt_->run([] {
    EventFd event(0, /*semaphore=*/true);
    std::atomic<int> read{0};
    Scope scope;
    for (int i = 0; i < 6; ++i) {
      (void)scope.spawn([&] {
        EXPECT_EQ(event.read().value, 1u);
        ++read;
      });
    }
    (void)sleep_for(200us);
    event.signal(4);
    (void)sleep_for(2ms);
    while (read < 4) (void)sleep_for(100us);
    EXPECT_EQ(event.write(2), WriteError::kNone);
    scope.join();
    EXPECT_EQ(event.try_read().result, WaitResult::kTimeout);
  });
}

TEST_P(EventFdTest, LimitsOfReadAndWrite) {
  rt_->run([] {
    EventFd empty, full(EventFd::kMax);
    std::stop_source stop;
    stop.request_stop();
    EXPECT_EQ(empty.read(now() + 50us).result, WaitResult::kTimeout);
    EXPECT_EQ(empty.read(stop.get_token()).result, WaitResult::kStopped);
    EXPECT_EQ(full.write(1, now() + 50us), WriteError::kTimeout);
    EXPECT_EQ(full.write(1, stop.get_token()), WriteError::kStopped);
  });
}

TEST(EventFdHost, NoSignalIsLostBetweenFibersAndThreads) {
  CheckedRuntime rt(MachineKind::kHost, 2);
  constexpr uint64_t kSignals = 5'000 / kSlowdown;  // a loaded machine takes a millisecond for some
  EventFd event;
  std::atomic<uint64_t> sum{0};
  const auto signal_all = [&event] {
    for (uint64_t i = 0; i < kSignals; ++i) event.signal();
  };
  const auto read_some = [&] {
    while (sum < 4 * kSignals) {
      const auto read = event.read(now() + 1ms);
      if (read.result == WaitResult::kReady) sum += read.value;
    }
  };
  std::vector<JoinHandle<void>> fibers;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    fibers.push_back(rt->spawn(signal_all));
    threads.emplace_back(signal_all);
  }
  fibers.push_back(rt->spawn(read_some));
  threads.emplace_back(read_some);
  for (auto& thread : threads) thread.join();
  for (auto& fiber : fibers) fiber.join();
  EXPECT_EQ(sum, 4 * kSignals);
}

}  // namespace
}  // namespace jiffy
