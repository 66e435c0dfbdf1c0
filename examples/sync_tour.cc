// What blocks a fiber, and how each wait ends: ready, too late, or stopped. In real time.
#include <jiffy/condition_variable.h>
#include <jiffy/mutex.h>
#include <jiffy/offload.h>
#include <jiffy/runtime.h>
#include <jiffy/scope.h>
#include <jiffy/semaphore.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <queue>
#include <stdexcept>

using namespace std::chrono_literals;
using jiffy::WaitResult;

namespace {

void check(bool holds, const char* what) {
  std::printf("%-6s %s\n", holds ? "ok" : "FAILED", what);
  if (!holds) std::exit(1);
}

// A bounded queue between fibers, plain threads, or both.
class Channel {
 public:
  void push(int value) {
    std::unique_lock lock(mutex_);
    (void)not_full_.wait(lock, [&] { return items_.size() < 4; });
    items_.push(value);
    not_empty_.notify_one();
  }
  // False at the end of `until`.
  bool pop(int* value, const jiffy::Until& until = {}) {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return !items_.empty(); };
    if (not_empty_.wait(lock, ready, until) != WaitResult::kReady) return false;
    *value = items_.front();
    items_.pop();
    not_full_.notify_one();
    return true;
  }

 private:
  jiffy::Mutex mutex_;
  jiffy::ConditionVariable not_full_, not_empty_;
  std::queue<int> items_;
};

void tour() {
  Channel channel;
  auto producer = jiffy::spawn([&] {
    for (int i = 1; i <= 100; ++i) channel.push(i);
  });
  int sum = 0, value = 0;
  for (int i = 0; i < 100 && channel.pop(&value); ++i) sum += value;
  producer.join();
  check(sum == 5050, "mutex and condition variable: all items came through a channel");

  check(!channel.pop(&value, jiffy::Until(1ms)),
        "a deadline: pop() of an empty channel gives up after 1 ms");

  jiffy::Semaphore never;
  std::stop_source source;
  auto waiter = jiffy::spawn([&] { return never.acquire(source.get_token()); });
  source.request_stop();
  check(waiter.join() == WaitResult::kStopped, "a stop token: acquire() returned at its request");

  WaitResult sibling = WaitResult::kReady;
  std::string text;
  {
    jiffy::Scope scope;
    (void)scope.spawn([&](std::stop_token stop) { sibling = jiffy::sleep_for(1h, stop); });
    (void)scope.spawn([] { throw std::runtime_error("no disk"); });
    try {
      scope.join();
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
  }
  check(text == "no disk", "a scope: join() rethrew the exception of a child");
  check(sibling == WaitResult::kStopped, "... and its sibling, asleep for an hour, was stopped");

  jiffy::Semaphore signal;
  jiffy::offload([&] { signal.release(); });
  check(signal.try_acquire(), "offload: a plain thread ran a blocking call, and signalled a fiber");
}

}  // namespace

int main() {
  jiffy::Runtime rt;
  rt.run(tour);
}
