// Blocking calls, off the Cpus.
#pragma once

#include <jiffy/fiber.h>

#include <exception>
#include <functional>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

namespace jiffy {

namespace detail {
// Runs `call(arg)` on a thread of the runtime's offload pool and waits for it.
Status offload_and_wait(RuntimeState& state, void (*call)(void* arg), void* arg);
}  // namespace detail

// Runs fn on a pool of plain threads, and lets other fibers run until it returns: for what blocks
// in system calls, or holds a std::mutex for long. Returns fn's result, or throws what it threw.
//
//   std::string text = jiffy::offload([&] { return read_whole_file(path); });
//
// The pool grows to 64 threads and then queues; a thread that found nothing for 5 s ends. In fn
// there is no current fiber: it is a plain thread. On a plain thread fn runs at once, in place. In
// a simulation too: it takes no virtual time. std::system_error when no thread can be had.
template <class F>
auto offload(F&& fn) {
  using R = std::invoke_result_t<F&>;
  if (!this_fiber::on_fiber()) return fn();
  struct Call {
    F* fn;
    std::optional<detail::ResultValue<R>> value;
    std::exception_ptr error;
  } call{&fn, {}, {}};
  const Status status = detail::offload_and_wait(
      detail::current_runtime(),
      [](void* arg) {
        Call& c = *static_cast<Call*>(arg);
        try {
          if constexpr (std::is_void_v<R>) {
            (*c.fn)();
            c.value.emplace();
          } else {
            c.value.emplace((*c.fn)());
          }
        } catch (...) {
          c.error = std::current_exception();
        }
      },
      &call);
  if (!status.ok()) throw std::system_error(EAGAIN, std::generic_category(), status.message());
  if (call.error) std::rethrow_exception(call.error);
  if constexpr (!std::is_void_v<R>) return std::move(*call.value);
}

}  // namespace jiffy
