// The rules of the preemption modes: which requests are made, and where they are honoured.
// One table, read by the code that asks; docs/preemption.md prints it.
#pragma once

#include <jiffy/options.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace jiffy {

// What a rule says to do. The first three set a request, the others honour one.
enum class Act : uint8_t {
  kSetHard,
  kSetLazy,
  kPromote,  // turn a pending lazy request into a hard one
  kNothing,  // nothing happens here
  kIfHard,   // schedule if a hard request is pending
  kIfAny,    // schedule if any request is pending
  kAlways,
};

// The moments at which the kernel asks. The conditions that come with a rule (count zero,
// interrupts on) are the same in each mode and stand at the place that asks.
enum class Moment : uint8_t {
  kFairWakeup,       // a fair wakee should preempt a fair fiber
  kFairSlice,        // the slice or the protection of the current fair fiber is over
  kHigherClass,      // a fiber of a higher class woke
  kHrtick,           // the precise end of a slice
  kTargetIdle,       // the target Cpu runs its idle loop
  kTickEntry,        // the tick finds a lazy request, before the class looks
  kReturnToUser,     // a user-mode fiber leaves an interrupt or a jiffy call
  kIrqReturnKernel,  // a kernel-mode fiber is interrupted
  kPreemptEnable,    // a kernel-mode fiber leaves its outermost preempt_disable or spin lock
  kCondResched,
  kMightSleep,
  kBlock,  // the fiber blocks
  kCount,
};

struct ModeRule {
  Moment moment;
  const char* what;
  std::array<Act, kPreemptionModes> act;  // none, voluntary, lazy, full
};

inline constexpr std::array<ModeRule, static_cast<size_t>(Moment::kCount)> kModeTable = {{
    // clang-format off
    {Moment::kFairWakeup,      "fair wakeup that should preempt",
     {Act::kSetHard, Act::kSetHard, Act::kSetLazy, Act::kSetHard}},
    {Moment::kFairSlice,       "fair slice or protection over",
     {Act::kSetHard, Act::kSetHard, Act::kSetLazy, Act::kSetHard}},
    {Moment::kHigherClass,     "wakeup of a higher class",
     {Act::kSetHard, Act::kSetHard, Act::kSetHard, Act::kSetHard}},
    {Moment::kHrtick,          "precise end of a slice (HRTICK)",
     {Act::kSetHard, Act::kSetHard, Act::kSetHard, Act::kSetHard}},
    {Moment::kTargetIdle,      "request to an idle Cpu",
     {Act::kSetHard, Act::kSetHard, Act::kSetHard, Act::kSetHard}},
    {Moment::kTickEntry,       "tick finds a lazy request",
     {Act::kNothing,   Act::kNothing,   Act::kPromote, Act::kNothing}},
    {Moment::kReturnToUser,    "return to user mode",
     {Act::kIfAny,   Act::kIfAny,   Act::kIfAny,   Act::kIfAny}},
    {Moment::kIrqReturnKernel, "interrupt returns to kernel code",
     {Act::kNothing,   Act::kNothing,   Act::kIfHard,  Act::kIfHard}},
    {Moment::kPreemptEnable,   "outermost preempt_enable, spin unlock",
     {Act::kNothing,   Act::kNothing,   Act::kIfHard,  Act::kIfHard}},
    {Moment::kCondResched,     "cond_resched()",
     {Act::kIfHard,  Act::kIfHard,  Act::kNothing,   Act::kNothing}},
    {Moment::kMightSleep,      "might_sleep()",
     {Act::kNothing,   Act::kIfHard,  Act::kNothing,   Act::kNothing}},
    {Moment::kBlock,           "the fiber blocks",
     {Act::kAlways,  Act::kAlways,  Act::kAlways,  Act::kAlways}},
    // clang-format on
}};

constexpr Act mode_rule(Moment moment, Preemption mode) {
  return kModeTable[static_cast<size_t>(moment)].act[static_cast<size_t>(mode)];
}

namespace mode_table_internal {
constexpr bool rows_in_order() {
  for (size_t i = 0; i < kModeTable.size(); ++i) {
    if (static_cast<size_t>(kModeTable[i].moment) != i) return false;
  }
  return true;
}
static_assert(rows_in_order());
}  // namespace mode_table_internal

}  // namespace jiffy
