// The link profile of a communicator without a configured one: the calibrated profile of this
// processor, if it exists in its default place, else the built-in one. Never measures anything.
#pragma once

#include <string>

#include "comm/tuner/profile.hpp"
#include "rondo/status.hpp"

namespace rondo::tuner {

/// Instead of a file's path: the built-in profile, even if a calibrated one exists.
inline constexpr const char* kBuiltIn = "built-in";

/// The file to which `rondo-perf --calibrate` writes the profile of this processor:
/// $XDG_CONFIG_HOME/rondo/links-PROCESSOR.json, with ~/.config for an unset XDG_CONFIG_HOME. The
/// name has the processor because machines may share a home directory. Empty: neither variable is
/// set.
std::string default_profile_path();

/// The profile at `path`. For an empty path the calibrated one in the default place, if it exists;
/// otherwise, and for kBuiltIn, `built_in`. Errors: of read_profile().
Result<LinkProfile> find_profile(const std::string& path, LinkProfile built_in);

}  // namespace rondo::tuner
