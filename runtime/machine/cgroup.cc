#include "machine/cgroup.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace jiffy {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

// One hierarchy as this process sees it: the directories to look into, its own group first, then
// all that enclose it, up to the mount point.
struct CgroupPath {
  bool v2 = false;
  std::vector<std::string> directories;
};

// mountinfo writes space, tab, newline and backslash as a backslash and three octal digits.
std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto octal = [&](std::size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '7';
    };
    if (text[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool has_item(std::string_view list, std::string_view item) {
  const std::vector<std::string_view> items = split(list, ',');
  return std::find(items.begin(), items.end(), item) != items.end();
}

// `path` below `root`, starting with '/' or empty; nothing if it is not below it.
std::optional<std::string> relative_to(const std::string& root, const std::string& path) {
  const std::string prefix = root == "/" ? "" : root;
  if (!path.starts_with(prefix)) return std::nullopt;
  std::string rest = path.substr(prefix.size());
  if (!rest.empty() && rest.front() != '/') return std::nullopt;
  return rest == "/" ? "" : rest;
}

struct CgroupMount {
  std::string root;  // the group that is mounted
  std::string point;
};

// The mounts of v2, or of the v1 hierarchy that has `controller`.
std::vector<CgroupMount> find_mounts(const std::string& mountinfo, bool v2,
                                     std::string_view controller) {
  std::vector<CgroupMount> mounts;
  for (const std::string_view line : split(mountinfo, '\n')) {
    // "ID PARENT DEVICE ROOT POINT OPTIONS [TAG]... - TYPE SOURCE SUPER_OPTIONS"
    const std::vector<std::string_view> fields = split(line, ' ');
    if (fields.size() < 6) continue;
    const auto dash = std::find(fields.begin() + 6, fields.end(), "-");
    if (fields.end() - dash < 4) continue;
    const bool wanted =
        v2 ? dash[1] == "cgroup2" : dash[1] == "cgroup" && has_item(dash[3], controller);
    if (wanted) mounts.push_back({unescaped(fields[3]), unescaped(fields[4])});
  }
  return mounts;
}

CgroupPath make_path(bool v2, const std::vector<CgroupMount>& mounts, const std::string& group) {
  CgroupPath path{v2, {}};
  if (mounts.empty()) return path;
  // In a container the group may be named from a root that is not mounted here, or by way of "..";
  // what is mounted is then the container's own group. Of several mounts, the one with the shortest
  // root shows most enclosing groups.
  const CgroupMount* best = &mounts.front();
  std::optional<std::string> below;
  for (const CgroupMount& mount : mounts) {
    std::optional<std::string> rest = relative_to(mount.root, group);
    if (!rest || (group + "/").find("/../") != std::string::npos) continue;
    if (below && best->root.size() <= mount.root.size()) continue;
    best = &mount;
    below = std::move(rest);
  }
  for (std::string rest = below.value_or(""); !rest.empty(); rest.erase(rest.rfind('/'))) {
    path.directories.push_back(best->point + rest);
  }
  path.directories.push_back(best->point);
  return path;
}

// The hierarchies that may hold `controller`: v2 (on a hybrid system perhaps without it) and a v1
// one.
std::vector<CgroupPath> cgroup_paths(const SystemFiles& files, std::string_view controller) {
  std::vector<CgroupPath> paths;
  const std::string groups = files.text("/proc/self/cgroup").value_or("");
  const std::string mountinfo = files.text("/proc/self/mountinfo").value_or("");
  for (const std::string_view line : split(groups, '\n')) {
    // "0::/path" for v2, "ID:CONTROLLER,...:/path" for v1; the path may contain colons.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view group = line.substr(second + 1);
    const bool v2 = controllers.empty();
    if (!group.starts_with('/') || (!v2 && !has_item(controllers, controller))) continue;
    paths.push_back(make_path(v2, find_mounts(mountinfo, v2, controller), std::string(group)));
  }
  return paths;
}

// cpu.max: "QUOTA PERIOD" or "max PERIOD", in microseconds.
double quota_v2(SystemFiles& files, const std::string& directory) {
  const std::string path = directory + "/cpu.max";
  const std::optional<std::string> found = files.text(path);
  if (!found) return kNoQuota;
  const std::vector<std::string_view> fields = split(trimmed(*found), ' ');
  if (fields.size() == 2) {
    const auto period = parse_number<std::uint64_t>(fields[1]);
    if (fields[0] == "max" && period) return kNoQuota;
    const auto quota = parse_number<std::uint64_t>(fields[0]);
    if (quota && period && *quota > 0 && *period > 0) {
      return static_cast<double>(*quota) / static_cast<double>(*period);
    }
  }
  files.complain(path, *found, "'QUOTA PERIOD' or 'max PERIOD', both above 0");
  return kNoQuota;
}

double quota_v1(SystemFiles& files, const std::string& directory) {
  const std::string path = directory + "/cpu.cfs_quota_us";
  const auto quota = files.number<std::int64_t>(path);
  if (!quota || *quota == -1) return kNoQuota;
  const auto period = files.number<std::int64_t>(directory + "/cpu.cfs_period_us");
  if (!period) return kNoQuota;
  if (*quota > 0 && *period > 0) return static_cast<double>(*quota) / static_cast<double>(*period);
  files.complain(path, std::to_string(*quota) + " of " + std::to_string(*period),
                 "-1, or both above 0");
  return kNoQuota;
}

}  // namespace

// The tightest of all groups on the way up: a parent's quota is shared by its children.
double read_cgroup_quota(SystemFiles& files) {
  double quota = kNoQuota;
  for (const CgroupPath& path : cgroup_paths(files, "cpu")) {
    for (const std::string& directory : path.directories) {
      quota = std::min(quota, path.v2 ? quota_v2(files, directory) : quota_v1(files, directory));
    }
  }
  return quota;
}

// The nearest group that says something. Not the intersection of all: the effective set of a v2
// group lacks the CPUs that it has handed to a partition below it, which may be ours. An empty set
// (a group that was never configured) restricts nothing.
std::optional<CpuSet> read_cgroup_cpuset(SystemFiles& files) {
  std::optional<CpuSet> allowed;
  for (const CgroupPath& path : cgroup_paths(files, "cpuset")) {
    for (const std::string& directory : path.directories) {
      const std::optional<CpuSet> cpus =
          files.cpu_list(directory + (path.v2 ? "/cpuset.cpus.effective" : "/cpuset.cpus"));
      if (!cpus || cpus->empty()) continue;
      allowed = allowed ? *allowed & *cpus : *cpus;
      break;
    }
  }
  return allowed;
}

}  // namespace jiffy
