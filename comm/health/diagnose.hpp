// What is wrong, and with which rank: pure functions over what was observed, and the error messages. A
// wait on CPUs (watch.hpp), kernels' reports (device/reports.cpp) and rondo-status ask the same ones.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/board/board.hpp"
#include "rondo/status.hpp"

namespace rondo::board {

/// Returns the path that begins at `first`: each rank waits for the next one, which next() returns. The
/// path ends at a rank that waits for no other, or for one that is on the path already.
std::vector<int> follow(int first, size_t ranks, const std::function<int(int)>& next);

/// Returns the rank for whose process the process of `rank` waits in another communicator, or -1.
int awaited_elsewhere(std::span<const Observation> ranks, int rank);

/// A wait in which nothing has moved.
struct Stall {
  std::span<const Observation> before, now;  // all ranks, looked at twice
  int rank, peer;                            // `rank` waits for `peer`; or kAnySource
  uint64_t sequence;
  /// The rank through whose process news of another one comes, if that has stopped coming; otherwise
  /// that other one.
  std::function<int(int)> source;
};
/// Returns the rank for which the others wait while it waits for no rank, or -1 if there is none.
int find_culprit(const Stall& stall);

/// The first operation that the board remembers of a rank that is in operation `sequence`.
inline uint64_t oldest_remembered(uint64_t sequence) {
  return sequence > kHistory ? sequence - kHistory + 1 : 1;
}
/// The error if two ranks have called different operations, or different counts of an all_to_all_v, in
/// first..last, as far as the board remembers both. Otherwise ok.
Status disagreement(const Board& board, int rank, int peer, uint64_t first, uint64_t last);
/// The error if two ranks disagree about what passes between them in an all_to_all_v. Otherwise ok.
Status uneven(const Board& board, int rank, int peer, uint64_t sequence, const Fingerprint& call);
/// The error for two ranks that have called different operations.
Status unlike_calls(uint64_t sequence, int rank, const std::string& called, int peer,
                    const std::string& theirs);

/// "10 float", "10 float with tag 7": of a message, as its word (tags.hpp) says.
std::string describe_word(uint64_t word);
/// The error for a recv on rank `to` that meets another message from rank `from` than it expects.
Status uneven_message(int from, uint64_t sent_word, int to, uint64_t expected_word);
/// The same for a recv that may get fewer elements than `room` says.
Status unfit_message(int from, uint64_t sent_word, int to, uint64_t room_word);
/// The error for a rank that left while others needed it; `when`: "while rank 1 is in ...".
Status left_early(int rank, const std::string& when);

}  // namespace rondo::board
