#include <jiffy/offload.h>
#include <jiffy/semaphore.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "sched/runtime_state.h"
#include "sync/offload_pool.h"

namespace jiffy {

// Plain threads under a plain mutex: nothing here is held across a suspension of a fiber, and each
// call costs system calls anyway.
struct OffloadPool::Impl {
  struct Call {
    void (*fn)(void*);
    void* arg;
    Semaphore done{0};
  };

  std::mutex mutex;
  std::condition_variable work;
  std::condition_variable quiet;
  std::deque<Call*> queue;  // under mutex, like all below
  size_t threads = 0;
  size_t idle = 0;
  bool stopping = false;

  void thread_main();
};

OffloadPool::OffloadPool() : impl_(std::make_unique<Impl>()) {}

OffloadPool::~OffloadPool() {
  std::unique_lock lock(impl_->mutex);
  impl_->stopping = true;
  impl_->work.notify_all();
  impl_->quiet.wait(lock, [this] { return impl_->threads == 0; });
}

void OffloadPool::Impl::thread_main() {
  std::unique_lock lock(mutex);
  for (;;) {
    if (queue.empty()) {
      ++idle;
      const bool found = work.wait_for(lock, std::chrono::seconds(5),
                                       [this] { return stopping || !queue.empty(); });
      --idle;
      if (queue.empty() && (stopping || !found)) break;
      continue;
    }
    Call* call = queue.front();
    queue.pop_front();
    lock.unlock();
    call->fn(call->arg);
    call->done.release();
    lock.lock();
  }
  --threads;
  // Under the mutex: the destructor, which waits for it, frees it only then.
  quiet.notify_all();
}

Status OffloadPool::run(void (*fn)(void*), void* arg) {
  constexpr size_t kMostThreads = 64;
  Impl::Call call{fn, arg};
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->idle <= impl_->queue.size() && impl_->threads < kMostThreads) {
      try {
        std::thread([impl = impl_.get()] { impl->thread_main(); }).detach();
        ++impl_->threads;
      } catch (const std::system_error& e) {
        if (impl_->threads == 0) {
          return Status::error(std::string("offload: cannot create a thread: ") + e.what() +
                               ". Look at ulimit -u and the pids cgroup.");
        }
      }
    }
    impl_->queue.push_back(&call);
    impl_->work.notify_one();
  }
  call.done.acquire();
  return Status();
}

namespace detail {

Status offload_and_wait(RuntimeState& state, void (*call)(void* arg), void* arg) {
  if (state.machine->simulated()) {
    call(arg);
    if (const int64_t cost = state.machine->step_costs()->offload; cost != 0) {
      state.machine->consume(cost);
    }
    return Status();
  }
  return state.offload->run(call, arg);
}

}  // namespace detail

}  // namespace jiffy
