// One rank of a benchmark: all rows, printed and written by rank 0.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/backend.hpp"
#include "bench/harness/options.hpp"

namespace rondo::bench {

/// Everything that `options` asks for: types, then operators, then roots, each over all sizes.
std::vector<Shape> shapes_of(const Options& options, int ranks);
/// Whether there is anything to measure, and the backend has all of it.
Status check_support(const Options& options, const Backend& backend,
                     const std::vector<Shape>& shapes);

/// Measures everything that `options` asks for. Returns the program's exit code: 0, or 1 after a
/// failed call (which has been named on stderr), wrong results, or a JSON file that could not be
/// written. `pinning` is what pin() said.
int run_rank(const Program& program, const Options& options, Backend& backend,
             const std::string& pinning, const std::vector<std::string>& args);

}  // namespace rondo::bench
