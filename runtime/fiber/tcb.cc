#include "fiber/tcb.h"

#include <cpuid.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

namespace jiffy {

namespace {

// The head of a thread's control block. The ABI of x86-64 fixes the first three words, and
// compilers rely on the two guards.
struct TcbHead {
  void* self;
  void* dtv;
  void* thread_self;
  int multiple_threads;
  int reserved;
  uintptr_t sysinfo;
  uintptr_t stack_guard;
  uintptr_t pointer_guard;
};
static_assert(offsetof(TcbHead, stack_guard) == 0x28);

// What is not in the public interface of the C library, by name.
struct Libc {
  void* (*allocate_tls)(void*) = nullptr;
  void (*deallocate_tls)(void*, bool) = nullptr;
  void (*call_tls_dtors)() = nullptr;
  void (*ctype_init)() = nullptr;
  const ptrdiff_t* rseq_offset = nullptr;  // null before glibc 2.35
  ptrdiff_t tid_offset = 0;                // of the thread's id in its block
  // Of the pointer to the resolver's state, and of that state, as each thread but the first has it;
  // 0 for not found: then the first thread's is shared.
  ptrdiff_t resolver_slot = 0, resolver_state = 0;
};

char* thread_block() {
  void* self;
  asm volatile("movq %%fs:0x10, %0" : "=r"(self));
  return static_cast<char*>(self);
}

bool holds_tid(ptrdiff_t offset) {
  int32_t value;
  std::memcpy(&value, thread_block() + offset, sizeof value);
  return value == static_cast<int32_t>(syscall(SYS_gettid));
}

// Recursive mutexes and others know their owner by this word. It stands at the same place for each
// thread; two threads must agree, since one may hold its number elsewhere by chance.
ptrdiff_t find_tid_offset() {
  constexpr ptrdiff_t kFirst = 0x40, kLast = 0x800;
  struct Search {
    bool fits[kLast / 4] = {};
  } search;
  for (ptrdiff_t o = kFirst; o < kLast; o += 4) search.fits[o / 4] = holds_tid(o);
  pthread_t thread;
  const auto check = [](void* arg) -> void* {
    auto& s = *static_cast<Search*>(arg);
    for (ptrdiff_t o = kFirst; o < kLast; o += 4) s.fits[o / 4] = s.fits[o / 4] && holds_tid(o);
    return nullptr;
  };
  if (pthread_create(&thread, nullptr, check, &search) != 0) return 0;
  pthread_join(thread, nullptr);
  ptrdiff_t found = 0;
  for (ptrdiff_t o = kFirst; o < kLast; o += 4) {
    if (!search.fits[o / 4]) continue;
    if (found != 0) return 0;
    found = o;
  }
  return found;
}

template <class Symbol>
bool find(Symbol* symbol, const char* name) {
  *symbol = reinterpret_cast<Symbol>(dlsym(RTLD_DEFAULT, name));
  return *symbol != nullptr;
}

bool has_xsavec() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(13, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 2) != 0;
}

bool under_valgrind() {
  const char* preload = std::getenv("LD_PRELOAD");
  return preload != nullptr && std::strstr(preload, "vgpreload") != nullptr;
}

constexpr bool sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return true;
#endif
#endif
  return false;
}

void find_resolver(Libc* libc) {
  pthread_t thread;
  const auto look = [](void* arg) -> void* {
    auto& l = *static_cast<Libc*>(arg);
    char* slot = static_cast<char*>(dlsym(RTLD_DEFAULT, "__resp"));  // this thread's
    if (slot == nullptr) return nullptr;
    char* state = nullptr;
    std::memcpy(&state, slot, sizeof state);
    constexpr ptrdiff_t kMost = 4096;  // within the thread's block
    if (state < thread_block() || state > thread_block() + kMost) return nullptr;
    l.resolver_slot = slot - thread_block();
    l.resolver_state = state - thread_block();
    return nullptr;
  };
  if (pthread_create(&thread, nullptr, look, libc) == 0) pthread_join(thread, nullptr);
}

struct Probe {
  Libc libc;
  std::string missing;
};

Probe probe() {
  Probe p;
  Libc& l = p.libc;
  constexpr unsigned long kHwcap2Fsgsbase = 2;
  if (sanitized()) {
    p.missing = "a build without sanitizer: it keeps records of its own for each thread";
  } else if (under_valgrind()) {
    p.missing = "a run without valgrind, which does not know the instruction";
  } else if ((getauxval(AT_HWCAP2) & kHwcap2Fsgsbase) == 0) {
    p.missing =
        "FSGSBASE (a processor since 2012, Linux 5.9, and not nofsgsbase on its command line)";
  } else if (!has_xsavec()) {
    p.missing = "XSAVEC (a processor since 2015)";
  } else if (!find(&l.allocate_tls, "_dl_allocate_tls") ||
             !find(&l.deallocate_tls, "_dl_deallocate_tls") ||
             !find(&l.call_tls_dtors, "__call_tls_dtors") || !find(&l.ctype_init, "__ctype_init")) {
    p.missing =
        "the GNU C library, linked dynamically (_dl_allocate_tls and its neighbours were not "
        "found)";
  } else if ((l.tid_offset = find_tid_offset()) == 0) {
    p.missing =
        "a C library whose thread record is known: its word for the thread's number was not found";
  }
  (void)find(&l.rseq_offset, "__rseq_offset");
  if (p.missing.empty()) find_resolver(&l);
  return p;
}

const Probe& probed() {
  static const Probe instance = probe();
  return instance;
}

// Above all numbers that the kernel gives to threads.
int32_t unique_tid() {
  static std::atomic<int32_t> next{0};  // counts the blocks of the process; nothing depends on it
  return 0x20000000 | (next.fetch_add(1, std::memory_order_relaxed) & 0x1fffffff);
}

// Runs fn with %fs at `tcb`. Signal handlers that come meanwhile see its thread_locals; those of a
// Cpu find its count word, which forbids a switch.
template <class Fn>
void run_on(void* tcb, Fn fn) {
  void* mine = read_fs();
  write_fs(tcb);
  fn();
  write_fs(mine);
}

// Takes what the block's malloc cache holds out of it, and gives it to the calling thread's.
void drain_malloc_cache(void* tcb) {
  constexpr size_t kClasses = 64, kEach = 7, kStep = 16;
  static_assert(kStep == 2 * sizeof(size_t));
  void* taken[kEach];
  for (size_t c = 0; c < kClasses; ++c) {
    const size_t size = kStep * c + kStep + kStep / 2;
    run_on(tcb, [&] {
      for (void*& p : taken) {
        p = std::malloc(size);
        asm volatile(""
                     : "+r"(p));  // the pair of malloc and free is not for the compiler to remove
      }
    });
    for (void* p : taken) std::free(p);
  }
}

}  // namespace

bool shadow_stacks_on() {
  constexpr int kArchShstkStatus = 0x5005;
  unsigned long features = 0;
  return syscall(SYS_arch_prctl, kArchShstkStatus, &features) == 0 && features != 0;
}

bool interruptible_build() { return !sanitized() && !under_valgrind(); }

Status tcb_support() {
  const Probe& p = probed();
  if (p.missing.empty()) return Status();
  return Status::error("preemptible fibers need " + p.missing);
}

void* tcb_create() {
  const Libc& libc = probed().libc;
  void* block = libc.allocate_tls(nullptr);
  if (block == nullptr) return nullptr;
  const auto* mine = reinterpret_cast<const TcbHead*>(thread_block());
  auto* head = static_cast<TcbHead*>(block);
  head->self = head->thread_self = block;
  head->multiple_threads = 1;
  head->stack_guard = mine->stack_guard;
  head->pointer_guard = mine->pointer_guard;
  char* bytes = static_cast<char*>(block);
  const int32_t tid = unique_tid();
  std::memcpy(bytes + libc.tid_offset, &tid, sizeof tid);
  if (libc.resolver_slot != 0) {
    char* state = bytes + libc.resolver_state;
    std::memcpy(bytes + libc.resolver_slot, &state, sizeof state);
  }
  if (libc.rseq_offset != nullptr) {
    // Not registered: sched_getcpu() then asks the vDSO.
    constexpr int32_t kRegistrationFailed = -2;
    constexpr ptrdiff_t kCpuId = 4;
    std::memcpy(bytes + *libc.rseq_offset + kCpuId, &kRegistrationFailed,
                sizeof kRegistrationFailed);
  }
  return block;
}

void tcb_init_locale(void* tcb) {
  run_on(tcb, [] { probed().libc.ctype_init(); });
}

void tcb_destroy(void* tcb) {
  const Libc& libc = probed().libc;
  run_on(tcb, [&libc] { libc.call_tls_dtors(); });
  drain_malloc_cache(tcb);
  libc.deallocate_tls(tcb, true);
}

}  // namespace jiffy
