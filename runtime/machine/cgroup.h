#pragma once
// What the cgroups of this process leave it of the machine's CPUs. Version 2, version 1 and both at
// once (hybrid).

#include <jiffy/topology.h>

#include <optional>

#include "machine/system_files.h"

namespace jiffy {

// CPU time that may be used, in CPUs: the least of this process's group and all that enclose it, as
// far as they are visible. Infinity if nothing limits it. Blocks on file reads.
double read_cgroup_quota(SystemFiles& files);

// The CPUs that the cpuset controller allows; nothing if no group says.
std::optional<CpuSet> read_cgroup_cpuset(SystemFiles& files);

}  // namespace jiffy
