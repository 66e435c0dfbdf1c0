// What a result depends on beside the program: it is part of each.
#pragma once

#include <string>

namespace jiffy {

struct Environment {
  std::string version;          // of jiffy
  std::string kernel;           // uname: release and version
  std::string host_preemption;  // of the host's kernel; "unknown" where it does not say
  int host_hz = 0;              // of the host's tick
  std::string cpu_model;
  std::string compiler, build;
  unsigned online_cpus = 0, allowed_cpus = 0;
  std::string allowed_cpu_list;
  double quota_cpus = 0;  // infinity: none
  double load_1min = 0;
};

// Reads files of /proc and /sys: blocks for a moment.
Environment read_environment();

// The first line of a small file, without its end; empty if it cannot be read.
std::string first_line_of(const char* path);

}  // namespace jiffy
