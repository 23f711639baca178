// ShmTransport: the links, publishers and signals of one rank over one piece of mapped memory.
#include <sys/types.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "transport/shm/factory.hpp"
#include "transport/shm/fifo.hpp"
#include "transport/shm/layout.hpp"
#include "transport/shm/process_copy.hpp"
#include "transport/shm/references.hpp"

namespace rondo::transport::shm {
namespace {

class ShmTransport final : public Transport {
 public:
  ShmTransport(const FifoSizes& shape, int rank, std::byte* base, std::vector<ArenaView> arenas,
               bool same_process, std::vector<PeerProcess> processes)
      : shape_(shape),
        layout_(shape),
        rank_(rank),
        base_(base),
        references_(rank, std::move(arenas), same_process),
        processes_(std::move(processes)) {
    const auto ends = static_cast<size_t>(shape.channels) * static_cast<size_t>(shape.ranks);
    senders_.resize(ends);
    receivers_.resize(ends);
    if (shape.publish_depth > 0) {
      publishers_.resize(static_cast<size_t>(shape.channels));
      subscriptions_.resize(ends);
    }
    for (int channel = 0; channel < shape.channels; ++channel) connect(channel);
  }

  Capabilities capabilities() const override {
    return {.publish = shape_.publish_depth > 0,
            .references = true,
            .signals = true,
            .process_copy = !processes_.empty()};
  }

  Sender& sender(int channel, int peer) override { return senders_[end(channel, peer)]; }
  Receiver& receiver(int channel, int peer) override { return receivers_[end(channel, peer)]; }
  Sender& publisher(int channel) override {
    RONDO_CHECK(shape_.publish_depth > 0);
    return publishers_[static_cast<size_t>(channel)];
  }
  Receiver& subscription(int channel, int peer) override {
    RONDO_CHECK(shape_.publish_depth > 0);
    return subscriptions_[end(channel, peer)];
  }

  void signal(int channel, uint64_t value) override {
    // Release: pairs with the acquire load in seen(), so that a rank that sees the value sees
    // what this thread wrote before it.
    signal_line(channel, rank_)->value.store(value, std::memory_order_release);
  }
  uint64_t seen(int channel, int peer) override {
    // Acquire: pairs with the release store in signal().
    return signal_line(channel, peer)->value.load(std::memory_order_acquire);
  }

  Reference refer(const void* pointer, size_t bytes) override {
    return references_.refer(pointer, bytes);
  }
  std::byte* resolve(int peer, const Reference& reference, size_t bytes) override {
    return references_.resolve(peer, reference, bytes);
  }

  int copy_from(int peer, uint64_t address, std::byte* to, size_t bytes) override {
    return copy_from_process(processes_.at(static_cast<size_t>(peer)), address, to, bytes);
  }
  int copy_to(int peer, uint64_t address, const std::byte* from, size_t bytes) override {
    return copy_to_process(processes_.at(static_cast<size_t>(peer)), address, from, bytes);
  }

 private:
  size_t end(int channel, int peer) const {
    RONDO_CHECK(channel >= 0 && channel < shape_.channels && peer >= 0 && peer < shape_.ranks &&
                    peer != rank_,
                "channel %d, peer %d, own rank %d", channel, peer, rank_);
    return static_cast<size_t>(channel) * static_cast<size_t>(shape_.ranks) +
           static_cast<size_t>(peer);
  }

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  SignalLine* signal_line(int channel, int rank) const {
    return at<SignalLine>(layout_.signal(static_cast<size_t>(channel), static_cast<size_t>(rank)));
  }

  Fifo link(size_t channel, size_t writer, size_t reader) const {
    return {.headers = at<HeaderLine>(layout_.link_headers(channel, writer, reader)),
            .data = base_ + layout_.link_data(channel, writer, reader),
            .ring_bytes = layout_.link_ring_bytes(),
            .whole_slots = shape_.ring_bytes == 0,
            .capacity = shape_.slot_bytes,
            .depth = shape_.depth};
  }
  Fifo publication(size_t channel, size_t writer) const {
    return {.headers = at<HeaderLine>(layout_.publisher_headers(channel, writer)),
            .data = base_ + layout_.publisher_data(channel, writer),
            .ring_bytes = layout_.publisher_ring_bytes(),
            .whole_slots = shape_.ring_bytes == 0,
            .capacity = shape_.publish_slot_bytes,
            .depth = shape_.publish_depth};
  }

  /// Makes this rank's ends of one channel.
  void connect(int channel) {
    const auto c = static_cast<size_t>(channel);
    const auto own = static_cast<size_t>(rank_);
    for (int peer = 0; peer < shape_.ranks; ++peer) {
      if (peer == rank_) continue;
      const auto p = static_cast<size_t>(peer);
      const size_t i = end(channel, peer);
      senders_[i] =
          FifoWriter(link(c, own, p), at<ReleaseLine>(layout_.link_release(c, own, p)), 1, -1);
      receivers_[i] = FifoReader(link(c, p, own), at<ReleaseLine>(layout_.link_release(c, p, own)),
                                 &references_, peer);
      if (shape_.publish_depth == 0) continue;
      subscriptions_[i] =
          FifoReader(publication(c, p), at<ReleaseLine>(layout_.publisher_releases(c, p)) + rank_,
                     &references_, peer);
    }
    if (shape_.publish_depth == 0) return;
    publishers_[c] =
        FifoWriter(publication(c, own), at<ReleaseLine>(layout_.publisher_releases(c, own)),
                   shape_.ranks, rank_);
  }

  const FifoSizes shape_;
  const FifoLayout layout_;
  const int rank_;
  std::byte* const base_;
  const References references_;
  const std::vector<PeerProcess> processes_;
  std::vector<FifoWriter> senders_;        // channel * ranks + peer
  std::vector<FifoReader> receivers_;      // channel * ranks + peer
  std::vector<FifoWriter> publishers_;     // channel
  std::vector<FifoReader> subscriptions_;  // channel * ranks + peer
};

Status validate(const FifoSizes& shape) {
  const auto refuse = [](const char* name, size_t value, const char* range) {
    return Status(Code::kInvalidArgument, std::string("shared-memory transport: ") + name + " is " +
                                              std::to_string(value) + ", must be " + range);
  };
  constexpr int kMost = 65535;
  constexpr uint32_t kMostDepth = 1 << 20;
  constexpr size_t kMostSlot = std::numeric_limits<uint32_t>::max();
  if (shape.ranks < 1 || shape.ranks > kMost) {
    return refuse("ranks", static_cast<size_t>(shape.ranks), "1..65535");
  }
  if (shape.channels < 1 || shape.channels > kMost) {
    return refuse("channels", static_cast<size_t>(shape.channels), "1..65535");
  }
  if (shape.depth < 1 || shape.depth > kMostDepth) return refuse("depth", shape.depth, "1..2^20");
  if (shape.slot_bytes < 1 || shape.slot_bytes > kMostSlot) {
    return refuse("slot_bytes", shape.slot_bytes, "1..2^32-1");
  }
  if (shape.publish_depth > kMostDepth) {
    return refuse("publish_depth", shape.publish_depth, "0..2^20");
  }
  if (shape.publish_depth > 0 &&
      (shape.publish_slot_bytes < 1 || shape.publish_slot_bytes > kMostSlot)) {
    return refuse("publish_slot_bytes", shape.publish_slot_bytes, "1..2^32-1");
  }
  const double fifos = static_cast<double>(shape.channels) * shape.ranks;
  const auto ring = [&](uint32_t depth, size_t slot_bytes) {
    return std::max(static_cast<double>(depth) * static_cast<double>(slot_bytes),
                    static_cast<double>(shape.ring_bytes));
  };
  const double bytes = fifos * shape.ranks * ring(shape.depth, shape.slot_bytes) +
                       fifos * ring(shape.publish_depth, shape.publish_slot_bytes);
  if (bytes > 0x1p46) {
    return {Code::kInvalidArgument,
            "shared-memory transport: " + std::to_string(shape.ranks) + " ranks and " +
                std::to_string(shape.channels) +
                " channels of this depth and slot size need more than 64 "
                "TiB of address space; use smaller slots or fewer channels"};
  }
  return {};
}

}  // namespace

size_t bytes_needed(const FifoSizes& shape) { return FifoLayout(shape).bytes(); }

Result<std::unique_ptr<Transport>> create(const FifoSizes& shape, int rank, std::byte* base,
                                          std::vector<ArenaView> arenas, bool same_process,
                                          std::vector<PeerProcess> processes) {
  RONDO_TRY(validate(shape));
  if (rank < 0 || rank >= shape.ranks) {
    return Status(Code::kInvalidArgument, "shared-memory transport: rank " + std::to_string(rank) +
                                              " is not below " + std::to_string(shape.ranks));
  }
  if (base == nullptr || reinterpret_cast<uintptr_t>(base) % kLinePair != 0) {
    return Status(Code::kInvalidArgument,
                  "shared-memory transport: its memory must be aligned to 128 bytes");
  }
  if (!arenas.empty() && arenas.size() != static_cast<size_t>(shape.ranks)) {
    return Status(Code::kInvalidArgument,
                  "shared-memory transport: " + std::to_string(arenas.size()) + " arenas for " +
                      std::to_string(shape.ranks) + " ranks");
  }
  if (!processes.empty() && processes.size() != static_cast<size_t>(shape.ranks)) {
    return Status(Code::kInvalidArgument,
                  "shared-memory transport: " + std::to_string(processes.size()) +
                      " processes for " + std::to_string(shape.ranks) + " ranks");
  }
  return std::unique_ptr<Transport>(std::make_unique<ShmTransport>(
      shape, rank, base, std::move(arenas), same_process, std::move(processes)));
}

}  // namespace rondo::transport::shm
