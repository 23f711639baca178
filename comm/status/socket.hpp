// The socket between a launcher, the ranks that tell it of their boards, and rondo-status, which
// asks for them. One packet each way and nothing else: descriptors travel, and who has a board can
// read it without anybody's help, also when every rank hangs.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "comm/status/mapped_board.hpp"
#include "rondo/status.hpp"
#include "transport/shm/unique_fd.hpp"

namespace rondo::status {

/// Where a launcher's socket is, for its ranks.
inline constexpr const char* kSocketVariable = "RONDO_STATUS_SOCKET";

/// Rank 0 of a communicator tells the launcher, if there is one that wants to know. Never waits; a
/// launcher that cannot be told is no error.
void announce_board(int fd);

/// What a launcher says of its job.
struct Job {
  int pid = 0;
  int ranks = 0;
  int64_t started_s = 0;  // seconds since 1970
  std::string command{};
};

/// The launcher's side. One thread.
class Desk {
 public:
  /// Listens in `directory`, which is the user's alone. `job.pid` is this process.
  static Result<Desk> open(const std::string& directory, const Job& job);

  /// Value of kSocketVariable.
  const std::string& path() const { return path_; }
  /// Readable when serve() has something to do.
  int fd() const { return events_.get(); }
  /// Hears and answers. Never blocks.
  void serve();
  /// The flight recorders of all ranks of all communicators that somebody has not left, as text.
  std::string flight_records();

 private:
  Desk() = default;
  void greet();
  void hear(int socket);
  void answer(int socket);
  void drop_finished();

  std::string path_, description_;
  transport::UniqueFd events_, listener_;
  std::deque<transport::UniqueFd> guests_;  // that have not said anything yet
  std::deque<MappedBoard> boards_;
};

/// A launcher's answer.
struct Answer {
  Job job;
  std::vector<MappedBoard> boards;
};

/// Asks the launcher that listens in `directory`; waits for it a few seconds. kUnavailable: nobody
/// listens there, kTimeout: it does not answer, kInvalidArgument: it is not this user's.
Result<Answer> ask(const std::string& directory);

}  // namespace rondo::status
