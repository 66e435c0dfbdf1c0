// Counts the pthread mutexes (hence std::mutex) that the calling thread holds, so that the
// scheduler can complain when a fiber suspends with one: the next fiber that wants it blocks the
// whole Cpu, for ever if the holder is on the same one. Linked into debug builds only, by the CMake
// target jiffy::lock_check; it interposes the lock functions of libc.
#include <dlfcn.h>
#include <pthread.h>

#include <cstdlib>

namespace {

thread_local int held = 0;

template <class Fn>
Fn next_symbol(const char* name) {
  void* symbol = dlsym(RTLD_NEXT, name);
  if (symbol == nullptr) std::abort();  // a libc without it: this file must not be linked
  return reinterpret_cast<Fn>(symbol);
}

}  // namespace

extern "C" {

// The scheduler's question; weak there, so that it costs nothing where this file is absent.
int jiffy_held_pthread_mutexes() { return held; }

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto next = next_symbol<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  const int result = next(mutex);
  if (result == 0) ++held;
  return result;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static const auto next = next_symbol<int (*)(pthread_mutex_t*)>("pthread_mutex_trylock");
  const int result = next(mutex);
  if (result == 0) ++held;
  return result;
}

int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* until) noexcept {
  static const auto next =
      next_symbol<int (*)(pthread_mutex_t*, const timespec*)>("pthread_mutex_timedlock");
  const int result = next(mutex, until);
  if (result == 0) ++held;
  return result;
}

// What std::timed_mutex calls.
int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                            const timespec* until) noexcept {
  static const auto next =
      next_symbol<int (*)(pthread_mutex_t*, clockid_t, const timespec*)>("pthread_mutex_clocklock");
  const int result = next(mutex, clock, until);
  if (result == 0) ++held;
  return result;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static const auto next = next_symbol<int (*)(pthread_mutex_t*)>("pthread_mutex_unlock");
  const int result = next(mutex);
  if (result == 0) --held;
  return result;
}

}  // extern "C"
