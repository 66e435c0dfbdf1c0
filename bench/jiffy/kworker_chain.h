// The chain of P1: a vhost worker fills a guest's ring and signals an eventfd, whose irqfd injects
// an interrupt, which wakes the guest's CPU.
//
//   Producer -> GuestRing, EventFd -> IrqFd -> (kworker) -> GuestInterrupt -> Consumer
//
// Letters: I immutable while it runs; P the producer's; C the consumer's; atomics are relaxed
// unless they say otherwise: they are counts and stamps that order nothing.
#pragma once

#include <jiffy/event_fd.h>
#include <jiffy/histogram.h>
#include <jiffy/wait_queue.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "guest_ring.h"

namespace jiffy {

// The interrupt line of a guest's CPU. inject() may be called in any context.
class GuestInterrupt {
 public:
  void inject();
  // Blocks until an interrupt is pending, and takes it.
  void wait();

 private:
  WaitQueue halted_;
  bool pending_ = false;  // under halted_'s lock
};

// What the steps take where they take no time by themselves: in a simulation. Else zero.
struct ChainCosts {
  std::chrono::nanoseconds produce{0};  // a packet's copy and checksum, also of one that is dropped
  std::chrono::nanoseconds consume{0};  // a packet's way out
  std::chrono::nanoseconds inject{0};   // an interrupt's way into the guest
};

struct ChainOptions {
  RingShape ring;
  bool block_when_full = false;
  int64_t block_every_ns = 0;
  // Not 0: the producer's runs between two sleeps are random, with that mean, from this seed.
  uint64_t block_seed = 0;
  bool inject_in_place = false;  // the signaller injects
  ChainCosts costs;
};

// One vhost queue and its guest.
struct Chain {
  explicit Chain(const ChainOptions& chain_options)
      : options(chain_options), ring(chain_options.ring) {}

  const ChainOptions options;  // I
  GuestRing ring;
  EventFd call;              // the producer signals it
  GuestInterrupt interrupt;  // injected by the irqfd
  WaitQueue room;            // where a producer waits that may block

  std::atomic<bool> stop_producing{false};
  std::atomic<bool> stop_consuming{false};

  std::atomic<uint64_t> offered{0};      // P: packets
  std::atomic<uint64_t> dropped{0};      // P: packets
  std::atomic<uint64_t> received{0};     // C: packets
  std::atomic<int64_t> asleep_ns{0};     // C: the sleeps that have ended
  std::atomic<int64_t> asleep_since{0};  // C: ns, while it sleeps; 0 otherwise
  // When the producer first signalled since the consumer asked for it; 0: not yet. Cleared by C,
  // set by P; ordered by the ring's notification protocol and the wakeup.
  std::atomic<int64_t> signalled_at{0};
  Histogram signal_to_run;       // C
  uint64_t sequence_errors = 0;  // C
  uint64_t checksum_errors = 0;  // C
};

// The vhost worker: a kernel-mode loop. Returns after stop_producing.
void run_producer(Chain& chain);
// The guest's CPU: a user-mode fiber. Returns after stop_consuming, with the ring empty.
void run_consumer(Chain& chain);

// Packets with arbitrary bytes: what a producer copies from.
std::vector<std::byte> make_packets(size_t bytes);

}  // namespace jiffy
