// See symbolic_clocks.hpp.
#include "comm/schedule/symbolic_clocks.hpp"

#include <algorithm>

namespace rondo::schedule {

Clocks::Clocks(int ranks, size_t operations)
    : clocks_(static_cast<size_t>(ranks), Clock(static_cast<size_t>(ranks), 0)),
      starts_(clocks_.size() * operations),
      signals_(starts_.size()),
      ended_(starts_.size()),
      touched_(starts_.size()),
      cells_(starts_.size()) {
  for (int r = 0; r < ranks; ++r) tick(r);  // time 0 is before everything
}

void Clocks::start(int rank, size_t op) {
  starts_[at(rank, op)] = clocks_[static_cast<size_t>(rank)];
  tick(rank);
}

void Clocks::signal(int rank, size_t op) {
  signals_[at(rank, op)].push_back(clocks_[static_cast<size_t>(rank)]);
  tick(rank);
}

void Clocks::join(int rank, const Clock& other) {
  Clock& clock = clocks_[static_cast<size_t>(rank)];
  for (size_t r = 0; r < clock.size(); ++r) clock[r] = std::max(clock[r], other[r]);
}

bool Clocks::knows_start(int rank, int peer, size_t op) const {
  if (rank == peer) return true;
  const Clock& start = starts_[at(peer, op)];
  const auto p = static_cast<size_t>(peer);
  return !start.empty() && clocks_[static_cast<size_t>(rank)][p] >= start[p];
}

std::string Clocks::access(int rank, int owner, size_t op, size_t cell, bool write) {
  const std::string whose = "the buffer of rank " + std::to_string(owner);
  if (!knows_start(rank, owner, op)) {
    return std::string(write ? "writes " : "reads ") + whose +
           " without having waited for it to be posted";
  }
  if (rank != owner) {
    if (ended_[at(owner, op)]) {
      return "touches " + whose +
             ", which may have returned before; it does not wait for this rank";
    }
    std::vector<Moment>& touched = touched_[at(owner, op)];
    if (touched.empty()) touched.resize(clocks_.size());
    touched[static_cast<size_t>(rank)] = {rank, now(rank)};
  }
  History& history = cells_[at(owner, op)][cell];
  if (!before(history.write, rank)) {
    return std::string(write ? "writes " : "reads ") + whose + " while rank " +
           std::to_string(history.write.rank) + " may still be writing the same place";
  }
  if (!write) {
    history.reads.push_back({rank, now(rank)});
    return {};
  }
  for (const Moment& read : history.reads) {
    if (!before(read, rank)) {
      return "writes " + whose + " while rank " + std::to_string(read.rank) +
             " may still be reading the same place";
    }
  }
  history.reads.clear();
  history.write = {rank, now(rank)};
  return {};
}

std::string Clocks::end(int rank, size_t op) {
  ended_[at(rank, op)] = true;
  for (const Moment& moment : touched_[at(rank, op)]) {
    if (!before(moment, rank)) {
      return "ends while rank " + std::to_string(moment.rank) + " may still touch its buffers";
    }
  }
  return {};
}

}  // namespace rondo::schedule
