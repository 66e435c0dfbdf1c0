#include "micro/report.h"

#include <sys/utsname.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

namespace jiffy::micro {

namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string kernel_release() {
  utsname name{};
  return uname(&name) == 0 ? std::string(name.sysname) + " " + name.release : "unknown";
}

std::string utc_now() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

constexpr const char* kCompiler =
#ifdef __clang__
    "clang " __clang_version__;
#else
    "g++ " __VERSION__;
#endif

// "32.1 ns", in the unit that keeps it short.
std::string time_text(double ns) {
  struct Unit {
    double ns;
    const char* name;
  };
  constexpr Unit kUnits[] = {{1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
  char text[32];
  for (const Unit& unit : kUnits) {
    if (ns < 10 * unit.ns && unit.ns > 1) continue;
    std::snprintf(text, sizeof text, "%.*f %s", ns / unit.ns < 1000 ? 1 : 0, ns / unit.ns,
                  unit.name);
    break;
  }
  return text;
}

std::string range_text(const Range& range) {
  return time_text(range.median) + " (" + time_text(range.min) + " - " + time_text(range.max) + ")";
}

}  // namespace

Environment read_environment(const Settings& settings) {
  Environment e;
  e.kernel = kernel_release();
  e.cpu = cpu_model();
  e.compiler = kCompiler;
  e.started_at_utc = utc_now();
  e.allowed_cpus = allowed_cpus();
  double load[1] = {0};
  if (getloadavg(load, 1) == 1) e.load_1min = load[0];
  e.repetitions = settings.repetitions;
  return e;
}

void print_environment(const Environment& e) {
  std::printf("%s, %s, %d CPUs allowed, load %.2f, %s\n", e.kernel.c_str(), e.cpu.c_str(),
              e.allowed_cpus, e.load_1min, e.compiler.c_str());
  std::printf(
      "Medians (and whole ranges) of %d repetitions, ours and the reference by turns.\n"
      "What one thread does is CPU time; what happens between threads is elapsed time.\n\n",
      e.repetitions);
}

void print_header() {
  std::printf("%-23s %-32s %-32s %6s  %-9s %s\n", "row", "ours", "reference", "ratio", "bar",
              "met");
}

void print_row(const Measured& measured) {
  const Row& row = *measured.row;
  const Outcome& o = measured.outcome;
  if (!o.skipped.empty()) {
    std::printf("%-23s not measured: %s\n", row.name, o.skipped.c_str());
    return;
  }
  char ratio[16] = "-";
  if (o.ratio) std::snprintf(ratio, sizeof ratio, "%.2f", *o.ratio);
  std::printf("%-23s %-32s %-32s %6s  %-9s %s\n", row.name, range_text(o.ours).c_str(),
              o.reference ? range_text(*o.reference).c_str() : "-", ratio, row.bar.text,
              o.met ? "yes" : "NO");
  if (!o.met && floor_ns(row.floor) > 0) {
    std::printf("    its floor here: %s (%s)\n", time_text(floor_ns(row.floor)).c_str(),
                floor_text(row.floor).c_str());
  }
  for (const std::string& note : o.notes) std::printf("    %s\n", note.c_str());
  std::fflush(stdout);
}

}  // namespace jiffy::micro
