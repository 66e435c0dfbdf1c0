// The process-wide part of the host machine: signal handlers and the stacks they run on. It is the
// only mutable state that a process has of jiffy besides its runtimes, but for a count that makes
// the numbers of thread control blocks unique. It is reference counted, and the last runtime to
// stop restores the handlers that it found.
#pragma once

#include <jiffy/options.h>
#include <jiffy/status.h>

#include <csignal>
#include <cstddef>
#include <cstdint>

namespace jiffy {

class Cpu;

// The alternate stack of one Cpu's thread. A handler finds its Cpu from the address of the stack it
// runs on, never through %fs: with a thread control block a fiber, that would be the fiber's.
//
// Slots lie in one reserved range, so that a handler on a foreign thread is told by a comparison.
struct SignalSlot {
  static constexpr size_t kSize = 64 * 1024;

  Cpu* cpu;                // I while the slot is taken
  stack_t saved;           // the thread's alternate stack before
  const Options* options;  // I
  uint64_t base_mask;      // I: the signal mask of the Cpu's thread

  char* stack() { return reinterpret_cast<char*>(this) + 4096; }
  static constexpr size_t kStackSize = kSize - 4096;
};

// Signals: a reschedule interrupt is SIGURG (ignored by default, never queued), the tick and the
// one-shot timer are one real-time signal.
int tick_signal();
inline constexpr int kReschedSignal = SIGURG;

// Installs the handlers, or counts one more user of them. Any thread.
// `alternate_stack`: false only to show what it is for.
Status acquire_signals(bool alternate_stack = true);
void release_signals();

// By a Cpu's own thread: takes a slot, makes it the thread's alternate stack, and unblocks the
// signals; and back.
Status enter_signal_slot(Cpu& cpu, const Options& options, SignalSlot** slot);
void leave_signal_slot(SignalSlot* slot);

}  // namespace jiffy
