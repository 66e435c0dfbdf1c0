// The rules of the preemption modes, each as a tiny scene in virtual time whose whole trace is
// written down in golden/<mode>.txt: who asked whom for what, when, and who ran then. The table
// itself is tested in mode_table_sim_test.cc and mode_points_sim_test.cc; here nothing else may
// change unseen.
//
// JIFFY_WRITE_GOLDEN=1 writes the files anew. Read the difference line by line before it is sent.
#include <gtest/gtest.h>
#include <jiffy/fiber.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/stage.h"

namespace jiffy {
namespace {

// --- The scenes. Which request is made.

std::string fair_wakeup(Preemption mode) {
  Stage s(mode);
  Sleeper& w = s.sleeper(s.eager("W"));
  s.curtain_up();
  s.actor(s.kernel("A"), [] { consume(6ms); });
  s.interrupt_at(1ms, 0, [&] { w.wake(); });
  return s.play();
}

std::string fair_wakeup_that_should_not_preempt(Preemption mode) {
  Stage s(mode);
  SpawnOptions patient = s.kernel("W");
  patient.slice = 50ms;
  Sleeper& w = s.sleeper(patient);
  s.curtain_up();
  SpawnOptions a = s.kernel("A");
  a.slice = 50ms;
  s.actor(a, [] { consume(6ms); });
  s.interrupt_at(1ms, 0, [&] { w.wake(); });
  return s.play();
}

std::string slice_expiry_in_the_tick(Preemption mode) {
  Stage s(mode);
  s.curtain_up();
  s.actor(s.kernel("A"), [] { consume(10ms); });
  s.actor(s.kernel("B"), [] { consume(1ms); });
  return s.play();
}

// The wakee is of a kind that never preempts; its enqueue only finds that A's slice is over.
std::string slice_expiry_in_an_enqueue(Preemption mode) {
  Stage s(mode);
  Sleeper& w = s.sleeper(s.batch("W"));
  s.curtain_up();
  s.actor(s.kernel("A"), [] { consume(6ms); });
  s.actor(s.kernel("B"), [] {});
  s.interrupt_at(1ms, 0, [&] { w.wake(); });
  return s.play();
}

std::string end_of_a_slice_by_hrtick(Preemption mode) {
  Stage s(mode, 1, /*hrtick=*/true);
  s.curtain_up();
  SpawnOptions a = s.kernel("A");
  a.slice = 3ms;
  s.actor(a, [] { consume(6ms); });
  s.run_until(1us);
  s.actor(s.kernel("B"), [] {});
  return s.play();
}

std::string fifo_wakeup_over_fair(Preemption mode) {
  Stage s(mode);
  Sleeper& f = s.sleeper(s.fifo("F"));
  s.curtain_up();
  s.actor(s.kernel("A"), [] { consume(3ms); });
  s.interrupt_at(1ms, 0, [&] { f.wake(); });
  return s.play();
}

std::string fifo_wakeups_over_fifo(Preemption mode) {
  Stage s(mode);
  Sleeper& low = s.sleeper(s.fifo("F9", 9));
  Sleeper& high = s.sleeper(s.fifo("F11", 11));
  s.curtain_up();
  s.actor(s.fifo("F10", 10), [] { consume(3ms); });
  s.interrupt_at(1ms, 0, [&] { low.wake(); });
  s.interrupt_at(2ms, 0, [&] { high.wake(); });
  return s.play();
}

std::string stop_wakeup_over_fifo(Preemption mode) {
  Stage s(mode);
  Sleeper& stop = s.sleeper(s.fifo("S", 1));
  fiber_make_stopper(stop.fiber());
  s.curtain_up();
  s.actor(s.fifo("F99", 99), [] { consume(3ms); });
  s.interrupt_at(1ms, 0, [&] { stop.wake(); });
  return s.play();
}

std::string wakeup_on_an_idle_cpu(Preemption mode) {
  Stage s(mode);
  Sleeper& w = s.sleeper(s.kernel("W"));
  s.curtain_up();
  s.interrupt_at(1ms, 0, [&] {
    w.wake();
    s.note(s.requests());
  });
  return s.play(2ms);
}

std::string wakeup_on_an_idle_cpu_from_another_one(Preemption mode) {
  Stage s(mode, 2);
  Sleeper& w = s.sleeper(s.kernel("W"));
  s.curtain_up();
  s.actor(s.kernel("waker", 1), [&] {
    consume(1ms);
    w.wake();
    s.note(s.requests());
    consume(1ms);
  });
  return s.play();
}

std::string fair_wakeup_from_another_cpu(Preemption mode) {
  Stage s(mode, 2);
  Sleeper& w = s.sleeper(s.eager("W"));
  s.curtain_up();
  s.actor(s.kernel("A"), [] { consume(6ms); });
  s.actor(s.kernel("waker", 1), [&] {
    consume(1ms);
    w.wake();
  });
  return s.play();
}

std::string fifo_wakeup_from_another_cpu(Preemption mode) {
  Stage s(mode, 2);
  Sleeper& f = s.sleeper(s.fifo("F"));
  s.curtain_up();
  s.actor(s.kernel("A"), [] { consume(3ms); });
  s.actor(s.kernel("waker", 1), [&] {
    consume(1ms);
    f.wake();
  });
  return s.play();
}

// --- Requests that meet another one.

std::string hard_request_after_a_lazy_one(Preemption mode) {
  Stage s(mode);
  Sleeper& w = s.sleeper(s.eager("W"));
  Sleeper& f = s.sleeper(s.fifo("F"), [&] { s.note(s.requests()); });
  s.curtain_up();
  s.actor(s.kernel("A"), [] { consume(3ms); });
  s.interrupt_at(1ms, 0, [&] {
    s.wake_lazily(w);
    f.wake();
    s.note(s.requests());
  });
  return s.play();
}

std::string fair_wakeup_after_a_hard_request(Preemption mode) {
  Stage s(mode);
  Sleeper& f = s.sleeper(s.fifo("F"));
  Sleeper& w = s.sleeper(s.eager("W"));
  s.curtain_up();
  s.actor(s.kernel("A"), [] { consume(3ms); });
  s.interrupt_at(1ms, 0, [&] {
    f.wake();
    w.wake();
    s.note(s.requests());
  });
  return s.play();
}

// A's slice is over too: were the class asked before the promotion, there would be two requests.
std::string tick_that_finds_a_lazy_request(Preemption mode) {
  Stage s(mode);
  Sleeper& w = s.sleeper(s.eager("W"));
  s.curtain_up();
  s.actor(s.kernel("A"), [] { consume(6ms); });
  s.interrupt_at(3500us, 0, [&] { w.wake(); });
  return s.play();
}

// --- Where a request is honoured.

std::string return_to_user_mode(Preemption mode) {
  Stage s(mode);
  Sleeper& w = s.sleeper(s.eager("W"));
  s.curtain_up();
  s.actor(s.user("A"), [] { consume(3ms); });
  s.interrupt_at(1ms, 0, [&] { w.wake(); });
  return s.play();
}

std::string return_to_user_mode_with_a_lazy_request(Preemption mode) {
  Stage s(mode);
  Sleeper& w = s.sleeper(s.eager("W"));
  s.curtain_up();
  s.actor(s.user("A"), [] { consume(3ms); });
  s.interrupt_at(1ms, 0, [&] { s.wake_lazily(w); });
  return s.play();
}

std::string interrupt_return_to_kernel_code(Preemption mode) {
  Stage s(mode);
  Sleeper& w = s.sleeper(s.eager("W"));
  Sleeper& f = s.sleeper(s.fifo("F"));
  s.curtain_up();
  s.actor(s.kernel("A"), [] { consume(3ms); });
  s.interrupt_at(1ms, 0, [&] { s.wake_lazily(w); });
  s.interrupt_at(2ms, 0, [&] { f.wake(); });
  return s.play();
}

std::string outermost_preempt_enable(Preemption mode) {
  Stage s(mode);
  Sleeper& f = s.sleeper(s.fifo("F"));
  s.curtain_up();
  s.actor(s.kernel("A"), [&] {
    preempt_disable();
    preempt_disable();
    f.wake();
    consume(1ms);
    s.note("the inner one");
    preempt_enable();
    consume(1ms);
    s.note("the outermost one");
    preempt_enable();
    consume(1ms);
  });
  return s.play();
}

std::string preempt_enable_with_a_lazy_request(Preemption mode) {
  Stage s(mode);
  Sleeper& w = s.sleeper(s.eager("W"));
  s.curtain_up();
  s.actor(s.kernel("A"), [&] {
    consume(1ms);
    preempt_disable();
    s.wake_lazily(w);
    preempt_enable();
    consume(1ms);
  });
  return s.play();
}

std::string spin_unlock(Preemption mode) {
  Stage s(mode);
  Sleeper& f = s.sleeper(s.fifo("F"));
  SpinLock lock;
  s.curtain_up();
  s.actor(s.kernel("A"), [&] {
    lock.lock();
    f.wake();
    s.note("unlock");
    lock.unlock();
    consume(1ms);
  });
  return s.play();
}

// A wakes W, by a request of the mode's own kind or by a lazy one, and comes to the point.
std::string at_a_voluntary_point(Preemption mode, bool lazy, const char* text, void (*point)()) {
  Stage s(mode);
  Sleeper& w = s.sleeper(s.eager("W"));
  s.curtain_up();
  s.actor(s.kernel("A"), [&s, &w, lazy, text, point] {
    consume(1ms);
    if (lazy) {
      s.wake_lazily(w);
    } else {
      w.wake();
    }
    s.note(text);
    point();
    consume(1ms);
  });
  return s.play();
}

std::string cond_resched_point(Preemption mode) {
  return at_a_voluntary_point(mode, false, "cond_resched()", [] { (void)cond_resched(); });
}
std::string cond_resched_with_a_lazy_request(Preemption mode) {
  return at_a_voluntary_point(mode, true, "cond_resched()", [] { (void)cond_resched(); });
}
std::string might_sleep_point(Preemption mode) {
  return at_a_voluntary_point(mode, false, "might_sleep()", might_sleep);
}
std::string might_sleep_with_a_lazy_request(Preemption mode) {
  return at_a_voluntary_point(mode, true, "might_sleep()", might_sleep);
}

// The request is still there in each mode: no point was passed since it was made.
std::string might_sleep_with_a_hard_request(Preemption mode) {
  Stage s(mode);
  Sleeper& f = s.sleeper(s.fifo("F"));
  s.curtain_up();
  s.actor(s.kernel("A"), [&] {
    consume(1ms);
    preempt_disable();
    f.wake();
    preempt_enable_no_resched();
    s.note("might_sleep()");
    might_sleep();
    s.note("and on");
    consume(1ms);
  });
  return s.play();
}

std::string blocking_schedule(Preemption mode) {
  Stage s(mode);
  Sleeper& w = s.sleeper(s.eager("W"), [&] { s.note(s.requests()); });
  Sleeper& a = s.sleeper(s.kernel("A"), [&] {
    consume(1ms);
    s.wake_lazily(w);
    s.note(s.requests());
  });
  s.curtain_up();
  s.interrupt_at(0ms, 0, [&] { a.wake(); });
  return s.play(2ms);
}

struct Scene {
  const char* rule;
  std::string (*play)(Preemption);
};

constexpr Scene kScenes[] = {
    {"fair wakeup that should preempt", fair_wakeup},
    {"fair wakeup that should not", fair_wakeup_that_should_not_preempt},
    {"slice expiry, seen by the tick", slice_expiry_in_the_tick},
    {"slice expiry, seen by an enqueue", slice_expiry_in_an_enqueue},
    {"end of a slice by the precise timer", end_of_a_slice_by_hrtick},
    {"FIFO wakeup over fair", fifo_wakeup_over_fair},
    {"FIFO wakeups over FIFO, of a lower and a higher priority", fifo_wakeups_over_fifo},
    {"stop wakeup over FIFO", stop_wakeup_over_fifo},
    {"wakeup on an idle Cpu, by its own interrupt", wakeup_on_an_idle_cpu},
    {"wakeup on an idle Cpu, from another one", wakeup_on_an_idle_cpu_from_another_one},
    {"fair wakeup from another Cpu", fair_wakeup_from_another_cpu},
    {"FIFO wakeup from another Cpu", fifo_wakeup_from_another_cpu},
    {"hard request after a lazy one", hard_request_after_a_lazy_one},
    {"fair wakeup after a hard request", fair_wakeup_after_a_hard_request},
    {"tick that finds a lazy request", tick_that_finds_a_lazy_request},
    {"return to user mode", return_to_user_mode},
    {"return to user mode, with a lazy request", return_to_user_mode_with_a_lazy_request},
    {"interrupt return to kernel code, lazy, then hard", interrupt_return_to_kernel_code},
    {"outermost preempt_enable", outermost_preempt_enable},
    {"preempt_enable, with a lazy request", preempt_enable_with_a_lazy_request},
    {"spin unlock", spin_unlock},
    {"cond_resched()", cond_resched_point},
    {"cond_resched(), with a lazy request", cond_resched_with_a_lazy_request},
    {"might_sleep()", might_sleep_point},
    {"might_sleep(), with a lazy request", might_sleep_with_a_lazy_request},
    {"might_sleep(), with a hard request", might_sleep_with_a_hard_request},
    {"blocking schedule(), with a lazy request", blocking_schedule},
};

// --- The comparison.

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The first line that differs, with those before it; empty where none does.
std::string first_difference(const std::string& golden, const std::string& played) {
  const std::vector<std::string> g = lines_of(golden);
  const std::vector<std::string> p = lines_of(played);
  size_t at = 0;
  while (at < g.size() && at < p.size() && g[at] == p[at]) ++at;
  if (at == g.size() && at == p.size()) return "";
  std::string text = "line " + std::to_string(at + 1) + ":\n";
  size_t from = at;  // back to the scene's title
  while (from > 0 && from < p.size() && p[from].substr(0, 2) != "==") --from;
  for (size_t i = from; i < at; ++i) text += "    " + p[i] + "\n";
  text += "  - " + (at < g.size() ? g[at] : "(the end)") + "\n";
  text += "  + " + (at < p.size() ? p[at] : "(the end)") + "\n";
  for (size_t i = at + 1; i < std::min(at + 4, p.size()); ++i) text += "    " + p[i] + "\n";
  return text;
}

class Golden : public ::testing::TestWithParam<Preemption> {};

INSTANTIATE_TEST_SUITE_P(Modes, Golden, ::testing::ValuesIn(kAllModes),
                         [](const auto& row) { return std::string(preemption_name(row.param)); });

TEST_P(Golden, EachRuleLeavesTheTraceThatIsWrittenDown) {
  std::string played;
  for (const Scene& scene : kScenes) {
    played += (played.empty() ? "== " : "\n== ") + std::string(scene.rule) + "\n";
    played += scene.play(GetParam());
  }
  const std::string path = JIFFY_GOLDEN_DIR "/" + std::string(preemption_name(GetParam())) + ".txt";
  if (const char* write = std::getenv("JIFFY_WRITE_GOLDEN"); write != nullptr && *write == '1') {
    std::ofstream file(path, std::ios::binary);
    file << played;
    EXPECT_TRUE(file.flush().good()) << path;
    return;
  }
  std::ostringstream golden;
  golden << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string difference = first_difference(golden.str(), played);
  EXPECT_TRUE(difference.empty()) << path << ", " << difference;
}

}  // namespace
}  // namespace jiffy
