// A board as somebody sees it who is no rank: found by its descriptor, judged, mapped to be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/base/board_name.hpp"
#include "comm/board/board.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::status {

using base::kBoardName;

/// Movable. Thread-compatible.
class MappedBoard {
 public:
  /// kInvalidArgument for what is not a whole board of this build, or could be cut short under our
  /// feet.
  static Result<MappedBoard> open(transport::UniqueFd fd);

  board::BoardView view() const { return {mapping_.get(), ranks_}; }
  /// Of the communicator.
  const std::string& name() const { return name_; }
  /// Whose ranks share the board: their processes are here, and the other ranks' rows are copies.
  int host() const { return host_; }
  /// For handing on; still this object's.
  int fd() const { return fd_.get(); }
  /// The same for the same board (the inode's number).
  uint64_t id() const { return id_; }
  /// Whether every rank that shares the board has left or ended. The copies of other hosts' rows do
  /// not count: what brings them ends with the first rank of a host.
  bool is_over() const;

 private:
  struct Unmap {
    size_t bytes;
    void operator()(const std::byte* base) const;
  };
  transport::UniqueFd fd_;
  std::unique_ptr<const std::byte, Unmap> mapping_;
  uint64_t id_ = 0;
  int ranks_ = 0, host_ = 0;
  std::string name_;
};

}  // namespace rondo::status
