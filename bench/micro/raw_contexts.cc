#include "micro/raw_contexts.h"

#include <sys/mman.h>
#include <xmmintrin.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>

#include "micro/harness.h"

namespace jiffy::micro {

namespace bctx = boost::context::detail;

namespace {

constexpr size_t kStackSize = 16 * 1024;
constexpr size_t kColours = 8;
constexpr size_t kColourStep = 128;
constexpr unsigned int kInexact = 0x20;

}  // namespace

// A context does nothing but jump on. What it got tells where the one before it stopped.
struct RawRing::Impl {
  struct Link {
    bctx::fcontext_t where = nullptr;
    Link* next = nullptr;
  };

  static void step(Link& self) {
    const bctx::transfer_t from = bctx::jump_fcontext(self.next->where, &self);
    static_cast<Link*>(from.data)->where = from.fctx;
  }

  [[noreturn]] static void loop(bctx::transfer_t from) {
    Link& previous = *static_cast<Link*>(from.data);
    previous.where = from.fctx;
    Link& self = *previous.next;
    for (;;) step(self);
  }

  std::vector<Link> links;
  void* stacks = nullptr;
  size_t bytes = 0;
};

RawRing::RawRing(int contexts, bool sticky) : impl_(std::make_unique<Impl>()) {
  const auto count = static_cast<size_t>(contexts);
  impl_->links.resize(count);
  impl_->bytes = kStackSize * count;
  impl_->stacks = mmap(nullptr, impl_->bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (impl_->stacks == MAP_FAILED) {
    std::perror("jiffy_micro: no memory for the stacks of the reference");
    std::exit(1);
  }
  const unsigned int saved = _mm_getcsr();
  for (size_t i = 0; i < count; ++i) {
    impl_->links[i].next = &impl_->links[(i + 1) % count];
    if (i == 0) continue;  // the caller
    char* top =
        static_cast<char*>(impl_->stacks) + (i + 1) * kStackSize - i % kColours * kColourStep;
    // A new context starts with the flags of its maker.
    _mm_setcsr((saved & ~0x3fu) | (sticky && i % 2 == 1 ? kInexact : 0));
    impl_->links[i].where =
        bctx::make_fcontext(top, kStackSize - kColours * kColourStep, Impl::loop);
  }
  _mm_setcsr(saved & ~0x3fu);
}

RawRing::~RawRing() { munmap(impl_->stacks, impl_->bytes); }

double RawRing::run(int64_t rounds) {
  // The timing itself computes with doubles: its flags must not be in the ring.
  const double start = thread_cpu_ns();
  _mm_setcsr(_mm_getcsr() & ~0x3fu);
  for (int64_t i = 0; i < rounds; ++i) Impl::step(impl_->links[0]);
  const double jumps = static_cast<double>(rounds) * static_cast<double>(impl_->links.size());
  return (thread_cpu_ns() - start) / jumps;
}

}  // namespace jiffy::micro
