// tools/jiffy-gdb.py on a process whose fibers are parked in functions that we know: while it
// lives, in a core file that gdb wrote, and in one that the kernel wrote.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <jiffy/fiber.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

// --- The child.

struct Garden {
  jiffy::Semaphore never;
  std::atomic<int> parked{0};
  std::atomic<bool> hog_runs{false};
};

// Out of line, and not ended by a tail call: a frame of its own in each build.
[[gnu::noinline]] void park_at_the_pond(Garden& garden) {
  garden.parked.fetch_add(1);
  garden.never.acquire();
  garden.parked.fetch_sub(1);
}

[[gnu::noinline]] void walk_to_the_pond(Garden& garden, int steps) {
  if (steps == 0) {
    park_at_the_pond(garden);
  } else {
    walk_to_the_pond(garden, steps - 1);
  }
  garden.parked.load();
}

[[gnu::noinline]] void mow_for_ever(Garden& garden) {
  garden.hog_runs.store(true);
  for (uint64_t i = 0; garden.parked.load(std::memory_order_relaxed) != -1; ++i) {
  }
}

// Two fibers that sleep, one that runs and one that has not run yet; then a byte to `ready`.
[[noreturn]] void be_a_garden(int ready, bool force_mprotect_guards) {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where Yama restricts it to ancestors
  jiffy::Options options;
  options.cpus = 2;
  options.force_mprotect_guards = force_mprotect_guards;
  jiffy::Runtime rt(options);
  if (const jiffy::Status status = rt.start(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    _exit(1);
  }
  Garden garden;
  jiffy::SpawnOptions on;
  on.name = "gardener";
  on.cpu = 0;
  auto gardener = rt.spawn([&] { walk_to_the_pond(garden, 3); }, on);
  on.name = "frog";
  on.policy = jiffy::Policy::kFifo;
  on.stack_size = 200'000;  // lies in a pool of its own
  auto frog = rt.spawn([&] { park_at_the_pond(garden); }, on);
  jiffy::SpawnOptions on_one;
  on_one.name = "mower";
  on_one.cpu = 1;
  auto mower = rt.spawn([&] { mow_for_ever(garden); }, on_one);
  while (garden.parked.load() != 2 || !garden.hog_runs.load()) usleep(1000);
  on_one.name = "seed";
  auto seed = rt.spawn([&] { park_at_the_pond(garden); }, on_one);
  usleep(10'000);  // the two need a moment from their last store to their sleep
  [[maybe_unused]] const ssize_t n = write(ready, "r", 1);
  for (;;) pause();
}

// The child, in a directory of its own, where its core files go.
class Child {
 public:
  explicit Child(bool force_mprotect_guards) {
    char pattern[] = "/tmp/jiffy_gdb_test.XXXXXX";
    directory_ = mkdtemp(pattern);
    int ready[2];
    if (pipe(ready) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      close(ready[0]);
      rlimit limit{};
      getrlimit(RLIMIT_CORE, &limit);
      limit.rlim_cur = limit.rlim_max;
      setrlimit(RLIMIT_CORE, &limit);
      if (chdir(directory_.c_str()) != 0) _exit(1);
      be_a_garden(ready[1], force_mprotect_guards);
    }
    close(ready[1]);
    char byte = 0;
    ready_ = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
  }

  ~Child() {
    end(SIGKILL);
    std::filesystem::remove_all(directory_);
  }

  int end(int signal) {
    int status = 0;
    if (pid_ > 0) {
      kill(pid_, signal);
      waitpid(pid_, &status, 0);
      pid_ = 0;
    }
    return status;
  }

  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }
  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
  pid_t pid_ = 0;
  bool ready_ = false;
};

// --- gdb.

std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  pclose(pipe);
  return output;
}

std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

// What the commands print on the given target: "-p PID" or a core file.
std::string gdb(const std::string& target, const std::vector<std::string>& commands) {
  std::string line = "timeout 100 gdb -nx -batch -iex 'set debuginfod enabled off' " +
                     this_program() + " " + target + " -x " JIFFY_SOURCE_DIR "/tools/jiffy-gdb.py";
  for (const std::string& command : commands) line += " -ex '" + command + "'";
  return output_of(line);
}

// Why this machine or this build cannot do it; empty if it can.
std::string obstacle(const std::string& output) {
  for (const char* reason :
       {"ptrace: Operation not permitted", "Could not attach to process",
        "There is no debug information", "Python scripting is not supported"}) {
    if (output.find(reason) != std::string::npos) return reason;
  }
  return "";
}

// The line that begins with spaces, the fiber's id and its name.
std::string line_of(const std::string& output, const std::string& fiber) {
  const size_t name = output.find("  " + fiber + " ");
  if (name == std::string::npos) return "";
  const size_t start = output.rfind('\n', name) + 1;
  return output.substr(start, output.find('\n', name) - start);
}

std::string id_of(const std::string& line) {
  const size_t start = line.find_first_not_of(' ');
  return start == std::string::npos ? "" : line.substr(start, line.find(' ', start) - start);
}

// The part of `jiffy bt all`, which comes last, that belongs to a fiber.
std::string stack_of(const std::string& output, const std::string& fiber) {
  const size_t name = output.rfind("  " + fiber + " ");
  return name == std::string::npos ? "" : output.substr(name, output.find("\n\n", name) - name);
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in:\n" << text;
}

void expect_the_fibers(const std::string& output) {
  expect_part(line_of(output, "gardener"), "Cpu 0    sleeping  fair");
  expect_part(line_of(output, "gardener"), "park_at_the_pond at gdb_process_test.cc:");
  expect_part(line_of(output, "gardener"), "in jiffy::Semaphore::acquire");
  expect_part(line_of(output, "frog"), "Cpu 0    sleeping  fifo");
  expect_part(line_of(output, "frog"), "park_at_the_pond");
  expect_part(line_of(output, "mower"), "Cpu 1    running   fair");
  expect_part(line_of(output, "seed"), "runnable  fair   (has not run yet)");
  expect_part(line_of(output, "stopper/1"), "sleeping  stop");
  expect_part(line_of(output, "ksoftirqd/0"), "ksoftirqd_main");
}

void expect_the_stacks(const std::string& output) {
  const std::string gardener = stack_of(output, "gardener");
  expect_part(gardener, "#0 ");
  expect_part(gardener, "park_at_the_pond");
  EXPECT_EQ(count_of(gardener, "walk_to_the_pond"), 4u) << gardener;
  expect_part(gardener, "jiffy::fiber_entry");
  expect_part(stack_of(output, "frog"), "park_at_the_pond");
  EXPECT_EQ(count_of(stack_of(output, "frog"), "walk_to_the_pond"), 0u);
  expect_part(stack_of(output, "mower"), "mow_for_ever");
  expect_part(stack_of(output, "seed"), "has not run yet");
}

class GdbScript : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow memory does not fit into a core file";
    if (output_of("gdb --version").find("GNU gdb") == std::string::npos) {
      GTEST_SKIP() << "gdb is not installed";
    }
  }
};

TEST_F(GdbScript, ListsFibersAndStacksOfALiveProcess) {
  Child child(/*force_mprotect_guards=*/false);
  ASSERT_TRUE(child.ready());
  const std::string target = "-p " + std::to_string(child.pid());
  const std::string output = gdb(target, {"jiffy fibers", "jiffy bt all"});
  if (const std::string why = obstacle(output); !why.empty()) GTEST_SKIP() << why;
  expect_the_fibers(output);
  expect_the_stacks(output);

  // One by its id; and words for what does not exist.
  const std::string one = gdb(target, {"jiffy bt " + id_of(line_of(output, "frog")),
                                       "jiffy bt 999999", "jiffy bt", "jiffy bt x"});
  expect_part(one, "park_at_the_pond");
  EXPECT_EQ(one.find("walk_to_the_pond"), std::string::npos) << one;
  expect_part(one, "There is no fiber 999999");
  EXPECT_EQ(count_of(one, "usage: jiffy bt ID"), 2u) << one;
}

// With guards that are mappings of their own: gdb's gcore stops copying at the other kind.
TEST_F(GdbScript, ListsFibersAndStacksOfACoreFileOfGcore) {
  Child child(/*force_mprotect_guards=*/true);
  ASSERT_TRUE(child.ready());
  const std::string core = child.directory() + "/gcore";
  const std::string made = gdb("-p " + std::to_string(child.pid()), {"gcore " + core});
  if (const std::string why = obstacle(made); !why.empty()) GTEST_SKIP() << why;
  child.end(SIGKILL);
  const std::string output = gdb(core, {"jiffy fibers", "jiffy bt all"});
  if (const std::string why = obstacle(output); !why.empty()) GTEST_SKIP() << why;
  expect_the_fibers(output);
  expect_the_stacks(output);
}

TEST_F(GdbScript, ListsFibersAndStacksOfACoreFileOfTheKernel) {
  std::string pattern;
  std::getline(std::ifstream("/proc/sys/kernel/core_pattern"), pattern);
  if (pattern.rfind("core", 0) != 0) GTEST_SKIP() << "core files go to: " << pattern;
  Child child(/*force_mprotect_guards=*/false);
  ASSERT_TRUE(child.ready());
  if (!WCOREDUMP(child.end(SIGABRT))) GTEST_SKIP() << "no core file was written (ulimit -c)";
  std::string core;
  for (const auto& file : std::filesystem::directory_iterator(child.directory())) {
    core = file.path().string();
  }
  const std::string output = gdb(core, {"jiffy fibers", "jiffy bt all"});
  if (const std::string why = obstacle(output); !why.empty()) GTEST_SKIP() << why;
  expect_the_fibers(output);
  expect_the_stacks(output);
}

TEST_F(GdbScript, SaysSoWhereThereIsNoRuntime) {
  const std::string output =
      output_of("gdb -nx -batch -x " JIFFY_SOURCE_DIR "/tools/jiffy-gdb.py -ex 'jiffy fibers'");
  expect_part(output, "There is no process");
}

}  // namespace
