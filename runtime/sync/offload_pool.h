// The threads behind jiffy::offload.
#pragma once

#include <jiffy/status.h>

#include <memory>

namespace jiffy {

class OffloadPool {
 public:
  OffloadPool();
  ~OffloadPool();

  // By a fiber: runs fn(arg) on a thread of the pool and waits for it.
  Status run(void (*fn)(void*), void* arg);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace jiffy
