#include <gtest/gtest.h>
#include <jiffy/trace.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace jiffy {
namespace {

// A record whose fields are all made from one number, so that a torn one shows.
template <typename Ring>
void emit_number(Ring& ring, std::uint64_t n) {
  ring.emit(n, TraceEvent::kUser, static_cast<std::uint32_t>(n), n * 3, ~n);
}
bool is_whole(const TraceRecord& r) {
  return r.event == TraceEvent::kUser && r.arg0 == static_cast<std::uint32_t>(r.time_ns) &&
         r.arg1 == r.time_ns * 3 && r.arg2 == ~r.time_ns;
}

TEST(Trace, NamesAreUnique) {
  std::set<std::string_view> names;
  for (std::uint16_t i = 0; i < static_cast<std::uint16_t>(TraceEvent::kCount); ++i) {
    EXPECT_TRUE(names.insert(trace_event_name(static_cast<TraceEvent>(i))).second);
  }
  EXPECT_EQ(trace_event_name(TraceEvent::kSwitch), "switch");
  EXPECT_EQ(trace_event_name(TraceEvent::kCount), "unknown");
  EXPECT_EQ(switch_reason_name(SwitchReason::kPreemptLazy), "preempt_lazy");
  EXPECT_EQ(switch_reason_name(SwitchReason::kCount), "unknown");
}

TEST(TraceRing, RecordsNothingUnlessEnabled) {
  TraceRing ring(0);
  EXPECT_FALSE(ring.enabled());
  emit_number(ring, 1);
  EXPECT_TRUE(ring.snapshot().empty());
  ASSERT_TRUE(ring.enable(8));
  EXPECT_TRUE(ring.enabled());
  emit_number(ring, 2);
  ring.disable();
  emit_number(ring, 3);
  ASSERT_EQ(ring.snapshot().size(), 1u);
  EXPECT_EQ(ring.snapshot()[0].time_ns, 2u);
}

TEST(TraceRing, KeepsAllFields) {
  TraceRing ring(0xabcd);
  ASSERT_TRUE(ring.enable(8));
  ring.emit(UINT64_MAX, TraceEvent::kInject, UINT32_MAX, 1, UINT64_MAX - 1);
  const TraceRecord expected{UINT64_MAX, TraceEvent::kInject, 0xabcd, UINT32_MAX,
                             1,          UINT64_MAX - 1};
  ASSERT_EQ(ring.snapshot().size(), 1u);
  EXPECT_EQ(ring.snapshot()[0], expected);
}

TEST(TraceRing, OverwritesTheOldestAndKeepsTheNewest) {
  TraceRing ring(0);
  ASSERT_TRUE(
      ring.enable(5));  // Rounded up to 8, of which the oldest slot counts as being overwritten.
  for (std::uint64_t i = 0; i < 100; ++i) emit_number(ring, i);
  const std::vector<TraceRecord> records = ring.snapshot();
  ASSERT_EQ(records.size(), 7u);
  for (std::size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].time_ns, 93 + i);
  EXPECT_EQ(ring.emitted(), 100u);
}

TEST(TraceRing, EnablingAgainForgetsWhatWasBefore) {
  TraceRing ring(0);
  ASSERT_TRUE(ring.enable(8));
  emit_number(ring, 1);
  ring.disable();
  ASSERT_TRUE(ring.enable(1024));
  EXPECT_TRUE(ring.snapshot().empty());
  emit_number(ring, 2);
  ASSERT_EQ(ring.snapshot().size(), 1u);
  EXPECT_EQ(ring.snapshot()[0].time_ns, 2u);
  EXPECT_EQ(ring.emitted(), 1u);
}

TEST(TraceRing, RefusesATooLargeCapacity) {
  TraceRing ring(0);
  EXPECT_FALSE(ring.enable(kMaxTraceCapacity + 1));
  EXPECT_FALSE(ring.enable(SIZE_MAX));
  EXPECT_FALSE(ring.enabled());
  emit_number(ring, 1);
  EXPECT_TRUE(ring.snapshot().empty());
}

TEST(TraceRing, ReaderBesideTheWriterNeverSeesATornRecord) {
  TraceRing ring(3);
  ASSERT_TRUE(ring.enable(16));  // Small, so that the writer laps the reader.
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) emit_number(ring, i);
  });
  bool all_whole = true;
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<TraceRecord> records = ring.snapshot();
    for (std::size_t k = 0; k < records.size(); ++k) {
      const bool in_order = records[k].time_ns == records[0].time_ns + k;
      all_whole = all_whole && in_order && is_whole(records[k]);
    }
  }
  EXPECT_TRUE(all_whole);
  stop = true;
  writer.join();
}

TEST(TraceRing, MayBeSwitchedOnAndOffBesideTheWriter) {
  TraceRing ring(0);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      if (ring.enabled()) emit_number(ring, i);
    }
  });
  for (int i = 0; i < 300; ++i) {
    EXPECT_TRUE(ring.enable(64));
    for (const TraceRecord& r : ring.snapshot()) EXPECT_TRUE(is_whole(r));
    ring.disable();
  }
  stop = true;
  writer.join();
}

TEST(ForeignTraceRing, KeepsTheNewestOfOneWriter) {
  ForeignTraceRing ring;
  emit_number(ring, 0);
  EXPECT_TRUE(ring.snapshot().empty());
  ASSERT_TRUE(ring.enable(8));
  for (std::uint64_t i = 0; i < 100; ++i) emit_number(ring, i);
  const std::vector<TraceRecord> records = ring.snapshot();
  ASSERT_EQ(records.size(), 8u);
  for (std::size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].time_ns, 92 + i);
  EXPECT_EQ(records[0].cpu, kForeignCpu);
  EXPECT_EQ(ring.dropped(), 0u);
}

TEST(ForeignTraceRing, LosesNothingWhileItHasRoom) {
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kEach = 1000;
  ForeignTraceRing ring;
  ASSERT_TRUE(ring.enable(kThreads * kEach));
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&ring, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) emit_number(ring, t * kEach + i);
    });
  }
  for (std::thread& t : threads) t.join();
  std::set<std::uint64_t> seen;
  for (const TraceRecord& r : ring.snapshot()) {
    ASSERT_TRUE(is_whole(r));
    seen.insert(r.time_ns);
  }
  EXPECT_EQ(seen.size(), kThreads * kEach);
  EXPECT_EQ(ring.emitted(), kThreads * kEach);
}

TEST(ForeignTraceRing, WritersThatLapEachOtherNeverTearARecord) {
  ForeignTraceRing ring;
  ASSERT_TRUE(ring.enable(4));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = t; !stop.load(std::memory_order_relaxed); i += 3) emit_number(ring, i);
    });
  }
  bool all_whole = true;
  for (int i = 0; i < 100'000; ++i) {
    for (const TraceRecord& r : ring.snapshot()) all_whole = all_whole && is_whole(r);
  }
  EXPECT_TRUE(all_whole);
  stop = true;
  for (std::thread& t : threads) t.join();
  for (const TraceRecord& r : ring.snapshot()) ASSERT_TRUE(is_whole(r));
  EXPECT_LE(ring.dropped(), ring.emitted());
}

TEST(TraceListing, MergeOrdersByTimeAndKeepsTheOrderOfOneInstant) {
  const std::vector<std::vector<TraceRecord>> rings{
      {{10, TraceEvent::kTick, 0, 0, 0, 0}, {30, TraceEvent::kTick, 0, 0, 0, 0}},
      {{5, TraceEvent::kIpi, 1, 0, 0, 0}, {10, TraceEvent::kIpi, 1, 0, 0, 0}},
      {}};
  std::vector<std::pair<std::uint64_t, int>> order;
  for (const TraceRecord& r : merge_traces(rings)) order.emplace_back(r.time_ns, r.cpu);
  EXPECT_EQ(order, (std::vector<std::pair<std::uint64_t, int>>{{5, 1}, {10, 0}, {10, 1}, {30, 0}}));
}

const std::vector<TraceRecord> kSample{
    {1'000'000'500, TraceEvent::kWakeupReal, kForeignCpu, 2, 7, 0},
    {1'000'001'000, TraceEvent::kSwitch, 2, static_cast<std::uint32_t>(SwitchReason::kIdle), 0, 7},
    {1'000'003'250, TraceEvent::kSwitch, 2, static_cast<std::uint32_t>(SwitchReason::kBlock), 7, 0},
    {1'000'004'000, TraceEvent::kSwitch, 2, 99, 0, 8},
    {2'000'000'000, TraceEvent::kTick, 2, 0, 8, 0},
};

TEST(TraceListing, TextHasALineForEachRecordWithNamedArguments) {
  EXPECT_EQ(trace_to_text(kSample),
            "     1.000000500 thread wakeup_real cpu=2 fiber=7 waker=0\n"
            "     1.000001000 cpu2   switch reason=idle prev=0 next=7\n"
            "     1.000003250 cpu2   switch reason=block prev=7 next=0\n"
            "     1.000004000 cpu2   switch reason=99 prev=0 next=8\n"
            "     2.000000000 cpu2   tick running=8\n");
  EXPECT_EQ(trace_to_text({}), "");
}

TEST(TraceListing, ChromeJsonShowsTimeBetweenSwitchesAsSlices) {
  const std::string json = trace_to_chrome_json(kSample);
  const auto has = [&](std::string_view part) { return json.find(part) != std::string::npos; };
  EXPECT_TRUE(has(R"({"name":"thread_name","ph":"M","pid":0,"tid":2,"args":{"name":"Cpu 2"}})"));
  EXPECT_TRUE(has(R"("tid":65535,"args":{"name":"plain threads"}})"));
  EXPECT_TRUE(has(
      R"({"name":"fiber 7","ph":"X","pid":0,"tid":2,"ts":1000001.000,"dur":2.250,"args":{"fiber":7}})"));
  EXPECT_TRUE(
      has(R"({"name":"fiber 8","ph":"X","pid":0,"tid":2,"ts":1000004.000,"dur":999996.000,)"));
  EXPECT_TRUE(has(R"("ts":1000003.250,"s":"t","args":{"reason":"block","prev":7,"next":0}})"));
  EXPECT_FALSE(has("fiber 0"));
}

// Brackets balance outside strings, strings are closed, no comma is left over.
bool is_balanced_json(std::string_view json) {
  std::string open;
  bool in_string = false;
  char last = 0;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (static_cast<unsigned char>(c) < 0x20 && (in_string || c != '\n')) return false;
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      open += c;
    } else if (c == '}' || c == ']') {
      if (open.empty() || last == ',' || open.back() != (c == '}' ? '{' : '[')) return false;
      open.pop_back();
    }
    if (c != '\n') last = c;
  }
  return open.empty() && !in_string;
}

TEST(TraceListing, ChromeJsonIsWellFormedWhateverFibersAreCalled) {
  const FiberNamer namer = [](std::uint64_t id) {
    return id == 7 ? "a \"b\" \\ \n\x01" : std::string();
  };
  const std::string json = trace_to_chrome_json(kSample, namer);
  EXPECT_TRUE(is_balanced_json(json)) << json;
  EXPECT_NE(json.find(R"("name":"a \"b\" \\ \u000a\u0001")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("name":"fiber 8")"), std::string::npos) << json;
  EXPECT_TRUE(is_balanced_json(trace_to_chrome_json({})));
}

TEST(TraceListing, UnknownEventIsListedAndDoesNotCrash) {
  const std::vector<TraceRecord> records{{1, static_cast<TraceEvent>(9999), 0, 1, 2, 3}};
  EXPECT_NE(trace_to_text(records).find("unknown arg0=1 arg1=2 arg2=3"), std::string::npos);
  EXPECT_TRUE(is_balanced_json(trace_to_chrome_json(records)));
}

}  // namespace
}  // namespace jiffy
