// Vector clocks over the accesses to buffers that peers touch: finds two accesses that nothing
// orders. Internal to the verifier. What orders: a rank's own sequence, a post before a `wait
// posted`, a signal before a `wait signalled`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace rondo::schedule {

class Clocks {
 public:
  Clocks(int ranks, size_t operations);

  /// `rank` calls operation `op`: its buffers are posted.
  void start(int rank, size_t op);
  /// `rank` raises its counter.
  void signal(int rank, size_t op);
  uint32_t signals(int rank, size_t op) const {
    return static_cast<uint32_t>(signals_[at(rank, op)].size());
  }
  bool started(int rank, size_t op) const { return !starts_[at(rank, op)].empty(); }

  /// `rank` has waited for `peer` to post `op`, or to signal for the `count`-th time in it.
  void saw_post(int rank, int peer, size_t op) { join(rank, starts_[at(peer, op)]); }
  void saw_signal(int rank, int peer, size_t op, uint32_t count) {
    join(rank, signals_[at(peer, op)][count - 1]);
  }
  /// Whether `rank` may rely on `peer` having called `op`.
  bool knows_start(int rank, int peer, size_t op) const;

  /// `rank` reads or writes a cell of `owner`'s buffers in `op`. The reason why it must not, or
  /// empty.
  std::string access(int rank, int owner, size_t op, size_t cell, bool write);
  /// `rank` ends `op`. The reason why it must not yet, or empty.
  std::string end(int rank, size_t op);

 private:
  using Clock = std::vector<uint32_t>;
  struct Moment {
    int rank = -1;
    uint32_t time = 0;
  };
  struct History {
    Moment write;
    std::vector<Moment> reads;
  };

  size_t at(int rank, size_t op) const { return op * clocks_.size() + static_cast<size_t>(rank); }
  uint32_t now(int rank) const {
    return clocks_[static_cast<size_t>(rank)][static_cast<size_t>(rank)];
  }
  void tick(int rank) { ++clocks_[static_cast<size_t>(rank)][static_cast<size_t>(rank)]; }
  void join(int rank, const Clock& other);
  bool before(const Moment& moment, int rank) const {
    return moment.rank < 0 || moment.rank == rank ||
           clocks_[static_cast<size_t>(rank)][static_cast<size_t>(moment.rank)] >= moment.time;
  }

  std::vector<Clock> clocks_;                               // [rank]
  std::vector<Clock> starts_;                               // [op, rank]; empty: not yet
  std::vector<std::vector<Clock>> signals_;                 // [op, rank]
  std::vector<bool> ended_;                                 // [op, rank]
  std::vector<std::vector<Moment>> touched_;                // [op, owner]: each peer's last access
  std::vector<std::unordered_map<size_t, History>> cells_;  // [op, owner]
};

}  // namespace rondo::schedule
