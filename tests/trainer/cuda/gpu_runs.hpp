// Whole runs of rondo-train --device cuda over the stand-in, ranks as threads, and the same runs on the
// host.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/trainer/cuda/rank_threads.hpp"
#include "tests/trainer/cuda/stand_in.hpp"
#include "tests/trainer/training_rig.hpp"

namespace rondo::trainer::testing {

/// What each rank's train() returns on GPUs, over which ranks take turns.
inline std::vector<Status> run_on_gpus(const std::shared_ptr<device::test::FakeGpu>& gpu,
                                       const Words& words, int ranks,
                                       const RankBegins& begins = {}) {
  const device::test::Installed installed(gpu);
  gpu->must_be_loaded = true;
  return train_in_threads(options_of(words + Words{"--device", "cuda", "--log-every", "0"}), ranks,
                          begins);
}

/// The document of a run that must succeed.
inline json on_gpus(const std::shared_ptr<device::test::FakeGpu>& gpu, const Workplace& place,
                    const Words& words, int ranks) {
  const std::string file = place.file("gpu.json");
  for (const Status& status : run_on_gpus(gpu, words + Words{"--json", file}, ranks)) {
    INFO(status.to_string());
    REQUIRE(status.ok());
  }
  return json::parse(read_text(file));
}

inline json on_gpus(const Workplace& place, const Words& words, int ranks, int gpus = 1) {
  return on_gpus(cuda::testing::make_gpu(gpus), place, words, ranks);
}

/// The same flags on the host.
inline json on_host(const Workplace& place, const Words& words, int ranks) {
  return place.train_on(words + Words{"--ranks", std::to_string(ranks)});
}

inline void require_same_losses(const json& got, const json& expected, double relative) {
  const std::vector<double> a = losses_of(got), b = losses_of(expected);
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    INFO("step " << i + 1 << ": " << a[i] << " instead of " << b[i]);
    REQUIRE(std::abs(a[i] - b[i]) <= relative * b[i]);
  }
}

inline const Words kGpt = {
    "--model",   "gpt", "--no-split-tied", "--layers", "2",         "--width", "32", "--heads", "2",
    "--context", "16",  "--batch",         "2",        "--workers", "0"};
inline const Words kMlp = {"--model", "mlp", "--width", "64", "--batch", "4", "--workers", "0"};

}  // namespace rondo::trainer::testing
