// Link profiles as JSON: the file that `rondo-perf --calibrate` writes and Config::links names, and
// the text in which rank 0's profile is sent to the others. Strict: a file with unknown content is
// refused as a whole.
#pragma once

#include <string>
#include <string_view>

#include "comm/tuner/profile.hpp"
#include "rondo/status.hpp"

namespace rondo::tuner {

inline constexpr int kProfileVersion = 4;
/// The oldest that is read. Version 2 knows nothing of other hosts: the built-in wire takes its place.
/// Up to version 3 there are corrections of one number of ranks, on one host, and both directions of
/// the wire are independent.
inline constexpr int kOldestProfileVersion = 2;
/// Maximum size of a file, which must fit into one message of the bootstrap.
inline constexpr size_t kMaxProfileBytes = size_t{1} << 19;

std::string to_json_text(const LinkProfile& profile);

/// Errors: kDataError, naming `where` (the file) and the field.
Result<LinkProfile> parse_profile(std::string_view text, const std::string& where);

/// Errors: also kSystem, when the file cannot be read.
Result<LinkProfile> read_profile(const std::string& path);

}  // namespace rondo::tuner
