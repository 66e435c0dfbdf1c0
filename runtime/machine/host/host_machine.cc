#include "machine/host/host_machine.h"

#include <jiffy/topology.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cpu/cpu.h"
#include "fiber/known_stack.h"

namespace jiffy {

namespace {

template <class Word>  // an atomic of 32 bits
long futex(Word& word, int op, uint32_t value, const timespec* until) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), op | FUTEX_PRIVATE_FLAG, value,
                 until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

timespec to_timespec(int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

// The mask is as long as the id needs: a fixed cpu_set_t ends at 1024.
Status pin_this_thread(int host_cpu) {
  std::vector<unsigned long> mask(static_cast<size_t>(host_cpu) / 64 + 1);
  mask[static_cast<size_t>(host_cpu) / 64] = 1ul << (host_cpu % 64);
  if (syscall(SYS_sched_setaffinity, 0, mask.size() * sizeof(long), mask.data()) == 0) {
    return Status();
  }
  return Status::error("cannot pin a Cpu to CPU " + std::to_string(host_cpu) + ": " +
                       std::strerror(errno));
}

}  // namespace

Status HostMachine::choose_cpus(const Options& options, int* count) {
  constexpr int kMost = 1024;
  const Topology topology = read_topology();
  const int allowed = std::max(1, static_cast<int>(topology.allowed.count()));
  *count = options.cpus > 0 ? options.cpus : topology.default_cpu_count();
  if (*count > kMost) {
    return Status::error("cpus is " + std::to_string(*count) + ": at most 1024 are supported");
  }
  if (options.pin && *count > allowed) {
    return Status::error("cannot pin " + std::to_string(*count) +
                         " Cpus one to one: this process "
                         "may run on " +
                         std::to_string(allowed) + " CPUs (" + topology.allowed.to_string() +
                         "). Use fewer, or do not pin.");
  }
  return Status();
}

Status HostMachine::start(const Options& options, Cpu* const* cpus, int count) {
  if (Status status = acquire_signals(options.preempt_checks.alternate_stack); !status.ok()) {
    return status;
  }
  options_ = &options;
  use_signals_ = options.delivery == Delivery::kSignals;
  tick_period_ = 1'000'000'000 / options.hz;
  on_cpu_start_ = options.on_cpu_start;
  on_cpu_stop_ = options.on_cpu_stop;
  const Topology topology = read_topology();
  // Polling takes a CPU from somebody: from a Cpu of ours, if there are more Cpus than CPUs.
  const bool room =
      static_cast<int>(topology.allowed.count()) >= count && topology.quota_cpus >= count;
  spin_ns_ = options.spin_us >= 0 ? options.spin_us * int64_t{1000} : room ? measured_wake_ns() : 0;

  const std::vector<unsigned> ids = topology.allowed.ids();
  for (int i = 0; i < count; ++i) {
    auto thread = std::make_unique<Thread>();
    thread->machine = this;
    thread->cpu = cpus[i];
    if (options.pin) {
      thread->host_cpu = static_cast<int>(ids[static_cast<size_t>(i)]);
    }
    cpus[i]->machine_data = thread.get();
    threads_.push_back(std::move(thread));
  }
  Status failure;
  int started = 0;
  for (auto& thread : threads_) {
    const int error = pthread_create(&thread->handle, nullptr, thread_main, thread.get());
    if (error != 0) {
      failure = Status::error(std::string("cannot create the thread of a Cpu: ") +
                              std::strerror(error) + ". Look at ulimit -u and the pids cgroup.");
      break;
    }
    ++started;
  }
  threads_.resize(static_cast<size_t>(started));
  // Acquire: partner is the release in thread_main().
  while (ready_.load(std::memory_order_acquire) < started) usleep(50);
  for (auto& thread : threads_) {
    if (!thread->status.ok()) failure = Status::error(thread->status.message());
  }
  // Release: partner is the acquire in thread_main().
  go_.store(failure.ok() ? 1 : 2, std::memory_order_release);
  (void)futex(go_, FUTEX_WAKE, INT32_MAX, nullptr);
  if (!failure.ok()) {
    stop();
    return failure;
  }
  // What on_cpu_start sets up, an idle waiter for one, is there before anybody wakes a Cpu.
  if (on_cpu_start_) {
    while (ready_.load(std::memory_order_acquire) < 2 * started) usleep(50);
  }
  return failure;
}

void HostMachine::stop() {
  for (auto& thread : threads_) pthread_join(thread->handle, nullptr);
  threads_.clear();
  ready_.store(0, std::memory_order_relaxed);
  go_.store(0, std::memory_order_relaxed);
  release_signals();
}

Status HostMachine::run_until(const std::function<bool()>&) {
  return Status::error("the host's Cpus run by themselves: wait for what you want instead");
}

void* HostMachine::thread_main(void* arg) {
  Thread& thread = *static_cast<Thread*>(arg);
  HostMachine& machine = *thread.machine;
  thread.status = machine.enter(thread);
  // Release: partner is the acquire in start().
  machine.ready_.fetch_add(1, std::memory_order_release);
  while (machine.go_.load(std::memory_order_acquire) == 0) {
    (void)futex(machine.go_, FUTEX_WAIT_BITSET, 0, nullptr);
  }
  if (machine.go_.load(std::memory_order_relaxed) == 1) {
    if (machine.on_cpu_start_) {
      machine.on_cpu_start_(thread.cpu->id);
      // Release: partner is the second acquire in start().
      machine.ready_.fetch_add(1, std::memory_order_release);
    }
    const KnownStack known = KnownStack::of_this_thread();
    thread.cpu->hooks->main(*thread.cpu);
    if (machine.on_cpu_stop_) machine.on_cpu_stop_(thread.cpu->id);
  }
  machine.leave(thread);
  return nullptr;
}

Status HostMachine::enter(Thread& thread) {
  thread.tid = static_cast<pid_t>(syscall(SYS_gettid));
  char name[16];
  std::snprintf(name, sizeof name, "jiffy/%d", thread.cpu->id);
  pthread_setname_np(pthread_self(), name);
  // Half of a short sleep's lateness is the default slack of 50 us.
  prctl(PR_SET_TIMERSLACK, 1);
  if (thread.host_cpu >= 0) {
    if (Status status = pin_this_thread(thread.host_cpu); !status.ok()) return status;
  }
  if (Status status = enter_signal_slot(*thread.cpu, *options_, &thread.slot); !status.ok())
    return status;
  if (Status status = create_timer(thread, kTickVector, &thread.tick); !status.ok()) return status;
  if (Status status = create_timer(thread, kTimerVector, &thread.oneshot); !status.ok()) {
    timer_delete(thread.tick);
    thread.tick = nullptr;
    return status;
  }
  context_init_thread(thread.cpu->idle.context);
  return Status();
}

void HostMachine::leave(Thread& thread) {
  if (thread.status.ok()) {
    timer_delete(thread.tick);
    timer_delete(thread.oneshot);
  }
  if (thread.slot != nullptr) leave_signal_slot(thread.slot);
}

Status HostMachine::create_timer(Thread& thread, int vector, timer_t* timer) {
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = tick_signal();
  event.sigev_value.sival_int = vector;
#ifdef sigev_notify_thread_id
  event.sigev_notify_thread_id = thread.tid;
#else
  event._sigev_un._tid = thread.tid;
#endif
  if (timer_create(CLOCK_MONOTONIC, &event, timer) == 0) return Status();
  return Status::error(std::string("timer_create failed: ") + std::strerror(errno) +
                       ". Each Cpu needs two timers: look at ulimit -i.");
}

void HostMachine::start_tick(Cpu& cpu) {
  if (cpu.tick_running.exchange(true, std::memory_order_seq_cst)) return;
  arm_tick(thread_of(cpu));
}

void HostMachine::arm_tick(Thread& thread) {
  // On the grid of multiples of the period, as the kernel's tick.
  const int64_t first = (monotonic_ns() / tick_period_ + 1) * tick_period_;
  const itimerspec spec = {to_timespec(tick_period_), to_timespec(first)};
  timer_settime(thread.tick, TIMER_ABSTIME, &spec, nullptr);
}

void HostMachine::stop_tick(Cpu& cpu) {
  // Disarmed also if it seems stopped: a starter that was overtaken may have armed it since.
  cpu.tick_running.store(false, std::memory_order_seq_cst);
  const itimerspec off = {};
  timer_settime(thread_of(cpu).tick, 0, &off, nullptr);
  // Somebody started it between the two steps, and his arming may have come before our disarming.
  if (cpu.tick_running.load(std::memory_order_seq_cst)) arm_tick(thread_of(cpu));
}

void HostMachine::arm_oneshot(Cpu& cpu, int64_t when) {
  itimerspec spec = {};
  // An idle Cpu parks until its first timer by itself; zero would disarm.
  if (when != kNever) spec.it_value = to_timespec(std::max<int64_t>(when, 1));
  timer_settime(thread_of(cpu).oneshot, TIMER_ABSTIME, &spec, nullptr);
}

void HostMachine::send_ipi(Cpu& target) {
  // At safe points the pending bit is enough: a signal would only interrupt what cannot switch.
  if (use_signals_) syscall(SYS_tgkill, getpid(), thread_of(target).tid, kReschedSignal);
}

void HostMachine::park(Cpu& cpu, int64_t until) {
  Thread& thread = thread_of(cpu);
  const timespec deadline = to_timespec(until);
  // One wait only: a signal ends it too, and the idle loop looks at what came.
  thread.park_word.park([&] {
    (void)futex(thread.park_word.word, FUTEX_WAIT_BITSET, 0, until == kNever ? nullptr : &deadline);
  });
}

void HostMachine::unpark(Cpu& cpu) {
  Thread& thread = thread_of(cpu);
  thread.park_word.unpark([&] { (void)futex(thread.park_word.word, FUTEX_WAKE, 1, nullptr); });
}

void HostMachine::consume(int64_t ns) {
  // Not by the Cpu's clock, which is its owner's: a preemptible fiber may change Cpus here.
  const int64_t end = monotonic_ns() + ns;
  while (monotonic_ns() < end) cpu_relax();
}

namespace {

// Two threads: the partner sleeps in a futex, and stamps when it runs.
struct WakeProbe {
  std::atomic<uint32_t> word{0};
  std::atomic<int64_t> woken_at{0};
  std::atomic<bool> stop{false};

  static void* partner(void* arg) {
    WakeProbe& p = *static_cast<WakeProbe*>(arg);
    while (!p.stop.load(std::memory_order_acquire)) {
      if (p.word.load(std::memory_order_acquire) == 0) {
        (void)futex(p.word, FUTEX_WAIT_BITSET, 0, nullptr);
        continue;
      }
      p.word.store(0, std::memory_order_relaxed);
      p.woken_at.store(monotonic_ns(), std::memory_order_release);
    }
    return nullptr;
  }
};

int64_t measure_wake() {
  constexpr int kRounds = 9;
  constexpr int64_t kMostNs = 100'000;
  if (read_topology().allowed.count() < 2) return 0;
  WakeProbe probe;
  pthread_t partner;
  if (pthread_create(&partner, nullptr, WakeProbe::partner, &probe) != 0) return 0;
  int64_t samples[kRounds];
  for (int64_t& sample : samples) {
    usleep(200);  // let it fall asleep
    probe.woken_at.store(0, std::memory_order_relaxed);
    const int64_t start = monotonic_ns();
    probe.word.store(1, std::memory_order_release);
    (void)futex(probe.word, FUTEX_WAKE, 1, nullptr);
    int64_t woken = 0;
    while ((woken = probe.woken_at.load(std::memory_order_acquire)) == 0 &&
           monotonic_ns() - start < 20'000'000) {
      cpu_relax();
    }
    sample = woken == 0 ? kMostNs : woken - start;
  }
  probe.stop.store(true, std::memory_order_release);
  probe.word.store(1, std::memory_order_release);
  (void)futex(probe.word, FUTEX_WAKE, 1, nullptr);
  pthread_join(partner, nullptr);
  std::sort(samples, samples + kRounds);
  return std::clamp<int64_t>(samples[kRounds / 2], 1000, kMostNs);
}

}  // namespace

int64_t measured_wake_ns() {
  static const int64_t measured = measure_wake();  // a constant of the machine
  return measured;
}

}  // namespace jiffy
