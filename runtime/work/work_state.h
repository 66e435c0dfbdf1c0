// The worker pools of a runtime, as seen by who brings it up and down.
#pragma once

#include <jiffy/status.h>

#include <cstdint>

namespace jiffy {

struct RuntimeState;

// Makes the pools and their first workers.
Status create_work_state(RuntimeState& state);
// By a fiber: drains and destroys what is left, and waits until all workers have ended.
void destroy_work_state(RuntimeState& state);
// Workers alive, which a shutdown does not wait for before it ends them.
int64_t live_workers(const RuntimeState& state);

}  // namespace jiffy
