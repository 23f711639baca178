// nccl-tests' other flags, so that its command lines work here: each has its effect, or is accepted
// only with the value that describes the fixed behaviour, or is refused with the reason.
#pragma once

#include <CLI/CLI.hpp>

#include "bench/harness/options.hpp"

namespace rondo::bench {

struct NcclFlags {
  int threads = 0, gpus = 0;  // 0: not given
  int local_register = 0, per_iteration = 0;
  int average = static_cast<int>(AcrossRanks::kSlowest);
};

/// `is_rondo`: adds the flags that only rondo supports.
void add_nccl_flags(CLI::App& app, bool is_rondo, NcclFlags& flags, PerfOptions& options);

/// Call after parsing and after rondo's own flags. Throws CLI::ValidationError.
void read_nccl_flags(const NcclFlags& flags, PerfOptions& options);

}  // namespace rondo::bench
