// Producer, kworker, consumer: how a lazily preempted producer starves the kworker on its Cpu.
//
//   producer -> EventFd -> IrqFd -> work item -> kworker -> interrupt -> consumer
//
// The producer (a virtual network card) makes a packet each 10 us, signals, and never sleeps; the
// kworker wakes the consumer (a guest) on the other Cpu. The ring has room for 64 packets. The
// worker of a per-Cpu pool has to run where the producer runs: under LAZY it waits for the tick,
// the ring overflows, and packets are lost. Each of the three cures is a row of the output.
//
// In virtual time, so the figures are the same on each computer. `jiffy kworker` does it for real.
#include <jiffy/irqfd.h>
#include <jiffy/runtime.h>
#include <jiffy/semaphore.h>
#include <jiffy/sim.h>
#include <jiffy/work.h>

#include <cstdio>

using namespace std::chrono_literals;
using jiffy::InjectResult;
using jiffy::Preemption;
using jiffy::WorkQueueKind;

namespace {

constexpr int kPackets = 100'000, kRoom = 64;

struct Cell {
  const char* name;
  Preemption mode;
  WorkQueueKind pool;
  InjectResult atomic;  // what an attempt in the producer's context comes to
};

// Returns how many packets came through.
int run(const Cell& cell) {
  jiffy::Options options;
  options.cpus = 2;
  options.preemption = cell.mode;
  options.latency_stats = true;
  options.machine = jiffy::make_sim_machine({.wake_latency = 3us});  // to wake a Cpu that idles
  jiffy::Runtime rt(options);
  return rt.run([&] {
    int in_ring = 0, received = 0, interrupts = 0;
    bool done = false;
    jiffy::EventFd call;
    jiffy::Semaphore interrupt;
    const auto inject = [&] {
      jiffy::consume(1us);
      ++interrupts;
      interrupt.release();
    };
    const auto in_atomic = [&] {
      if (cell.atomic == InjectResult::kInjected) inject();
      return cell.atomic;
    };
    jiffy::WorkQueue queue(rt, {.name = "inject", .kind = cell.pool});
    jiffy::IrqFd irqfd(queue, inject, in_atomic);
    (void)irqfd.assign(call);

    const auto consume_packets = [&] {
      for (; !done || in_ring > 0; interrupt.acquire()) {
        for (; in_ring > 0; --in_ring, ++received) jiffy::consume(5us);
      }
    };
    const auto produce_packets = [&] {
      for (int i = 0; i < kPackets; ++i) {
        jiffy::consume(10us);
        if (in_ring < kRoom) ++in_ring;  // else the packet is lost
        call.signal();
      }
    };
    auto guest = jiffy::spawn(consume_packets, {.name = "guest", .cpu = 1});
    auto vhost = jiffy::spawn(produce_packets, {.name = "vhost", .cpu = 0, .kernel_mode = true});
    vhost.join();
    irqfd.deassign();
    done = true;
    interrupt.release();
    guest.join();
    std::printf("%-20s received %6d of %d, %6d interrupts, the kworker waits %6.1f us\n", cell.name,
                received, kPackets, interrupts, queue.queue_latency().mean() / 1e3);
    return received;
  });
}

}  // namespace

int main() {
  constexpr auto kPerCpu = WorkQueueKind::kPerCpu, kUnbound = WorkQueueKind::kUnbound;
  constexpr auto kWouldBlock = InjectResult::kWouldBlock, kInjected = InjectResult::kInjected;
  const Cell cells[] = {{"lazy, per-Cpu pool", Preemption::kLazy, kPerCpu, kWouldBlock},
                        {"full, per-Cpu pool", Preemption::kFull, kPerCpu, kWouldBlock},
                        {"lazy, unbound pool", Preemption::kLazy, kUnbound, kWouldBlock},
                        {"lazy, no kworker", Preemption::kLazy, kPerCpu, kInjected}};
  bool as_expected = true;  // the first loses more than half, the others do not
  for (const Cell& cell : cells) as_expected &= (run(cell) < kPackets / 2) == (&cell == cells);
  return as_expected ? 0 : 1;
}
