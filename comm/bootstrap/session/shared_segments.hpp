// Memory that a communicator's ranks on one host map.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/bootstrap/session/rank_exchange.hpp"
#include "transport/memory/segment.hpp"

namespace rondo::comm {

/// The host's first rank makes the segments, and gives their descriptors to the others, which map them:
/// add() all of them, give fds() in an exchange, and take() from it. Every rank of a host adds the
/// same ones.
class SharedSegments {
 public:
  explicit SharedSegments(const RankExchange& ranks) : ranks_(ranks) {}

  /// Zeroed, in whole pages of at least `least_bytes`. `name` shows in /proc/PID/maps.
  Status add(const char* name, size_t least_bytes);
  /// Empty on all ranks but the host's first. A rank's own descriptors may follow these.
  std::vector<int> fds() const;
  /// In the order in which they were added. Takes their descriptors out of what was exchanged.
  Result<std::vector<transport::Segment>> take(std::vector<Parcel>& exchanged);

 private:
  const RankExchange& ranks_;
  std::vector<size_t> bytes_;
  std::vector<transport::Segment> made_;
};

}  // namespace rondo::comm
