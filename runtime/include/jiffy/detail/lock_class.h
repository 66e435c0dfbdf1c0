// The spin locks of jiffy by class. A lock is taken only while all that its taker holds are of
// classes above its own here; builds with JIFFY_CHECK_LOCKS abort where one is not
// (cpu/lock_check.cc says what else they look at).
#pragma once

#include <cstdint>

namespace jiffy {

enum class LockClass : uint8_t {
  kWorkQueues,  // the list of a runtime's work queues
  kTimers,      // a Cpu's timers: held while their callbacks run
  kWaitQueue,   // held while the wake functions of its entries run, which may wake another queue
  kWorkerPool,
  kFlush,      // the flushers of a work queue
  kHandoff,    // a wait queue inside a mutex, semaphore ...: it only wakes fibers and threads
  kService,    // the requests to a Cpu's stopper
  kDrain,      // who waits for the last fiber of a runtime
  kRunQueue,   // two of them: in the order of their Cpus' ids
  kPools,      // a runtime's list of stack pools
  kStackPool,  // the free units of one
  kOther,      // in no order with the others: of tests and applications
};

}  // namespace jiffy
