#include "tests/transport/lazy.hpp"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

namespace rondo::transport::test {
namespace {

// The links that fail, as rank << 32 | peer; -1: none.
std::atomic<int64_t> failing{-1};

bool fails(int rank, int peer) { return failing.load() == (int64_t{rank} << 32 | peer); }

/// xorshift64.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  bool one_in(uint64_t n) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ % n == 0;
  }

 private:
  uint64_t state_;
};

class LazySender final : public Sender {
 public:
  LazySender(Sender& inner, uint64_t seed) : inner_(inner), dice_(seed) {}

  std::byte* try_acquire(size_t bytes) override {
    return leaving_ || dice_.one_in(3) ? nullptr : inner_.try_acquire(bytes);
  }
  bool try_publish(size_t bytes, uint64_t tag) override {
    if (dice_.one_in(3)) return false;
    RONDO_CHECK(!leaving_, "published without a slot");
    bytes_ = bytes;
    tag_ = tag;
    return leaving_ = true;
  }
  bool drained() override { return !leaving_ && inner_.drained(); }
  bool flushed() override { return !leaving_; }
  size_t capacity() const override { return inner_.capacity(); }
  uint32_t depth() const override { return inner_.depth(); }

  void progress() {
    if (leaving_ && !dice_.one_in(2)) leaving_ = !inner_.try_publish(bytes_, tag_);
  }

 private:
  Sender& inner_;
  Dice dice_;
  bool leaving_ = false;  // published by the engine, and not yet by us
  size_t bytes_ = 0;
  uint64_t tag_ = 0;
};

class LazyReceiver final : public Receiver {
 public:
  LazyReceiver(Receiver& inner, uint64_t seed) : inner_(inner), dice_(seed) {}

  bool try_peek(Delivery* delivery) override {
    if (state_ == State::kArrived && !dice_.one_in(3)) state_ = State::kShown;
    if (state_ == State::kShown) *delivery = delivery_;
    return state_ == State::kShown;
  }
  void release() override {
    RONDO_CHECK(state_ == State::kShown, "released what was not peeked");
    state_ = State::kReleased;
  }
  bool flushed() override { return state_ != State::kReleased; }
  int64_t ready_at_ns() const override { return inner_.ready_at_ns(); }

  void progress() {
    if (dice_.one_in(2)) return;
    if (state_ == State::kReleased) {
      inner_.release();
      state_ = State::kEmpty;
    } else if (state_ == State::kEmpty && inner_.try_peek(&delivery_)) {
      state_ = State::kArrived;
    }
  }

 private:
  enum class State { kEmpty, kArrived, kShown, kReleased };
  Receiver& inner_;
  Dice dice_;
  State state_ = State::kEmpty;  // of the oldest slot
  Delivery delivery_{};
};

class LazyTransport final : public Transport {
 public:
  LazyTransport(std::unique_ptr<Transport> inner, int rank, int ranks, int channels, bool all)
      : inner_(std::move(inner)), rank_(rank) {
    for (int channel = 0; channel < channels; ++channel) {
      std::vector<Link>& links = channels_.emplace_back();
      for (int peer = 0; peer < ranks; ++peer) {
        const auto seed = static_cast<uint64_t>((channel * ranks + rank) * ranks + peer);
        Link& of = links.emplace_back();
        if (peer == rank || (!all && (peer - rank) % 2 == 0)) continue;
        of.sender = std::make_unique<LazySender>(inner_->sender(channel, peer), 2 * seed);
        of.receiver = std::make_unique<LazyReceiver>(inner_->receiver(channel, peer), 2 * seed + 1);
      }
    }
  }

  Capabilities capabilities() const override { return {.needs_progress = true}; }

  Sender& sender(int channel, int peer) override {
    Link& of = link(channel, peer);
    return of.sender ? *of.sender : inner_->sender(channel, peer);
  }
  Receiver& receiver(int channel, int peer) override {
    Link& of = link(channel, peer);
    return of.receiver ? *of.receiver : inner_->receiver(channel, peer);
  }
  Reference refer(const void* pointer, size_t bytes) override {
    return inner_->refer(pointer, bytes);
  }
  std::byte* resolve(int peer, const Reference& reference, size_t bytes) override {
    return inner_->resolve(peer, reference, bytes);
  }

  Status progress(int channel) override {
    std::vector<Link>& links = channels_.at(static_cast<size_t>(channel));
    Status status = inner_->progress(channel);
    for (size_t peer = 0; peer < links.size(); ++peer) {
      if (!links[peer].sender) continue;
      if (fails(rank_, static_cast<int>(peer))) {
        status = {Code::kPeerDied, "the link from rank " + std::to_string(rank_) + " to rank " +
                                       std::to_string(peer) + " failed"};
        continue;
      }
      links[peer].sender->progress();
      links[peer].receiver->progress();
    }
    return status;
  }

 private:
  struct Link {
    std::unique_ptr<LazySender> sender;
    std::unique_ptr<LazyReceiver> receiver;
  };
  Link& link(int channel, int peer) {
    RONDO_CHECK(peer != rank_, "a link of rank %d to itself", rank_);
    return channels_.at(static_cast<size_t>(channel)).at(static_cast<size_t>(peer));
  }

  const std::unique_ptr<Transport> inner_;
  const int rank_;
  std::vector<std::vector<Link>>
      channels_;  // [channel][peer]; empty: as the inner transport has it
};

}  // namespace

std::unique_ptr<Transport> lazy(std::unique_ptr<Transport> inner, int rank, int ranks,
                                int channels) {
  return std::make_unique<LazyTransport>(std::move(inner), rank, ranks, channels, true);
}

std::unique_ptr<Transport> lazy_between(std::unique_ptr<Transport> inner, int rank, int ranks,
                                        int channels) {
  return std::make_unique<LazyTransport>(std::move(inner), rank, ranks, channels, false);
}

void fail_links(int rank, int peer) { failing.store(int64_t{rank} << 32 | peer); }

}  // namespace rondo::transport::test
