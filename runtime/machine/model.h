// What the model build adds (see jiffy/detail/atomic.h): exploring by seed, and faults to be found.
#pragma once

#include <jiffy/detail/atomic.h>

#include <cstdint>
#include <functional>

namespace jiffy {

class Runtime;
class SimMachine;

namespace model {

// Faults that a test plants, to see that exploring finds them: each is one step of runtime/ that is
// left out.
enum class Fault : uint8_t {
  kNone,
  kParkWithoutFence,      // an idle Cpu looks for work before it is seen to park
  kParkWithoutLook,       // ... or does not look again at all
  kNotifyWithoutFence,    // a waker asks whether the Cpu parks before its request is seen
  kTimerDoesNotUnpark,    // a timer's interrupt between the last look and the sleep goes unnoticed
  kUnparkIsForgotten,     // a park forgets an unpark that came before it
  kWakeDoesNotLookAgain,  // a waker locks the queue that a fiber was on, and believes that it still
                          // is
  kMutexUnlockDoesNotLook,  // an unlock does not ask whether somebody waits
  kCancelDoesNotLookAgain,  // who cancels a timer believes that it is still armed, once he has the
                            // lock
  kWorkerDoesNotLookAgain,  // a worker goes idle without a last look at the list of work
  kTraceDoesNotLookAgain,   // a reader of the trace believes what a writer has overwritten
};

#ifdef JIFFY_MODEL

bool planted(Fault fault);

struct Explored {
  uint64_t seeds = 0;
  uint64_t points = 0;
  uint64_t switches = 0;
};

// Runs `body` on a new runtime with `cpus` Cpus for each of the seeds 1 ... `seeds`, or only for
// JIFFY_SIM_SEED where that is set. Aborts at the first that ends in a deadlock, goes on for ever
// or calls fail(), and prints the seed that shows it again.
Explored explore(uint64_t seeds, int cpus, Fault fault, const std::function<void(Runtime&)>& body);
[[noreturn]] void fail(const char* what);

// By the machine: its Cpus run in this thread from now on; null: no more.
void enter(SimMachine* machine);

#else

constexpr bool planted(Fault) { return false; }
inline void enter(SimMachine*) {}

#endif

}  // namespace model
}  // namespace jiffy
