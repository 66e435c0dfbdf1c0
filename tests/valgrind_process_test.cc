// Valgrind takes a switch of stacks for a switch, and finds nothing to complain of.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/sanitizer.h"

namespace jiffy {
namespace {

struct Outcome {
  int status = -1;
  std::string text;
};

Outcome run(const std::string& command) {
  Outcome out;
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return out;
  char line[1024];
  while (std::fgets(line, sizeof line, pipe) != nullptr) out.text += line;
  out.status = pclose(pipe);
  return out;
}

std::string directory_of_tests() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  if (n <= 0) return ".";
  const std::string self(path, static_cast<size_t>(n));
  return self.substr(0, self.rfind('/'));
}

// With all symbols bound at the start: valgrind follows one thread's stack at a time, and takes the
// linker's resolver, which moves the stack pointer by a computed amount, for a switch.
std::string under_valgrind(const std::string& test, const std::string& filter) {
  return "LD_BIND_NOW=1 valgrind -q --fair-sched=yes --error-exitcode=9 '" + directory_of_tests() +
         "/" + test + "' --gtest_filter='" + filter + "'";
}

class Valgrind : public testing::Test {
 protected:
  void SetUp() override {
    if (kAddressSanitizer || kThreadSanitizer) GTEST_SKIP() << "a sanitizer is in its place";
    if (run("valgrind --version").status != 0) GTEST_SKIP() << "valgrind is not installed";
    const Outcome list = run(under_valgrind("fiber_test", "none"));
    if (list.text.find("debuginfo reader") != std::string::npos) {
      GTEST_SKIP() << "this valgrind cannot read what this compiler writes:\n" << list.text;
    }
#if !__has_include(<valgrind/valgrind.h>)
    GTEST_SKIP() << "jiffy was built without valgrind's header";
#endif
  }

  static void expect_silence(const std::string& test, const std::string& filter = "*") {
    const Outcome out = run(under_valgrind(test, filter));
    EXPECT_EQ(out.status, 0) << out.text;
    EXPECT_EQ(out.text.find("\n=="), std::string::npos) << out.text;
    EXPECT_NE(out.text.find("[  PASSED  ]"), std::string::npos) << out.text;
  }
};

TEST_F(Valgrind, FindsNothingWhereFibersStartSwitchAndEnd) { expect_silence("fiber_test"); }
TEST_F(Valgrind, FindsNothingWhereFibersOfSeveralCpusWait) { expect_silence("sync_test"); }
TEST_F(Valgrind, FindsNothingInExceptions) { expect_silence("exception_test"); }
TEST_F(Valgrind, FindsNothingInTheSimulation) { expect_silence("wait_queue_test"); }

TEST_F(Valgrind, PreemptibleFibersAreRefusedByItsName) {
  const Outcome out = run(under_valgrind("preempt_test", "PreemptTest.BothKinds*"));
  EXPECT_EQ(out.status, 0) << out.text;
  EXPECT_NE(out.text.find("a run without valgrind"), std::string::npos) << out.text;
}

}  // namespace
}  // namespace jiffy
