// This rank's number, world size and meeting place: from the Config, or from the launcher's
// variables. Opens no file but the secret's.
#pragma once

#include <memory>
#include <string>

#include "rondo/communicator.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// Where a rank listens.
struct ListeningPort {
  std::shared_ptr<const transport::UniqueFd> socket;
  std::string address;
  int port = 0;
};

struct Identity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  /// Directory of the job's sockets, or tcp://HOST:PORT; empty only for a world of one.
  std::string rendezvous;
  /// Shared by the ranks of one job, from RONDO_SECRET or RONDO_SECRET_FILE,
  /// and Config::unique_id; may be empty.
  std::string secret;
  /// Rank and world size are the launcher's, not the Config's.
  bool by_launcher = false;
  /// The launcher's name of the job, the same on all hosts; empty where it gives none. Keeps jobs
  /// apart that have one secret and one port.
  std::string job{};
  /// A socket listens at `rendezvous` already, rank 0's: nobody answers there before rank 0 comes.
  bool is_kept_place = false;
  /// Of rank 0: that socket.
  std::shared_ptr<const transport::UniqueFd> listening{};
  /// The socket at which this rank listens for communicators that are made from this one. If it is
  /// empty, the rank opens a port.
  ListeningPort own_port{};
};

/// Config::rank and world_size, else the first launcher (launchers.hpp), else one rank alone.
/// kInvalidArgument names the variable and its value; kUnavailable: another host.
Result<Identity> identity_from(const Config& config);

}  // namespace rondo::comm
