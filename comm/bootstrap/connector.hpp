// How one rank joins a meeting: connect to rank 0, exchange proofs, await the welcome.
#pragma once

#include <optional>
#include <string>

#include "comm/bootstrap/meeting.hpp"

namespace rondo::comm {

/// Attempts that share a deadline. One thread.
class Connector {
 public:
  Connector(const Meeting& meeting, Deadline deadline) : meeting_(meeting), deadline_(deadline) {}

  /// Nothing: no listener, or it closed the connection without a word; try again.
  Result<std::optional<Joined>> attempt();

  /// Whether the last attempt found that another program listens there.
  bool met_another_program() const { return met_another_program_; }

 private:
  Status no_answer() const;
  /// The listener is another program, as `what` it did shows.
  Status not_rondo(const std::string& what);
  Result<std::optional<Challenge>> await_challenge(int fd);
  bool say_hello(int fd, const Challenge& challenge);
  Status check_proof(const std::string& payload) const;
  Result<bool> has_ended(const PeerConnection& host) const;
  Result<std::optional<Joined>> wait_for_welcome(PeerConnection host);

  const Meeting& meeting_;
  const Deadline deadline_;
  Digest expected_proof_{};
  bool proven_ = false;  // rank 0 knows the secret
  int drops_ = 0;        // connections closed before a challenge, since the last challenge
  bool met_another_program_ = false;
};

}  // namespace rondo::comm
