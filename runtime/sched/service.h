// The fibers that a Cpu has of its own: the stopper, which runs what must run there above
// everything else, and the soft-interrupt thread (ksoftirqd).
#pragma once

#include <jiffy/status.h>

#include "sched/sched.h"

namespace jiffy {

struct RuntimeState;

Status start_service_fibers(RuntimeState& state);
// Asks them to end, and waits for it: from a plain thread, or a fiber of another runtime.
void stop_service_fibers(RuntimeState& state);
void join_service_fibers(RuntimeState& state);

}  // namespace jiffy
