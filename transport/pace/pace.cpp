// The paced wire: when a message departs, when it may be seen, and the text that says how fast.
#include "transport/pace/pace.hpp"

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace rondo::transport {
namespace {

// A slot on the wire: the payload, then kTrailer bytes:
//   offset  bytes  field
//   n       8      due: CLOCK_MONOTONIC nanoseconds from which the message may be seen
constexpr size_t kTrailer = sizeof(int64_t);

int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// Shared memory of the wires, for each rank (its wire, a multiple of 64 bytes):
//   offset  bytes         field
//   0       8             free_from: when its last byte will have left
//   8       8 * channels  due: when the last signal of the channel can be seen
// Times are CLOCK_MONOTONIC nanoseconds.
size_t wire_bytes(int channels) {
  constexpr size_t kWireLine = 64;
  const size_t bytes = sizeof(std::atomic<int64_t>) * (1 + static_cast<size_t>(channels));
  return (bytes + kWireLine - 1) / kWireLine * kWireLine;
}

/// The outgoing wires of all ranks of a host. Thread-safe: several channels and ranks use a wire.
class WireSet {
 public:
  WireSet(const PaceOptions& options, Wires wires)
      : ns_per_byte_(1e9 / options.bytes_per_second),
        latency_ns_(std::llround(options.latency_seconds * 1e9)),
        wires_(wires) {}

  int own() const { return wires_.rank; }
  int channels() const { return wires_.channels; }
  int64_t latency_ns() const { return latency_ns_; }

  /// Puts bytes on the wire of `sender`. Returns when the last one arrives.
  int64_t send(int sender, size_t bytes) {
    const auto busy_ns = std::llround(static_cast<double>(bytes) * ns_per_byte_);
    const int64_t now = now_ns();
    std::atomic<int64_t>& free_from = at(sender, 0);
    int64_t from = free_from.load();
    int64_t sent = 0;
    do {
      sent = std::max(now, from) + busy_ns;
    } while (!free_from.compare_exchange_weak(from, sent));
    return sent + latency_ns_;
  }

  /// When the last signal of a rank's channel can be seen.
  std::atomic<int64_t>& due(int rank, int channel) { return at(rank, 1 + channel); }

 private:
  std::atomic<int64_t>& at(int rank, int place) {
    auto* const wire = reinterpret_cast<std::atomic<int64_t>*>(
        wires_.base + static_cast<size_t>(rank) * wire_bytes(wires_.channels));
    return wire[place];
  }

  const double ns_per_byte_;
  const int64_t latency_ns_;
  const Wires wires_;
};

class PacedSender final : public Sender {
 public:
  PacedSender(Sender& inner, WireSet& wires) : inner_(inner), wires_(wires) {
    RONDO_CHECK(inner.capacity() > kTrailer, "slots of %zu bytes", inner.capacity());
  }

  std::byte* try_acquire(size_t bytes) override {
    return slot_ = inner_.try_acquire(bytes + kTrailer);
  }
  bool try_publish(size_t bytes, uint64_t tag) override {
    // A message is put on the wire once, even if the inner transport refuses it several times.
    if (due_ == 0) due_ = wires_.send(wires_.own(), bytes);
    std::memcpy(slot_ + bytes, &due_, kTrailer);
    if (!inner_.try_publish(bytes + kTrailer, tag)) return false;
    due_ = 0;
    return true;
  }
  bool drained() override { return inner_.drained(); }
  bool flushed() override { return inner_.flushed(); }
  size_t capacity() const override { return inner_.capacity() - kTrailer; }
  uint32_t depth() const override { return inner_.depth(); }

 private:
  Sender& inner_;
  WireSet& wires_;
  std::byte* slot_ = nullptr;
  int64_t due_ = 0;
};

class PacedReceiver final : public Receiver {
 public:
  explicit PacedReceiver(Receiver& inner) : inner_(inner) {}

  bool try_peek(Delivery* delivery) override {
    if (!inner_.try_peek(delivery)) return false;
    if (delivery->data == nullptr || delivery->bytes < kTrailer) {
      delivery->data = nullptr;  // nothing that a PacedSender wrote
      return true;
    }
    delivery->bytes -= kTrailer;
    if (due_ == 0) std::memcpy(&due_, delivery->data + delivery->bytes, kTrailer);
    return arrived_ = arrived_ || now_ns() >= due_;
  }
  void release() override {
    inner_.release();
    due_ = 0;
    arrived_ = false;
  }
  bool flushed() override { return inner_.flushed(); }
  int64_t ready_at_ns() const override { return arrived_ ? 0 : due_; }

 private:
  Receiver& inner_;
  int64_t due_ = 0;       // of the oldest message; 0: not known
  bool arrived_ = false;  // whether the clock has passed it
};

class PacedTransport final : public Transport {
 public:
  PacedTransport(std::unique_ptr<Transport> inner, PaceOptions options, Wires wires)
      : inner_(std::move(inner)),
        wires_(options, wires),
        signals_(static_cast<size_t>(wires.channels) * static_cast<size_t>(wires.ranks)),
        carried_(static_cast<size_t>(wires.channels)) {}

  Capabilities capabilities() const override {
    const Capabilities inner = inner_->capabilities();
    return {.references = inner.references,
            .signals = inner.signals,
            .delays = true,
            .needs_progress = inner.needs_progress};
  }

  Sender& sender(int channel, int peer) override {
    const std::lock_guard lock(mutex_);
    return senders_.try_emplace({channel, peer}, inner_->sender(channel, peer), wires_)
        .first->second;
  }
  Receiver& receiver(int channel, int peer) override {
    const std::lock_guard lock(mutex_);
    return receivers_.try_emplace({channel, peer}, inner_->receiver(channel, peer)).first->second;
  }

  Status progress(int channel) override { return inner_->progress(channel); }

  Reference refer(const void* pointer, size_t bytes) override {
    return inner_->refer(pointer, bytes);
  }
  std::byte* resolve(int peer, const Reference& reference, size_t bytes) override {
    return inner_->resolve(peer, reference, bytes);
  }

  // The bytes were copied at once, so the signals that announce them have to wait. Bytes that this
  // rank wrote arrive with its next signal. Bytes that it read arrive here first, and then its
  // signal needs the latency as well.
  int64_t carry(int channel, int sender, size_t bytes) override {
    const int64_t arrives = wires_.send(sender, bytes);
    const bool wrote = sender == wires_.own();
    int64_t& carried = carried_[static_cast<size_t>(channel)];
    carried = std::max(carried, wrote ? arrives : arrives + wires_.latency_ns());
    return wrote ? 0 : arrives;
  }

  void signal(int channel, uint64_t value) override {
    // Signals arrive in the order in which they were raised.
    int64_t& due = carried_[static_cast<size_t>(channel)];
    due = std::max(now_ns() + wires_.latency_ns(), due);
    // Relaxed: signal() releases it, with the value that it belongs to.
    wires_.due(wires_.own(), channel).store(due, std::memory_order_relaxed);
    inner_->signal(channel, value);
  }

  uint64_t seen(int channel, int peer) override {
    Signal& signal = signal_of(channel, peer);
    // If the first signal has arrived, a second one may have been raised after it.
    if (await_next(&signal, channel, peer)) await_next(&signal, channel, peer);
    return signal.visible;
  }
  int64_t signal_ready_at_ns(int channel, int peer) const override {
    return signal_of(channel, peer).due_ns;
  }

 private:
  /// What this rank knows about a peer's counter. Used by the channel's thread only.
  struct Signal {
    uint64_t visible = 0;
    uint64_t coming = 0;  // becomes visible at due_ns
    int64_t due_ns = 0;   // 0: nothing is known to be on its way
  };
  /// Looks for a signal on its way and makes it visible once it is due. Returns whether it did.
  bool await_next(Signal* signal, int channel, int peer) {
    if (signal->due_ns == 0) {
      signal->coming = inner_->seen(channel, peer);
      if (signal->coming == signal->visible) return false;
      // Relaxed: seen() has acquired it. If the peer has signalled again since, its later time is
      // taken for both.
      signal->due_ns = wires_.due(peer, channel).load(std::memory_order_relaxed);
    }
    if (now_ns() < signal->due_ns) return false;
    signal->visible = signal->coming;
    signal->due_ns = 0;
    return true;
  }
  size_t index(int channel, int peer) const {
    return static_cast<size_t>(peer) * static_cast<size_t>(wires_.channels()) +
           static_cast<size_t>(channel);
  }
  Signal& signal_of(int channel, int peer) { return signals_.at(index(channel, peer)); }
  const Signal& signal_of(int channel, int peer) const { return signals_.at(index(channel, peer)); }

  const std::unique_ptr<Transport> inner_;
  WireSet wires_;
  std::vector<Signal> signals_;
  std::vector<int64_t>
      carried_;       // by channel: when the bytes arrive that its next signal announces
  std::mutex mutex_;  // of the two maps: several threads make links, each on its first use
  std::map<std::pair<int, int>, PacedSender> senders_;
  std::map<std::pair<int, int>, PacedReceiver> receivers_;
};

struct Unit {
  std::string_view name;
  double factor;
};

/// "12.5us" with one of `units`: the number times the unit's factor; NaN for any other text.
template <size_t kCount>
double parse_quantity(std::string_view text, const std::array<Unit, kCount>& units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  if (error != std::errc{} || !std::isfinite(number)) return nothing;
  const std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const Unit& unit : units) {
    if (rest == unit.name) return number * unit.factor;
  }
  return nothing;
}

constexpr std::array<Unit, 8> kBandwidths{{{"B/s", 1},
                                           {"KB/s", 1e3},
                                           {"kB/s", 1e3},
                                           {"MB/s", 1e6},
                                           {"GB/s", 1e9},
                                           {"kbit/s", 1e3 / 8},
                                           {"Mbit/s", 1e6 / 8},
                                           {"Gbit/s", 1e9 / 8}}};
constexpr std::array<Unit, 4> kTimes{{{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};

}  // namespace

Result<PaceOptions> parse_pace(std::string_view text) {
  const size_t comma = text.find(',');
  const std::string_view bandwidth = text.substr(0, comma);
  PaceOptions options;
  options.bytes_per_second = bandwidth == "inf" ? std::numeric_limits<double>::infinity()
                                                : parse_quantity(bandwidth, kBandwidths);
  if (comma != text.npos) options.latency_seconds = parse_quantity(text.substr(comma + 1), kTimes);
  // The comparisons are false for NaN. The bounds keep due times far from overflow.
  if (options.bytes_per_second >= 1e3 && options.latency_seconds >= 0 &&
      options.latency_seconds <= 3600) {
    return options;
  }
  return Status(Code::kInvalidArgument,
                "pace '" + std::string(text) +
                    "' is not BANDWIDTH[,LATENCY] with at least 1KB/s and at most 3600s; write for "
                    "example 1GB/s,20us or 100Mbit/s or inf,20us");
}

size_t wires_bytes(int ranks, int channels) {
  return static_cast<size_t>(ranks) * wire_bytes(channels);
}

std::unique_ptr<Transport> pace(std::unique_ptr<Transport> inner, PaceOptions options,
                                Wires wires) {
  RONDO_CHECK(inner != nullptr && options.bytes_per_second > 0 && options.latency_seconds >= 0,
              "pace of %g bytes/s, %g s", options.bytes_per_second, options.latency_seconds);
  RONDO_CHECK(wires.base != nullptr && wires.rank < wires.ranks, "wires of %d ranks, rank %d",
              wires.ranks, wires.rank);
  return std::make_unique<PacedTransport>(std::move(inner), options, wires);
}

}  // namespace rondo::transport
