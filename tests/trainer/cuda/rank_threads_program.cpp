// rondo-train's flags, with --ranks as threads of this process (rank_threads.hpp).
#include <cstdio>
#include <cstdlib>

#include "tests/trainer/cuda/rank_threads.hpp"

int main(int argc, char** argv) {
  using namespace rondo::trainer;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // or ranks' streams share queues
  // Code that is loaded later may wait for kernels that wait for another rank of this process.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  const Parsed parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  if (!parsed.options->on_gpu()) {
    std::fputs("ranks as threads need --device cuda\n", stderr);
    return 2;
  }
  if (const auto gpus = Device::count(); !gpus.ok()) {
    std::fprintf(stderr, "%s\n", gpus.status().to_string().c_str());
    return 77;
  }
  int exit_code = EXIT_SUCCESS;
  const int ranks = parsed.options->ranks == 0 ? 1 : parsed.options->ranks;
  for (const rondo::Status& status : testing::train_in_threads(*parsed.options, ranks)) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    exit_code = EXIT_FAILURE;
  }
  return exit_code;
}
