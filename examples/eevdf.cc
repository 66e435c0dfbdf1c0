// What EEVDF promises a fiber that sleeps often: its mean wait is its own run time. And what
// becomes of that without the pieces that keep the promise. docs/eevdf.md explains both.
//
// A hog never blocks. A sleeper is woken each 100 us, or at once if it is late, and then runs for a
// given time. FULL preemption, one Cpu, 5 s of virtual time: the figures are exact.
#include <jiffy/runtime.h>
#include <jiffy/sim.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

using namespace std::chrono_literals;
using jiffy::SchedFeatures;
using std::chrono::nanoseconds;

namespace {

struct Result {
  double mean_us, max_us;  // from a wakeup to running
  double share;            // of the Cpu
};

Result measure(nanoseconds work, const SchedFeatures& features) {
  jiffy::Options options;
  options.cpus = 1;
  options.preemption = jiffy::Preemption::kFull;
  options.features = features;
  options.machine = jiffy::make_sim_machine();
  jiffy::Runtime rt(options);
  return rt.run([work] {
    constexpr auto kRun = 5s;
    bool stop = false;
    auto hog = jiffy::spawn([&stop, left = nanoseconds(kRun)]() mutable {
      for (; !stop && left > 0ns; left -= 10us) jiffy::consume(10us);
    });
    nanoseconds waited{0}, longest{0};
    int rounds = 0;
    const auto end = jiffy::now() + kRun;
    for (auto next = jiffy::now() + 100us; next < end; ++rounds) {
      (void)jiffy::sleep_until(next);
      const nanoseconds late = jiffy::now() - next;
      waited += late;
      longest = std::max(longest, late);
      jiffy::consume(work);
      next = std::max(next + 100us, jiffy::now() + 1us);
    }
    stop = true;
    hog.join();
    return Result{double(waited.count()) / rounds / 1e3, double(longest.count()) / 1e3,
                  double(rounds) * double(work.count()) / double(nanoseconds(kRun).count())};
  });
}

void print(const char* name, nanoseconds work, const Result& r) {
  std::printf("%-28s %7d %11.1f %11.0f %9.1f\n", name, int(work / 1us), r.mean_us, r.max_us,
              100 * r.share);
}

}  // namespace

int main() {
  bool as_promised = true;
  std::printf("%-28s %7s %11s %11s %9s\n", "", "runs us", "mean us", "max us", "CPU %");
  for (const auto work : {1us, 3us, 10us, 30us}) {
    const Result r = measure(work, {});
    print("all pieces", work, r);
    as_promised &= std::abs(r.mean_us - double(work.count())) < 0.05 * double(work.count());
  }
  const struct {
    const char* name;
    bool SchedFeatures::*piece;
    bool shows;  // the fault of its absence in this very program
  } kPieces[] = {
      {"without average_with_current", &SchedFeatures::average_with_current, true},
      {"without place_lag", &SchedFeatures::place_lag, true},
      {"without inflate_lag", &SchedFeatures::inflate_lag, true},
      {"without slice_check", &SchedFeatures::slice_check, true},
      {"without preempt_short", &SchedFeatures::preempt_short, false},
  };
  for (const auto& p : kPieces) {
    SchedFeatures features;
    features.*p.piece = false;
    const Result r = measure(3us, features);
    print(p.name, 3us, r);
    as_promised &= (std::abs(r.mean_us - 3) > 1) == p.shows;
  }
  return as_promised ? 0 : 1;
}
