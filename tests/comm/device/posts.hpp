// Messages of every pair of ranks with a communicator on the fake GPU.
#pragma once

#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "tests/comm/device/world.hpp"

namespace rondo::device::test {

/// A rank's messages with everybody, itself too; every one at an odd place.
class Post {
 public:
  /// `sizes`: of the messages from each rank to each, in this order.
  Post(int rank, int ranks, std::vector<size_t> sizes)
      : rank_(rank),
        ranks_(ranks),
        sizes_(std::move(sizes)),
        out_(static_cast<size_t>(ranks) * all(), 0xee),
        in_(out_.size(), 0xee),
        wanted_(in_) {
    for (int peer = 0; peer < ranks; ++peer) {
      for (size_t m = 0; m < sizes_.size(); ++m) {
        for (size_t i = 0; i < sizes_[m]; ++i) {
          out_[at(peer, m) + i] = byte_of(rank, peer, m, i);
          wanted_[at(peer, m) + i] = byte_of(peer, rank, m, i);
        }
      }
    }
  }
  size_t bytes() const { return out_.size() - static_cast<size_t>(ranks_) * sizes_.size(); }
  bool is_right() const { return in_ == wanted_; }

  /// Lanes in an order of the rank's own; within one, in order.
  void issue(Communicator& c, const CallOptions& options) {
    std::vector<int> lanes;  // 2 * peer, + 1: to it
    for (int lane = 0; lane < 2 * ranks_; ++lane) lanes.insert(lanes.end(), sizes_.size(), lane);
    std::mt19937 random(static_cast<unsigned>(rank_));
    std::shuffle(lanes.begin(), lanes.end(), random);
    std::vector<size_t> next(2 * static_cast<size_t>(ranks_));
    for (const int lane : lanes) {
      const int peer = lane / 2;
      const size_t m = next[lane]++;
      must(lane % 2 == 1
               ? c.send(out_.data() + at(peer, m), sizes_[m], DataType::kUint8, peer, options)
               : c.recv(in_.data() + at(peer, m), sizes_[m], DataType::kUint8, peer, options));
    }
  }

 private:
  static unsigned char byte_of(int from, int to, size_t message, size_t i) {
    return static_cast<unsigned char>(static_cast<size_t>(from * 31 + to * 7) + message * 13 +
                                      i * 3 + i / 251);
  }
  size_t all() const {
    size_t bytes = 0;
    for (const size_t each : sizes_) bytes += each + 1;
    return bytes;
  }
  size_t at(int peer, size_t message) const {
    size_t place = static_cast<size_t>(peer) * all();
    for (size_t m = 0; m < message; ++m) place += sizes_[m] + 1;
    return place;
  }

  int rank_, ranks_;
  std::vector<size_t> sizes_;
  std::vector<unsigned char> out_, in_, wanted_;
};

/// On every rank a group of all messages, and what and_then(rank) calls.
inline void exchange(
    World& world, const std::vector<size_t>& sizes,
    const std::function<void(int rank)>& and_then = [](int) {}) {
  std::vector<Post> posts;
  for (int rank = 0; rank < world.size(); ++rank) posts.emplace_back(rank, world.size(), sizes);
  for (int rank = 0; rank < world.size(); ++rank) {
    must(world[rank].group_start());
    posts[rank].issue(world[rank], world.on_stream(rank));
    and_then(rank);
    must(world[rank].group_end());
  }
  finish(world);
  for (int rank = 0; rank < world.size(); ++rank) {
    CHECK(posts[rank].is_right());
    CHECK(world[rank].stats().bytes_sent >= posts[rank].bytes());
  }
}

}  // namespace rondo::device::test
