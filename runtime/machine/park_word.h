// The word by which a Cpu's thread parks and is unparked: a futex on the host, and the same steps
// in a simulation.
#pragma once

#include <jiffy/detail/atomic.h>

#include <cstdint>

#include "machine/model.h"

namespace jiffy {

// An unpark that comes before the park is kept, and the park returns at once.
class ParkWord {
 public:
  // By the owner. `wait` sleeps if the word is 0 when it begins, as a futex does, and may return
  // early.
  template <class Wait>
  void park(Wait wait) {
    if (model::planted(model::Fault::kUnparkIsForgotten)) word.exchange(0);
    // Acquire: partner is the release in unpark().
    if (word.load(std::memory_order_acquire) == 0) wait();
    word.exchange(0, std::memory_order_acquire);
  }
  // By anybody. `wake` ends such a wait.
  template <class Wake>
  void unpark(Wake wake) {
    // Release: partner is the acquire in park().
    if (word.exchange(1, std::memory_order_release) == 0) wake();
  }

  Atomic<uint32_t> word{0};  // A: 1: unparked
};

}  // namespace jiffy
