#include "machine/host/signals.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "cpu/cpu.h"
#include "machine/host/injection.h"

namespace jiffy {

namespace {

constexpr size_t kSlots = 1024;

struct Registration {
  std::mutex mutex;
  int users = 0;                // under mutex
  bool alternate_stack = true;  // I while users > 0
  char* arena = nullptr;        // I while users > 0
  bool taken[kSlots] = {};      // under mutex
  struct sigaction old_tick = {}, old_resched = {}, old_segv = {}, old_bus = {};
};

// Process-wide, as signals are.
Registration& registration() {
  static Registration instance;
  return instance;
}

// Where handlers run on the stack of whoever they interrupt.
SignalSlot* slot_of_this_cpu() {
  const Cpu* cpu = this_cpu();
  return cpu == nullptr ? nullptr : static_cast<SignalSlot*>(cpu->signal_slot);
}

// The slot of the thread that this handler runs on, or null on a foreign thread.
SignalSlot* slot_of(const void* stack_address) {
  if (!registration().alternate_stack) return slot_of_this_cpu();
  char* arena = registration().arena;
  const auto offset =
      reinterpret_cast<uintptr_t>(stack_address) - reinterpret_cast<uintptr_t>(arena);
  if (arena == nullptr || offset >= kSlots * SignalSlot::kSize) return nullptr;
  return reinterpret_cast<SignalSlot*>(arena + offset / SignalSlot::kSize * SignalSlot::kSize);
}

// What the process had installed before us, for signals that are not ours.
void chain(const struct sigaction& old, int signal, siginfo_t* info, void* context) {
  if ((old.sa_flags & SA_SIGINFO) != 0) {
    old.sa_sigaction(signal, info, context);
  } else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) {
    old.sa_handler(signal);
  }
}

// What is pending is taken here and now, if the count of whoever was interrupted allows; and if the
// rules then want another fiber to run, the interrupted one is made to call the scheduler.
//
// Else the bits stay: the end of what forbids it looks at them.
void take_interrupts(const SignalSlot& slot, ucontext_t& context) {
  Cpu& cpu = *slot.cpu;
  const PreemptChecks& checks = slot.options->preempt_checks;
  if (slot.options->delivery != Delivery::kSignals || this_cpu() != &cpu) return;
  if (checks.count && preempt_count() != 0) return;
  const int64_t entry = slot.options->latency_stats ? cpu.now() : 0;
  cpu.service_interrupts();
  if (!can_inject(*cpu.current, context, slot.base_mask, checks)) return;
  const bool waits = checks.futex_rule && waits_for_lock(context);
  if (!cpu.hooks->irq_exit(cpu, waits)) return;
  preempt_disable();
  cpu.irq_entry = entry;
  inject(context);
}

// The Cpu whose thread this handler runs on, or null on a foreign thread.
Cpu* cpu_of(const void* stack_address) {
  if (const SignalSlot* slot = slot_of(stack_address)) return slot->cpu;
#ifdef JIFFY_KEEPS_SIGNALS_BACK
  return this_cpu();  // the sanitizer calls the handler late, as a function, on the fiber's stack
#else
  return nullptr;
#endif
}

void on_timer_signal(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  if (Cpu* cpu = cpu_of(__builtin_frame_address(0)); cpu != nullptr && info->si_code == SI_TIMER) {
    cpu->timer_interrupt(static_cast<Vector>(info->si_value.sival_int));
    cpu->hooks->watchdog(*cpu);
    if (const SignalSlot* slot = slot_of(__builtin_frame_address(0))) {
      take_interrupts(*slot, *static_cast<ucontext_t*>(context));
    }
  } else {
    chain(registration().old_tick, signal, info, context);
  }
  errno = saved_errno;
}

// The sender has set the pending bit.
void on_resched_signal(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const SignalSlot* slot = slot_of(__builtin_frame_address(0));
  if (slot != nullptr && info->si_code == SI_TKILL) {
    take_interrupts(*slot, *static_cast<ucontext_t*>(context));
  } else {
    chain(registration().old_resched, signal, info, context);
  }
  errno = saved_errno;
}

void write_error(const char* text, size_t size) {
  // Nothing can be done about a failure here.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, size);
}

void report_overflow(const Fiber& fiber, int cpu) {
  char text[512];
  const int n = std::snprintf(
      text, sizeof text,
      "jiffy: stack overflow in fiber '%s' (%llu) on Cpu %d: its stack of %zu bytes is used up. "
      "Give it more with SpawnOptions::stack_size or Options::stack_size.\n",
      fiber.name, static_cast<unsigned long long>(fiber.id), cpu, fiber.context.stack_size);
  write_error(text, n > 0 ? static_cast<size_t>(n) : 0);
}

void on_fault(int signal, siginfo_t* info, void* context) {
  SignalSlot* slot = slot_of(__builtin_frame_address(0));
  if (slot != nullptr) {
    const Fiber* fiber = slot->cpu->current;
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    const auto bottom = reinterpret_cast<uintptr_t>(fiber->context.stack_bottom);
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    if (!fiber->is_idle && address < bottom && address >= bottom - page) {
      report_overflow(*fiber, slot->cpu->id);
    }
  }
  const struct sigaction& old =
      signal == SIGSEGV ? registration().old_segv : registration().old_bus;
  if ((old.sa_flags & SA_SIGINFO) != 0 ||
      (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN)) {
    chain(old, signal, info, context);
    return;
  }
  // The instruction runs again and the fault takes its default course: a core file, if allowed.
  std::signal(signal, SIG_DFL);
}

bool install(int signal, void (*handler)(int, siginfo_t*, void*), int flags,
             struct sigaction* old) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  if (registration().alternate_stack) action.sa_flags |= SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, tick_signal());
  sigaddset(&action.sa_mask, kReschedSignal);
  return sigaction(signal, &action, old) == 0;
}

// Puts `old` back, unless the application has installed its own meanwhile.
void restore(int signal, void (*ours)(int, siginfo_t*, void*), const struct sigaction& old) {
  struct sigaction now = {};
  if (sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
      now.sa_sigaction == ours) {
    sigaction(signal, &old, nullptr);
  }
}

}  // namespace

int tick_signal() { return SIGRTMIN + 5; }

Status acquire_signals(bool alternate_stack) {
  Registration& r = registration();
  const std::lock_guard<std::mutex> lock(r.mutex);
  if (r.users++ > 0) return Status();
  (void)injection_room();  // measures it, under the lock and before any handler
  void* arena = mmap(nullptr, kSlots * SignalSlot::kSize, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    --r.users;
    return Status::error(std::string("cannot reserve 64 MiB for signal stacks: ") +
                         std::strerror(errno) + ". Look at ulimit -v.");
  }
  r.arena = static_cast<char*>(arena);
  r.alternate_stack = alternate_stack;
  if (!install(tick_signal(), on_timer_signal, SA_RESTART, &r.old_tick) ||
      !install(kReschedSignal, on_resched_signal, SA_RESTART, &r.old_resched) ||
      !install(SIGSEGV, on_fault, 0, &r.old_segv) || !install(SIGBUS, on_fault, 0, &r.old_bus)) {
    --r.users;
    return Status::error(std::string("cannot install signal handlers: ") + std::strerror(errno));
  }
  return Status();
}

void release_signals() {
  Registration& r = registration();
  const std::lock_guard<std::mutex> lock(r.mutex);
  if (--r.users > 0) return;
  restore(tick_signal(), on_timer_signal, r.old_tick);
  restore(kReschedSignal, on_resched_signal, r.old_resched);
  restore(SIGSEGV, on_fault, r.old_segv);
  restore(SIGBUS, on_fault, r.old_bus);
  munmap(r.arena, kSlots * SignalSlot::kSize);
  r.arena = nullptr;
}

Status enter_signal_slot(Cpu& cpu, const Options& options, SignalSlot** out) {
  Registration& r = registration();
  SignalSlot* slot = nullptr;
  {
    const std::lock_guard<std::mutex> lock(r.mutex);
    for (size_t i = 0; i < kSlots && slot == nullptr; ++i) {
      if (r.taken[i]) continue;
      r.taken[i] = true;
      slot = reinterpret_cast<SignalSlot*>(r.arena + i * SignalSlot::kSize);
    }
  }
  if (slot == nullptr) {
    return Status::error("more than 1024 Cpus in one process: use fewer Cpus or fewer runtimes");
  }
  slot->cpu = &cpu;
  slot->options = &options;
  cpu.signal_slot = slot;
  stack_t stack = {};
  stack.ss_sp = slot->stack();
  stack.ss_size = SignalSlot::kStackSize;
  if (sigaltstack(&stack, &slot->saved) != 0) {
    const std::lock_guard<std::mutex> lock(r.mutex);
    r.taken[static_cast<size_t>(reinterpret_cast<char*>(slot) - r.arena) / SignalSlot::kSize] =
        false;
    return Status::error(std::string("sigaltstack failed: ") + std::strerror(errno));
  }
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, tick_signal());
  sigaddset(&set, kReschedSignal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  pthread_sigmask(SIG_BLOCK, nullptr, &set);
  std::memcpy(&slot->base_mask, &set, sizeof slot->base_mask);
  *out = slot;
  return Status();
}

void leave_signal_slot(SignalSlot* slot) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, tick_signal());
  sigaddset(&set, kReschedSignal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  if ((slot->saved.ss_flags & SS_DISABLE) != 0 && slot->saved.ss_sp == nullptr) {
    slot->saved.ss_size = SignalSlot::kStackSize;  // the kernel checks it even to disable
  }
  sigaltstack(&slot->saved, nullptr);
  Registration& r = registration();
  const std::lock_guard<std::mutex> lock(r.mutex);
  r.taken[static_cast<size_t>(reinterpret_cast<char*>(slot) - r.arena) / SignalSlot::kSize] = false;
}

}  // namespace jiffy
