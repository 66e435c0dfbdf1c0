#include <jiffy/topology.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>

#include "machine/cgroup.h"
#include "machine/system_files.h"

namespace jiffy {
namespace {

// The kernel refuses a buffer that is smaller than its own masks, whose size it does not tell.
std::optional<CpuSet> own_affinity(std::vector<std::string>& errors) {
  constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);
  for (std::size_t bits = 1024; bits <= std::size_t{1} << 20; bits *= 2) {
    std::vector<unsigned long> words(bits / kWordBits);
    const std::size_t bytes = words.size() * sizeof(unsigned long);
    if (::sched_getaffinity(0, bytes, reinterpret_cast<cpu_set_t*>(words.data())) == 0) {
      CpuSet cpus;
      for (std::size_t id = 0; id < bits; ++id) {
        if ((words[id / kWordBits] >> (id % kWordBits) & 1) != 0)
          cpus.set(static_cast<unsigned>(id));
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  errors.push_back(std::string("sched_getaffinity: ") + std::strerror(errno));
  return std::nullopt;
}

std::string cpu_directory(unsigned id) {
  return "/sys/devices/system/cpu/cpu" + std::to_string(id);
}

// The CPUs that share the highest cache that can hold data, as far as sysfs tells.
std::optional<CpuSet> last_level_cache(SystemFiles& files, unsigned id) {
  std::optional<CpuSet> best;
  unsigned best_level = 0;
  for (unsigned index = 0;; ++index) {
    const std::string cache = cpu_directory(id) + "/cache/index" + std::to_string(index);
    const auto level = files.number<unsigned>(cache + "/level");
    if (!level) return best;
    const std::string type(trimmed(files.text(cache + "/type").value_or("Unified")));
    if (type == "Instruction" || *level <= best_level) continue;
    std::optional<CpuSet> sharers = files.cpu_list(cache + "/shared_cpu_list");
    if (!sharers || !sharers->test(id)) continue;
    best = std::move(sharers);
    best_level = *level;
  }
}

// Puts CPUs into groups named by their lowest id. Going up, a CPU that is in no group yet is the
// lowest of a new one, which takes what else is in none of those that sysfs says share with it; so
// the result is a partition, whatever sysfs says.
template <typename Sharers>
std::map<unsigned, unsigned> partition(const CpuSet& cpus, Sharers sharers) {
  std::map<unsigned, unsigned> group_of;
  cpus.for_each([&](unsigned id) {
    if (!group_of.try_emplace(id, id).second) return;
    (sharers(id) & cpus).for_each([&](unsigned other) { group_of.try_emplace(other, id); });
  });
  return group_of;
}

// The given facts; what sysfs leaves out gets the value that claims least: one package, one node,
// no shared cores, and a cache as wide as the package.
std::vector<CpuInfo> read_cpus(SystemFiles& files, const CpuSet& online) {
  std::map<unsigned, CpuInfo> cpus;
  std::map<int, CpuSet> packages;
  std::map<std::pair<int, int>, CpuSet>
      cores;  // by package and core_id, which is unique within its package only
  std::map<unsigned, std::pair<int, int>> core_key;
  online.for_each([&](unsigned id) {
    const std::string topology = cpu_directory(id) + "/topology";
    const int package = files.number<int>(topology + "/physical_package_id").value_or(0);
    cpus[id].id = id;
    cpus[id].package = package;
    packages[package].set(id);
    if (const auto core = files.number<int>(topology + "/core_id")) {
      core_key[id] = {package, *core};
      cores[core_key[id]].set(id);
    }
  });
  const std::map<unsigned, unsigned> llc = partition(online, [&](unsigned id) {
    return last_level_cache(files, id).value_or(packages[cpus[id].package]);
  });
  const std::map<unsigned, unsigned> core = partition(online, [&](unsigned id) {
    const auto siblings = files.cpu_list(cpu_directory(id) + "/topology/thread_siblings_list");
    if (siblings) return *siblings;
    return core_key.contains(id) ? cores[core_key[id]] : CpuSet{id};
  });
  // By directory: node ids are sparse too, and a node may have memory only.
  const std::string nodes = "/sys/devices/system/node";
  files.numbered_entries(nodes, "node").for_each([&](unsigned node) {
    const auto members = files.cpu_list(nodes + "/node" + std::to_string(node) + "/cpulist");
    if (members)
      (*members & online).for_each([&](unsigned id) { cpus[id].node = static_cast<int>(node); });
  });

  std::vector<CpuInfo> result;
  for (auto& [id, cpu] : cpus) {
    cpu.llc = llc.at(id);
    cpu.core = core.at(id);
    result.push_back(cpu);
  }
  return result;
}

}  // namespace

const CpuInfo* Topology::find(unsigned id) const {
  const auto cpu =
      std::lower_bound(cpus.begin(), cpus.end(), id,
                       [](const CpuInfo& info, unsigned wanted) { return info.id < wanted; });
  return cpu != cpus.end() && cpu->id == id ? &*cpu : nullptr;
}

unsigned Topology::default_cpu_count() const {
  const double limit = std::min(static_cast<double>(allowed.count()), std::ceil(quota_cpus));
  return std::max(1U, static_cast<unsigned>(limit));
}

Topology read_topology(const TopologySource& source) {
  Topology t;
  SystemFiles files(source.root, t.errors);
  const std::string directory = "/sys/devices/system/cpu";
  const std::optional<CpuSet> affinity = source.affinity ? source.affinity : own_affinity(t.errors);
  const auto given = [](const std::optional<CpuSet>& set) { return set && !set->empty(); };

  const std::optional<CpuSet> possible = files.cpu_list(directory + "/possible");
  const std::optional<CpuSet> online = files.cpu_list(directory + "/online");
  // Without a list: what we may run on is surely online.
  t.online = given(online)     ? *online
             : given(affinity) ? *affinity
             : given(possible) ? *possible
                               : CpuSet{0};
  t.possible = given(possible) ? *possible | t.online : t.online;

  const std::optional<CpuSet> cpuset = read_cgroup_cpuset(files);
  t.allowed = t.online;
  if (given(affinity)) t.allowed &= *affinity;
  if (cpuset) t.allowed &= *cpuset;
  if (t.allowed.empty()) {
    // They contradict each other (a change between two reads, or a /sys that a container manager
    // has edited): the affinity mask is what the kernel goes by.
    const std::string cpuset_list = cpuset ? cpuset->to_string() : "any";
    const std::string affinity_list = given(affinity) ? affinity->to_string() : "any";
    t.errors.push_back("allowed CPUs: found none in affinity " + affinity_list + ", cpuset " +
                       cpuset_list + " and online " + t.online.to_string() +
                       " together, expected at least one");
    t.allowed = given(affinity) ? *affinity : t.online;
  }
  t.quota_cpus = read_cgroup_quota(files);
  t.cpus = read_cpus(files, t.online);
  return t;
}

}  // namespace jiffy
