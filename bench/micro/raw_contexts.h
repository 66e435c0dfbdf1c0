// What a switch costs with nothing around it: contexts of Boost.Context that jump in a ring.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace jiffy::micro {

// `contexts` contexts, this thread's own among them; each jumps to the next. The stacks get the
// colours that jiffy gives its own (the tops lie in different cache sets): the reference is as good
// as we know to make it.
class RawRing {
 public:
  // With `sticky`, each other context has a sticky floating-point flag set.
  explicit RawRing(int contexts, bool sticky = false);
  ~RawRing();
  RawRing(const RawRing&) = delete;
  RawRing& operator=(const RawRing&) = delete;

  // `rounds` times around; ns for one jump.
  double run(int64_t rounds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace jiffy::micro
