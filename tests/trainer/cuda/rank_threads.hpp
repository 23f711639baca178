// rondo-train --device cuda with its ranks as threads of this process: over a stand-in, whose memory
// other processes cannot map, and where ranks share a GPU, on which processes would take turns.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rondo/communicator.hpp"
#include "trainer/base/device.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/step/device_strategy.hpp"
#include "trainer/step/setup.hpp"
#include "trainer/train.hpp"

namespace rondo::trainer::testing {

inline TrainOptions options_of(std::vector<std::string> words) {
  words.insert(words.begin(), "rondo-train");
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  return parse_options(static_cast<int>(arguments.size()), arguments.data()).options.value();
}

/// Called by each rank before it trains.
using RankBegins = std::function<void(int rank, std::atomic<bool>& stop)>;

inline Status train_rank(const TrainOptions& options, Config config, int gpus,
                         const RankBegins& begins) {
  auto data = RONDO_TRY(open_data(options, options.data, static_cast<uint64_t>(config.rank)));
  std::unique_ptr<Dataset> validation;
  if (!options.validation.empty()) {
    validation = RONDO_TRY(open_data(options, options.validation, 0));
  }
  Communicator host = RONDO_TRY(Communicator::create(config));
  RankDevice device = RONDO_TRY(make_rank_device(config, options.device_of(config.rank, gpus)));
  std::atomic<bool> stop{false};
  if (begins) begins(config.rank, stop);
  return train(options, *data, validation.get(), host, stop, nullptr, &device);
}

/// What each rank's train() returns. Ranks take turns over the GPUs.
inline std::vector<Status> train_in_threads(const TrainOptions& options, int ranks,
                                            const RankBegins& begins = {}) {
  const int gpus = Device::count().value();
  Config config;
  config.unique_id = make_unique_id().value();
  config.world_size = ranks;
  config.reproducible = options.reproducible;
  std::vector<Status> statuses(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (config.rank = 0; config.rank < ranks; ++config.rank) {
    threads.emplace_back([&, config] {
      statuses[static_cast<size_t>(config.rank)] = train_rank(options, config, gpus, begins);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace rondo::trainer::testing
