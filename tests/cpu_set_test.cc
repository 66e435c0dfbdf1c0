#include <gtest/gtest.h>
#include <jiffy/topology.h>

#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jiffy {
namespace {

TEST(CpuSet, HoldsAnyIdUpToTheLimit) {
  CpuSet set;
  EXPECT_TRUE(set.empty());
  for (const unsigned id : {0u, 63u, 64u, 8192u, CpuSet::kMaxCpuId}) set.set(id);
  set.set(CpuSet::kMaxCpuId + 1);
  EXPECT_EQ(set.count(), 5u);
  EXPECT_EQ(set.ids(), (std::vector<unsigned>{0, 63, 64, 8192, CpuSet::kMaxCpuId}));
  EXPECT_TRUE(set.test(8192));
  EXPECT_FALSE(set.test(8191));
  EXPECT_FALSE(set.test(UINT32_MAX));
  EXPECT_EQ(set.next(64), 8192u);
  EXPECT_EQ(set.next(CpuSet::kMaxCpuId), std::nullopt);
  EXPECT_EQ(set.next(UINT32_MAX), std::nullopt);
}

TEST(CpuSet, EqualSetsAreEqualHoweverTheyWereMade) {
  CpuSet a{1, 9000};
  a.clear(9000);
  a.clear(UINT32_MAX);
  EXPECT_EQ(a, CpuSet{1});
  EXPECT_EQ((CpuSet{1, 300} & CpuSet{1, 200}), CpuSet{1});
  EXPECT_EQ((CpuSet{1} | CpuSet{200}), (CpuSet{1, 200}));
  a.clear(1);
  EXPECT_TRUE(a.empty());
  EXPECT_TRUE((CpuSet{700} & CpuSet{701}).empty());
}

TEST(CpuList, KernelFormatIsRead) {
  const std::vector<std::pair<std::string, CpuSet>> cases{
      {"", {}},
      {"\n", {}},
      {"0\n", {0}},
      {"0,2,4-6\n", {0, 2, 4, 5, 6}},
      {"63-64", {63, 64}},
      {"0-6:2/3", {0, 1, 3, 4, 6}},
      {"8-11:1/2,1", {1, 8, 10}},
      {"5-5:1/1", {5}},
      {"4,1-2,2", {1, 2, 4}},
      {"8191,65535", {8191, 65535}},
  };
  for (const auto& [text, expected] : cases) {
    const ParsedCpuList parsed = parse_cpu_list(text);
    EXPECT_TRUE(parsed.ok()) << parsed.error;
    EXPECT_EQ(parsed.cpus, expected) << text;
  }
}

TEST(CpuList, MalformedOneIsAnErrorThatSaysWhatWasFound) {
  for (const std::string text : {",",
                                 "1,",
                                 ",1",
                                 "1,,2",
                                 "a",
                                 "1a",
                                 "-1",
                                 "1-",
                                 "-",
                                 "3-1",
                                 "1-2-3",
                                 "+1",
                                 "0x1",
                                 "1 2",
                                 "1, 2",
                                 "65536",
                                 "0-4294967295",
                                 "99999999999999999999",
                                 "1:1/2",
                                 "0-6:",
                                 "0-6:2",
                                 "0-6:2/",
                                 "0-6:/3",
                                 "0-6:0/3",
                                 "0-6:4/3",
                                 "0-6:1/0",
                                 "0-6:-1/3",
                                 "0-6:1/2/3",
                                 ":",
                                 "/"}) {
    const ParsedCpuList parsed = parse_cpu_list(text);
    EXPECT_FALSE(parsed.ok()) << text;
    EXPECT_TRUE(parsed.cpus.empty()) << text;
    EXPECT_NE(parsed.error.find("found '"), std::string::npos) << parsed.error;
    EXPECT_NE(parsed.error.find("expected"), std::string::npos) << parsed.error;
  }
}

TEST(CpuList, WhatIsWrittenIsReadBack) {
  EXPECT_EQ(CpuSet{}.to_string(), "");
  EXPECT_EQ((CpuSet{0, 1, 2, 4, 6, 7}.to_string()), "0-2,4,6-7");
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    CpuSet set;
    for (unsigned n = random() % 40; n > 0; --n) set.set(random() % (i % 2 == 0 ? 70 : 9000));
    ASSERT_EQ(parse_cpu_list(set.to_string()).cpus, set) << set.to_string();
  }
}

TEST(CpuList, RandomTextNeitherCrashesNorGivesWhatIsNotReadBack) {
  constexpr std::string_view kAlphabet = "0123456789,,--::// \n\t\\xa\0";
  std::mt19937 random(42);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (unsigned n = random() % 16; n > 0; --n) text += kAlphabet[random() % kAlphabet.size()];
    const ParsedCpuList parsed = parse_cpu_list(text);
    if (!parsed.ok()) {
      ASSERT_TRUE(parsed.cpus.empty());
      continue;
    }
    ASSERT_EQ(parse_cpu_list(parsed.cpus.to_string()).cpus, parsed.cpus) << text;
  }
}

}  // namespace
}  // namespace jiffy
