#pragma once
// Golden trees for tests of what is read from /sys, /proc and cgroups.

#include <gtest/gtest.h>
#include <jiffy/topology.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace jiffy::golden {

using Files = std::map<std::string, std::string>;

// A golden tree in a temporary directory that lives as long as the object.
class Tree {
 public:
  explicit Tree(const Files& files) {
    std::string name = (std::filesystem::temp_directory_path() / "topology-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    root_ = name;
    write(files);
  }
  ~Tree() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  void write(const Files& files) {
    for (const auto& [path, content] : files) {
      const std::filesystem::path full = root_ + path;
      std::filesystem::create_directories(full.parent_path());
      std::ofstream(full, std::ios::binary) << content;
    }
  }
  const std::string& root() const { return root_; }
  Topology read(std::optional<CpuSet> affinity = CpuSet{}) const {
    return read_topology({root_, std::move(affinity)});
  }

 private:
  std::string root_;
};

inline const std::string kCpus = "/sys/devices/system/cpu/";
inline const std::string kNodes = "/sys/devices/system/node/";

// What sysfs says about a CPU.
inline Files cpu_files(unsigned id, int package, int core, const std::string& siblings,
                       const std::string& llc) {
  const std::string cpu = kCpus + "cpu" + std::to_string(id);
  return {{cpu + "/topology/physical_package_id", std::to_string(package) + "\n"},
          {cpu + "/topology/core_id", std::to_string(core) + "\n"},
          {cpu + "/topology/thread_siblings_list", siblings + "\n"},
          {cpu + "/cache/index0/level", "1\n"},
          {cpu + "/cache/index0/type", "Data\n"},
          {cpu + "/cache/index0/shared_cpu_list", siblings + "\n"},
          {cpu + "/cache/index1/level", "3\n"},
          {cpu + "/cache/index1/type", "Unified\n"},
          {cpu + "/cache/index1/shared_cpu_list", llc + "\n"}};
}

// Only the lists of CPUs.
inline Files machine(const std::string& online) {
  return {{kCpus + "online", online + "\n"}, {kCpus + "possible", online + "\n"}};
}

// Cgroup v2 alone; the process is in `group`.
inline Files unified(const std::string& group, const std::string& mount_root = "/") {
  return {{"/proc/self/cgroup", "0::" + group + "\n"},
          {"/proc/self/mountinfo",
           "21 1 0:20 / /proc rw - proc proc rw\n30 23 0:26 " + mount_root +
               " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"}};
}

inline Files operator+(Files a, const Files& b) {
  for (const auto& [path, content] : b) a[path] = content;
  return a;
}

inline std::string all_errors(const Topology& t) {
  std::string all;
  for (const std::string& e : t.errors) all += e + "\n";
  return all;
}

#define EXPECT_NO_ERRORS(t) EXPECT_EQ(all_errors(t), "")

}  // namespace jiffy::golden
