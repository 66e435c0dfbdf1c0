// SIGINT and SIGTERM: a run ends early and shows what it has measured so far.
#pragma once

#include <chrono>

namespace jiffy {

// Installs the handlers, for the rest of the process. Once, from main().
void catch_interrupts();
// Whether one came. Stays true.
bool interrupted();
// The main thread sleeps, at most until then; false if an interrupt ended it.
bool sleep_unless_interrupted(std::chrono::nanoseconds duration);

}  // namespace jiffy
