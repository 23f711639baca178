// One rank of a benchmark: all rows, printed and written by rank 0.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/backend.hpp"
#include "bench/harness/options.hpp"

namespace rondo::bench {

/// All shapes of `options`: types, then operators, then roots, each over all sizes.
std::vector<CallShape> shapes_of(const PerfOptions& options, int ranks);
/// ok if there is anything to measure and the backend has all of it.
Status check_support(const PerfOptions& options, const Backend& backend,
                     const std::vector<CallShape>& shapes);

/// For `how_many` buffers of `bytes` bytes; `library`: they were to come from rondo::alloc().
Status no_memory_for(const std::string& how_many, size_t bytes, bool library);

/// Logs the error, and ends the other ranks' calls with it unless they find it, too. Returns 1.
int fail(Backend& backend, const Status& status);

/// Writes the document of --json, without rows, before there is a backend: so that a run that ends
/// there leaves one, too. On rank 0. `error`: why there will be none; empty: it is being made. A file
/// that cannot be written is left to run_rank().
void write_without_backend(const PerfProgram& program, const PerfOptions& options, int ranks,
                           const std::vector<std::string>& args, const std::string& error);

/// Measures all shapes of `options`. Returns the program's exit code: 0, or 1 after a failed call
/// (named on stderr), wrong results, or a JSON file that could not be written. `pinning` is the
/// result of pin().
int run_rank(const PerfProgram& program, const PerfOptions& options, Backend& backend,
             const std::string& pinning, const std::vector<std::string>& args);

}  // namespace rondo::bench
