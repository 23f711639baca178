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

/// One rank's way out. Thread-safe: channels of one rank may be driven by different threads.
class Wire {
 public:
  explicit Wire(const PaceOptions& options)
      : ns_per_byte_(1e9 / options.bytes_per_second),
        latency_ns_(std::llround(options.latency_seconds * 1e9)) {}

  /// Puts a message on the wire; when its last byte arrives.
  int64_t send(size_t bytes) {
    const auto busy_ns = std::llround(static_cast<double>(bytes) * ns_per_byte_);
    const int64_t now = now_ns();
    int64_t free_from = free_from_.load();
    int64_t sent = 0;
    do {
      sent = std::max(now, free_from) + busy_ns;
    } while (!free_from_.compare_exchange_weak(free_from, sent));
    return sent + latency_ns_;
  }

 private:
  const double ns_per_byte_;
  const int64_t latency_ns_;
  std::atomic<int64_t> free_from_{0};
};

class PacedSender final : public Sender {
 public:
  PacedSender(Sender& inner, Wire& wire) : inner_(inner), wire_(wire) {
    RONDO_CHECK(inner.capacity() > kTrailer, "slots of %zu bytes", inner.capacity());
  }

  std::byte* try_acquire(size_t bytes) override {
    return slot_ = inner_.try_acquire(bytes + kTrailer);
  }
  bool try_publish(size_t bytes, uint64_t tag) override {
    // A message that the inner transport refuses keeps its place on the wire: it is sent once,
    // however often it is tried.
    if (due_ == 0) due_ = wire_.send(bytes);
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
  Wire& wire_;
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
  PacedTransport(std::unique_ptr<Transport> inner, PaceOptions options)
      : inner_(std::move(inner)), wire_(options) {}

  Capabilities capabilities() const override {
    return {.needs_progress = inner_->capabilities().needs_progress};
  }

  Sender& sender(int channel, int peer) override {
    const std::lock_guard lock(mutex_);
    return senders_.try_emplace({channel, peer}, inner_->sender(channel, peer), wire_)
        .first->second;
  }
  Receiver& receiver(int channel, int peer) override {
    const std::lock_guard lock(mutex_);
    return receivers_.try_emplace({channel, peer}, inner_->receiver(channel, peer)).first->second;
  }

  Status progress(int channel) override { return inner_->progress(channel); }

 private:
  const std::unique_ptr<Transport> inner_;
  Wire wire_;
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

std::unique_ptr<Transport> pace(std::unique_ptr<Transport> inner, PaceOptions options) {
  RONDO_CHECK(inner != nullptr && options.bytes_per_second > 0 && options.latency_seconds >= 0,
              "pace of %g bytes/s, %g s", options.bytes_per_second, options.latency_seconds);
  return std::make_unique<PacedTransport>(std::move(inner), options);
}

}  // namespace rondo::transport
