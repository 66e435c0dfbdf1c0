#include "pingpong.h"

#include <jiffy/runtime.h>
#include <jiffy/sim.h>
#include <jiffy/timer.h>
#include <jiffy/wait_queue.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "delivery.h"
#include "exit_codes.h"
#include "interrupted.h"
#include "json_report.h"
#include "text_table.h"

namespace jiffy {

namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

// One exchange: A computes, the interrupt comes, A computes on, and then needs the answers of those
// whom it woke. Ten exchanges make a tick of HZ 250, so that in the sim all ticks fall where no
// request is pending.
constexpr auto kExchange = microseconds(400);
constexpr auto kAfterInterrupt = microseconds(100);
constexpr auto kAnswer = microseconds(50);
constexpr auto before_interrupt(int answers) {
  return kExchange - kAfterInterrupt - answers * kAnswer;
}
// For the detour: when C is woken after B.
constexpr auto kSecondInterrupt = microseconds(60);
// B asks for a shorter slice than A, and C for the shortest: so B preempts A, and C's deadline is
// the earlier one.
constexpr auto kSliceB = microseconds(300);
constexpr auto kSliceC = microseconds(100);
constexpr auto kSimTickPhase = microseconds(100);

// Computes in steps, between which the host's interrupts are taken; the sim needs none.
void compute(nanoseconds duration) {
  constexpr nanoseconds kStep = microseconds(5);
  for (nanoseconds done(0); done < duration; done += kStep) consume(kStep);
}

// A number of requests that somebody waits for; posting says whether anybody slept.
class Mailbox {
 public:
  bool post() {
    return queue_.with_lock([this] {
      ++posted_;
      return queue_.wake_locked(WaitQueue::kAll) > 0;
    });
  }
  void take() {
    (void)queue_.wait([this] {
      if (taken_ == posted_) return false;
      ++taken_;
      return true;
    });
  }

 private:
  WaitQueue queue_;
  uint64_t posted_ = 0, taken_ = 0;  // under queue_'s lock
};

Options options_for(const char* machine, Delivery delivery, Preemption mode) {
  const bool host = std::string(machine) == "host";
  Options o = delivery_options(host ? delivery : Delivery::kSafePoints);
  o.cpus = 1;
  o.preemption = mode;
  if (!host) {
    SimOptions sim;
    sim.cpus = 1;
    sim.tick_phase = kSimTickPhase;
    o.machine = make_sim_machine(sim);
  }
  return o;
}

SpawnOptions fiber(const char* name, nanoseconds slice) {
  SpawnOptions o;
  o.name = name;
  o.cpu = 0;
  o.kernel_mode = true;
  o.slice = slice;
  return o;
}

BlockWakeupCounts block_wakeup(const char* machine, Delivery delivery, Preemption mode,
                               int exchanges) {
  BlockWakeupCounts counts;
  counts.machine = machine;
  counts.mode = mode;
  Runtime rt(options_for(machine, delivery, mode));
  Mailbox to_b, to_a;
  const auto count = [&counts](bool slept) {
    ++(slept ? counts.real_wakeups : counts.noop_wakeups);
  };
  CounterSnapshot before;
  rt.run(
      [&] {
        bool ending = false;
        auto b = spawn(
            [&] {
              for (;;) {
                to_b.take();
                if (ending) return;
                compute(kAnswer);
                count(to_a.post());
              }
            },
            fiber("B", kSliceB));
        Timer interrupt(rt, [&] { count(to_b.post()); });
        yield();  // B comes to its wait
        before = rt.counters();
        for (; counts.exchanges < exchanges && !interrupted(); ++counts.exchanges) {
          interrupt.start(now() + before_interrupt(1));
          compute(before_interrupt(1) + kAfterInterrupt);
          to_a.take();
        }
        const CounterSnapshot delta = rt.counters() - before;
        counts.voluntary_switches = delta.at(Counter::kVoluntarySwitches);
        counts.forced_switches = delta.at(Counter::kForcedSwitches);
        counts.promotions = delta.at(Counter::kPromotions);
        ending = true;
        (void)to_b.post();
        b.join();
      },
      fiber("A", nanoseconds(0)));
  return counts;
}

// The three fibers of the detour; all on one Cpu, so nothing needs a lock.
class Detour {
 public:
  Detour(Runtime& rt, DetourCounts& counts) : rt_(rt), counts_(counts) {}

  // By A.
  void run(int exchanges) {
    auto b = spawn([this] { answer(to_b_, 'B'); }, fiber("B", kSliceB));
    auto c = spawn([this] { answer(to_c_, 'C'); }, fiber("C", kSliceC));
    yield();  // both come to their waits
    const CounterSnapshot before = rt_.counters();
    for (; counts_.exchanges < exchanges && !interrupted(); ++counts_.exchanges) exchange();
    counts_.promotions = (rt_.counters() - before).at(Counter::kPromotions);
    counts_.b_wait_ns = static_cast<double>(b_waited_.count()) / std::max(counts_.exchanges, 1);
    ending_ = true;
    (void)to_b_.post();
    (void)to_c_.post();
    b.join();
    c.join();
  }

 private:
  void exchange() {
    first_ = '-';
    const TimePoint start = now();
    wake_b_.start(start + before_interrupt(2));
    wake_c_.start(start + before_interrupt(2) + kSecondInterrupt);
    compute(before_interrupt(2) + kAfterInterrupt);
    to_a_.take();
    to_a_.take();
    ++(first_ == 'B' ? counts_.b_first : counts_.c_first);
  }

  void answer(Mailbox& box, char name) {
    for (;;) {
      box.take();
      if (ending_) return;
      if (first_ == '-') first_ = name;
      if (name == 'B') b_waited_ += now() - b_woken_;
      compute(kAnswer);
      (void)to_a_.post();
    }
  }

  Runtime& rt_;
  DetourCounts& counts_;
  Mailbox to_a_, to_b_, to_c_;
  Timer wake_b_{rt_, [this] {
                  b_woken_ = now();
                  (void)to_b_.post();
                }};
  Timer wake_c_{rt_, [this] { (void)to_c_.post(); }};
  bool ending_ = false;
  char first_ = '-';  // who ran first in this exchange
  TimePoint b_woken_;
  nanoseconds b_waited_{0};
};

DetourCounts detour(const char* machine, Delivery delivery, Preemption mode, int exchanges) {
  DetourCounts counts;
  counts.machine = machine;
  counts.mode = mode;
  Runtime rt(options_for(machine, delivery, mode));
  rt.run([&] { Detour(rt, counts).run(exchanges); }, fiber("A", nanoseconds(0)));
  return counts;
}

std::string each(uint64_t count, int exchanges) {
  return format("%.3f", exchanges > 0 ? static_cast<double>(count) / exchanges : 0);
}

std::string text(const PingpongReport& report) {
  std::string out = format(
      "1. Block and wakeup. A runs, an interrupt wakes B, A needs B's answer %lld us later.\n"
      "   FULL: B preempts A, and its wakeup of A finds A awake. LAZY: A runs on, must block, and\n"
      "   B must really wake it. Counts for each of %d exchanges:\n",
      static_cast<long long>(kAfterInterrupt.count()), report.options.exchanges);
  TextTable first({"preemption", "machine", "real wakeups", "no-op wakeups", "voluntary switches",
                   "forced switches", "promotions"},
                  2);
  for (const BlockWakeupCounts& c : report.block_wakeup) {
    first.add({preemption_name(c.mode), c.machine, each(c.real_wakeups, c.exchanges),
               each(c.noop_wakeups, c.exchanges), each(c.voluntary_switches, c.exchanges),
               each(c.forced_switches, c.exchanges), each(c.promotions, c.exchanges)});
  }
  out += first.to_string();
  out += format(
      "\n2. The detour. %lld us after B, C is woken too, and has the earlier deadline. FULL: B "
      "ran\n"
      "   before. LAZY: at the delayed pick C goes first, and B waits behind it:\n",
      static_cast<long long>(kSecondInterrupt.count()));
  TextTable second({"preemption", "machine", "B first", "C first", "B waits (mean)", "promotions"},
                   2);
  for (const DetourCounts& c : report.detour) {
    second.add({preemption_name(c.mode), c.machine, each(c.b_first, c.exchanges),
                each(c.c_first, c.exchanges), format_ns(c.b_wait_ns),
                each(c.promotions, c.exchanges)});
  }
  out += second.to_string();
  out +=
      "   Now and then B goes first in LAZY too: by waiting it has come by so much lag that C is "
      "not\n"
      "   eligible. The sim's counts are exact; the host's differ where the host disturbed one.\n";
  if (report.interrupted) out += "! Interrupted: only what was measured so far.\n";
  return out;
}

}  // namespace

int run_pingpong(const PingpongOptions& options) {
  PingpongReport report;
  report.options = options;
  for (const Preemption mode : {Preemption::kFull, Preemption::kLazy}) {
    for (const char* machine : {"sim", "host"}) {
      report.block_wakeup.push_back(
          block_wakeup(machine, options.delivery, mode, options.exchanges));
      report.detour.push_back(detour(machine, options.delivery, mode, options.exchanges));
    }
  }
  report.interrupted = interrupted();
  const std::string out = options.json ? pingpong_json(report) : text(report);
  std::fputs(out.c_str(), stdout);
  return kExitOk;
}

}  // namespace jiffy
