// Meeting by a secret id instead of a launcher's variables: where the ranks meet, with which
// secret, and how the caller's all-gather distributes the id.
#pragma once

#include <memory>
#include <string>

#include "comm/bootstrap/identity/environment.hpp"
#include "rondo/communicator.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// Derives directory and secret from Config::unique_id alone (the secret also from RONDO_SECRET,
/// which `identity` has already), so that ranks with different environments meet. kInvalidArgument,
/// without printing the id: make_unique_id() did not make it.
Status meet_by_unique_id(const Config& config, Identity& identity);

/// The same for an id that this rank has got by the means of its launcher. kUnavailable: the id says
/// nowhere, because rank 0's host has no interface for others.
Status meet_by_passed_id(const std::string& id, Identity& identity);

/// Where ranks meet that share no directory: on rank 0 also the socket that listens there.
struct ChosenPlace {
  std::string rendezvous;  // empty: the one that follows from the id
  std::shared_ptr<const transport::UniqueFd> listening;
};

/// Calls Config::all_gather and sets Config::unique_id to the id that rank 0 makes. `own` is this
/// rank's error so far, if any: it is sent too, so that the others fail and do not wait. Returns a
/// place where the ranks are on several hosts: at rank 0's, over TCP, with the id as its secret.
Result<ChosenPlace> agree_on_unique_id(Config& config, Status own);

}  // namespace rondo::comm
