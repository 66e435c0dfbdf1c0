// The atomics of runtime/: those of the standard, and in the model build (JIFFY_MODEL) the same
// with a choice at each access.
//
// In the model build a runtime on the simulated machine may change Cpus at each access, as the seed
// says, so that thousands of seeds explore the interleavings of its lock-free parts. Each Cpu has a
// store buffer as an x86 processor has one: a store that is not seq_cst waits in it, in order,
// while later loads of the same Cpu go ahead; a full fence and each read-modify-write empty it. So
// a fence that is missing is found, too. (What only a weaker machine would reorder is not; the
// thread sanitizer looks after acquire and release.)
#pragma once

#include <atomic>
#include <cstdint>

#ifdef JIFFY_MODEL
#include <cstring>
#include <type_traits>
#endif

namespace jiffy {

#ifndef JIFFY_MODEL

template <class T>
using Atomic = std::atomic<T>;

inline void full_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

namespace model {

inline void point() {}
inline void spin() {}
inline void drain() {}

}  // namespace model

#else

namespace model {

// The running Cpu may be left for another one, or buffered stores be written.
void point();
// The same by who waits for another Cpu: it is left if there is another one to run.
void spin();
// A store enters the running Cpu's buffer; false: there is none, store it now.
bool buffer(void* address, uint64_t value, void (*write)(void* address, uint64_t value));
// The latest of the running Cpu's own buffered stores to `address`.
bool buffered(const void* address, uint64_t* value);
// Writes all that the running Cpu has buffered.
void drain();

}  // namespace model

inline void full_fence() {
  model::point();
  model::drain();
}

template <class T>
class Atomic {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));

 public:
  Atomic() = default;
  constexpr Atomic(T value) : value_(value) {}  // NOLINT: as std::atomic
  ~Atomic() {
    uint64_t own = 0;
    if (model::buffered(this, &own)) model::drain();  // not into memory that is another's by then
  }
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(std::memory_order = std::memory_order_seq_cst) const {
    model::point();
    uint64_t own = 0;
    if (model::buffered(this, &own)) return unpack(own);
    return value_.load(std::memory_order_relaxed);
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    model::point();
    if (order != std::memory_order_seq_cst && model::buffer(this, pack(value), write)) return;
    model::drain();
    value_.store(value, std::memory_order_relaxed);
  }
  T exchange(T value, std::memory_order = std::memory_order_seq_cst) {
    return locked().exchange(value, std::memory_order_relaxed);
  }
  bool compare_exchange_strong(T& expected, T value, std::memory_order = std::memory_order_seq_cst,
                               std::memory_order = std::memory_order_seq_cst) {
    return locked().compare_exchange_strong(expected, value, std::memory_order_relaxed);
  }
  bool compare_exchange_weak(T& expected, T value, std::memory_order = std::memory_order_seq_cst,
                             std::memory_order = std::memory_order_seq_cst) {
    return compare_exchange_strong(expected, value);
  }
  template <class U>
  T fetch_add(U n, std::memory_order = std::memory_order_seq_cst) {
    return locked().fetch_add(n, std::memory_order_relaxed);
  }
  template <class U>
  T fetch_sub(U n, std::memory_order = std::memory_order_seq_cst) {
    return locked().fetch_sub(n, std::memory_order_relaxed);
  }
  T fetch_or(T bits, std::memory_order = std::memory_order_seq_cst) {
    return locked().fetch_or(bits, std::memory_order_relaxed);
  }
  T fetch_and(T bits, std::memory_order = std::memory_order_seq_cst) {
    return locked().fetch_and(bits, std::memory_order_relaxed);
  }
  operator T() const { return load(); }  // NOLINT: as std::atomic
  T operator=(T value) {                 // NOLINT: as std::atomic
    store(value);
    return value;
  }

 private:
  static uint64_t pack(T value) {
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof value);
    return word;
  }
  static T unpack(uint64_t word) {
    T value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  static void write(void* self, uint64_t word) {
    static_cast<Atomic*>(self)->value_.store(unpack(word), std::memory_order_relaxed);
  }
  std::atomic<T>& locked() {
    model::point();
    model::drain();
    return value_;
  }

  std::atomic<T> value_;
};

#endif

}  // namespace jiffy
