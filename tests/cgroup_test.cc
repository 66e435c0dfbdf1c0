#include <gtest/gtest.h>
#include <jiffy/topology.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "golden_tree.h"

// How cgroups (version 2, version 1, both) limit what read_topology() finds.

namespace jiffy {
namespace {

using namespace golden;

TEST(TopologyCpuset, SmallerThanTheMachineIsObeyed) {
  const Tree tree(machine("0-63") + unified("/box") +
                  Files{{"/sys/fs/cgroup/cpuset.cpus.effective", "0-63\n"},
                        {"/sys/fs/cgroup/box/cpuset.cpus.effective", "12-13,60\n"}});
  EXPECT_EQ(tree.read().allowed, (CpuSet{12, 13, 60}));
  EXPECT_EQ(tree.read(CpuSet{13, 14}).allowed, CpuSet{13});
}

TEST(TopologyCpuset, PartitionIsNotCutByWhatItsParentHasLeft) {
  const Tree tree(machine("0-7") + unified("/a/partition") +
                  Files{{"/sys/fs/cgroup/cpuset.cpus.effective", "0-3\n"},
                        {"/sys/fs/cgroup/a/cpuset.cpus.effective", "0-3\n"},
                        {"/sys/fs/cgroup/a/partition/cpuset.cpus.effective", "4-7\n"}});
  EXPECT_EQ(tree.read().allowed, (CpuSet{4, 5, 6, 7}));
}

TEST(TopologyCpuset, EmptyOrMissingOneIsThatOfTheNearestEnclosingGroup) {
  const Tree tree(machine("0-7") + unified("/a/b/c") +
                  Files{{"/sys/fs/cgroup/a/cpuset.cpus.effective", "2-3\n"},
                        {"/sys/fs/cgroup/a/b/cpuset.cpus.effective", "\n"}});
  EXPECT_EQ(tree.read().allowed, (CpuSet{2, 3}));
}

TEST(TopologyQuota, AbsentOrMaxIsNoLimit) {
  const Tree tree(machine("0-3") + unified("/a") +
                  Files{{"/sys/fs/cgroup/a/cpu.max", "max 100000\n"}});
  const Topology t = tree.read();
  EXPECT_EQ(t.quota_cpus, std::numeric_limits<double>::infinity());
  EXPECT_EQ(t.default_cpu_count(), 4u);
  EXPECT_NO_ERRORS(t);
}

TEST(TopologyQuota, IsRoundedUpToWholeCpusAndIsAtLeastOne) {
  const std::vector<std::pair<std::string, unsigned>> cases{
      {"150000 100000\n", 2}, {"50000 100000\n", 1}, {"200000 100000\n", 2},
      {"200001 100000\n", 3}, {"1000 1000000\n", 1}, {"900000 100000\n", 8},
      {"30000 10000\n", 3}};
  for (const auto& [content, expected] : cases) {
    const Tree tree(machine("0-7") + unified("/a") + Files{{"/sys/fs/cgroup/a/cpu.max", content}});
    EXPECT_EQ(tree.read().default_cpu_count(), expected) << content;
  }
}

TEST(TopologyQuota, TightestOfAllEnclosingGroupsWins) {
  const Tree tree(machine("0-7") + unified("/pods/pod 1:x/c") +
                  Files{{"/sys/fs/cgroup/pods/cpu.max", "max 100000\n"},
                        {"/sys/fs/cgroup/pods/pod 1:x/cpu.max", "150000 100000\n"},
                        {"/sys/fs/cgroup/pods/pod 1:x/c/cpu.max", "400000 100000\n"}});
  EXPECT_EQ(tree.read().quota_cpus, 1.5);
}

TEST(TopologyQuota, MalformedOneIsNamedAndIgnored) {
  for (const std::string content :
       {"", "100000", "max", "x 100000", "1 0", "0 100000", "-5 100000", "max x", "1 2 3"}) {
    const Tree tree(machine("0-3") + unified("/a") +
                    Files{{"/sys/fs/cgroup/a/cpu.max", content + "\n"}});
    const Topology t = tree.read();
    EXPECT_EQ(t.default_cpu_count(), 4u) << content;
    ASSERT_EQ(t.errors.size(), 1u) << content;
    EXPECT_EQ(t.errors[0], tree.root() + "/sys/fs/cgroup/a/cpu.max: found '" + content +
                               "', expected 'QUOTA PERIOD' or 'max PERIOD', both above 0");
  }
}

// Version 1, with its usual double-named mount; `group` in the cpu and cpuset hierarchies.
Files version1(const std::string& group, const std::string& mount_root = "/") {
  const std::string cpuset = " /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";
  const std::string cpu =
      " /sys/fs/cgroup/cpu\\054cpuacct rw shared:1 master:2 - cgroup cgroup rw,cpu,cpuacct\n";
  return {{"/proc/self/cgroup", "9:cpuset:" + group + "\n4:cpu,cpuacct:" + group +
                                    "\n3:cpufreq:/wrong\n1:name=systemd:/x\n"},
          {"/proc/self/mountinfo",
           "34 25 0:30 " + mount_root + cpuset + "33 25 0:29 " + mount_root + cpu}};
}

TEST(TopologyV1, QuotaAndCpusetOfTheGroupAndItsAncestorsAreObeyed) {
  const std::string cpu = "/sys/fs/cgroup/cpu,cpuacct";
  const Tree tree(machine("0-7") + version1("/a/b") +
                  Files{{cpu + "/cpu.cfs_quota_us", "-1\n"},
                        {cpu + "/cpu.cfs_period_us", "100000\n"},
                        {cpu + "/a/cpu.cfs_quota_us", "250000\n"},
                        {cpu + "/a/cpu.cfs_period_us", "100000\n"},
                        {cpu + "/a/b/cpu.cfs_quota_us", "-1\n"},
                        {cpu + "/a/b/cpu.cfs_period_us", "100000\n"},
                        {"/sys/fs/cgroup/cpuset/a/b/cpuset.cpus", "1-6\n"}});
  const Topology t = tree.read();
  EXPECT_EQ(t.quota_cpus, 2.5);
  EXPECT_EQ(t.allowed.to_string(), "1-6");
  EXPECT_EQ(t.default_cpu_count(), 3u);
  EXPECT_NO_ERRORS(t);
}

TEST(TopologyV1, MalformedQuotaIsNamedAndIgnored) {
  const std::string cpu = "/sys/fs/cgroup/cpu,cpuacct";
  const Tree tree(
      machine("0-3") + version1("/") +
      Files{{cpu + "/cpu.cfs_quota_us", "5000\n"}, {cpu + "/cpu.cfs_period_us", "0\n"}});
  const Topology t = tree.read();
  EXPECT_EQ(t.default_cpu_count(), 4u);
  ASSERT_EQ(t.errors.size(), 1u);
  EXPECT_NE(t.errors[0].find("found '5000 of 0'"), std::string::npos) << t.errors[0];
}

TEST(TopologyV1, MountedSubtreeIsTakenFromTheGroupsPath) {
  // A container without a cgroup namespace: the group is named from the host's root, its own
  // directory is mounted.
  const std::string cpu = "/sys/fs/cgroup/cpu,cpuacct";
  const Tree tree(machine("0-7") + version1("/docker/abc/sub", "/docker/abc") +
                  Files{{cpu + "/cpu.cfs_quota_us", "300000\n"},
                        {cpu + "/cpu.cfs_period_us", "100000\n"},
                        {cpu + "/sub/cpu.cfs_quota_us", "100000\n"},
                        {cpu + "/sub/cpu.cfs_period_us", "100000\n"}});
  EXPECT_EQ(tree.read().quota_cpus, 1);
}

TEST(TopologyHybrid, Version1ControllersAreFoundBesideVersion2) {
  const Tree tree(
      machine("0-7") +
      Files{{"/proc/self/cgroup", "3:cpu:/svc\n2:cpuset:/\n0::/user\n"},
            {"/proc/self/mountinfo",
             "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
             "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
             "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"},
            {"/sys/fs/cgroup/cpu/svc/cpu.cfs_quota_us", "200000\n"},
            {"/sys/fs/cgroup/cpu/svc/cpu.cfs_period_us", "100000\n"},
            {"/sys/fs/cgroup/cpuset/cpuset.cpus", "0-5\n"},
            {"/sys/fs/cgroup/unified/user/cgroup.procs", "1\n"}});
  const Topology t = tree.read();
  EXPECT_EQ(t.quota_cpus, 2);
  EXPECT_EQ(t.allowed.count(), 6u);
  EXPECT_NO_ERRORS(t);
}

TEST(TopologyHybrid, Version2ControllerIsFoundBesideVersion1) {
  const Tree tree(machine("0-7") +
                  Files{{"/proc/self/cgroup", "4:memory:/m\n0::/user\n"},
                        {"/proc/self/mountinfo",
                         "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
                         "32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"},
                        {"/sys/fs/cgroup/unified/user/cpu.max", "100000 100000\n"}});
  EXPECT_EQ(tree.read().quota_cpus, 1);
}

TEST(TopologyContainer, GroupThatIsNotVisibleFallsBackToTheMountRoot) {
  const Files limits{{"/sys/fs/cgroup/cpu.max", "200000 100000\n"},
                     {"/sys/fs/cgroup/cpuset.cpus.effective", "4-7\n"}};
  const std::vector<Files> views{
      unified("/host/only/path"),              // named from the host's root, which is not mounted
      unified("/docker/abcd", "/docker/abc"),  // another group whose name merely begins alike
      unified("/../other"),                    // outside the cgroup namespace
      unified("/..", "/"),                     // its parent
      unified("/", "/../.."),                  // mounted from outside the namespace
      unified("/docker/abc", "/docker/abc"),   // itself mounted
      unified("/docker/abc/gone", "/docker/abc"),  // removed since
  };
  for (const Files& view : views) {
    const Tree tree(machine("0-7") + view + limits);
    const Topology t = tree.read();
    EXPECT_EQ(t.quota_cpus, 2) << view.at("/proc/self/cgroup");
    EXPECT_EQ(t.allowed, (CpuSet{4, 5, 6, 7})) << view.at("/proc/self/cgroup");
  }
}

TEST(TopologyContainer, OfSeveralMountsTheOneThatShowsMostIsUsed) {
  const Tree tree(machine("0-7") + Files{{"/proc/self/cgroup", "0::/a/b\n"},
                                         {"/proc/self/mountinfo",
                                          "1 0 0:1 /z /mnt/z rw - cgroup2 c rw\n"
                                          "2 0 0:1 /a/b /mnt/b rw - cgroup2 c rw\n"
                                          "3 0 0:1 / /mnt/with\\040space rw - cgroup2 c rw\n"
                                          "4 0 0:1 /a /mnt/a rw - cgroup2 c rw\n"},
                                         {"/mnt/z/cpu.max", "100000 100000\n"},
                                         {"/mnt/b/cpu.max", "700000 100000\n"},
                                         {"/mnt/with space/a/cpu.max", "300000 100000\n"}});
  EXPECT_EQ(tree.read().quota_cpus, 3);
}

}  // namespace
}  // namespace jiffy
