#include <gtest/gtest.h>
#include <jiffy/counters.h>

#include <array>
#include <cctype>
#include <set>
#include <string>
#include <thread>

namespace jiffy {
namespace {

TEST(Counters, NamesAreUniqueIdentifiersWithADoc) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kCounterCount; ++i) {
    const std::string_view name = counter_name(static_cast<Counter>(i));
    EXPECT_TRUE(names.insert(name).second) << name;
    for (const char c : name) EXPECT_TRUE(std::islower(c) || c == '_') << name;
    EXPECT_FALSE(counter_doc(static_cast<Counter>(i)).empty()) << name;
  }
  EXPECT_EQ(counter_name(Counter::kContextSwitches), "context_switches");
  EXPECT_EQ(counter_name(Counter::kDelayedDequeues), "delayed_dequeues");
}

TEST(Counters, NameOfNoCounterIsUnknown) {
  EXPECT_EQ(counter_name(Counter::kCount), "unknown");
  EXPECT_EQ(counter_doc(static_cast<Counter>(255)), "not a counter");
}

TEST(Counters, OwnAndSharedAddsAreSummed) {
  Counters c;
  c.add(Counter::kTicks);
  c.add(Counter::kTicks, 5);
  c.add_shared(Counter::kTicks, 10);
  EXPECT_EQ(c.get(Counter::kTicks), 16u);
  EXPECT_EQ(c.get(Counter::kParks), 0u);
  EXPECT_EQ(c.snapshot().at(Counter::kTicks), 16u);
}

TEST(Counters, DifferenceOfSnapshotsIsWhatHappenedBetween) {
  Counters c;
  c.add(Counter::kYields, 3);
  const CounterSnapshot before = c.snapshot();
  c.add(Counter::kYields, 4);
  c.add_shared(Counter::kSpawns);
  const CounterSnapshot delta = c.snapshot() - before;
  EXPECT_EQ(delta.at(Counter::kYields), 4u);
  EXPECT_EQ(delta.at(Counter::kSpawns), 1u);
  EXPECT_EQ(before - before, CounterSnapshot{});
}

TEST(Counters, SumIsOverAllCpus) {
  std::array<Counters, 3> cpus;
  std::array<CounterSnapshot, 3> snapshots;
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    cpus[i].add(Counter::kSteals, i + 1);
    snapshots[i] = cpus[i].snapshot();
  }
  EXPECT_EQ(CounterSnapshot::sum(snapshots).at(Counter::kSteals), 6u);
  EXPECT_EQ(CounterSnapshot::sum({}), CounterSnapshot{});
}

TEST(Counters, ForeignWritersDoNotDisturbTheOwner) {
  constexpr std::uint64_t kEach = 20'000;
  Counters c;
  const auto foreign = [&] {
    for (std::uint64_t i = 0; i < kEach; ++i) c.add_shared(Counter::kWorksQueued);
  };
  std::thread a(foreign), b(foreign);
  std::uint64_t last = 0;
  bool grows = true;
  for (std::uint64_t i = 0; i < kEach; ++i) {
    c.add(Counter::kWorksQueued);
    const std::uint64_t now = c.get(Counter::kWorksQueued);
    grows = grows && now > last;
    last = now;
  }
  a.join();
  b.join();
  EXPECT_TRUE(grows);
  EXPECT_EQ(c.get(Counter::kWorksQueued), 3 * kEach);
}

}  // namespace
}  // namespace jiffy
