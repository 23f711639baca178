// Whole runs of rondo-train --device cuda over the stand-in, ranks as threads, and the same runs on the
// host.
#pragma once

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/trainer/cuda/rank_threads.hpp"
#include "tests/trainer/cuda/stand_in.hpp"
#include "tests/trainer/training_rig.hpp"

namespace rondo::trainer::testing {

/// On place.data(), unless the words name other data.
inline Words on_data(const Workplace& place, const Words& words) {
  const bool names_data = std::find(words.begin(), words.end(), "--data") != words.end();
  return names_data ? words : words + Words{"--data", place.data()};
}

/// What each rank's train() returns on GPUs, over which ranks take turns.
inline std::vector<Status> run_on_gpus(const std::shared_ptr<device::test::FakeGpu>& gpu,
                                       const Workplace& place, const Words& words, int ranks,
                                       const RankBegins& begins = {}) {
  const device::test::Installed installed(gpu);
  gpu->must_be_loaded = true;
  const Words all = on_data(place, words) + "--device cuda --log-every 0"_words;
  return train_in_threads(options_of(all), ranks, begins);
}

/// The document of a run that must succeed.
inline json on_gpus(const std::shared_ptr<device::test::FakeGpu>& gpu, const Workplace& place,
                    const Words& words, int ranks, const RankBegins& begins = {}) {
  const std::string file = place.file("gpu.json");
  for (const Status& status :
       run_on_gpus(gpu, place, words + Words{"--json", file}, ranks, begins)) {
    INFO(status.to_string());
    REQUIRE(status.ok());
  }
  return json::parse(read_text(file));
}

inline json on_gpus(const Workplace& place, const Words& words, int ranks, int gpus = 1) {
  return on_gpus(cuda::testing::make_gpu(gpus), place, words, ranks);
}

/// A GPU on which a product's first launch waits for all that runs there.
inline std::shared_ptr<device::test::FakeGpu> locking_gpu(int gpus = 1) {
  auto gpu = cuda::testing::make_gpu(gpus);
  gpu->driver_lock.exists = true;
  return gpu;
}

inline json on_host(const Workplace& place, const Words& words, int ranks) {
  return place.train_on(on_data(place, words) + words_of("--ranks " + std::to_string(ranks)));
}

inline std::string folder_in(const Workplace& place, const std::string& name) {
  std::filesystem::create_directory(place.file(name));
  return place.file(name);
}

/// A network, and `count` pictures in a new folder.
inline Words cnn_on(const Workplace& place, uint32_t count) {
  const std::string images = folder_in(place, "images");
  write_images(images, count);
  return kCnn + Words{"--workers", "0", "--data", images};
}

inline double number(const json& of, const char* name) { return of[name].get<double>(); }

/// The losses on GPUs are those on the host.
inline void check_as_on_host(const Workplace& place, const Words& words, int ranks,
                             double relative = 1e-4) {
  check_same_losses(on_host(place, words, ranks), on_gpus(place, words, ranks), relative);
}

/// Runs in which the GPU refuses the call of each of those numbers, from rank 0's beginning on; how
/// many of them failed. Each has to end alike on both ranks: what only takes times down may fail.
inline int runs_that_a_refused_call_ends(const Workplace& place, const Words& words,
                                         const std::vector<int>& numbers) {
  int ended = 0;
  for (const int number : numbers) {
    const auto gpu = cuda::testing::make_gpu();
    const auto refuse = [&](int rank, std::atomic<bool>&) {
      if (rank == 0) gpu->fail_at = gpu->calls + number;
    };
    const std::vector<Status> statuses = run_on_gpus(gpu, place, words, 2, refuse);
    INFO(number << ": " << statuses[0].to_string() << "; " << statuses[1].to_string());
    CHECK(statuses[0].ok() == statuses[1].ok());
    ended += statuses[0].ok() ? 0 : 1;
  }
  return ended;
}

/// What a rank did by a trace, in the order of the file.
inline std::vector<json> spans_of(const std::string& trace, int rank) {
  const json document = json::parse(read_text(trace));
  std::vector<json> spans;
  for (const json& event : document["traceEvents"]) {
    if (event["ph"] == "X" && event["pid"] == rank) spans.push_back(event);
  }
  return spans;
}

inline const Words kGpt = kNano + "--no-split-tied --workers 0"_words;
inline const Words kMlp = "--model mlp --width 64 --batch 4 --workers 0"_words;

/// An epoch's last batches are smaller: other products.
inline Words ragged(const Workplace& place) {
  return with(with(kGpt, "--context", "8"), "--batch", "3") +
         Words{"--data", place.tiny_data(), "--epochs", "2"};
}

}  // namespace rondo::trainer::testing
