#include <jiffy/trace.h>

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <new>
#include <optional>

#include "machine/model.h"

namespace jiffy {
namespace {

struct EventInfo {
  TraceEvent event;
  std::string_view name;
  std::array<std::string_view, 3> arguments;  // "" where unused
};

constexpr std::array<EventInfo, static_cast<std::size_t>(TraceEvent::kCount)> kEvents{{
    {TraceEvent::kSwitch, "switch", {"reason", "prev", "next"}},
    {TraceEvent::kWakeupReal, "wakeup_real", {"cpu", "fiber", "waker"}},
    {TraceEvent::kWakeupNoop, "wakeup_noop", {"cpu", "fiber", "waker"}},
    {TraceEvent::kWakeupRemote, "wakeup_remote", {"cpu", "fiber", "waker"}},
    {TraceEvent::kLazyRequest, "lazy_request", {"cpu", "running", "wakee"}},
    {TraceEvent::kHardRequest, "hard_request", {"cpu", "running", "wakee"}},
    {TraceEvent::kPromotion, "promotion", {"", "running", ""}},
    {TraceEvent::kTick, "tick", {"", "running", ""}},
    {TraceEvent::kIpi, "ipi", {"cpu", "vector", ""}},
    {TraceEvent::kWorkQueued, "work_queued", {"pool", "work", "queuer"}},
    {TraceEvent::kWorkStarted, "work_started", {"pool", "work", "worker"}},
    {TraceEvent::kWorkDone, "work_done", {"pool", "work", "worker"}},
    {TraceEvent::kMigrate, "migrate", {"to_cpu", "fiber", "from_cpu"}},
    {TraceEvent::kSoftirq, "softirq", {"number", "", ""}},
    {TraceEvent::kTimerFired, "timer_fired", {"fired", "", ""}},
    {TraceEvent::kInject, "inject", {"atomic", "running", ""}},
    {TraceEvent::kUser, "user", {"arg0", "arg1", "arg2"}},
}};

constexpr bool events_are_in_order() {
  for (std::size_t i = 0; i < kEvents.size(); ++i) {
    if (static_cast<std::size_t>(kEvents[i].event) != i || kEvents[i].name.empty()) return false;
  }
  return true;
}
static_assert(events_are_in_order());

constexpr std::array<std::string_view, static_cast<std::size_t>(SwitchReason::kCount)> kReasons{
    "block", "yield", "preempt_lazy", "preempt_hard", "exit", "idle"};

// For both rings: publishes slots once, then starts tracing from the present head.
template <typename Slot>
bool enable_ring(std::size_t capacity, Atomic<Slot*>& slots, std::uint64_t& mask,
                 const Atomic<std::uint64_t>& head, Atomic<std::uint64_t>& begin,
                 Atomic<bool>& enabled) {
  if (slots.load(std::memory_order_relaxed) == nullptr) {
    if (capacity > kMaxTraceCapacity) return false;
    const std::size_t rounded = std::bit_ceil(std::max<std::size_t>(capacity, 2));
    Slot* memory = new (std::nothrow) Slot[rounded];
    if (memory == nullptr) return false;
    mask = rounded - 1;
    slots.store(memory, std::memory_order_release);  // Partner: the acquire in snapshot().
  }
  begin.store(head.load(std::memory_order_relaxed), std::memory_order_relaxed);
  enabled.store(true, std::memory_order_release);  // Partner: the acquire in emit().
  return true;
}

std::uint64_t oldest_kept(std::uint64_t begin, std::uint64_t head, std::uint64_t capacity) {
  return std::max(begin, head > capacity ? head - capacity : 0);
}

}  // namespace

std::string_view trace_event_name(TraceEvent event) {
  const auto i = static_cast<std::size_t>(event);
  return i < kEvents.size() ? kEvents[i].name : "unknown";
}

std::string_view switch_reason_name(SwitchReason reason) {
  const auto i = static_cast<std::size_t>(reason);
  return i < kReasons.size() ? kReasons[i] : "unknown";
}

std::array<std::string_view, 3> trace_argument_names(TraceEvent event) {
  const auto i = static_cast<std::size_t>(event);
  return kEvents[i < kEvents.size() ? i : static_cast<std::size_t>(TraceEvent::kUser)].arguments;
}

TraceRecord TraceSlot::load() const {
  std::array<std::uint64_t, 4> w;
  // Acquire: partner of the release in store().
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = words[i].load(std::memory_order_acquire);
  return {w[0],
          static_cast<TraceEvent>(w[1] & 0xffff),
          static_cast<std::uint16_t>(w[1] >> 16),
          static_cast<std::uint32_t>(w[1] >> 32),
          w[2],
          w[3]};
}

TraceRing::~TraceRing() { delete[] slots_.load(std::memory_order_relaxed); }

bool TraceRing::enable(std::size_t capacity) {
  return enable_ring(capacity, slots_, mask_, head_, begin_, enabled_);
}

std::vector<TraceRecord> TraceRing::snapshot() const {
  const TraceSlot* slots =
      slots_.load(std::memory_order_acquire);  // Partner: the release in enable_ring().
  if (slots == nullptr) return {};
  const std::uint64_t capacity = mask_ + 1;
  const std::uint64_t end =
      head_.load(std::memory_order_acquire);  // Partner: the release in emit().
  const std::uint64_t first =
      std::min(end, oldest_kept(begin_.load(std::memory_order_relaxed), end, capacity));
  std::vector<TraceRecord> records;
  records.reserve(end - first);
  for (std::uint64_t i = first; i < end; ++i) records.push_back(slots[i & mask_].load());
  // The writer at head h may be anywhere in the slot of record h - capacity. If one of the loads
  // above saw a word of such a later record, this load, which cannot move before them, sees a head
  // of at least h: so all that is suspect is below the new limit.
  const std::uint64_t head = model::planted(model::Fault::kTraceDoesNotLookAgain)
                                 ? end
                                 : head_.load(std::memory_order_relaxed);
  const std::uint64_t intact = head >= capacity ? head - capacity + 1 : 0;
  if (intact > first) {
    const auto stale = static_cast<std::ptrdiff_t>(std::min(intact, end) - first);
    records.erase(records.begin(), records.begin() + stale);
  }
  return records;
}

std::uint64_t TraceRing::emitted() const {
  const std::uint64_t begin = begin_.load(std::memory_order_relaxed);
  const std::uint64_t head = head_.load(std::memory_order_relaxed);
  return head > begin ? head - begin : 0;
}

ForeignTraceRing::~ForeignTraceRing() { delete[] slots_.load(std::memory_order_relaxed); }

bool ForeignTraceRing::enable(std::size_t capacity) {
  return enable_ring(capacity, slots_, mask_, head_, begin_, enabled_);
}

void ForeignTraceRing::emit(std::uint64_t time_ns, TraceEvent event, std::uint32_t arg0,
                            std::uint64_t arg1, std::uint64_t arg2) {
  if (!enabled_.load(std::memory_order_acquire)) return;  // Partner: the release in enable_ring().
  const std::uint64_t mine = head_.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = slots_.load(std::memory_order_relaxed)[mine & mask_];
  std::uint64_t seen = slot.sequence.load(std::memory_order_relaxed);
  const bool busy = (seen & 1) != 0;
  const bool overtaken = seen > 2 * mine;
  // Acquire: partner of the release at the end, so that our words come after those of the slot's
  // previous writer.
  if (busy || overtaken ||
      !slot.sequence.compare_exchange_strong(seen, 2 * mine + 1, std::memory_order_acquire,
                                             std::memory_order_relaxed)) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  slot.record.store({time_ns, event, kForeignCpu, arg0, arg1, arg2});
  slot.sequence.store(2 * mine + 2,
                      std::memory_order_release);  // Partners: the above, and snapshot().
}

std::vector<TraceRecord> ForeignTraceRing::snapshot() const {
  const Slot* slots =
      slots_.load(std::memory_order_acquire);  // Partner: the release in enable_ring().
  if (slots == nullptr) return {};
  const std::uint64_t end = head_.load(std::memory_order_relaxed);
  std::vector<TraceRecord> records;
  for (std::uint64_t i = oldest_kept(begin_.load(std::memory_order_relaxed), end, mask_ + 1);
       i < end; ++i) {
    const Slot& slot = slots[i & mask_];
    // Acquire: partner of the release at the end of emit().
    if (slot.sequence.load(std::memory_order_acquire) != 2 * i + 2) continue;
    const TraceRecord record = slot.record.load();
    // If a word of a later record was seen, so is the sequence number that its writer stored before
    // it.
    if (slot.sequence.load(std::memory_order_relaxed) == 2 * i + 2) records.push_back(record);
  }
  return records;
}

std::uint64_t ForeignTraceRing::emitted() const {
  const std::uint64_t begin = begin_.load(std::memory_order_relaxed);
  const std::uint64_t head = head_.load(std::memory_order_relaxed);
  return head > begin ? head - begin : 0;
}

std::vector<TraceRecord> merge_traces(std::span<const std::vector<TraceRecord>> rings) {
  std::vector<TraceRecord> all;
  for (const std::vector<TraceRecord>& ring : rings)
    all.insert(all.end(), ring.begin(), ring.end());
  std::stable_sort(all.begin(), all.end(), [](const TraceRecord& a, const TraceRecord& b) {
    return a.time_ns < b.time_ns;
  });
  return all;
}

namespace {

template <typename... Args>
void append_format(std::string& out, const char* format, Args... args) {
  std::array<char, 160> line;
  const int n = std::snprintf(line.data(), line.size(), format, args...);
  if (n > 0) out.append(line.data(), std::min(static_cast<std::size_t>(n), line.size() - 1));
}

// Calls fn(name, value, text) for each argument that is used; `text`, if not empty, is how the
// value is called.
template <typename Fn>
void for_each_argument(const TraceRecord& record, Fn fn) {
  const std::array<std::string_view, 3> names = trace_argument_names(record.event);
  const std::array<std::uint64_t, 3> values{record.arg0, record.arg1, record.arg2};
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) continue;
    const bool reason = record.event == TraceEvent::kSwitch && i == 0;
    const bool known = values[i] < kReasons.size();
    fn(names[i], values[i], reason && known ? kReasons[values[i]] : std::string_view());
  }
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      append_format(out, "\\u%04x", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

// Writes the events of one trace; keeps, for each Cpu, the fiber that runs there.
class ChromeWriter {
 public:
  explicit ChromeWriter(const FiberNamer& name_of) : name_of_(name_of) {}

  void add(const TraceRecord& record) {
    const auto [cpu, is_new] = cpus_.try_emplace(record.cpu);
    if (is_new) add_thread_name(record.cpu);
    if (record.event == TraceEvent::kSwitch) {
      close_slice(record.cpu, cpu->second, record.time_ns);
      cpu->second = Slice{record.arg2, record.time_ns};
    }
    add_instant(record);
  }

  std::string finish(std::uint64_t last_ns) {
    for (const auto& [cpu, slice] : cpus_) close_slice(cpu, slice, last_ns);
    return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[" + out_ + "\n]}\n";
  }

 private:
  struct Slice {
    std::uint64_t fiber;
    std::uint64_t start_ns;
  };

  void begin_event(std::string_view name, const char* phase, std::uint16_t cpu) {
    out_ += out_.empty() ? "\n{\"name\":" : ",\n{\"name\":";
    append_json_string(out_, name);
    append_format(out_, ",\"ph\":\"%s\",\"pid\":0,\"tid\":%u", phase, unsigned{cpu});
  }

  // The format's unit is the microsecond; three decimals keep the nanosecond, which a double of the
  // sum would not.
  void add_time(const char* key, std::uint64_t ns) {
    append_format(out_, ",\"%s\":%" PRIu64 ".%03u", key, ns / 1000,
                  static_cast<unsigned>(ns % 1000));
  }

  void add_thread_name(std::uint16_t cpu) {
    begin_event("thread_name", "M", cpu);
    out_ += ",\"args\":{\"name\":";
    append_json_string(out_, cpu == kForeignCpu ? "plain threads" : "Cpu " + std::to_string(cpu));
    out_ += "}}";
  }

  void close_slice(std::uint16_t cpu, const std::optional<Slice>& slice, std::uint64_t end_ns) {
    if (!slice || slice->fiber == 0) return;  // Idle time is best seen as a gap.
    begin_event(name_of(slice->fiber), "X", cpu);
    add_time("ts", slice->start_ns);
    add_time("dur", std::max(end_ns, slice->start_ns) - slice->start_ns);
    append_format(out_, ",\"args\":{\"fiber\":%" PRIu64 "}}", slice->fiber);
  }

  void add_instant(const TraceRecord& record) {
    begin_event(trace_event_name(record.event), "i", record.cpu);
    add_time("ts", record.time_ns);
    out_ += ",\"s\":\"t\",\"args\":{";
    const char* comma = "";
    for_each_argument(record,
                      [&](std::string_view name, std::uint64_t value, std::string_view text) {
                        out_ += comma;
                        append_json_string(out_, name);
                        out_ += ':';
                        if (text.empty()) {
                          append_format(out_, "%" PRIu64, value);
                        } else {
                          append_json_string(out_, text);
                        }
                        comma = ",";
                      });
    out_ += "}}";
  }

  std::string name_of(std::uint64_t fiber) const {
    std::string name = name_of_ ? name_of_(fiber) : std::string();
    return name.empty() ? "fiber " + std::to_string(fiber) : name;
  }

  const FiberNamer& name_of_;
  std::map<std::uint16_t, std::optional<Slice>> cpus_;
  std::string out_;
};

}  // namespace

std::string trace_to_text(std::span<const TraceRecord> records) {
  constexpr std::uint64_t kSecond = 1'000'000'000;
  std::string out;
  for (const TraceRecord& r : records) {
    append_format(out, "%6" PRIu64 ".%09" PRIu64 " ", r.time_ns / kSecond, r.time_ns % kSecond);
    if (r.cpu == kForeignCpu) {
      out += "thread ";
    } else {
      append_format(out, "cpu%-3u ", unsigned{r.cpu});
    }
    out += trace_event_name(r.event);
    for_each_argument(r, [&](std::string_view name, std::uint64_t value, std::string_view text) {
      out += ' ';
      out += name;
      out += '=';
      out += text.empty() ? std::to_string(value) : std::string(text);
    });
    out += '\n';
  }
  return out;
}

std::string trace_to_chrome_json(std::span<const TraceRecord> records, const FiberNamer& name_of) {
  ChromeWriter writer(name_of);
  for (const TraceRecord& record : records) writer.add(record);
  return writer.finish(records.empty() ? 0 : records.back().time_ns);
}

}  // namespace jiffy
