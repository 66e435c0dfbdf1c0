// The runtime: some Cpus, and the fibers on them.
#pragma once

#include <jiffy/counters.h>
#include <jiffy/fiber.h>
#include <jiffy/histogram.h>
#include <jiffy/options.h>
#include <jiffy/status.h>
#include <jiffy/trace.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace jiffy {

// A set of Cpus with their own scheduler. Several may live in one process, at once or one after
// the other; they share nothing but the registration of signals.
//
//   jiffy::Runtime rt;
//   rt.run([] { std::puts("hello from a fiber"); });
//
// Shutdown. stop(), and the destructor through it, does in this order:
//   1. New fibers from outside are refused (the handle says so); those that run may still spawn.
//   2. It waits until all fibers have ended. A fiber that waits for ever is reported by name each
//      ten seconds, on stderr: end it by a stop token or what it waits for.
//   3. Work queues that were not destroyed are drained; their workers end.
//   4. The Cpus' own fibers end; ticks and timers stop; each Cpu leaves its loop.
//   5. The threads are joined, the handlers of signals restored, stacks returned.
// Wakeups by plain threads may come at any time until step 5 has ended: they are honoured or do
// nothing. Objects that fibers wait on must outlive step 2.
class Runtime {
 public:
  explicit Runtime(Options options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Brings the Cpus up. Errors: what the system refused, and what to do. Plain threads only.
  Status start();
  // Shuts down as above; idempotent. A stopped runtime may be started again. Plain threads only.
  void stop();
  bool started() const;

  // start() if need be, runs fn in a fiber, waits for it, returns its result or rethrows. Aborts
  // with the message if start() fails. Plain threads only.
  template <class F>
  auto run(F&& fn, const SpawnOptions& options = detail::kDefaultSpawn) {
    start_or_die();
    return spawn(std::forward<F>(fn), options).join();
  }

  // Starts a fiber. From plain threads and fibers; see jiffy::spawn.
  template <class F>
  auto spawn(F&& fn, const SpawnOptions& options = detail::kDefaultSpawn) {
    return spawn_in(state(), std::forward<F>(fn), options);
  }

  int cpus() const;
  const Options& options() const;

  // The model may be changed at any time; requests made before keep the kind they were made as.
  void set_preemption(Preemption mode);
  Preemption preemption() const;

  // Sums over all Cpus since start(); exact when the runtime is quiet.
  CounterSnapshot counters() const;
  CounterSnapshot counters(int cpu) const;
  // Time from becoming runnable, or from being preempted, to running, ns; by kind of fiber. With
  // Options::latency_stats.
  HistogramSnapshot queue_latency(LatencyKind kind) const;
  // ns from the entry of a signal's handler that found a fiber to be preempted to the switch, of
  // all Cpus; with Options::latency_stats. Any thread.
  HistogramSnapshot preempt_delay() const;

  // The trace of all Cpus, merged, with Options::trace_records.
  std::vector<TraceRecord> trace() const;

  // All fibers, one a line: id, name, Cpu, state, class, stack used. A racy look, for people; any
  // thread, also while the runtime hangs.
  std::string dump() const;

  RuntimeState& state() { return *state_; }
  const RuntimeState& state() const { return *state_; }

 private:
  void start_or_die();

  std::unique_ptr<RuntimeState> state_;
};

}  // namespace jiffy
