// rondo-train's command line as values. Knows every flag and its bounds; does nothing about them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rondo/types.hpp"

namespace rondo::trainer {

struct Options {
  std::string model = "mlp";
  size_t layers = 2;
  size_t width = 512;

  std::string data;    // empty: the project's own sources
  uint64_t steps = 0;  // the last step's number; 0: from epochs
  uint64_t epochs = 0;
  uint64_t batch = 32;  // per rank
  uint64_t accum = 1;   // micro-batches of that size per step and rank
  uint64_t seed = 0;

  std::string optimizer = "sgd";
  double lr = 0.02;
  double momentum = 0.9;
  std::string dtype = "fp32";

  int ranks = 0;  // 0: as the environment says
  int threads = 1;
  double bucket_cap_mb = 25;
  bool no_overlap = false;
  std::string pace;

  uint64_t log_every = 1;
  std::string json, trace;  // files; empty: none

  DataType type() const { return dtype == "fp64" ? DataType::kFloat64 : DataType::kFloat32; }
};

/// The options, or the exit code after help (0) or a message about what is wrong (not 0) has been
/// printed.
struct Parsed {
  std::optional<Options> options;
  int exit_code = 0;
};
Parsed parse_options(int argc, const char* const* argv);

}  // namespace rondo::trainer
