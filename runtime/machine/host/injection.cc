#include "machine/host/injection.h"

#include <cpuid.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

#include "cpu/cpu.h"

// The injected call. On entry the interrupted address lies on top of the stack, below the 128 bytes
// that a leaf function may use without moving the stack pointer. All registers are the interrupted
// function's: flags and general registers are pushed, everything else goes by XSAVEC into a
// block whose size the processor told. The description for debuggers and unwinders says where
// each one lies: a backtrace of a preempted fiber goes through.
asm(R"(
    .pushsection .text
    .globl jiffy_injected_call, jiffy_injected_call_end
    .hidden jiffy_injected_call, jiffy_injected_call_end
    .type jiffy_injected_call, @function
jiffy_injected_call:
    .cfi_startproc
    .cfi_signal_frame
    .cfi_def_cfa %rsp, 136
    .cfi_offset %rip, -136
    pushfq
    .cfi_adjust_cfa_offset 8
    pushq %rax
    .cfi_adjust_cfa_offset 8
    .cfi_offset %rax, -152
    pushq %rcx
    .cfi_adjust_cfa_offset 8
    .cfi_offset %rcx, -160
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    .cfi_offset %rdx, -168
    pushq %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_offset %rbx, -176
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    .cfi_offset %rsi, -184
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    .cfi_offset %rdi, -192
    pushq %r8
    .cfi_adjust_cfa_offset 8
    .cfi_offset %r8, -200
    pushq %r9
    .cfi_adjust_cfa_offset 8
    .cfi_offset %r9, -208
    pushq %r10
    .cfi_adjust_cfa_offset 8
    .cfi_offset %r10, -216
    pushq %r11
    .cfi_adjust_cfa_offset 8
    .cfi_offset %r11, -224
    pushq %r12
    .cfi_adjust_cfa_offset 8
    .cfi_offset %r12, -232
    pushq %r13
    .cfi_adjust_cfa_offset 8
    .cfi_offset %r13, -240
    pushq %r14
    .cfi_adjust_cfa_offset 8
    .cfi_offset %r14, -248
    pushq %r15
    .cfi_adjust_cfa_offset 8
    .cfi_offset %r15, -256
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_offset %rbp, -264
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    cld
    subq jiffy_xsave_size(%rip), %rsp
    andq $-64, %rsp
    xorl %eax, %eax
    leaq 512(%rsp), %rdi
    movl $8, %ecx
    rep stosq
    movl $-1, %eax
    movl $-1, %edx
    xsavec (%rsp)
    call jiffy_injected_entry
    movl $-1, %eax
    movl $-1, %edx
    xrstor (%rsp)
    movq jiffy_this_cpu_words@gottpoff(%rip), %rax
    subl $1, %fs:(%rax)
    movq %rbp, %rsp
    .cfi_def_cfa_register %rsp
    popq %rbp
    .cfi_adjust_cfa_offset -8
    .cfi_same_value %rbp
    popq %r15
    .cfi_adjust_cfa_offset -8
    popq %r14
    .cfi_adjust_cfa_offset -8
    popq %r13
    .cfi_adjust_cfa_offset -8
    popq %r12
    .cfi_adjust_cfa_offset -8
    popq %r11
    .cfi_adjust_cfa_offset -8
    popq %r10
    .cfi_adjust_cfa_offset -8
    popq %r9
    .cfi_adjust_cfa_offset -8
    popq %r8
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rbx
    .cfi_adjust_cfa_offset -8
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rcx
    .cfi_adjust_cfa_offset -8
    popq %rax
    .cfi_adjust_cfa_offset -8
    popfq
    .cfi_adjust_cfa_offset -8
    ret $128
    .cfi_endproc
jiffy_injected_call_end:
    .size jiffy_injected_call, . - jiffy_injected_call
    .popsection
)");

extern "C" {
extern const char jiffy_injected_call[], jiffy_injected_call_end[];
// I: set before the first Cpu starts.
__attribute__((used, visibility("hidden"))) size_t jiffy_xsave_size = 0;

// With the fiber's registers saved. The Cpu is another one after a switch, perhaps.
__attribute__((used, visibility("hidden"))) void jiffy_injected_entry() {
  jiffy::this_cpu()->hooks->preempt_irq();
}
}

namespace jiffy {

namespace {

constexpr ptrdiff_t kRedZone = 128;
constexpr size_t kPushed = 16 * 8;
constexpr size_t kSchedule = 6144;  // schedule(), and interrupts that came meanwhile

size_t xsave_size() {
  unsigned eax, ebx, ecx, edx;
  // Leaf 13.0: the size of all enabled components, each at its fixed place. The compacted format of
  // XSAVEC (13.1) is not larger, but for alignment.
  __cpuid_count(13, 0, eax, ebx, ecx, edx);
  const size_t fixed = ebx;
  __cpuid_count(13, 1, eax, ebx, ecx, edx);
  return (fixed > ebx ? fixed : ebx) + 64;
}

uint64_t mask_of(const ucontext_t& context) {
  uint64_t mask;
  std::memcpy(&mask, &context.uc_sigmask, sizeof mask);
  return mask;
}

// How many bytes of the page of `pc` lie before and from it on: what may be read.
size_t bytes_before(const unsigned char* pc) { return reinterpret_cast<uintptr_t>(pc) & 4095; }
size_t bytes_from(const unsigned char* pc) { return 4096 - bytes_before(pc); }

}  // namespace

size_t injection_room() {
  if (jiffy_xsave_size == 0) jiffy_xsave_size = xsave_size();
  return kRedZone + 8 + kPushed + jiffy_xsave_size + 64 + kSchedule;
}

bool can_inject(const Fiber& fiber, const ucontext_t& context, uint64_t base_mask,
                const PreemptChecks& checks) {
  if (!fiber.preemptible) return false;
  const auto pc = static_cast<uintptr_t>(context.uc_mcontext.gregs[REG_RIP]);
  const auto sp = static_cast<uintptr_t>(context.uc_mcontext.gregs[REG_RSP]);
  const auto bottom = reinterpret_cast<uintptr_t>(fiber.context.stack_bottom);
  const bool on_stack = sp >= bottom && sp <= bottom + fiber.context.stack_size;
  if (checks.stack_pointer && !on_stack) return false;
  if (checks.stack_room && on_stack && sp - bottom < injection_room()) return false;
  if (checks.signal_mask && mask_of(context) != base_mask) return false;
  return pc < reinterpret_cast<uintptr_t>(jiffy_injected_call) ||
         pc >= reinterpret_cast<uintptr_t>(jiffy_injected_call_end);
}

bool waits_for_lock(const ucontext_t& context) {
  const auto* pc = reinterpret_cast<const unsigned char*>(context.uc_mcontext.gregs[REG_RIP]);
  const auto rax = context.uc_mcontext.gregs[REG_RAX];
  // An interrupted futex call will be repeated (SA_RESTART): the kernel has set the program counter
  // back to the instruction, and the number of the call into its register.
  static const unsigned char kSyscall[] = {0x0f, 0x05};
  if (rax == SYS_futex && bytes_from(pc) >= sizeof kSyscall &&
      std::memcmp(pc, kSyscall, sizeof kSyscall) == 0) {
    return true;
  }
  // sched_yield() has returned: "mov $24, %eax; syscall" lies behind.
  static const unsigned char kYield[] = {0xb8, SYS_sched_yield, 0, 0, 0, 0x0f, 0x05};
  // So has a futex call with a time limit, which is not repeated; its caller will wait again.
  static const unsigned char kFutex[] = {0xb8, SYS_futex, 0, 0, 0, 0x0f, 0x05};
  static_assert(sizeof kYield == sizeof kFutex);
  if (bytes_before(pc) < sizeof kYield) return false;
  const unsigned char* call = pc - sizeof kYield;
  return (rax == 0 && std::memcmp(call, kYield, sizeof kYield) == 0) ||
         (rax == -EINTR && std::memcmp(call, kFutex, sizeof kFutex) == 0);
}

void inject(ucontext_t& context) {
  greg_t* regs = context.uc_mcontext.gregs;
  auto sp = static_cast<uintptr_t>(regs[REG_RSP]) - kRedZone - 8;
  std::memcpy(reinterpret_cast<void*>(sp), &regs[REG_RIP], 8);
  regs[REG_RSP] = static_cast<greg_t>(sp);
  regs[REG_RIP] = reinterpret_cast<greg_t>(jiffy_injected_call);
}

}  // namespace jiffy
