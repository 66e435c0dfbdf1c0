// A fiber that starves another one, in each preemption mode.
//
// The hog works for 20 ms on the only Cpu, in pieces of 100 us. The victim sleeps for 950 us, so
// its timer interrupt comes in the middle of a piece. How long after its wakeup does the victim
// run? That depends on the mode, on what the hog is and does, and on the class of the victim. Each
// row below is one answer of the mode table in docs/preemption.md.
//
// It runs on the simulated machine: the figures are exact, and the same on each computer.
#include <jiffy/runtime.h>
#include <jiffy/sim.h>

#include <cstdio>
#include <functional>

using namespace std::chrono_literals;
using jiffy::Policy;
using jiffy::Preemption;

namespace {

constexpr auto kWork = 20ms;
constexpr auto kPiece = 100us;
constexpr auto kSleep = 950us;

struct Case {
  const char* what;
  bool kernel_mode;             // of the hog
  std::function<void()> pause;  // what the hog calls after each piece
  Policy victim;
  int expected_us[jiffy::kPreemptionModes];  // none, voluntary, lazy, full
};

// Until its end: what is left of 20 ms at 950 us. The tick: at 4 ms. The piece's end: after 50 us.
constexpr int kEnd = 19'050, kTick = 3'050, kPieceEnd = 50;

const Case kCases[] = {
    // clang-format off
    // In NONE and VOLUNTARY nothing stops kernel code; in LAZY a tick turns the request into a hard
    // one; in FULL the request is hard from the start.
    {"kernel-mode hog", true, [] {}, Policy::kNormal, {kEnd, kEnd, kTick, 0}},
    // What NONE and VOLUNTARY rely on, and LAZY and FULL ignore.
    {"  ... that calls cond_resched()", true, [] { (void)jiffy::cond_resched(); }, Policy::kNormal,
     {kPieceEnd, kPieceEnd, kTick, 0}},
    {"  ... that calls might_sleep()", true, [] { jiffy::might_sleep(); }, Policy::kNormal,
     {kEnd, kPieceEnd, kTick, 0}},
    // A higher class asks by a hard request in each mode: LAZY is lazy between fair fibers only.
    {"  ... and a FIFO victim", true, [] {}, Policy::kFifo, {kEnd, kEnd, 0, 0}},
    // The interrupt returns to user mode, where each mode honours each request.
    {"user-mode hog", false, [] {}, Policy::kNormal, {0, 0, 0, 0}},
    // clang-format on
};

std::chrono::nanoseconds measure(const Case& c, Preemption mode) {
  jiffy::Options options;
  options.cpus = 1;
  options.hz = 250;
  options.preemption = mode;
  options.machine = jiffy::make_sim_machine();
  jiffy::Runtime rt(options);

  const auto victim = [&c] {
    auto hog = jiffy::spawn(
        [&c] {
          for (auto worked = 0us; worked < kWork; worked += kPiece) {
            jiffy::consume(kPiece);
            c.pause();
          }
        },
        {.name = "hog", .kernel_mode = c.kernel_mode});
    const auto start = jiffy::now();
    (void)jiffy::sleep_for(kSleep);  // the hog starts here
    const std::chrono::nanoseconds late = jiffy::now() - start - kSleep;
    hog.join();
    return late;
  };
  return rt.run(victim, {.name = "victim", .policy = c.victim});
}

}  // namespace

int main() {
  int wrong = 0;
  std::printf("%-32s %10s %10s %10s %10s\n", "from wakeup to running, us", "none", "voluntary",
              "lazy", "full");
  for (const Case& c : kCases) {
    std::printf("%-32s", c.what);
    for (int mode = 0; mode < jiffy::kPreemptionModes; ++mode) {
      const int us = static_cast<int>(measure(c, static_cast<Preemption>(mode)) / 1us);
      std::printf(" %10d", us);
      if (us != c.expected_us[mode]) ++wrong;
    }
    std::printf("\n");
  }
  if (wrong != 0) std::printf("%d figures are not those expected.\n", wrong);
  return wrong == 0 ? 0 : 1;
}
