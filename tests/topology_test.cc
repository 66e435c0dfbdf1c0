#include <gtest/gtest.h>
#include <jiffy/topology.h>

#include <iterator>
#include <map>
#include <random>
#include <string>

#include "golden_tree.h"

namespace jiffy {
namespace {

using namespace golden;

TEST(Topology, EmptyTreeGivesTheAffinityMask) {
  const Tree tree({});
  const Topology t = tree.read(CpuSet{3, 5});
  EXPECT_EQ(t.allowed, (CpuSet{3, 5}));
  EXPECT_EQ(t.online, (CpuSet{3, 5}));
  EXPECT_EQ(t.default_cpu_count(), 2u);
  ASSERT_NE(t.find(5), nullptr);
  EXPECT_EQ(*t.find(5), (CpuInfo{.id = 5, .llc = 3, .core = 5, .package = 0, .node = 0}));
  EXPECT_NO_ERRORS(t);
}

TEST(Topology, NothingKnownAtAllIsOneCpu) {
  const Tree tree({});
  const Topology t = tree.read();
  EXPECT_EQ(t.allowed, CpuSet{0});
  EXPECT_EQ(t.default_cpu_count(), 1u);
}

TEST(Topology, SparseAndOfflineIdsAreFoundById) {
  const Tree tree(Files{{kCpus + "online", "0,2,8190\n"}, {kCpus + "possible", "0-8191\n"}} +
                  cpu_files(0, 0, 0, "0", "0,2") + cpu_files(2, 0, 1, "2", "0,2") +
                  cpu_files(8190, 1, 0, "8190", "8190"));
  const Topology t = tree.read(CpuSet{0, 1, 2, 3, 8190});
  EXPECT_EQ(t.allowed, (CpuSet{0, 2, 8190}));  // 1 and 3 are offline.
  EXPECT_EQ(t.possible.count(), 8192u);
  EXPECT_EQ(t.cpus.size(), 3u);
  EXPECT_EQ(t.find(1), nullptr);
  EXPECT_EQ(t.find(UINT32_MAX), nullptr);
  ASSERT_NE(t.find(8190), nullptr);
  EXPECT_EQ(*t.find(8190),
            (CpuInfo{.id = 8190, .llc = 8190, .core = 8190, .package = 1, .node = 0}));
  EXPECT_EQ(t.find(2)->llc, 0u);
  EXPECT_EQ(t.default_cpu_count(), 3u);
  EXPECT_NO_ERRORS(t);
}

TEST(Topology, TwoLastLevelCachesOfOnePackageAreTold) {
  const Tree tree(machine("0-7") + cpu_files(0, 0, 0, "0,4", "0-1,4-5") +
                  cpu_files(4, 0, 0, "0,4", "0-1,4-5") + cpu_files(1, 0, 1, "1,5", "0-1,4-5") +
                  cpu_files(5, 0, 1, "1,5", "0-1,4-5") + cpu_files(2, 0, 2, "2,6", "2-3,6-7") +
                  cpu_files(6, 0, 2, "2,6", "2-3,6-7") + cpu_files(3, 0, 3, "3,7", "2-3,6-7") +
                  cpu_files(7, 0, 3, "3,7", "2-3,6-7"));
  const Topology t = tree.read();
  std::map<unsigned, CpuSet> llcs, cores;
  for (const CpuInfo& cpu : t.cpus) {
    llcs[cpu.llc].set(cpu.id);
    cores[cpu.core].set(cpu.id);
  }
  EXPECT_EQ(llcs, (std::map<unsigned, CpuSet>{{0, {0, 1, 4, 5}}, {2, {2, 3, 6, 7}}}));
  EXPECT_EQ(cores,
            (std::map<unsigned, CpuSet>{{0, {0, 4}}, {1, {1, 5}}, {2, {2, 6}}, {3, {3, 7}}}));
}

TEST(Topology, InstructionCacheIsNoLastLevelCache) {
  Files files = machine("0-1") + cpu_files(0, 0, 0, "0", "0") + cpu_files(1, 0, 1, "1", "1");
  for (const std::string cpu : {"cpu0", "cpu1"}) {
    files[kCpus + cpu + "/cache/index2/level"] = "4\n";
    files[kCpus + cpu + "/cache/index2/type"] = "Instruction\n";
    files[kCpus + cpu + "/cache/index2/shared_cpu_list"] = "0-1\n";
  }
  const Tree tree(files);
  EXPECT_EQ(tree.read().find(1)->llc, 1u);
}

TEST(Topology, WithoutCacheFilesAPackageIsOneCache) {
  Files files = machine("0-3");
  for (unsigned id = 0; id < 4; ++id) {
    const std::string topology = kCpus + "cpu" + std::to_string(id) + "/topology/";
    files[topology + "physical_package_id"] = std::to_string(id / 2);
    files[topology + "core_id"] = "0";  // The same in both packages: other cores nevertheless.
  }
  const Tree tree(files);
  const Topology t = tree.read();
  for (unsigned id = 0; id < 4; ++id) {
    EXPECT_EQ(t.find(id)->llc, id / 2 * 2);
    EXPECT_EQ(t.find(id)->core, id / 2 * 2);
  }
}

TEST(Topology, ContradictoryCacheListsStillGiveAPartition) {
  const Tree tree(machine("0-2") + cpu_files(0, 0, 0, "0", "0") + cpu_files(1, 0, 1, "1", "0-2") +
                  cpu_files(2, 0, 2, "2", "0"));
  const Topology t = tree.read();
  EXPECT_EQ(t.find(0)->llc, 0u);
  EXPECT_EQ(t.find(1)->llc, 1u);
  EXPECT_EQ(t.find(2)->llc, 1u);
}

TEST(Topology, NodesMayBeSparseAndWithoutCpus) {
  const Tree tree(machine("0-3") + Files{{kNodes + "node0/cpulist", "0-1\n"},
                                         {kNodes + "node1/cpulist", "\n"},
                                         {kNodes + "node8/cpulist", "2-3,99\n"},
                                         {kNodes + "nodes_are_fun/cpulist", "0\n"},
                                         {kNodes + "online", "0-1,8\n"}});
  const Topology t = tree.read();
  EXPECT_EQ(t.find(1)->node, 0);
  EXPECT_EQ(t.find(2)->node, 8);
  EXPECT_EQ(t.find(99), nullptr);
  EXPECT_NO_ERRORS(t);
}

TEST(Topology, MalformedFileIsIgnoredAndNamed) {
  const Tree tree(
      Files{{kCpus + "online", "0-1,x\n"}, {kCpus + "possible", "0-1\n"}} +
      Files{{kCpus + "cpu0/cache/index0/level", "three\n"}, {kNodes + "node0/cpulist", "1-0\n"}});
  const Topology t = tree.read(CpuSet{0, 1});
  EXPECT_EQ(t.allowed, (CpuSet{0, 1}));
  ASSERT_EQ(t.errors.size(), 3u);
  EXPECT_EQ(t.errors[0],
            tree.root() +
                "/sys/devices/system/cpu/online: found 'x' in '0-1,x', expected ID, LOW-HIGH or "
                "LOW-HIGH:USED/GROUP, ids up to 65535");
  EXPECT_EQ(t.errors[1], tree.root() + kCpus +
                             "cpu0/cache/index0/level: found 'three', expected a decimal number");
  EXPECT_NE(t.errors[2].find("node0/cpulist: found '1-0'"), std::string::npos);
}

TEST(Topology, DirectoryInPlaceOfAFileIsAMissingFile) {
  const Tree tree(Files{{kCpus + "online/oops", ""}});
  const Topology t = tree.read(CpuSet{2});
  EXPECT_EQ(t.allowed, CpuSet{2});
  EXPECT_NO_ERRORS(t);
}

TEST(Topology, ContradictionIsSaidAndTheAffinityMaskWins) {
  const Tree tree(machine("0-3"));
  const Topology t = tree.read(CpuSet{8});
  EXPECT_EQ(t.allowed, CpuSet{8});
  ASSERT_EQ(t.errors.size(), 1u);
  EXPECT_NE(t.errors[0].find("affinity 8, cpuset any and online 0-3"), std::string::npos)
      << t.errors[0];
}

TEST(Topology, DamagedFilesNeverCrashAndAlwaysLeaveACpu) {
  const Files whole = machine("0-3") + cpu_files(0, 0, 0, "0-1", "0-3") + unified("/a") +
                      Files{{"/sys/fs/cgroup/a/cpu.max", "150000 100000\n"},
                            {"/sys/fs/cgroup/a/cpuset.cpus.effective", "0-2\n"},
                            {kNodes + "node0/cpulist", "0-3\n"}};
  Tree tree(whole);
  std::mt19937 random(43);
  for (int i = 0; i < 400; ++i) {
    auto file = whole.begin();
    std::advance(file, random() % whole.size());
    std::string damaged = file->second;
    for (unsigned n = 1 + random() % 4; n > 0 && !damaged.empty(); --n) {
      const std::size_t at = random() % damaged.size();
      switch (random() % 4) {
        case 0:
          damaged.erase(at, 1 + random() % 5);
          break;
        case 1:
          damaged[at] = static_cast<char>(random() % 256);
          break;
        case 2:
          damaged.insert(at, damaged.substr(random() % damaged.size()));
          break;
        default:
          damaged.resize(at);
          break;
      }
    }
    tree.write({{file->first, damaged}});
    const Topology t = tree.read(CpuSet{0, 1, 2, 3});
    ASSERT_GE(t.default_cpu_count(), 1u);
    ASSERT_FALSE(t.allowed.empty());
    ASSERT_EQ(t.cpus.size(), t.online.count());
    ASSERT_GT(t.quota_cpus, 0);
    tree.write({*file});
  }
}

TEST(Topology, ThisMachineHasAtLeastOneCpuAndKnowsItsAllowedOnes) {
  const Topology t = read_topology();
  EXPECT_GE(t.default_cpu_count(), 1u);
  EXPECT_NO_ERRORS(t);
  t.allowed.for_each([&](unsigned id) { EXPECT_NE(t.find(id), nullptr) << id; });
}

}  // namespace
}  // namespace jiffy
