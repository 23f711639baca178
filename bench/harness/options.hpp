// The command line that rondo-perf and its peers share: nccl-tests' flags. A program gets only the
// flags that do something for its library.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/size.hpp"
#include "rondo/types.hpp"

namespace rondo::bench {

/// Which flags a program has beyond the common ones.
struct Program {
  std::string name;  // "rondo-perf"
  std::string description;
  bool is_rondo =
      false;  // --threads, --algorithm, --memory, --pace, --device, --topology, --links, ...
  /// What the program's name says, as all_reduce_perf does: then the command line does not.
  std::optional<Collective> collective{};
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
  size_t checks = 1;
  int ranks = 0;  // 0: not given
  bool threads = false;
  Algorithm algorithm = Algorithm::kAuto;
  bool library_memory = false;
  bool cuda = false;  // buffers are on GPUs
  size_t graph = 0;   // so many operations in one replay of a graph; 0: no graphs
  int channels = 0;   // 0: rondo's choice
  std::string pace;
  std::string links;           // a link profile to go by
  std::string calibrate_file;  // measure everything and write a link profile there
  bool sweep_algorithms = false;
  std::string json_file;
  bool stats = false;     // a line of statistics under every row
  size_t cycles = 1;      // how often all rows are measured
  size_t unalign = 0;     // elements by which buffers are shifted
  double timeout_s = 0;   // 0: the library's own
  bool topology = false;  // print the machine instead of measuring
  bool progress = false;  // draw a bar on stderr
};

/// The collective that a program of this name measures: nccl-tests' names, such as "alltoall_perf".
std::optional<Collective> collective_named(std::string_view program);

/// The options, or the exit code with which the program has to end at once: 0 after --help, which
/// has been printed to stdout, 2 after a mistake, which has been named on stderr.
struct Parsed {
  std::optional<Options> options;
  int exit_code = 0;
};
Parsed parse_options(const Program& program, int argc, const char* const* argv);

}  // namespace rondo::bench
