// System calls that block, and must not be interrupted by the Cpu's own signals.
#pragma once

#include <utility>

namespace jiffy {

// While it lives the Cpu of the calling fiber takes no interrupt, and its thread gets none of
// jiffy's signals: a system call is neither repeated nor ended by them (EINTR). The fiber keeps the
// Cpu, also while the call sleeps, so keep it short, or use offload(), which keeps nobody waiting.
//
// Inside: system calls only. No jiffy call that may block (it aborts), and nothing that may wait
// for another fiber of this Cpu, such as a lock of malloc or stdio: its holder would never run. On
// a plain thread it does nothing. Not copied, ends on the fiber that began it.
class BlockingRegion {
 public:
  BlockingRegion();
  ~BlockingRegion();
  BlockingRegion(const BlockingRegion&) = delete;
  BlockingRegion& operator=(const BlockingRegion&) = delete;

 private:
  bool on_fiber_;
  unsigned long mask_;  // of the thread, as the kernel has it
};

//   const ssize_t n = blocking([&] { return read(fd, buffer, size); });
template <class Fn>
decltype(auto) blocking(Fn&& fn) {
  const BlockingRegion region;
  return std::forward<Fn>(fn)();
}

}  // namespace jiffy
