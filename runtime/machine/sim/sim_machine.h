// The sim: all Cpus in one thread, in virtual time.
#pragma once

#include <jiffy/sim.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <thread>
#include <vector>

#include "fiber/context.h"
#include "fiber/known_stack.h"
#include "machine/machine.h"
#include "machine/park_word.h"
#include "machine/sim/sim_watch.h"

namespace jiffy {

// The loop takes the earliest event and hands control to the Cpu it concerns; that Cpu runs real
// code, in no time, until it consumes time or parks, and hands control back. So exactly one context
// runs at any moment, and the order of events is the only source of order.
class SimMachine final : public Machine {
 public:
  explicit SimMachine(const SimOptions& options);
  ~SimMachine() override;

  bool simulated() const override { return true; }
  Clock make_clock() override { return Clock::virtual_time(&now_); }
  Status choose_cpus(const Options& options, int* count) override;
  Status start(const Options& options, Cpu* const* cpus, int count) override;
  void stop() override;
  Status run_until(const std::function<bool()>& done) override;
  void start_tick(Cpu& cpu) override;
  void stop_tick(Cpu& cpu) override;
  void arm_oneshot(Cpu& cpu, int64_t when) override;
  void send_ipi(Cpu& target) override;
  void park(Cpu& cpu, int64_t until) override;
  void unpark(Cpu& cpu) override;
  int64_t spin_ns() const override { return 0; }
  void consume(int64_t ns) override;
  const StepCosts* step_costs() const override { return &costs_; }
  void switched(Cpu& cpu) override;
  uint64_t choose(uint64_t n) override;
  void check_caller(const char* call) const override;

  void call_at(int64_t when, std::function<void()> fn);
  int64_t now() const { return now_; }

#ifdef JIFFY_MODEL
  // A store that waits in a Cpu's buffer.
  struct Store {
    void* address;
    uint64_t value;
    void (*write)(void* address, uint64_t value);
  };
  // By the running Cpu; see machine/sim/model.cc.
  void model_point(bool spins);
  bool model_buffer(const Store& store);
  bool model_buffered(const void* address, uint64_t* value);
  void model_drain();
#endif

 private:
  enum class Kind : uint8_t { kResume, kTick, kOneshot, kIpi, kUnpark, kCall };
  enum class Waits : uint8_t { kReady, kConsuming, kParked, kEnded };

  struct SimCpu {
    Cpu* cpu = nullptr;
    char* stack = nullptr;
    KnownStack known;
    Context context;            // where the Cpu handed control to the loop
    Context* resume = nullptr;  // what the loop switches to: `context`, or the idle loop at first
    uint32_t saved_count = 0;
    Waits waits = Waits::kReady;
    // Events of an older generation are void.
    uint64_t resume_generation = 0;
    uint64_t tick_generation = 0;
    uint64_t oneshot_generation = 0;
    uint64_t park_generation = 0;
    ParkWord park_word;
#ifdef JIFFY_MODEL
    std::deque<Store> stores;
#endif
  };

  struct Event {
    int64_t when;
    uint64_t order;  // breaks ties: by the seed, then by age
    uint64_t sequence;
    Kind kind;
    int cpu;
    uint64_t generation;
    bool operator>(const Event& other) const {
      if (when != other.when) return when > other.when;
      if (order != other.order) return order > other.order;
      return sequence > other.sequence;
    }
  };

  static void cpu_entry(Context* previous);
  SimCpu& sim_cpu(Cpu& cpu) { return *static_cast<SimCpu*>(machine_data(cpu)); }
  static void* machine_data(Cpu& cpu);
  void report_blocked(int64_t blocked_ns) const;
  void post(int64_t when, Kind kind, int cpu, uint64_t generation);
  void handle(const Event& event);
  void run_cpu(SimCpu& cpu);
  // By a Cpu: hands control to the loop until an event resumes it.
  void wait_in_loop(SimCpu& cpu, Waits waits);
  void interrupt(SimCpu& cpu);

#ifdef JIFFY_MODEL
  void model_start();
  bool model_quiet() const;
  void write_oldest(SimCpu& cpu);
  void write_all(SimCpu& cpu);
  uint64_t model_points_ = 0;
  uint64_t model_switch_in_ = 1;
  uint64_t model_write_in_ = 1;
#else
  void model_start() {}
  bool model_quiet() const { return true; }
  void write_all(SimCpu&) {}
#endif
  static Cpu* running_cpu();
  static int cpu_id(const Cpu& cpu);
  uint64_t next_choice();
  int64_t choose_delay(const SimDelay& delay);

  const SimOptions options_;
  const StepCosts costs_;
  int64_t last_switch_at_ = -1;
  int64_t switches_at_once_ = 0;
  int64_t now_ = 0;
  int64_t tick_period_ = 4'000'000;
  uint64_t random_;
  uint64_t sequence_ = 0;
  std::vector<std::unique_ptr<SimCpu>> cpus_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::map<uint64_t, std::function<void()>> calls_;
  Context loop_;
  EhGlobals* eh_ = nullptr;
  bool running_ = false;
  SimWatch watch_;
  std::thread::id owner_;                            // who started it
  std::atomic<const SimCpu*> running_cpu_{nullptr};  // relaxed; for the report of who is blocked
};

}  // namespace jiffy
