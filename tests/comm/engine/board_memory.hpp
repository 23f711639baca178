// Boards in the memory of one process: of one host, and of two hosts.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "comm/board/board.hpp"

namespace rondo::board {

/// A board's memory before the first rank has come.
class BoardMemory {
 public:
  explicit BoardMemory(int ranks) {
    const size_t bytes = (Board::bytes_needed(ranks) + 127) / 128 * 128;
    base_.reset(static_cast<std::byte*>(std::aligned_alloc(128, bytes)));
    std::memset(base(), 0, bytes);
  }
  std::byte* base() const { return base_.get(); }
  /// Whether the error that all hosts report is known.
  bool has_verdict() const {
    return reinterpret_cast<const FirstError*>(base() + sizeof(BoardHeader))->verdict != 0;
  }

 private:
  struct Free {
    void operator()(std::byte* base) const { std::free(base); }
  };
  std::unique_ptr<std::byte, Free> base_;
};

/// Rank 1 is on host b, all others are on host a; each host's board as one of its ranks sees it.
struct TwoHosts {
  explicit TwoHosts(int ranks = 3)
      : at_a(ranks),
        at_b(ranks),
        a(at_a.base(), ranks, 0, "world", places(ranks)),
        other(at_a.base(), ranks, 2, "world", places(ranks)),
        b(at_b.base(), ranks, 1, "world", places(ranks)) {}
  static Places places(int ranks) {
    std::vector<int> labels(static_cast<size_t>(ranks), 0);
    labels[1] = 1;
    return {.hosts = base::HostMap(labels), .names = {"a", "b"}};
  }
  BoardMemory at_a, at_b;
  Board a, other, b;
};

inline Fingerprint all_reduce_call(uint64_t count) {
  return {.collective = Collective::kAllReduce,
          .type = DataType::kFloat32,
          .op = ReduceOp::kSum,
          .algorithm = Algorithm::kAuto,
          .root = 0,
          .count = count};
}

/// As unlike all_reduce_call() as can be.
inline Fingerprint odd_call(uint64_t count, Collective collective = Collective::kAllReduce) {
  return {.collective = collective,
          .type = DataType::kBFloat16,
          .op = ReduceOp::kMax,
          .algorithm = Algorithm::kRing,
          .root = 2,
          .count = count,
          .layout = count * 77};
}

/// A recv with which a rank waits.
inline Message awaited_message(int64_t since_ns) {
  return {.sends = false,
          .peer = kAnySource,
          .type = DataType::kInt64,
          .count = 12,
          .tag = 5,
          .moved_bytes = 40,
          .since_ns = since_ns,
          .behind = 3};
}

}  // namespace rondo::board
