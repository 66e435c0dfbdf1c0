// A fiber sleeps for 1 ms while another one works on the same virtual CPU. How late is it woken?
#include <jiffy/runtime.h>
#include <jiffy/sim.h>

#include <cstdio>

using namespace std::chrono_literals;

int main() {
  for (const auto mode : {jiffy::Preemption::kLazy, jiffy::Preemption::kFull}) {
    jiffy::Options options;
    options.preemption = mode;
    options.machine = jiffy::make_sim_machine();  // virtual time; without this line: real time
    jiffy::Runtime rt(options);
    const std::chrono::nanoseconds late = rt.run([] {
      auto worker = jiffy::spawn([] { jiffy::consume(20ms); }, {.kernel_mode = true});
      const auto start = jiffy::now();
      (void)jiffy::sleep_for(1ms);
      return jiffy::now() - start - 1ms;
    });
    std::printf("%s: woken %d us late\n", jiffy::preemption_name(mode), int(late / 1us));
    if (late != (mode == jiffy::Preemption::kLazy ? 3ms : 0ms)) return 1;
  }
}
