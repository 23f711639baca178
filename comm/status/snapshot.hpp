// What the ranks of one communicator are doing just now, and which rank waits for which: read from a board,
// without the ranks' help. It reports and does not diagnose.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/board/board.hpp"
#include "comm/status/mapped_board.hpp"
#include "rondo/types.hpp"

namespace rondo::status {

enum class Doing {
  kNotCome,  // to the communicator
  kOutside,  // not in an operation
  kWorking,  // in one, and not in a wait of more than a moment
  kWaiting,  // in one, for a peer
  kLeft,     // with a goodbye
  kLost,     // its host does not answer: it may live
  kDead,     // its process has ended without
};

/// "waits", ...
const char* to_string(Doing doing);

struct RankSnapshot {
  int rank = 0, pid = 0, host = 0;
  /// Of a rank on another host than the board: how long ago all this was so.
  std::optional<double> age_seconds{};
  Doing doing = Doing::kNotCome;
  bool foreign_pid = false;  // of another PID namespace: nothing is known of the process
  // The kernel's word: "stopped by a signal"; empty: unknown, or of another host and not stopped.
  std::string process{};
  bool is_steady = true;          // it was the same when all ranks had been looked at
  uint64_t begun = 0, ended = 0;  // sequence numbers of the last operations; 0: none
  std::string operation{};        // the last one begun, "all_reduce(float, sum, count 1024)"
  int elsewhere = -1;             // the rank that its process waits for in another communicator
  // While it waits:
  int peer = -1;                   // or kAnySource
  double seconds = 0;              // since anything moved
  Algorithm algorithm{};           // kAuto: ranks have yet to agree on one
  std::optional<uint32_t> step{};  // of the schedule, from 0; nothing while they have not
  uint32_t steps = 0, round = 0;
  std::string action{};  // of that step: "recv_reduce_send"
  /// With which it waits, and in how many lanes: see BoardView::messages().
  std::vector<board::Message> messages{};
  uint32_t message_lanes = 0;
};

struct Snapshot {
  std::string communicator;
  std::vector<std::string> hosts{};  // their names, by number; empty: there is one
  std::vector<RankSnapshot> ranks{};
  std::string error{};  // that all ranks report; empty: none
};

Snapshot take(const MappedBoard& board);

/// One sentence for each way in which ranks wait for each other: "ranks 1, 2 wait for rank 0, which
/// is stopped by a signal".
std::vector<std::string> waiting_chains(const Snapshot& snapshot);

/// A table, the chains, the error.
std::string to_text(const Snapshot& snapshot);

}  // namespace rondo::status
