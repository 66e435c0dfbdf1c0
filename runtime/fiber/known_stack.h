// Stacks that valgrind is told of: it then takes the way from one to another for a switch, and not
// for a push or a pop of all that lies between them. Each stack that a switch leaves or enters has
// to be known, a thread's own too. A few instructions without effect elsewhere.
#pragma once

#include <pthread.h>

#include <utility>

#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define VALGRIND_STACK_REGISTER(low, high) ((void)(low), (void)(high), 0u)
#define VALGRIND_STACK_DEREGISTER(id) ((void)(id))
#define RUNNING_ON_VALGRIND 0
#endif

namespace jiffy {

class KnownStack {
 public:
  KnownStack() = default;
  KnownStack(const void* low, const void* high) : id_(VALGRIND_STACK_REGISTER(low, high)) {}
  KnownStack(KnownStack&& other) noexcept : id_(std::exchange(other.id_, kNone)) {}
  KnownStack& operator=(KnownStack&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~KnownStack() {
    if (id_ != kNone) VALGRIND_STACK_DEREGISTER(id_);
  }

  // The calling thread's.
  static KnownStack of_this_thread() {
    void* low = nullptr;
    size_t size = 0;
    pthread_attr_t attributes;
    if (RUNNING_ON_VALGRIND == 0 || pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
    const bool known = pthread_attr_getstack(&attributes, &low, &size) == 0;
    pthread_attr_destroy(&attributes);
    return known ? KnownStack(low, static_cast<char*>(low) + size) : KnownStack();
  }

 private:
  static constexpr unsigned kNone = ~0u;
  unsigned id_ = kNone;
};

}  // namespace jiffy
