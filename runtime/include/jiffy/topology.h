#pragma once
// Which CPUs of the machine this process may use, how they share caches, and how many Cpus a
// runtime should have: what the kernel keeps in cpumasks and sched domains, read from sysfs, the
// process's affinity mask and its cgroups.
//
// CPU ids are names, not indices. They have holes: CPUs are offline or not plugged in, and a
// container is given {12, 13, 60, 61}. So nothing may be sized by the number of CPUs and then
// indexed by an id, nor may "CPU i" be taken to exist for each i below that number. Here sets are
// CpuSet, facts about a CPU are found by id, and a Cpu of a runtime has an index of its own and
// remembers the id of the CPU it is bound to.
//
// Plain values: no type here is synchronised. Everything may allocate; read_topology() blocks on
// file reads.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jiffy {

// A set of CPU ids, from 0 to kMaxCpuId.
class CpuSet {
 public:
  // Linux is built for at most 8192 CPUs; the limit keeps a nonsensical list from taking all
  // memory.
  static constexpr unsigned kMaxCpuId = 65535;

  CpuSet() = default;
  CpuSet(std::initializer_list<unsigned> ids) {
    for (const unsigned id : ids) set(id);
  }

  // `id` must be at most kMaxCpuId; a larger one is ignored.
  void set(unsigned id);
  void clear(unsigned id);
  // Any id.
  bool test(unsigned id) const;
  std::size_t count() const;
  bool empty() const { return words_.empty(); }
  // The lowest id, or the lowest one above `id`; nothing if there is none.
  std::optional<unsigned> first() const { return at_or_above(0); }
  std::optional<unsigned> next(unsigned id) const { return at_or_above(std::size_t{id} + 1); }
  // Ascending.
  std::vector<unsigned> ids() const;
  template <typename Fn>
  void for_each(Fn&& fn) const {
    for (std::optional<unsigned> id = first(); id; id = next(*id)) fn(*id);
  }

  CpuSet& operator&=(const CpuSet& other);
  CpuSet& operator|=(const CpuSet& other);
  friend CpuSet operator&(CpuSet a, const CpuSet& b) { return a &= b; }
  friend CpuSet operator|(CpuSet a, const CpuSet& b) { return a |= b; }
  bool operator==(const CpuSet&) const = default;

  // The kernel's list format, "0,2,4-6"; "" for the empty set.
  std::string to_string() const;

 private:
  std::optional<unsigned> at_or_above(std::size_t id) const;
  void trim();

  std::vector<std::uint64_t> words_;  // Without trailing zero words: equal sets have equal words.
};

struct ParsedCpuList {
  CpuSet cpus;        // empty on error
  std::string error;  // what was found and what was expected; empty if all is well
  bool ok() const { return error.empty(); }
};

// Reads the kernel's list format: ids and ranges separated by commas, "0,2,4-6", and "0-6:2/3" for
// the first 2 of each 3 ids of a range. White space at the ends is ignored; an empty list is the
// empty set.
ParsedCpuList parse_cpu_list(std::string_view text);

// One online CPU. Groups are named by their lowest CPU id, as the kernel names an LLC domain: two
// CPUs share a last level cache if their `llc` is equal, and a core if their `core` is.
struct CpuInfo {
  unsigned id = 0;
  unsigned llc = 0;
  unsigned core = 0;
  int package = 0;
  int node = 0;
  bool operator==(const CpuInfo&) const = default;
};

struct Topology {
  CpuSet possible;  // may come online
  CpuSet online;
  CpuSet allowed;  // affinity, cpuset and online together; never empty
  // CPU time that the cgroups grant, in CPUs (1.5: 150 ms in each 100 ms); the least of all
  // enclosing groups.
  double quota_cpus = std::numeric_limits<double>::infinity();
  std::vector<CpuInfo> cpus;  // the online ones, by ascending id: search with find()

  // What was found malformed and ignored; each names the file, what was found and what was
  // expected. A file that is missing is no error: kernels, containers and architectures differ in
  // what they show.
  std::vector<std::string> errors;

  // nullptr if `id` is not online. Valid as long as this object is unchanged.
  const CpuInfo* find(unsigned id) const;
  // How many Cpus a runtime should have: as many as are allowed, but no more than the quota can
  // keep running, since a group that overdraws its quota is stopped for the rest of the period,
  // lock holders included. At least 1.
  unsigned default_cpu_count() const;
};

// Where the facts come from.
struct TopologySource {
  std::string root;                // is put before /sys and /proc: "" is the machine itself
  std::optional<CpuSet> affinity;  // nothing: sched_getaffinity of the calling thread
};

// Never fails: what cannot be read is assumed not to restrict (see Topology::errors).
Topology read_topology(const TopologySource& source = {});

}  // namespace jiffy
