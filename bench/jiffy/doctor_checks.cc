#include <gnu/libc-version.h>
#include <jiffy/runtime.h>
#include <jiffy/topology.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <set>

#include "doctor.h"
#include "environment.h"
#include "text_table.h"

namespace jiffy {

namespace {

Check ok(std::string name, std::string found) {
  return {std::move(name), CheckState::kOk, std::move(found), ""};
}
Check degraded(std::string name, std::string found, std::string cost) {
  return {std::move(name), CheckState::kDegraded, std::move(found), std::move(cost)};
}

// --- CPUs.

Check check_cpus() {
  const Topology t = read_topology();
  std::set<unsigned> cores, llcs;
  for (const CpuInfo& cpu : t.cpus) {
    if (!t.allowed.test(cpu.id)) continue;
    cores.insert(cpu.core);
    llcs.insert(cpu.llc);
  }
  const std::string found =
      format("%zu allowed (%s) of %zu online; %zu cores, %zu last-level caches", t.allowed.count(),
             t.allowed.to_string().c_str(), t.online.count(), cores.size(), llcs.size());
  if (t.allowed.count() >= 2) return ok("CPUs", found);
  return degraded("CPUs", found,
                  "producer and consumer of `jiffy kworker` share one: its table proves nothing");
}

Check check_quota() {
  const Topology t = read_topology();
  if (std::isinf(t.quota_cpus)) return ok("CPU quota", "none");
  const std::string found =
      format("%.2f CPUs, so %u Cpus by default", t.quota_cpus, t.default_cpu_count());
  return degraded("CPU quota", found,
                  "a group that overdraws it is stopped for the rest of the period, tens of "
                  "milliseconds: latencies of that size are the quota's");
}

Check check_clock() {
  const std::string source =
      first_line_of("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  const std::string found = "clock source " + (source.empty() ? "unknown" : source);
  // Under a hypervisor its paravirtual clocks are read from the TSC too, without a system call.
  if (source == "tsc") return ok("clock", found);
  return degraded("clock", found,
                  "where the kernel itself does not keep time by the TSC, each reading goes "
                  "through the vDSO: about 20 ns more");
}

Check check_host_kernel() {
  const Environment e = read_environment();
  return {"host kernel", CheckState::kInfo,
          format("preemption %s; HZ %s", e.host_preemption.c_str(),
                 e.host_hz > 0 ? std::to_string(e.host_hz).c_str() : "unknown"),
          ""};
}

Check check_schedstat() {
  const std::string line = first_line_of("/proc/self/schedstat");
  if (!line.empty()) return ok("schedstat", "run delay of a thread is readable");
  return degraded("schedstat", "not readable",
                  "what others take from a measurement is not seen (host wait is 0)");
}

// --- Signals and timers: how ticks and interrupts reach a Cpu.

Check check_timers() {
  sigevent event = {};
  event.sigev_notify = SIGEV_NONE;
  timer_t timer;
  Check check = ok("timers", "timer_create works");
  check.required = true;
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) {
    timer_delete(timer);
    return check;
  }
  check.state = CheckState::kMissing;
  check.found = std::string("timer_create: ") + std::strerror(errno);
  check.cost = "there is no tick, so no runtime starts: look at ulimit -i";
  return check;
}

Check check_signals() {
  const unsigned long frame = getauxval(AT_MINSIGSTKSZ);
  Check check =
      ok("signals", format("SIGRTMIN+5 = %d; a frame takes %s", SIGRTMIN + 5,
                           frame != 0 ? format_bytes(double(frame)).c_str() : "an unknown size"));
  check.required = true;
  if (SIGRTMIN + 5 > SIGRTMAX) {
    check.state = CheckState::kMissing;
    check.cost = "the tick has no signal: no runtime starts";
  }
  return check;
}

// --- Limits.

std::string limit_text(rlim_t value, bool bytes) {
  if (value == RLIM_INFINITY) return "unlimited";
  return bytes ? format_bytes(double(value)) : std::to_string(value);
}

struct Limit {
  const char* name;
  decltype(RLIMIT_NOFILE) resource;
  bool bytes;
  rlim_t enough;
  const char* cost;
};
constexpr std::array<Limit, 4> kLimits = {{
    {"pending signals", RLIMIT_SIGPENDING, false, 256,
     "each Cpu takes two timers of it (ulimit -i)"},
    {"locked memory", RLIMIT_MEMLOCK, true, rlim_t{8} << 20,
     "registered buffers and large rings of io_uring are refused (ulimit -l)"},
    {"open files", RLIMIT_NOFILE, false, 1024, "one a ring, a file and a socket (ulimit -n)"},
    {"processes", RLIMIT_NPROC, false, 256,
     "each Cpu is a thread, and offloaded calls take up to 64 more (ulimit -u)"},
}};

Check check_limit(const Limit& limit) {
  rlimit value = {};
  if (getrlimit(limit.resource, &value) != 0) return ok(limit.name, "unknown");
  const std::string found = limit_text(value.rlim_cur, limit.bytes) + " (hard limit " +
                            limit_text(value.rlim_max, limit.bytes) + ")";
  if (value.rlim_cur >= limit.enough) return ok(limit.name, found);
  return degraded(limit.name, found, limit.cost);
}

// --- Memory of stacks.

bool guard_install_works() {
#ifdef MADV_GUARD_INSTALL
  constexpr int kAdvice = MADV_GUARD_INSTALL;
#else
  constexpr int kAdvice = 102;
#endif
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* memory =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  const bool works = madvise(memory, page, kAdvice) == 0;
  munmap(memory, 2 * page);
  return works;
}

Check check_guards() {
  if (guard_install_works()) return ok("stack guards", "MADV_GUARD_INSTALL");
  const std::string maps = first_line_of("/proc/sys/vm/max_map_count");
  return degraded("stack guards", "mprotect",
                  "each fiber takes two of the " + (maps.empty() ? "65530" : maps) +
                      " mappings that a process may have (vm.max_map_count); Linux 6.13 has guards "
                      "that take none");
}

Check check_maps() {
  const std::string maps = first_line_of("/proc/sys/vm/max_map_count");
  return {"mappings", CheckState::kInfo,
          maps.empty() ? "vm.max_map_count is unknown" : "vm.max_map_count is " + maps, ""};
}

// --- What preemptible fibers need.

Check check_fsgsbase() {
  constexpr unsigned long kFsgsbase = 2;  // HWCAP2_FSGSBASE
  if ((getauxval(AT_HWCAP2) & kFsgsbase) != 0) return ok("FSGSBASE", "enabled");
  return degraded("FSGSBASE", "not enabled",
                  "no fibers with a thread-local block of their own, so no preemptible ones");
}

// What start() itself says.
Check check_preemptible() {
  Options options = Options::preemptible();
  options.cpus = 1;
  Runtime rt(options);
  const Status status = rt.start();
  if (status.ok()) return ok("preemptible fibers", "work");
  return degraded("preemptible fibers", status.message(),
                  "fibers are switched at safe points only: for(;;) keeps its Cpu");
}

Check check_libc() {
  return {"C library", CheckState::kInfo, std::string("glibc ") + gnu_get_libc_version(), ""};
}

Check check_shadow_stack() {
  constexpr int kStatus = 0x5005;  // ARCH_SHSTK_STATUS
  unsigned long features = 0;
  if (syscall(SYS_arch_prctl, kStatus, &features) != 0 || (features & 1) == 0) {
    return ok("shadow stack", "off in this process");
  }
  return degraded("shadow stack", "on in this process",
                  "a switch of stacks must switch shadow stacks too, or the process is killed: "
                  "run with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off");
}

// --- io_uring, by its own system call.

Check check_io_uring() {
  constexpr size_t kParamsBytes = 120;  // struct io_uring_params
  constexpr size_t kFlags = 2;          // its words
  constexpr uint32_t kSingleIssuer = 1u << 12;
  constexpr uint32_t kDeferTaskrun = 1u << 13;
  const auto setup = [](uint32_t flags) {
    std::array<uint32_t, kParamsBytes / 4> params = {};
    params[kFlags] = flags;
    return syscall(SYS_io_uring_setup, 4, params.data());
  };
  const long ring = setup(0);
  if (ring < 0) {
    const int error = errno;
    const std::string disabled = first_line_of("/proc/sys/kernel/io_uring_disabled");
    std::string found = std::strerror(error);
    if (!disabled.empty() && disabled != "0") found += ", kernel.io_uring_disabled = " + disabled;
    return {"io_uring", CheckState::kMissing, found,
            "I/O goes through a pool of threads: a wakeup of a thread for each operation"};
  }
  close(static_cast<int>(ring));
  const long deferred = setup(kSingleIssuer | kDeferTaskrun);
  if (deferred >= 0) {
    close(static_cast<int>(deferred));
    return ok("io_uring", "works, with deferred task work");
  }
  return degraded("io_uring", "works, without deferred task work (Linux 6.1)",
                  "completions interrupt the Cpu's thread at any system call");
}

}  // namespace

std::vector<Check> examine_machine() {
  std::vector<Check> checks = {check_cpus(),        check_quota(),     check_clock(),
                               check_host_kernel(), check_schedstat(), check_timers(),
                               check_signals()};
  for (const Limit& limit : kLimits) checks.push_back(check_limit(limit));
  checks.insert(checks.end(), {check_maps(), check_guards(), check_fsgsbase(), check_shadow_stack(),
                               check_libc(), check_preemptible(), check_io_uring()});
  return checks;
}

}  // namespace jiffy
