// The host: a Cpu is a thread, its tick a POSIX timer, its interrupts a signal, its idling a futex.
#pragma once

#include <pthread.h>

#include <atomic>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "cpu/cpu.h"
#include "machine/host/signals.h"
#include "machine/machine.h"
#include "machine/park_word.h"

namespace jiffy {

class HostMachine final : public Machine {
 public:
  bool simulated() const override { return false; }
  Clock make_clock() override { return Clock::host(); }
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
  int64_t spin_ns() const override { return spin_ns_; }
  void consume(int64_t ns) override;

 private:
  // The thread of one Cpu.
  struct Thread {
    HostMachine* machine;
    Cpu* cpu;
    int host_cpu = -1;  // I: pinned to it, or -1
    pthread_t handle{};
    pid_t tid = 0;              // I once started
    timer_t tick{}, oneshot{};  // I once started
    SignalSlot* slot = nullptr;
    Status status;
    ParkWord park_word;
  };

  static Thread& thread_of(Cpu& cpu) { return *static_cast<Thread*>(cpu.machine_data); }
  static void* thread_main(void* arg);
  Status enter(Thread& thread);
  void leave(Thread& thread);
  Status create_timer(Thread& thread, int vector, timer_t* timer);
  void arm_tick(Thread& thread);

  std::vector<std::unique_ptr<Thread>> threads_;
  // A: threads that entered or failed, plus those that have called on_cpu_start. Release/acquire.
  std::atomic<int> ready_{0};
  std::atomic<uint32_t> go_{0};       // A, a futex: 1 run, 2 give up. Release/acquire.
  const Options* options_ = nullptr;  // I: the runtime's, which outlives it
  bool use_signals_ = false;          // I
  int64_t tick_period_ = 0;           // I
  int64_t spin_ns_ = 0;               // I
  std::function<void(int)> on_cpu_start_, on_cpu_stop_;  // I
};

// How long a thread takes to wake another one that sleeps in a futex on another CPU, ns: the median
// of a few tries, measured once a process. Polling for longer than that before sleeping costs more
// than it saves. 0 where there is one CPU only.
int64_t measured_wake_ns();

}  // namespace jiffy
