// The command line of rondo-perf and its peers: nccl-tests' flags. A program has only the flags
// that have an effect on its library.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/measure.hpp"
#include "bench/harness/size.hpp"
#include "rondo/types.hpp"

namespace rondo::bench {

/// The flags that a program has beyond the common ones.
struct PerfProgram {
  std::string name;  // "rondo-perf"
  std::string description;
  bool is_rondo =
      false;  // --threads, --algorithm, --memory, --pace, --device, --topology, --links, ...
  /// The collective in the program's name, as in all_reduce_perf; the command line then has none.
  std::optional<Collective> collective{};
};

struct PerfOptions {
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
  size_t graph = 0;   // operations in one replay of a graph; 0: no graphs
  int channels = 0;   // 0: rondo's choice
  std::string pace;
  std::string links;              // link profile to use
  bool calibrate = false;         // measure every algorithm and write a link profile
  bool every_collective = false;  // for that, instead of `collective`
  std::string calibrate_file;     // its file; empty: the default place
  bool sweep_algorithms = false;
  std::string json_file;
  bool stats = false;     // a line of statistics under every row
  size_t cycles = 1;      // how often all rows are measured
  size_t unalign = 0;     // elements by which buffers are shifted
  double timeout_s = 0;   // 0: the library's own
  bool topology = false;  // print the machine instead of measuring
  bool progress = false;  // draw a bar on stderr
  bool wide = false;      // the table has all columns
  bool csv = false;       // instead of the table
  AcrossRanks across = AcrossRanks::kSlowest;
  bool stdout_is_terminal = false;  // through a launcher's pipe, too
};

/// The collective of a program with this name: nccl-tests' names, such as "alltoall_perf".
std::optional<Collective> collective_named(std::string_view program);

/// The options, or the program's exit code: 0 after --help, printed to stdout; 2 after a mistake,
/// named on stderr.
struct ParsedOptions {
  std::optional<PerfOptions> options;
  int exit_code = 0;
};
ParsedOptions parse_options(const PerfProgram& program, int argc, const char* const* argv);

}  // namespace rondo::bench
