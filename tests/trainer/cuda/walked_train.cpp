// rondo-train --device cuda where there is no GPU: the same program over the stand-in for CUDA, whose two
// GPUs are this machine's CPU, with its ranks as threads. Times in what it writes are not a GPU's.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/trainer/cuda/rank_threads.hpp"
#include "tests/trainer/cuda/stand_in.hpp"
#include "trainer/program.hpp"
#include "trainer/report/report.hpp"

namespace {

using namespace rondo::trainer;  // NOLINT: this file is the program

rondo::Status train_over_stand_in(const TrainOptions& options, bool& /*is_left_out*/) {
  if (!options.on_gpu()) {
    return {rondo::Code::kInvalidArgument, "walked_train is for --device cuda: use rondo-train"};
  }
  std::fputs("walked_train: no GPU computes, but a stand-in on this machine's CPU\n", stderr);
  RONDO_TRY(write_failure(options, kStopped));
  const auto gpu = cuda::testing::make_gpu(2);
  gpu->must_be_loaded = true;
  const rondo::device::test::Installed installed(gpu);
  const auto statuses = testing::train_in_threads(options, std::max(options.ranks, 1));
  const auto failed = std::find_if(statuses.begin(), statuses.end(),
                                   [](const rondo::Status& status) { return !status.ok(); });
  return failed == statuses.end() ? rondo::Status() : *failed;
}

}  // namespace

int main(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // or ranks' streams share queues
  return run_program(argc, argv, train_over_stand_in);
}
