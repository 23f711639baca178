// What a rank does, read once and as plain values, wherever it comes from: the board of its host, the
// copy on another host's board, or the report of its kernel. It is also how a row travels to other
// hosts (mirror.hpp).
#pragma once

#include <cstdint>

namespace rondo::board {

/// What is known of a rank's life: the one record of deaths, on the board of each host. Stronger
/// evidence replaces weaker (Board::learn). A closed connection is no evidence. Nobody waits for a rank
/// from kLost on.
enum class Life : uint32_t {
  kAbsent = 0,
  kAlive = 1,
  kLost = 2,  // its host does not answer: it may live, and hold this rank for lost
  kDead =
      3,  // its process has ended: its pidfd says so, or its host refuses a connection to its port
  kGone = 4,  // it has said goodbye, which may come late
};

//  offset  bytes
//    0       8    life, pid
//    8      40    posted, finished, heartbeat, progress, failed_split
//   48       8    waiting_since_ns   on the wire an age
//   56      24    waiting_for, step, round, algorithm, withdrawn, messages
//   80      16    shrunk, elsewhere
//   96       8    heard_ns           on the wire an age
//  104       8    process, pid_namespace
/// The words of RankState, with the same meaning.
struct Observation {
  Life life = Life::kAbsent;
  int32_t pid = 0;
  uint64_t posted = 0, finished = 0, heartbeat = 0, progress = 0, failed_split = 0;
  int64_t waiting_since_ns = 0;
  int32_t waiting_for = -1;
  uint32_t step = 0, round = 0, algorithm = 0, withdrawn = 0, messages = 0;
  uint64_t shrunk = 0, elsewhere = 0;
  int64_t heard_ns = 0;
  uint32_t process = 0, pid_namespace = 0;

  /// Whether the rank has not gone on since, but for its heartbeat.
  bool is_same_wait(const Observation& other) const {
    return life == other.life && posted == other.posted && finished == other.finished &&
           waiting_for == other.waiting_for && waiting_since_ns == other.waiting_since_ns &&
           step == other.step && round == other.round && elsewhere == other.elsewhere;
  }
  /// A process in one word, as in `elsewhere`: its PID namespace, and its number there.
  uint64_t packed_process() const {
    return uint64_t{pid_namespace} << 32 | static_cast<uint32_t>(pid);
  }
};
static_assert(sizeof(Observation) == 112);

}  // namespace rondo::board
