#include <jiffy/counters.h>

namespace jiffy {
namespace {

struct CounterInfo {
  Counter counter;
  std::string_view name;
  std::string_view doc;
};

constexpr std::array<CounterInfo, kCounterCount> kTable{{
    {Counter::kContextSwitches, "context_switches", "switches from one fiber to another"},
    {Counter::kVoluntarySwitches, "voluntary_switches",
     "switches that were no preemption: the fiber blocked, yielded, ended, or was the idle one"},
    {Counter::kForcedSwitches, "forced_switches", "switches because the fiber was preempted"},
    {Counter::kYields, "yields", "calls of yield(), whether or not another fiber ran"},
    {Counter::kWakeupsReal, "wakeups_real", "wakeups that made a blocked fiber runnable"},
    {Counter::kWakeupsNoop, "wakeups_noop", "wakeups of a fiber that was awake already"},
    {Counter::kWakeupsRemote, "wakeups_remote", "wakeups handed to another Cpu"},
    {Counter::kLazyRequests, "lazy_requests", "lazy preemption requests set"},
    {Counter::kHardRequests, "hard_requests", "hard preemption requests set"},
    {Counter::kLazyUpgradedIdle, "lazy_upgraded_idle",
     "lazy requests made hard because the Cpu idled"},
    {Counter::kPromotions, "promotions", "lazy requests made hard by the tick"},
    {Counter::kTicks, "ticks", "timer ticks taken"},
    {Counter::kIpisSent, "ipis_sent", "signals sent to other Cpus"},
    {Counter::kIpisReceived, "ipis_received", "signals taken from other Cpus"},
    {Counter::kIpisElided, "ipis_elided",
     "signals saved: one was on its way, or the target polled"},
    {Counter::kUnparks, "unparks", "idle Cpus woken by system call"},
    {Counter::kParks, "parks", "times the Cpu went to sleep for lack of work"},
    {Counter::kMigrations, "migrations", "fibers moved to this Cpu after they had run on another"},
    {Counter::kSteals, "steals", "fibers pulled from another Cpu's queue"},
    {Counter::kSoftirqRuns, "softirq_runs", "passes over pending softirqs"},
    {Counter::kSoftirqDeferred, "softirq_deferred",
     "softirqs left to ksoftirqd: over the limit of a pass"},
    {Counter::kWorksQueued, "works_queued", "work items queued"},
    {Counter::kWorksCoalesced, "works_coalesced", "queue calls that found the work item pending"},
    {Counter::kWorksStarted, "works_started", "work items whose callback began"},
    {Counter::kTimersFired, "timers_fired", "timers that expired"},
    {Counter::kSpawns, "spawns", "fibers created"},
    {Counter::kExits, "exits", "fibers ended"},
    {Counter::kEventfdSignals, "eventfd_signals", "signals of an EventFd"},
    {Counter::kIrqfdInjectionsAtomic, "irqfd_injections_atomic",
     "irqfd injections in the signaller's context"},
    {Counter::kIrqfdInjectionsWork, "irqfd_injections_work",
     "irqfd injections left to a work item"},
    {Counter::kHrtickFired, "hrtick_fired", "one-shot timers that ended a slice between ticks"},
    {Counter::kDelayedDequeues, "delayed_dequeues",
     "blocked fibers kept queued until their lag was used up"},
    {Counter::kSoftLockups, "soft_lockups", "fibers that kept a Cpu from others for too long"},
}};

constexpr bool table_is_in_order() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].counter) != i || kTable[i].name.empty()) return false;
  }
  return true;
}
static_assert(table_is_in_order());

const CounterInfo* find(Counter counter) {
  const auto i = static_cast<std::size_t>(counter);
  return i < kTable.size() ? &kTable[i] : nullptr;
}

}  // namespace

std::string_view counter_name(Counter counter) {
  const CounterInfo* info = find(counter);
  return info ? info->name : "unknown";
}

std::string_view counter_doc(Counter counter) {
  const CounterInfo* info = find(counter);
  return info ? info->doc : "not a counter";
}

CounterSnapshot& CounterSnapshot::operator+=(const CounterSnapshot& other) {
  for (std::size_t i = 0; i < kCounterCount; ++i) values[i] += other.values[i];
  return *this;
}

CounterSnapshot CounterSnapshot::operator-(const CounterSnapshot& earlier) const {
  CounterSnapshot delta;
  for (std::size_t i = 0; i < kCounterCount; ++i) delta.values[i] = values[i] - earlier.values[i];
  return delta;
}

CounterSnapshot CounterSnapshot::sum(std::span<const CounterSnapshot> cpus) {
  CounterSnapshot total;
  for (const CounterSnapshot& cpu : cpus) total += cpu;
  return total;
}

CounterSnapshot Counters::snapshot() const {
  CounterSnapshot copy;
  for (std::size_t i = 0; i < kCounterCount; ++i) copy.values[i] = get(static_cast<Counter>(i));
  return copy;
}

}  // namespace jiffy
