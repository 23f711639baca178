// The versioned structs by which a program configures communicators and calls.
#pragma once

#include <string>

#include "nccl/errors.hpp"

namespace rondo::nccl {

/// What rondo uses of an ncclConfig_t; the rest concerns NCCL's own means, and is only checked.
struct CommSettings {
  bool blocking = true;
  std::string name;      // of a part, for errors and rondo-status; rondo names others itself
  int max_channels = 0;  // Config's: maxCTAs
};

/// Reads the part that the caller's version has. Null: `inherited`.
Result<CommSettings> read_config(const ncclConfig_t* config, const CommSettings& inherited,
                                 const char* call);

/// Reads the config of one call; null: no settings.
Result<CallOptions> read_config(const ncclCollConfig_t* config, const char* call);

}  // namespace rondo::nccl
