// UcxTransport: the channels and connections of one rank.
#include <sched.h>
#include <time.h>

#include <utility>

#include "transport/ucx/connection.hpp"
#include "transport/ucx/context.hpp"

namespace rondo::transport::ucx {
namespace {

// How long the destructor waits: for peers to read what they were sent, for the last messages to
// leave, and for UCX to close.
constexpr int64_t kPatienceNs = 500'000'000;

int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

class UcxTransport final : public Transport {
 public:
  UcxTransport(std::unique_ptr<UcxContext> context, int rank, size_t ranks)
      : rank_(rank),
        ranks_(ranks),
        channels_(static_cast<size_t>(context->settings().channels)),
        connections_(channels_.size() * ranks),
        context_(std::move(context)) {
    for (size_t channel = 0; channel < channels_.size(); ++channel) {
      channels_[channel].number = static_cast<int>(channel);
      channels_[channel].calls = &context_->calls();
      channels_[channel].worker = context_->worker(channel);
    }
  }
  ~UcxTransport() override {
    if (context_->is_forked_copy()) return;
    leave();
    if (!close()) abandon();
  }
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  void add(size_t peer, const PeerAddress& of, std::vector<std::string> addresses) {
    for (size_t channel = 0; channel < channels_.size(); ++channel) {
      connections_[channel * ranks_ + peer] = std::make_unique<UcxConnection>(
          channels_[channel], *context_, rank_, static_cast<int>(peer),
          std::move(addresses[channel]), of.name);
    }
  }

  Capabilities capabilities() const override { return {.needs_progress = true}; }
  Sender& sender(int channel, int peer) override { return connection(channel, peer).sender(); }
  Receiver& receiver(int channel, int peer) override {
    return connection(channel, peer).receiver();
  }

  Status progress(int channel) override {
    Channel& of = channels_.at(static_cast<size_t>(channel));
    // Links in the caller's slots open when someone else uses them: a peer may come before, and wants
    // an answer if it is to leave.
    if (!of.in_use.empty() || context_->settings().places.first) push(of);
    return of.failure;
  }

 private:
  UcxConnection& connection(int channel, int peer) {
    const size_t index = static_cast<size_t>(channel) * ranks_ + static_cast<size_t>(peer);
    RONDO_CHECK(index < connections_.size() && connections_[index] != nullptr,
                "channel %d, peer %d, own rank %d", channel, peer, rank_);
    return *connections_[index];
  }

  static void push(Channel& channel) {
    channel.calls->worker_progress(channel.worker);
    for (UcxConnection* connection : channel.in_use) connection->attend();
  }

  /// Pushes all channels until `done` holds for every connection in use; false: not in time.
  template <class Condition>
  bool push_until(Condition done) {
    const int64_t deadline = monotonic_ns() + kPatienceNs;
    while (true) {
      bool all = true;
      for (Channel& channel : channels_) {
        if (channel.in_use.empty()) continue;
        push(channel);
        for (UcxConnection* connection : channel.in_use) all = done(*connection) && all;
      }
      if (all) return true;
      if (monotonic_ns() > deadline) return false;
      ::sched_yield();
    }
  }

  template <class Action>
  void for_all_in_use(Action action) {
    for (Channel& channel : channels_) {
      for (UcxConnection* connection : channel.in_use) action(*connection);
    }
  }

  /// Tells the peers that what comes next is no failure. A socket that is closed before the peer has
  /// read it may lose what is on its way, so this waits a while for the peers to read.
  void leave() {
    for (Channel& channel : channels_) channel.closing = true;
    push_until([](UcxConnection& c) { return c.can_end(); });
    for_all_in_use([](UcxConnection& c) { c.say_goodbye(); });
    push_until([](UcxConnection& c) { return c.flushed(); });
  }

  /// Whether no endpoint is left, as UCX demands before its workers end.
  bool close() {
    for_all_in_use([](UcxConnection& c) { c.close(); });
    const bool closed = push_until([](UcxConnection& c) { return c.is_closed(); });
    for_all_in_use([](UcxConnection& c) { c.cancel(); });
    return closed;
  }

  /// Leaves UCX's objects as they are, with the memory that they may still use.
  void abandon() {
    context_->abandon();
    static_cast<void>(new std::vector<Channel>(std::move(channels_)));
    for (std::unique_ptr<UcxConnection>& connection : connections_) {
      static_cast<void>(connection.release());
    }
  }

  const int rank_;
  const size_t ranks_;
  std::vector<Channel> channels_;
  std::vector<std::unique_ptr<UcxConnection>>
      connections_;                            // channel * ranks + peer; null: no address
  const std::unique_ptr<UcxContext> context_;  // ends before the memory of the receives
};

}  // namespace

Result<std::unique_ptr<Transport>> connect(std::unique_ptr<Opened> opened, int rank,
                                           std::vector<PeerAddress> peers) {
  RONDO_CHECK(opened != nullptr);
  if (rank < 0 || static_cast<size_t>(rank) >= peers.size() || peers.size() > kMaxRanks) {
    return Status(Code::kInvalidArgument, "UCX transport: rank " + std::to_string(rank) + " of " +
                                              std::to_string(peers.size()));
  }
  std::unique_ptr<UcxContext> context(static_cast<UcxContext*>(opened.release()));
  const UcxContext& own = *context;
  auto transport = std::make_unique<UcxTransport>(std::move(context), rank, peers.size());
  for (size_t peer = 0; peer < peers.size(); ++peer) {
    const PeerAddress& of = peers[peer];
    if (of.address.empty() || peer == static_cast<size_t>(rank)) continue;
    transport->add(peer, of, RONDO_TRY(split_address(of, own.settings(), own.address())));
  }
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace rondo::transport::ucx
