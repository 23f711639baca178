// The command line that rondo-perf and its peers share: nccl-tests' flags. A program gets only the
// flags that do something for its library.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/harness/size.hpp"
#include "rondo/types.hpp"

namespace rondo::bench {

/// Which flags a program has beyond the common ones.
struct Program {
  std::string name;  // "rondo-perf"
  std::string description;
  bool is_rondo = false;  // --threads, --algorithm, --memory, --pace, --device, --links, ...
};

struct Options {
  Collective collective = Collective::kAllReduce;
  Sweep sweep{
      .min = size_t{32} << 20, .max = size_t{32} << 20, .factor = 1, .step = size_t{1} << 20};
  size_t iterations = 0, warmup = 5;
  std::vector<DataType> types = {DataType::kFloat32};
  std::vector<ReduceOp> ops = {ReduceOp::kSum};
  int root = 0;
  bool all_roots = false;
  bool check = true;
  int ranks = 0;  // 0: not given
  bool threads = false;
  Algorithm algorithm = Algorithm::kAuto;
  bool library_memory = false;
  std::string pace;
  std::string links;           // a link profile to go by
  std::string calibrate_file;  // measure everything and write a link profile there
  bool sweep_algorithms = false;
  std::string json_file;
};

/// The options, or the exit code with which the program has to end at once: 0 after --help, which
/// has been printed to stdout, 2 after a mistake, which has been named on stderr.
struct Parsed {
  std::optional<Options> options;
  int exit_code = 0;
};
Parsed parse_options(const Program& program, int argc, const char* const* argv);

}  // namespace rondo::bench
