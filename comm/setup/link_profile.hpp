// Which link profile a communicator uses: by where its ranks run, never by a measurement.
#pragma once

#include <string>

#include "comm/tuner/profile.hpp"
#include "rondo/communicator.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// What the choice of a communicator's profile depends on.
struct ProfileQuery {
  int ranks, channels;       // on this host
  int cpus;                  // that the ranks together may use
  tuner::LinkProfile links;  // of the host, with a core for every rank: host_profile()
  std::string pace;          // Config::pace, empty: none
  int ranks_elsewhere = 0;   // on other hosts
};

/// Rank 0's link profile, which all ranks of a communicator use, and of those made from it.
struct AgreedLinks {
  tuner::LinkProfile profile;  // for a host with a core for every rank
  bool named;                  // a file that rank 0's Config::links names: also for devices
};

/// The profile that `path` names: tuner::find_profile(), with this host's cache in the built-in one.
Result<tuner::LinkProfile> host_profile(const std::string& path);

/// Config::pace and Config::links, else RONDO_PACE and RONDO_LINKS; empty: none.
std::string pace_of(const Config& config);
std::string links_of(const Config& config);

/// Errors: kInvalidArgument, a pace that is none.
Result<tuner::LinkProfile> link_profile(const ProfileQuery& where);

}  // namespace rondo::comm
