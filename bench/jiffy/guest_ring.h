// The receive ring of a guest: what a vhost worker fills and a guest's driver empties.
//
// One producer, one consumer. An entry is a buffer of the guest. A packet takes as many consecutive
// entries as it needs: with mergeable buffers an entry is a page and a packet of 64 KiB takes 16,
// without them an entry holds a whole packet.
//
// Letters: I immutable; P written by the producer; C by the consumer; both atomics are read by the
// other side, which keeps a cached copy so that it touches the line only when the copy runs out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace jiffy {

// What a device keeps beside a packet's bytes, in the slot of its first entry.
struct PacketHeader {
  uint64_t sequence;  // counts what was offered, so a gap is a drop
  uint64_t checksum;
};

struct RingShape {
  size_t entries = 256;
  size_t entry_bytes = 4096;
  size_t packet_bytes = 65536;

  size_t entries_per_packet() const { return (packet_bytes + entry_bytes - 1) / entry_bytes; }
  size_t bytes() const { return entries * entry_bytes; }
};

// A multiply-and-xor sum: one multiplication each 8 bytes in a dependent chain, so that it costs a
// device about as much as its copy does. Any piece but the last is a multiple of 8 bytes long.
class Checksum {
 public:
  void add(const std::byte* data, size_t bytes) {
    uint64_t h = value_;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
      uint64_t word;
      std::memcpy(&word, data + i, 8);
      h = (h ^ word) * 0x9E3779B97F4A7C15ull;
    }
    value_ = h;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0x243F6A8885A308D3ull;
};

class GuestRing {
 public:
  explicit GuestRing(const RingShape& shape)
      : shape_(shape), headers_(shape.entries), data_(shape.bytes()) {}
  GuestRing(const GuestRing&) = delete;
  GuestRing& operator=(const GuestRing&) = delete;

  const RingShape& shape() const { return shape_; }

  // --- The producer.

  bool has_room() {
    const size_t needed = shape_.entries_per_packet();
    if (head_local_ + needed - tail_seen_ <= shape_.entries) return true;
    // Acquire: partner is the release in release_packet(): the entries are read out before they
    // are filled again.
    tail_seen_ = tail_.load(std::memory_order_acquire);
    return head_local_ + needed - tail_seen_ <= shape_.entries;
  }

  // Copies a packet into the free entries, entry by entry as a device does, and publishes it.
  void produce(const std::byte* source, uint64_t sequence) {
    const uint64_t first = head_local_;
    Checksum checksum;
    for (size_t done = 0; done < shape_.packet_bytes;) {
      const size_t piece = piece_size(done);
      std::memcpy(entry(head_local_++), source + done, piece);
      checksum.add(source + done, piece);
      done += piece;
    }
    headers_[first % shape_.entries] = {sequence, checksum.value()};
    // Release: partner is the acquire in readable().
    head_.store(head_local_, std::memory_order_release);
  }

  // After produce(): whether the consumer wants to be told. The fence stands between the store of
  // head_ and this look; partner: enable_notifications(). One of the two sides sees the other.
  bool wants_notification() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return notify_.load(std::memory_order_relaxed);
  }

  // The same for a producer that waits for room: it calls this, and looks for room again.
  void announce_wait() {
    producer_waits_.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void end_wait() { producer_waits_.store(false, std::memory_order_relaxed); }

  // --- The consumer.

  bool readable() {
    if (tail_local_ != head_seen_) return true;
    // Acquire: partner is the release in produce().
    head_seen_ = head_.load(std::memory_order_acquire);
    return tail_local_ != head_seen_;
  }

  // Copies the oldest packet out. The caller then releases it.
  PacketHeader consume_into(std::byte* destination) {
    const PacketHeader header = headers_[tail_local_ % shape_.entries];
    for (size_t done = 0; done < shape_.packet_bytes;) {
      const size_t piece = piece_size(done);
      std::memcpy(destination + done, entry(tail_local_++), piece);
      done += piece;
    }
    return header;
  }
  void release_packet() {
    // Release: partner is the acquire in has_room().
    tail_.store(tail_local_, std::memory_order_release);
  }
  // After release_packet(). Fence: partner is announce_wait().
  bool producer_waits() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return producer_waits_.load(std::memory_order_relaxed);
  }

  // The driver's protocol before it sleeps: enable, then look at readable() again. A packet that
  // was published before the store became visible is found by that look; a later one signals.
  void enable_notifications() {
    notify_.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void disable_notifications() { notify_.store(false, std::memory_order_relaxed); }

 private:
  std::byte* entry(uint64_t index) {
    return data_.data() + index % shape_.entries * shape_.entry_bytes;
  }
  size_t piece_size(size_t done) const {
    const size_t left = shape_.packet_bytes - done;
    return left < shape_.entry_bytes ? left : shape_.entry_bytes;
  }

  const RingShape shape_;              // I
  std::vector<PacketHeader> headers_;  // P, published by head_
  std::vector<std::byte> data_;        // P, published by head_; touched by its construction

  alignas(128) std::atomic<uint64_t> head_{0};    // P: entries ever published
  alignas(128) std::atomic<uint64_t> tail_{0};    // C: entries ever released
  alignas(128) std::atomic<bool> notify_{false};  // C
  std::atomic<bool> producer_waits_{false};       // P
  alignas(128) uint64_t head_local_ = 0;          // P
  uint64_t tail_seen_ = 0;                        // P
  alignas(128) uint64_t tail_local_ = 0;          // C
  uint64_t head_seen_ = 0;                        // C
};

}  // namespace jiffy
