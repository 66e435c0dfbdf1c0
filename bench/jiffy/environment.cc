#include "environment.h"

#include <jiffy/topology.h>
#include <sys/utsname.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace jiffy {

namespace {

std::string cpu_model() {
  std::FILE* file = std::fopen("/proc/cpuinfo", "re");
  if (file == nullptr) return "unknown";
  std::string model = "unknown";
  char line[512];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, "model name", 10) != 0) continue;
    if (const char* colon = std::strchr(line, ':')) model = colon + 1;
    break;
  }
  std::fclose(file);
  const size_t from = model.find_first_not_of(" \t");
  const size_t to = model.find_last_not_of(" \t\n");
  return from == std::string::npos ? "unknown" : model.substr(from, to - from + 1);
}

// debugfs lists the models with the active one in parentheses, to root only. The kernel's version
// line says at least what it was built with.
std::string host_preemption(const char* uname_version) {
  const std::string list = first_line_of("/sys/kernel/debug/sched/preempt");
  const size_t open = list.find('(');
  const size_t close = list.find(')');
  if (open != std::string::npos && close != std::string::npos && close > open) {
    return list.substr(open + 1, close - open - 1);
  }
  for (const char* word : {"PREEMPT_DYNAMIC", "PREEMPT_RT", "PREEMPT_LAZY", "PREEMPT"}) {
    if (std::strstr(uname_version, word) != nullptr) return std::string("built as ") + word;
  }
  return "unknown";
}

// The coarse clock advances by ticks.
int host_hz() {
  timespec tick = {};
  if (clock_getres(CLOCK_MONOTONIC_COARSE, &tick) != 0 || tick.tv_nsec <= 0) return 0;
  return static_cast<int>((1'000'000'000 + tick.tv_nsec / 2) / tick.tv_nsec);
}

std::string build_kind() {
  std::string kind;
#ifdef NDEBUG
  kind = "without assertions";
#else
  kind = "with assertions";
#endif
#ifdef __OPTIMIZE__
  kind = "optimised, " + kind;
#else
  kind = "not optimised, " + kind;
#endif
#if defined(__SANITIZE_ADDRESS__)
  kind += ", address sanitizer";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  kind += ", address sanitizer";
#elif __has_feature(thread_sanitizer)
  kind += ", thread sanitizer";
#endif
#endif
#if defined(__SANITIZE_THREAD__)
  kind += ", thread sanitizer";
#endif
  return kind;
}

}  // namespace

std::string first_line_of(const char* path) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return "";
  char line[1024] = "";
  const bool read = std::fgets(line, sizeof line, file) != nullptr;
  std::fclose(file);
  if (!read) return "";
  line[std::strcspn(line, "\n")] = '\0';
  return line;
}

Environment read_environment() {
  Environment e;
  e.version = JIFFY_VERSION;
  utsname names = {};
  (void)uname(&names);
  e.kernel = std::string(names.release) + " " + names.version;
  e.host_preemption = host_preemption(names.version);
  e.host_hz = host_hz();
  e.cpu_model = cpu_model();
#ifdef __clang__
  e.compiler = "clang " __clang_version__;
#else
  e.compiler = "g++ " __VERSION__;
#endif
  e.build = build_kind();
  const Topology topology = read_topology();
  e.online_cpus = static_cast<unsigned>(topology.online.count());
  e.allowed_cpus = static_cast<unsigned>(topology.allowed.count());
  e.allowed_cpu_list = topology.allowed.to_string();
  e.quota_cpus = topology.quota_cpus;
  double load[1] = {0};
  if (getloadavg(load, 1) == 1) e.load_1min = load[0];
  return e;
}

}  // namespace jiffy
