// See route.hpp.
#include "transport/route/route.hpp"

#include <utility>

namespace rondo::transport {
namespace {

class Router final : public Transport {
 public:
  Router(std::unique_ptr<Transport> near, std::unique_ptr<Transport> far,
         std::vector<int> local_ranks)
      : near_(std::move(near)), far_(std::move(far)), local_ranks_(std::move(local_ranks)) {
    near_moves_ = near_ && near_->capabilities().needs_progress;
  }

  Capabilities capabilities() const override { return {.needs_progress = true}; }

  Sender& sender(int channel, int peer) override {
    const int local = local_rank(peer);
    return local < 0 ? far_->sender(channel, peer) : near_->sender(channel, local);
  }
  Receiver& receiver(int channel, int peer) override {
    const int local = local_rank(peer);
    return local < 0 ? far_->receiver(channel, peer) : near_->receiver(channel, local);
  }

  Status progress(int channel) override {
    if (near_moves_) RONDO_TRY(near_->progress(channel));
    return far_->progress(channel);
  }

  /// For the links that take references: those on this host.
  Reference refer(const void* pointer, size_t bytes) override {
    return near_ ? near_->refer(pointer, bytes) : Reference{};
  }

 private:
  int local_rank(int peer) const { return local_ranks_[static_cast<size_t>(peer)]; }

  std::unique_ptr<Transport> near_, far_;
  std::vector<int> local_ranks_;
  bool near_moves_ = false;
};

}  // namespace

std::unique_ptr<Transport> route(std::unique_ptr<Transport> near, std::unique_ptr<Transport> far,
                                 std::vector<int> local_ranks) {
  return std::make_unique<Router>(std::move(near), std::move(far), std::move(local_ranks));
}

}  // namespace rondo::transport
