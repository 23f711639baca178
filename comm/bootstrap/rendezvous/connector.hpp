// How one rank joins a meeting: connect to rank 0, exchange proofs, await the welcome.
#pragma once

#include <optional>
#include <string>

#include "comm/bootstrap/rendezvous/meeting.hpp"

namespace rondo::comm {

/// Attempts that share a deadline. One thread. Until a listener has proved the job's secret, nothing
/// that it sends is believed: the connection is dropped, and the next attempt may find rank 0.
class Connector {
 public:
  Connector(const Meeting& meeting, Deadline deadline) : meeting_(meeting), deadline_(deadline) {}

  /// Nothing: no listener, or it dropped the connection, or sent what rank 0 would not; pause, then
  /// try again. An error: of this process, of a proven rank 0, or the place has belonged to an
  /// unproved listener for kSuspicionLimit.
  Result<std::optional<Joined>> attempt();
  /// Before the next attempt. Errors: the deadline's interrupt.
  Status pause() const;

  /// Whether attempt() failed because of an unproved listener.
  bool found_taken() const { return found_taken_; }
  /// "; what listens there ...", or nothing: for the error at the deadline.
  std::string suspicion() const;

 private:
  Status no_answer() const;
  /// `why`: what an unproved listener did, from `since` on. The error, once its time is up; before,
  /// ok.
  Status suspect(const Status& why, Deadline::Time since);
  Status not_rondo(const std::string& what) const;
  Deadline patience() const;
  Status count_silence();
  Result<std::optional<Challenge>> await_challenge(int fd);
  Status count_drop();
  bool say_hello(int fd, const Challenge& challenge);
  bool is_proof(const Frame& frame) const;
  /// What the first frame after the hello shows, if it is not the proof.
  Status explain_unproved(const Frame& frame) const;
  Result<bool> has_ended(const PeerConnection& host) const;
  Result<std::optional<Frame>> next_frame(PeerConnection& host);
  Result<std::optional<Joined>> wait_for_welcome(PeerConnection host);

  const Meeting& meeting_;
  const Deadline deadline_;
  Digest expected_proof_{};
  FrameKeys keys_{};
  bool proven_ = false;  // rank 0 knows the secret
  int drops_ = 0;        // connections closed before a challenge, since the last challenge
  Deadline::Time first_drop_{};
  bool found_taken_ = false, has_warned_ = false;
  Status suspicion_;                             // the last one
  std::optional<Deadline::Time> suspect_since_;  // nothing: the place was free since then
};

}  // namespace rondo::comm
