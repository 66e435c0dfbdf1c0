// Moving a fiber to another Cpu on purpose.
#pragma once

#include <jiffy/options.h>

namespace jiffy {

// Two Cpus or more, in a runtime that queues nobody who sleeps: then a wakeup always places.
Options migrating_options(Options options);

// Moves the calling fiber, which is migratable, to another Cpu; the others must be idle now and
// then. Suspends it. False if it did not succeed for long.
bool migrate();

// Where the thread-local words of the calling thread are: noinline, and opaque to the optimiser.
void* errno_address();

}  // namespace jiffy
