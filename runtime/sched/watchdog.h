// The soft-lockup watchdog: who keeps a Cpu for so long that nobody else gets a turn is named.
//
// As in the kernel, a fiber of the highest class, the stopper, leaves a stamp whenever it runs, and
// the tick asks it to. A stamp that grows old while the tick keeps coming means that whoever runs
// can not even be stopped by the highest class: a cooperative fiber that makes no jiffy call, or
// one in kernel mode that the mode does not preempt.
#pragma once

#include <cstdint>

namespace jiffy {

class Cpu;

// Once before the first check.
void watchdog_prepare();

// By the stopper, and where a Cpu's tick starts anew.
void watchdog_touch(Cpu& cpu, int64_t now);

// In the tick interrupt: asks for a stamp in time.
void watchdog_tick(Cpu& cpu, int64_t now);

// In the handler of each tick signal, also of one that must wait to be taken: reports a lockup
// once. Async-signal-safe. In the simulation by its tick.
void watchdog_check(Cpu& cpu);

}  // namespace jiffy
