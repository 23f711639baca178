// The roll call: which ranks of a communicator that has failed are left. The ranks that are left meet
// around the lowest of them, the leader, which decides once every rank has come that has not ended,
// or patience has passed; and all of them learn the same decision.
//
// A leader that ends before its ranks know the decision is followed by the next rank. One that ends
// while it sends it leaves ranks that know it and ranks that do not: those that do have a dead member,
// cannot make a communicator, and come to the next leader.
//
// No two leaders decide for two parts of the ranks. A decision that leaves out a living rank needs more
// than half of the ranks that count, or half of them with the lowest one. Living ranks count. A rank
// that has ended on another host counts too: it may have made a communicator with others, unseen by
// this host, before it ended. If two ranks have not ended, neither decides alone. A lost connection
// is no proof that a rank has ended.
//
// A rank may keep a communicator without knowing whether others have it. One that has it does not
// come to this roll call, but to that of the new communicator. Where the two roll calls meet at one
// place, each side learns the other's name, and knows that the communicator exists.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap/connection/connection.hpp"
#include "comm/bootstrap/identity/environment.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// What a roll call needs to know. One thread; what it refers to outlives it.
struct RollCall {
  /// This rank and the number of ranks, as in the communicator that has failed; the secret; and where
  /// its ranks meet, unless `place` says it.
  Identity identity;
  /// Of the meetings, less the leader's number: equal on all ranks, and of no other roll call.
  std::string name;
  /// How long a rank waits for a leader, and a leader for ranks.
  std::chrono::milliseconds patience;
  /// When this rank began to wait: for errors.
  std::chrono::steady_clock::time_point began;
  /// Identity::rendezvous where `rank` leads; empty: as `identity` says.
  std::function<std::string(int rank)> place;
  /// Whether that rank is known to have ended or left: it never comes, on any rank's account.
  std::function<bool(int rank)> has_ended;
  /// Whether that rank does not answer, and may live: nobody waits for it, and it has not ended.
  std::function<bool(int rank)> is_lost;
  /// Whether that rank can make a communicator with others without `interrupt` or `exists` knowing at
  /// once.
  std::function<bool(int rank)> is_unseen;
  /// Whether another rank is known to have the communicator that is undecided here.
  std::function<bool()> exists;
  /// The name of the roll call of the communicator that is undecided here, or nothing.
  std::function<std::string()> next;
  /// Ends the roll call with its status, if that is not ok.
  Interrupt interrupt;
  /// By rank: whether it did not come to lead, in this roll call or in earlier ones of this caller.
  std::vector<bool>& is_late;
};

struct Muster {
  std::vector<int> members;  // ascending
  uint64_t nonce = 0;        // the leader's; of no other decision
};

/// Blocks for patience, and two seconds more, for each leader that does not come. Nothing: the
/// communicator that is undecided here exists. kTimeout: the ranks that came are too few to continue.
Result<std::optional<Muster>> call_roll(const RollCall& call);

}  // namespace rondo::comm
