// Structured concurrency: children that do not outlive their scope.
#pragma once

#include <jiffy/fiber.h>
#include <jiffy/wait_queue.h>

#include <exception>
#include <optional>
#include <stop_token>
#include <type_traits>
#include <utility>

namespace jiffy {

// Its destructor waits for all children. The first exception of a child asks the others to stop,
// and comes out of join().
//
//   Scope scope;
//   scope.spawn([&] { download(a); });
//   scope.spawn([&](std::stop_token stop) { download(b, stop); });
//   scope.join();
//
// Used by the fiber that made it, and for spawn() by its children. A scope that is destroyed
// without join() asks its children to stop and waits; an exception that none collected aborts.
class Scope {
 public:
  // In the runtime of the calling fiber, or in the given one.
  Scope() : state_(detail::current_runtime()) {}
  explicit Scope(RuntimeState& state) : state_(state) {}
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // fn() or fn(std::stop_token). On an error nothing was started. The closure and what it captured
  // have ended when join() returns.
  template <class F>
  Status spawn(F&& fn, const SpawnOptions& options = detail::kDefaultSpawn) {
    begin_child();
    // Undone where the spawn fails or throws.
    struct Begun {
      Scope* scope;
      ~Begun() {
        if (scope != nullptr) scope->end_child(nullptr);
      }
    } begun{this};
    auto handle = spawn_in(
        state_,
        [this, fn = std::optional<std::decay_t<F>>(std::in_place, std::forward<F>(fn))]() mutable {
          std::exception_ptr error;
          try {
            if constexpr (std::is_invocable_v<F&, std::stop_token>) {
              (*fn)(stop_.get_token());
            } else {
              (*fn)();
            }
          } catch (...) {
            error = std::current_exception();
          }
          // Before the scope is told: what it captured may refer to what the scope's owner holds.
          fn.reset();
          end_child(std::move(error));
        },
        options);
    if (!handle.valid()) return Status::error(handle.error());
    begun.scope = nullptr;
    handle.detach();
    return Status();
  }

  // Waits for all children; rethrows the first exception.
  void join();
  // Waits within limits; does not throw.
  WaitResult wait(const Until& until);

  void request_stop() { stop_.request_stop(); }
  std::stop_token stop_token() const { return stop_.get_token(); }

 private:
  void begin_child();
  void end_child(std::exception_ptr error);

  RuntimeState& state_;
  std::stop_source stop_;
  WaitQueue waiters_{LockClass::kHandoff, "scope"};
  int64_t children_ = 0;      // under waiters_' lock
  std::exception_ptr error_;  // under waiters_' lock: the first
};

}  // namespace jiffy
