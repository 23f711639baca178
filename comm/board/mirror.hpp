// The mirror: rows of a board as bytes, by which an agent keeps the copies on other hosts' boards.
// Pure functions over a board and untrusted bytes; no sockets here. Times travel as ages, because
// hosts' clocks differ; references to buffers do not travel.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/board/board.hpp"
#include "rondo/status.hpp"

namespace rondo::board {

/// Of one host's rows. Its ranks share it equally.
inline constexpr size_t kMostRowsBytes = (size_t{1} << 20) - 64;

/// An error as it travels: whose it is, and its text.
struct FoundError {
  uint32_t finder;  // a rank
  Status status;
};

/// One host's board. Thread rule: the agent's; there is one per board.
class Mirror {
 public:
  explicit Mirror(const Board& board) : board_(board) {}

  /// The rows of `host`'s ranks as they stand here, in kMostRowsBytes at most. `operations`: of each
  /// rank, how many of its last ones go along, at most kHistory, the latest first; where ranks are many,
  /// as many as there is room for, and without what all_to_all_v's exchange. `known`, by rank: up to
  /// which operation the reader has all, which do not go along; brought up to date. Empty: it has none.
  std::string pack_rows(int host, uint64_t operations, std::span<uint64_t> known = {}) const;
  /// Writes them to this board. kBootstrap: not the rows of `host`'s ranks, or `host` is this one.
  Status unpack_rows(std::string_view bytes, int host) const;

  /// The error that this host's ranks report: the verdict, else their first; nothing: there is none.
  std::optional<FoundError> error() const;
  /// What pack_error() gave. kBootstrap: not an error of a rank.
  static std::string pack_error(const FoundError& error);
  Result<FoundError> unpack_error(std::string_view bytes) const;
  /// That error is what this host's ranks report from now on, unless a verdict is known already.
  void decide(const FoundError& error) const;

  /// Before the first operation: a rank of another host is there, and has this number in that PID
  /// namespace of its host, whose boot_id says which it is. The same on all boards of this host.
  void introduce(int rank, int32_t pid, uint64_t pid_namespace, std::string_view boot_id) const;
  /// The agent is about to look, or, with FirstError::kAgentEnded, looks no more.
  void show_agent(int64_t now_ns) const;

  /// The process of a rank of this host is stopped: 'T' or 't'; or not: 0.
  void show_process(int rank, char letter) const;

 private:
  class Reader;
  bool pack_operation(int rank, uint64_t sequence, size_t room, std::string& bytes) const;
  uint32_t pack_operations(int rank, uint64_t posted, uint64_t asked, uint64_t* known, size_t room,
                           std::string& bytes) const;
  bool unpack_operation(int rank, Reader& reader) const;
  void copy(const Observation& row, int rank) const;

  const Board& board_;
};

}  // namespace rondo::board
