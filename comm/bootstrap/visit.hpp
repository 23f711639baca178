// One rank's way to rank 0: connect, shake hands, wait to be welcomed.
#pragma once

#include <optional>
#include <string>

#include "comm/bootstrap/meeting.hpp"

namespace rondo::comm {

/// Attempts that share a deadline. One thread.
class Visit {
 public:
  Visit(const Invitation& invitation, Deadline deadline)
      : invitation_(invitation), deadline_(deadline) {}

  /// Nothing: nobody there, or dropped without a word; try again.
  Result<std::optional<Admission>> attempt();

  /// Whether the last attempt has found out that what listens there is no rank 0.
  bool met_another_program() const { return met_another_program_; }

 private:
  Status no_answer() const;
  /// `what` it did that no rank 0 does.
  Status not_rondo(const std::string& what);
  Result<std::optional<Challenge>> await_challenge(int fd);
  bool say_hello(int fd, const Challenge& challenge);
  Status check_proof(const std::string& payload) const;
  Result<bool> has_ended(const Guest& host) const;
  Result<std::optional<Admission>> wait_for_welcome(Guest host);

  const Invitation& invitation_;
  const Deadline deadline_;
  Digest expected_proof_{};
  bool proven_ = false;  // rank 0 knows the secret
  int drops_ = 0;        // connections closed before a word was said, since one was said
  bool met_another_program_ = false;
};

}  // namespace rondo::comm
