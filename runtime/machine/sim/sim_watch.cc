#include "machine/sim/sim_watch.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <mutex>
#include <thread>
#include <utility>

namespace jiffy {

namespace {

constexpr std::chrono::nanoseconds kPeriod = std::chrono::milliseconds(100);
// What a blocked thread that a profiler's signal wakes now and then may use between two looks.
constexpr int64_t kIdleNs = 1'000'000;

int64_t cpu_time_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

// Both threads own it. All under the lock: while the looking thread reports, the simulation cannot
// end.
class SimWatch::Shared {
 public:
  void begin(const std::atomic<uint64_t>* events, int64_t patience_ns,
             std::function<void(int64_t)> report) {
    const std::lock_guard hold(lock_);
    pthread_getcpuclockid(pthread_self(), &clock_);
    events_ = events;
    patience_ns_ = patience_ns;
    report_ = std::move(report);
    seen_events_ = ~uint64_t{0};
    looks_ = 0;
    changed_.notify_one();
  }
  void end() {
    const std::lock_guard hold(lock_);
    events_ = nullptr;
  }
  void leave() {
    const std::lock_guard hold(lock_);
    over_ = true;
    changed_.notify_one();
  }

  void loop() {
    std::unique_lock hold(lock_);
    while (!over_) {
      if (events_ == nullptr) {
        changed_.wait(hold);
      } else if (changed_.wait_for(hold, kPeriod) == std::cv_status::timeout) {
        if (events_ != nullptr) look();
      }
    }
  }

 private:
  void look() {
    const uint64_t events = events_->load(std::memory_order_relaxed);
    const int64_t cpu_ns = cpu_time_ns(clock_);
    const bool stands = events == seen_events_ && cpu_ns - seen_cpu_ns_ < kIdleNs;
    seen_events_ = events;
    seen_cpu_ns_ = cpu_ns;
    looks_ = stands ? looks_ + 1 : 0;
    if (looks_ > 0 && looks_ * kPeriod.count() >= patience_ns_) report_(looks_ * kPeriod.count());
  }

  std::mutex lock_;
  std::condition_variable changed_;
  bool over_ = false;
  const std::atomic<uint64_t>* events_ = nullptr;  // null while nothing runs
  clockid_t clock_{};                              // of the simulation's thread
  int64_t patience_ns_ = 0;
  std::function<void(int64_t)> report_;
  uint64_t seen_events_ = 0;
  int64_t seen_cpu_ns_ = 0;
  int64_t looks_ = 0;
};

SimWatch::~SimWatch() {
  if (shared_ != nullptr) shared_->leave();
}

void SimWatch::begin(int64_t patience_ns, std::function<void(int64_t)> report) {
  if (patience_ns == 0) return;
  if (shared_ == nullptr) {
    shared_ = std::make_shared<Shared>();
    // It takes no signal that the application means for another thread.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    std::thread([shared = shared_] { shared->loop(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  shared_->begin(&events_, patience_ns, std::move(report));
}

void SimWatch::end() {
  if (shared_ != nullptr) shared_->end();
}

}  // namespace jiffy
