// The agent: a thread in the first process of each host that keeps the host's board like those of
// the other hosts. Agents form a star around that of rank 0's host, over the connections on which
// the ranks have met, authenticated and kept (bootstrap). They carry rows, errors and goodbyes,
// never payload, and nothing waits for them while all goes well.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/board/board.hpp"
#include "comm/board/mirror.hpp"
#include "comm/bootstrap/connection/closed_in_children.hpp"
#include "comm/bootstrap/rendezvous/meeting.hpp"
#include "comm/control/reconnector.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// Runs from its construction on. Rows travel once a second, and every 50 ms while some rank waits
/// for long; deaths, goodbyes and errors at once. The agent of rank 0's host decides which error came
/// first. Where its connection is lost, or nothing comes from it, a host decides for itself.
///
/// A connection that is closed, reset or tampered with says nothing about the process at its other end.
/// The agent connects again, and sends again what may have been lost. It marks a rank dead only on
/// proof (Reconnector::has_ended), and a host lost after `silence` without a message from it.
class Agent {
 public:
  /// `lines`: Bootstrap::take_control(). `find_dead`: of this host, as Bootstrap's; any thread.
  /// `silence`: after so long without a word from a host its ranks count as lost. Both outlive the
  /// agent, as does the board. Throws std::system_error where there is no thread.
  Agent(const board::Board& board, std::vector<PeerConnection> lines,
        std::function<int(int)> find_dead, std::unique_ptr<Reconnector> reconnector,
        std::chrono::milliseconds silence);
  /// Says goodbye, once the host's other ranks have, and on rank 0's host the other hosts; waits for
  /// them a second at most.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

 private:
  struct HostLine {
    int host;
    Connection connection;    // closed: it was lost, and another one is tried
    int64_t heard_ns;         // CLOCK_MONOTONIC, when anything came last
    bool lost = false;        // and its ranks with it
    bool over = false;        // no other connection is tried
    bool complained = false;  // in the log, of what it sent
    Status failed{};          // of a message that could not be sent, or of the connection's loss
    ClosedInChildren in_children;  // of the connection
    void close();
    bool is_cut() const { return !over && !connection.is_open(); }
  };

  void run();
  std::chrono::milliseconds until_next_turn(int64_t now) const;
  void wait(std::chrono::milliseconds most);
  void listen(int64_t now);
  void handle(HostLine& line, std::string_view message);
  void look(int64_t now);
  void alarm(int64_t now);
  void send_rows(bool fully);
  void look_at_processes();
  Status take_rows(const HostLine& line, std::string_view message);
  void send(HostLine& line, char kind, std::string_view payload);
  void send_all(char kind, std::string_view payload);
  void settle(const board::FoundError& error);
  void lose(HostLine& line, const Status& why);
  void restore(HostLine& line, int64_t now);
  void end(HostLine& line);
  int first_of(const HostLine& line) const;
  void give_up(HostLine& line, const std::string& why);
  bool decides(int64_t now) const;
  bool someone_waits(int64_t now) const;
  std::vector<board::Life> lives() const;
  bool may_leave() const;

  const board::Board& board_;
  const board::Mirror mirror_;
  const std::function<int(int)> find_dead_;
  const std::unique_ptr<Reconnector> reconnector_;
  const int64_t silence_ns_;
  const int host_;
  const bool is_hub_;
  std::vector<HostLine> lines_;
  std::vector<board::Life> lives_;  // as last sent
  std::vector<uint64_t> moves_;     // by rank, of this host: as of the last rows
  std::vector<uint64_t> known_;     // by rank: up to which operation the others have been sent all
  std::vector<bool> has_news_;      // by host: rows that the hub has not handed on
  int64_t whole_rows_ns_ = 0;       // when those of all hosts went along last
  int64_t alert_until_ns_ = 0;      // some rank of some host waits for long
  int64_t next_alarm_ns_ = 0;       // when to say so again, where it is one of this host
  int64_t next_rows_ns_ = 0;
  bool has_proposed_ = false;
  bool has_settled_ = false;  // this host reports an error, and the others have been sent it
  transport::UniqueFd wake_;  // eventfd
  std::atomic<bool> leaving_{false};
  std::thread thread_;
};

}  // namespace rondo::comm
