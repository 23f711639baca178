// The socket between a launcher, its ranks, which send it their boards' descriptors, and
// rondo-status, which fetches them. One packet each way: with a board's descriptor a reader needs no
// other process, also when every rank hangs.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "comm/status/mapped_board.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::status {

/// Where a launcher's socket is, for its ranks.
inline constexpr const char* kSocketVariable = "RONDO_STATUS_SOCKET";

/// Rank 0 of a communicator sends the board's descriptor to the launcher, if there is one with a
/// status socket. Never waits; failures are ignored.
void announce_board(int fd);

/// A launcher's description of its job.
struct Job {
  int pid = 0;
  int ranks = 0;
  int64_t started_s = 0;  // seconds since 1970
  std::string command{};
};

/// A job as the text of a packet.
std::string describe(const Job& job);
/// The other direction, over bytes of another process: kInvalidArgument. The command has no control
/// characters.
Result<Job> parse_job(const std::string& text);

/// The launcher's side. One thread.
class StatusServer {
 public:
  /// Listens in `directory`, which is the user's alone. `job.pid` is this process.
  static Result<StatusServer> open(const std::string& directory, const Job& job);

  /// Value of kSocketVariable.
  const std::string& path() const { return path_; }
  /// Readable when serve() has something to do.
  int fd() const { return events_.get(); }
  /// Receives and answers packets. Never blocks.
  void serve();

 private:
  StatusServer() = default;
  void accept();
  void receive(int socket);
  void answer(int socket);
  void drop_finished();

  std::string path_, description_;
  transport::UniqueFd events_, listener_;
  std::deque<transport::UniqueFd> connections_;  // no packet received yet
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
