#pragma once
// Trace rings: what each Cpu did last, at a few nanoseconds an event, as the kernel's ftrace ring
// buffers in overwrite mode. Each Cpu writes a ring of its own; plain threads share a
// ForeignTraceRing. Both can be read while they are written; a record that was overwritten during
// the copy is left out, never returned torn.
//
// Locking classes:
//   I: immutable once published      P: written by the ring's one writer only, read by all      A:
//   atomic, all write C: written under enable()/disable(), whose caller serialises them; read by
//   all

#include <jiffy/detail/atomic.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jiffy {

// The names of the arguments are in the table of trace.cc.
enum class TraceEvent : std::uint16_t {
  kSwitch,  // arg0: a SwitchReason; arg1, arg2: ids of the previous and the next fiber (0: the idle
            // fiber)
  kWakeupReal,
  kWakeupNoop,
  kWakeupRemote,
  kLazyRequest,
  kHardRequest,
  kPromotion,
  kTick,
  kIpi,
  kWorkQueued,
  kWorkStarted,
  kWorkDone,
  kMigrate,
  kSoftirq,
  kTimerFired,
  kInject,
  kUser,   // For programs: the arguments mean what they like.
  kCount,  // Not an event.
};

// Why the previous fiber of a switch stopped running.
enum class SwitchReason : std::uint8_t {
  kBlock,        // it waits
  kYield,        // it asked to
  kPreemptLazy,  // a lazy request was honoured
  kPreemptHard,  // a hard request was honoured
  kExit,         // it ended
  kIdle,         // it was the idle fiber, and there is work
  kCount,        // Not a reason.
};

// "switch", "preempt_lazy"; "unknown" if out of range. Static storage.
std::string_view trace_event_name(TraceEvent event);
std::string_view switch_reason_name(SwitchReason reason);
// Of arg0, arg1, arg2; empty where an argument is unused. Static storage.
std::array<std::string_view, 3> trace_argument_names(TraceEvent event);

struct TraceRecord {
  std::uint64_t time_ns = 0;
  TraceEvent event = TraceEvent::kUser;
  std::uint16_t cpu = 0;
  std::uint32_t arg0 = 0;
  std::uint64_t arg1 = 0;
  std::uint64_t arg2 = 0;
  bool operator==(const TraceRecord&) const = default;
};
static_assert(sizeof(TraceRecord) == 32);

// The cpu of records that come from plain threads.
inline constexpr std::uint16_t kForeignCpu = UINT16_MAX;
// The largest capacity of a ring, in records (half a gigabyte, a whole one in a ForeignTraceRing).
inline constexpr std::size_t kMaxTraceCapacity = std::size_t{1} << 24;

// A record as four atomic words, so that a reader races with the writer without undefined
// behaviour.
struct alignas(32) TraceSlot {
  std::array<Atomic<std::uint64_t>, 4> words{};

  // Release, partner of the acquire in load(): who sees a word of a new record also sees, in what
  // it loads next, that the writer had begun to overwrite the slot (`head_` or `sequence`, stored
  // before). Plain moves on x86.
  void store(const TraceRecord& r) {
    words[0].store(r.time_ns, std::memory_order_release);
    words[1].store(static_cast<std::uint64_t>(r.event) | std::uint64_t{r.cpu} << 16 |
                       std::uint64_t{r.arg0} << 32,
                   std::memory_order_release);
    words[2].store(r.arg1, std::memory_order_release);
    words[3].store(r.arg2, std::memory_order_release);
  }
  TraceRecord load() const;
};

// The ring of one Cpu.
class TraceRing {
 public:
  explicit TraceRing(std::uint16_t cpu) : cpu_(cpu) {}
  ~TraceRing();
  TraceRing(const TraceRing&) = delete;
  TraceRing& operator=(const TraceRing&) = delete;

  // Starts tracing; records from before are forgotten. The first call allocates `capacity` records
  // (rounded up to a power of two, 32 bytes each) and touches them, so that emit() takes no page
  // faults; later calls keep that capacity. Returns false if there is no memory or capacity >
  // kMaxTraceCapacity: then nothing is traced. Any thread, but not two at once with each other or
  // disable().
  [[nodiscard]] bool enable(std::size_t capacity);
  // Stops tracing; what was recorded stays readable. An emit() on its way may still finish.
  void disable() { enabled_.store(false, std::memory_order_relaxed); }
  // One relaxed load: test it before taking the clock.
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  // Records an event at `time_ns` (any clock, the same for all rings that are merged). The Cpu's
  // thread only, and not re-entrant: the caller cannot be preempted or interrupted by code that
  // emits (preempt_count is raised or soft irqs are off). Neither blocks nor allocates. Does
  // nothing unless enabled.
  void emit(std::uint64_t time_ns, TraceEvent event, std::uint32_t arg0 = 0, std::uint64_t arg1 = 0,
            std::uint64_t arg2 = 0) {
    // Acquire: partner of the release in enable(), for slots_ and mask_.
    if (!enabled_.load(std::memory_order_acquire)) return;
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    slots_.load(std::memory_order_relaxed)[head & mask_].store(
        {time_ns, event, cpu_, arg0, arg1, arg2});
    // Release: partner of the acquire in snapshot(): who sees this head sees the record.
    head_.store(head + 1, std::memory_order_release);
  }

  // The newest records, oldest first: up to capacity - 1 (the oldest slot counts as being
  // overwritten). Any thread, at any time; allocates.
  std::vector<TraceRecord> snapshot() const;
  // How many were recorded since enable(), overwritten ones included.
  std::uint64_t emitted() const;

 private:
  const std::uint16_t cpu_;                    // I
  Atomic<bool> enabled_{false};                // C
  Atomic<TraceSlot*> slots_{nullptr};          // C, then I: owned
  std::uint64_t mask_ = 0;                     // I: published by slots_ and enabled_
  Atomic<std::uint64_t> begin_{0};             // C: head_ at enable()
  alignas(64) Atomic<std::uint64_t> head_{0};  // P: number of records written
};

// A ring for any number of writers: plain threads and signal handlers. Costs two locked
// instructions an event.
class ForeignTraceRing {
 public:
  ForeignTraceRing() = default;
  ~ForeignTraceRing();
  ForeignTraceRing(const ForeignTraceRing&) = delete;
  ForeignTraceRing& operator=(const ForeignTraceRing&) = delete;

  // As in TraceRing; a record takes 64 bytes.
  [[nodiscard]] bool enable(std::size_t capacity);
  void disable() { enabled_.store(false, std::memory_order_relaxed); }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  std::vector<TraceRecord> snapshot() const;
  std::uint64_t emitted() const;

  // As in TraceRing, for any thread and re-entrant; the record's cpu is kForeignCpu. Lock-free: a
  // record whose slot is still being written by a thread that was overtaken by a whole round is
  // dropped and counted.
  void emit(std::uint64_t time_ns, TraceEvent event, std::uint32_t arg0 = 0, std::uint64_t arg1 = 0,
            std::uint64_t arg2 = 0);
  // How many of emitted() were dropped since construction.
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    // 2i + 1: record i is being written; 2i + 2: it is complete.
    Atomic<std::uint64_t> sequence{0};
    TraceSlot record;
  };
  Atomic<bool> enabled_{false};                // C
  Atomic<Slot*> slots_{nullptr};               // C, then I: owned
  std::uint64_t mask_ = 0;                     // I: published by slots_ and enabled_
  Atomic<std::uint64_t> begin_{0};             // C: head_ at enable()
  alignas(64) Atomic<std::uint64_t> head_{0};  // A: number of records claimed
  Atomic<std::uint64_t> dropped_{0};           // A
};

// All records in order of time; those of one instant keep the order of the rings.
std::vector<TraceRecord> merge_traces(std::span<const std::vector<TraceRecord>> rings);

// How a fiber is called in a listing; an empty function or an empty name means "fiber N".
using FiberNamer = std::function<std::string(std::uint64_t id)>;

// One line a record: seconds, Cpu, event, arguments. `records` as merge_traces() gives them.
std::string trace_to_text(std::span<const TraceRecord> records);
// The same in the Chrome trace event format, for chrome://tracing and Perfetto: a Cpu is a thread,
// a fiber's time between two switches a slice, everything else an instant with its arguments.
std::string trace_to_chrome_json(std::span<const TraceRecord> records,
                                 const FiberNamer& name_of = {});

}  // namespace jiffy
