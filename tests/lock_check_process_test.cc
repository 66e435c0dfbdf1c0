// A std::mutex held across a suspension is named, where debug/lock_check.cc is linked.
#include <gtest/gtest.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>

#include <mutex>

extern "C" __attribute__((weak)) int jiffy_held_pthread_mutexes();

namespace jiffy {
namespace {

// A time that has passed already would be no suspension.
constexpr std::chrono::milliseconds kLong(5);

void suspend_with_mutex_held(int times) {
  std::mutex mutex;
  Runtime rt(Options{.cpus = 1});
  rt.run(
      [&] {
        for (int i = 0; i < times; ++i) {
          std::lock_guard<std::mutex> lock(mutex);
          sleep_for(kLong);
        }
      },
      SpawnOptions{.name = "holder"});
}

void suspend_with_mutex_released() {
  std::mutex mutex;
  Runtime rt(Options{.cpus = 1});
  rt.run([&] {
    { std::lock_guard<std::mutex> lock(mutex); }
    sleep_for(kLong);
  });
}

class LockCheck : public testing::Test {
 protected:
  void SetUp() override {
    if (jiffy_held_pthread_mutexes == nullptr) GTEST_SKIP() << "not linked under a sanitizer";
    testing::FLAGS_gtest_death_test_style = "threadsafe";
  }
};

TEST_F(LockCheck, NamesTheFiberThatSuspendsWithAStdMutexHeld) {
  EXPECT_EXIT((suspend_with_mutex_held(1), std::exit(0)), testing::ExitedWithCode(0),
              "fiber 'holder' .* suspends while its thread holds 1 std::mutex");
}

TEST_F(LockCheck, ComplainsOnceARuntime) {
  EXPECT_EXIT(
      {
        testing::internal::CaptureStderr();
        suspend_with_mutex_held(3);
        const std::string text = testing::internal::GetCapturedStderr();
        const size_t first = text.find("suspends while");
        std::exit(first != std::string::npos &&
                          text.find("suspends while", first + 1) == std::string::npos
                      ? 0
                      : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(LockCheck, IsSilentWhereTheMutexWasReleased) {
  EXPECT_EXIT(
      {
        testing::internal::CaptureStderr();
        suspend_with_mutex_released();
        std::exit(testing::internal::GetCapturedStderr().empty() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// A yield lets others of the Cpu run just as a sleep does.
TEST_F(LockCheck, NamesTheFiberThatYieldsWithAStdMutexHeld) {
  const auto yield_with_mutex_held = [] {
    std::mutex mutex;
    Runtime rt(Options{.cpus = 1});
    rt.run(
        [&] {
          auto other = spawn([] {});
          {
            std::lock_guard<std::mutex> lock(mutex);
            yield();
          }
          other.join();
        },
        SpawnOptions{.name = "holder"});
  };
  EXPECT_EXIT((yield_with_mutex_held(), std::exit(0)), testing::ExitedWithCode(0),
              "fiber 'holder' .* suspends while its thread holds 1 std::mutex");
}

// So does a preemption, which the end of each jiffy call may be.
TEST_F(LockCheck, NamesTheFiberThatIsPreemptedWithAStdMutexHeld) {
  const auto wake_with_mutex_held = [] {
    std::mutex mutex;
    Runtime rt(Options{.cpus = 1, .preemption = Preemption::kFull});
    rt.run(
        [&] {
          Semaphore go;
          auto urgent = spawn([&] { go.acquire(); }, SpawnOptions{.policy = Policy::kFifo});
          sleep_for(std::chrono::milliseconds(1));
          {
            std::lock_guard<std::mutex> lock(mutex);
            go.release();
          }
          urgent.join();
        },
        SpawnOptions{.name = "holder"});
  };
  EXPECT_EXIT((wake_with_mutex_held(), std::exit(0)), testing::ExitedWithCode(0),
              "fiber 'holder' .* suspends while its thread holds 1 std::mutex");
}

void suspend_with_timed_mutex_held() {
  std::timed_mutex mutex;
  Runtime rt(Options{.cpus = 1});
  rt.run(
      [&] {
        if (!mutex.try_lock_for(std::chrono::seconds(10))) return;
        sleep_for(kLong);
        mutex.unlock();
      },
      SpawnOptions{.name = "holder"});
}

TEST_F(LockCheck, CountsATimedMutexToo) {
  EXPECT_EXIT((suspend_with_timed_mutex_held(), std::exit(0)), testing::ExitedWithCode(0),
              "fiber 'holder' .* suspends while its thread holds 1 std::mutex");
}

TEST_F(LockCheck, TimedMutexThatWasReleasedHidesNoOther) {
  const auto suspend = [] {
    std::timed_mutex timed;
    std::mutex mutex;
    Runtime rt(Options{.cpus = 1});
    rt.run(
        [&] {
          if (timed.try_lock_for(std::chrono::seconds(10))) timed.unlock();
          std::lock_guard<std::mutex> lock(mutex);
          sleep_for(kLong);
        },
        SpawnOptions{.name = "holder"});
  };
  EXPECT_EXIT((suspend(), std::exit(0)), testing::ExitedWithCode(0),
              "fiber 'holder' .* suspends while its thread holds 1 std::mutex");
}

}  // namespace
}  // namespace jiffy
