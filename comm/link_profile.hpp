// Which link profile a communicator uses: by where its ranks run, never by a measurement.
#pragma once

#include <string>

#include "comm/tuner/profile.hpp"
#include "rondo/communicator.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// What is known of a communicator's ranks before it has a transport.
struct Surroundings {
  int ranks, channels;
  int cpus;                  // that the ranks together may use
  tuner::LinkProfile links;  // of the host, with a core for every rank: host_profile()
  std::string pace;          // Config::pace, empty: none
};

/// What the file says, or, without one, the built-in profile with this host's cache.
Result<tuner::LinkProfile> host_profile(const std::string& path);

/// Config::pace and Config::links, else RONDO_PACE and RONDO_LINKS; empty: none.
std::string pace_of(const Config& config);
std::string links_of(const Config& config);

/// More pipelines than CPUs: they take turns.
bool is_oversubscribed(const Surroundings& where);

/// Errors: kInvalidArgument, a pace that is none.
Result<tuner::LinkProfile> link_profile(const Surroundings& where);

}  // namespace rondo::comm
