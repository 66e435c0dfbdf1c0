#include "kworker_cell.h"

#include <jiffy/irqfd.h>
#include <jiffy/runtime.h>
#include <jiffy/sim.h>
#include <jiffy/topology.h>
#include <jiffy/work.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>

#include "delivery.h"
#include "interrupted.h"
#include "kworker_chain.h"
#include "kworker_sim.h"
#include "text_table.h"

namespace jiffy {

namespace {

constexpr size_t kTraceRecords = 8192;  // a Cpu: the last few dozen milliseconds
constexpr auto kBusyStep = std::chrono::microseconds(5);

// How long the threads of the Cpus were ready to run and waited for a CPU of the host: what others
// on this machine took from the measurement.
class HostWait {
 public:
  explicit HostWait(int cpus) : tids_(static_cast<size_t>(cpus)) {}

  void started(int cpu) {
    tids_[static_cast<size_t>(cpu)].store(gettid(), std::memory_order_relaxed);
  }

  int64_t total_ns() const {
    int64_t sum = 0;
    for (const auto& tid : tids_) sum += run_delay_ns(tid.load(std::memory_order_relaxed));
    return sum;
  }

 private:
  static int64_t run_delay_ns(pid_t tid) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", tid);
    std::FILE* file = std::fopen(path, "re");
    if (file == nullptr) return 0;
    long long ran = 0, waited = 0;
    const int fields = std::fscanf(file, "%lld %lld", &ran, &waited);
    std::fclose(file);
    return fields == 2 ? waited : 0;
  }

  std::vector<std::atomic<pid_t>> tids_;  // each written by its own thread; 0: not yet
};

class CellRunner {
 public:
  CellRunner(const KworkerOptions& options, const CellSpec& spec, bool traced)
      : options_(options),
        spec_(spec),
        host_wait_(cpus_for(options)),
        rt_(runtime_options(traced)) {}

  Status run(CellRun* result, CellTrace* trace) {
    if (Status status = rt_.start(); !status.ok()) return status;
    if (Status status = start_fibers(); !status.ok()) return status;
    Sample before, after;
    sample_around_the_run(&before, &after);
    if (trace != nullptr) save_trace(trace);
    stop_fibers();
    fill_in(before, after, result);
    queue_.reset();
    rt_.stop();
    return Status();
  }

 private:
  // All that grows while the chain runs.
  struct Sample {
    TimePoint at;
    uint64_t offered = 0, dropped = 0, received = 0;
    int64_t asleep_ns = 0, host_wait_ns = 0;
    CounterSnapshot counts;
    uint64_t works_on_producer_cpus = 0;
  };

  void sample_around_the_run(Sample* before, Sample* after) {
    const std::chrono::nanoseconds duration(int64_t(options_.seconds * 1e9));
    if (!options_.sim) {
      *before = sample();
      (void)sleep_unless_interrupted(duration);
      *after = sample();
      return;
    }
    // Virtual time passes while a fiber lets it: here, on a Cpu that the chain leaves alone.
    SpawnOptions observer;
    observer.cpu = rt_.cpus() - 1;
    rt_.run(
        [&] {
          *before = sample();
          (void)sleep_for(duration);
          *after = sample();
        },
        observer);
  }

  Options runtime_options(bool traced) {
    Options o = delivery_options(options_.sim ? Delivery::kSafePoints : options_.delivery);
    o.cpus = cpus_for(options_);
    if (options_.sim) {
      o.machine = make_sim_machine(sim_machine_options(options_.seed));
    } else {
      o.pin = pinned(o.cpus);
    }
    o.preemption = spec_.mode;
    o.hz = options_.hz;
    o.hrtick = options_.hrtick;
    o.latency_stats = true;
    o.trace_records = traced ? kTraceRecords : 0;
    o.on_cpu_start = [this](int cpu) { host_wait_.started(cpu); };
    return o;
  }

  int producer_cpu(int queue) const { return 2 * queue % rt_.cpus(); }
  int consumer_cpu(int queue) const { return (2 * queue + 1) % rt_.cpus(); }
  bool is_producer_cpu(int cpu) const {
    for (int q = 0; q < options_.queues; ++q) {
      if (producer_cpu(q) == cpu) return true;
    }
    return false;
  }

  Status start_fibers() {
    make_work_queue();
    ChainOptions chain_options;
    chain_options.ring = spec_.ring;
    chain_options.block_when_full = options_.block_when_full;
    chain_options.block_every_ns = options_.block_every_us * int64_t{1000};
    chain_options.inject_in_place = spec_.pool == Pool::kInAtomic;
    if (options_.sim) {
      chain_options.costs = kSimChainCosts;
      chain_options.block_seed = options_.seed;
    }
    for (int q = 0; q < options_.queues; ++q) {
      chains_.push_back(std::make_unique<Chain>(chain_options));
    }
    for (auto& chain : chains_) {
      if (Status status = attach_irqfd(*chain); !status.ok()) return status;
    }
    if (options_.busy) start_busy_fibers();
    for (int q = 0; q < options_.queues; ++q) start_chain(q);
    return Status();
  }

  void start_chain(int q) {
    Chain& chain = *chains_[static_cast<size_t>(q)];
    SpawnOptions consumer;
    consumer.name = format("B%d", q);
    consumer.cpu = consumer_cpu(q);
    consumers_.push_back(rt_.spawn([&chain] { run_consumer(chain); }, consumer));
    SpawnOptions producer;
    producer.name = format("A%d", q);
    producer.cpu = producer_cpu(q);
    producer.kernel_mode = true;
    producer.kind = LatencyKind::kKernel;
    producers_.push_back(rt_.spawn([&chain] { run_producer(chain); }, producer));
  }

  // In the atomic cells an irqfd has a pool too, and never uses it.
  void make_work_queue() {
    const auto kind =
        spec_.pool == Pool::kUnbound ? WorkQueueKind::kUnbound : WorkQueueKind::kPerCpu;
    queue_.emplace(rt_, WorkQueueOptions{.name = "inject", .kind = kind});
    // The pool of a system in use has its workers already.
    for (int q = 0; q < options_.queues; ++q) {
      WorkItem first([] {});
      queue_->queue_on(producer_cpu(q), first);
      queue_->flush(first);
    }
    queue_->clear_queue_latency();
  }

  Status attach_irqfd(Chain& chain) {
    std::function<InjectResult()> in_atomic;
    if (spec_.pool == Pool::kInAtomic) {
      in_atomic = [&chain] {
        chain.interrupt.inject();
        return InjectResult::kInjected;
      };
    }
    irqfds_.push_back(std::make_unique<IrqFd>(
        *queue_,
        [&chain] {
          if (chain.options.costs.inject.count() != 0) consume(chain.options.costs.inject);
          chain.interrupt.inject();
        },
        std::move(in_atomic)));
    return irqfds_.back()->assign(chain.call);
  }

  void start_busy_fibers() {
    for (int cpu = 0; cpu < rt_.cpus(); ++cpu) {
      if (is_producer_cpu(cpu)) continue;
      SpawnOptions options;
      options.name = format("busy%d", cpu);
      options.cpu = cpu;
      options.kind = LatencyKind::kOther;
      busy_.push_back(rt_.spawn(
          [this] {
            while (!stop_busy_.load(std::memory_order_relaxed)) consume(kBusyStep);
          },
          options));
    }
  }

  void stop_fibers() {
    for (auto& chain : chains_) {
      chain->stop_producing.store(true, std::memory_order_relaxed);
      chain->room.wake(WaitQueue::kAll);
    }
    for (auto& producer : producers_) producer.join();
    irqfds_.clear();
    for (auto& chain : chains_) {
      chain->stop_consuming.store(true, std::memory_order_relaxed);
      chain->interrupt.inject();
    }
    for (auto& consumer : consumers_) consumer.join();
    stop_busy_.store(true, std::memory_order_relaxed);
    for (auto& fiber : busy_) fiber.join();
  }

  Sample sample() const {
    Sample s;
    s.at = now();
    for (const auto& chain : chains_) {
      s.offered += chain->offered.load(std::memory_order_relaxed);
      s.dropped += chain->dropped.load(std::memory_order_relaxed);
      s.received += chain->received.load(std::memory_order_relaxed);
      s.asleep_ns += chain->asleep_ns.load(std::memory_order_relaxed);
      const int64_t since = chain->asleep_since.load(std::memory_order_relaxed);
      if (since != 0)
        s.asleep_ns += std::chrono::nanoseconds(s.at.time_since_epoch()).count() - since;
    }
    s.host_wait_ns = host_wait_.total_ns();
    s.counts = rt_.counters();
    for (int cpu = 0; cpu < rt_.cpus(); ++cpu) {
      if (is_producer_cpu(cpu)) {
        s.works_on_producer_cpus += rt_.counters(cpu).at(Counter::kWorksStarted);
      }
    }
    return s;
  }

  void fill_in(const Sample& before, const Sample& after, CellRun* run) const;
  void save_trace(CellTrace* trace) const;

  const KworkerOptions& options_;
  const CellSpec& spec_;
  HostWait host_wait_;
  Runtime rt_;
  std::optional<WorkQueue> queue_;
  std::vector<std::unique_ptr<Chain>> chains_;
  std::vector<std::unique_ptr<IrqFd>> irqfds_;
  std::vector<JoinHandle<void>> producers_, consumers_, busy_;
  std::atomic<bool> stop_busy_{false};
};

void CellRunner::fill_in(const Sample& before, const Sample& after, CellRun* run) const {
  const double seconds = std::chrono::duration<double>(after.at - before.at).count();
  const double bits = static_cast<double>(options_.packet_bytes) * 8;
  run->seconds = seconds;
  run->offered = after.offered - before.offered;
  run->dropped = after.dropped - before.dropped;
  run->received = after.received - before.received;
  run->throughput_gbit_s = static_cast<double>(run->received) * bits / seconds / 1e9;
  run->offered_gbit_s = static_cast<double>(run->offered) * bits / seconds / 1e9;
  run->consumer_busy_percent = 100 - 100 * static_cast<double>(after.asleep_ns - before.asleep_ns) /
                                         (seconds * 1e9 * static_cast<double>(chains_.size()));
  run->host_wait_percent = 100 * static_cast<double>(after.host_wait_ns - before.host_wait_ns) /
                           (seconds * 1e9 * rt_.cpus());
  run->counts = after.counts - before.counts;
  const uint64_t works = run->counts.at(Counter::kWorksStarted);
  if (works != 0) {
    run->work_on_producer_percent =
        100 * static_cast<double>(after.works_on_producer_cpus - before.works_on_producer_cpus) /
        static_cast<double>(works);
  }
  if (spec_.pool != Pool::kInAtomic) run->kworker = summarize(queue_->queue_latency());
  HistogramSnapshot signal_to_run;
  for (const auto& chain : chains_) {
    signal_to_run.merge_from(chain->signal_to_run.snapshot());
    run->sequence_errors += chain->sequence_errors;
    run->checksum_errors += chain->checksum_errors;
    // All fibers have ended: what was offered was dropped or has arrived.
    if (chain->offered != chain->dropped + chain->received) ++run->sequence_errors;
  }
  run->signal_to_run = summarize(signal_to_run);
  for (int kind = 0; kind < kLatencyKinds; ++kind) {
    run->queue_latency[static_cast<size_t>(kind)] =
        summarize(rt_.queue_latency(static_cast<LatencyKind>(kind)));
  }
}

// The names come from the listing for people: the trace knows only ids.
void CellRunner::save_trace(CellTrace* trace) const {
  trace->records = rt_.trace();
  std::istringstream lines(rt_.dump());
  for (std::string line; std::getline(lines, line);) {
    unsigned long long id = 0;
    char name[24] = "";
    if (std::sscanf(line.c_str(), "%llu %23s", &id, name) == 2 && name[0] != '-') {
      trace->names[id] = name;
    }
  }
}

}  // namespace

int cpus_for(const KworkerOptions& options) {
  const int wanted = 2 * options.queues + 2;
  if (options.sim) return wanted;
  const int available = static_cast<int>(read_topology().default_cpu_count());
  return std::max(2, std::min(available, wanted));
}

bool pinned(int cpus) { return static_cast<int>(read_topology().allowed.count()) >= cpus; }

Status run_cell(const KworkerOptions& options, const CellSpec& spec, CellRun* run,
                CellTrace* trace) {
  return CellRunner(options, spec, trace != nullptr).run(run, trace);
}

}  // namespace jiffy
