// nccl-tests' further flags, so that its command lines work here: each does what it says there, or
// is accepted with the one value that describes what happens anyway, or is refused with the reason.
#pragma once

#include <CLI/CLI.hpp>

#include "bench/harness/options.hpp"

namespace rondo::bench {

struct NcclFlags {
  int threads = 0, gpus = 0;  // 0: not given
  int local_register = 0, per_iteration = 0;
};

/// `is_rondo`: also those that only rondo can honour.
void add_nccl_flags(CLI::App& app, bool is_rondo, NcclFlags& flags, Options& options);

/// After parsing and after rondo's own flags. Throws CLI::ValidationError.
void read_nccl_flags(const NcclFlags& flags, Options& options);

}  // namespace rondo::bench
