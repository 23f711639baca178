// A run whose model, gradients and optimizer are on a GPU, by ddp; and that part of one by dp which is
// there. The run's own Weights are a mirror on the host, which checkpoints, published weights and
// hashes read and write; the device has its copy from the beginning on, and gives it back between
// steps.
#pragma once

#include <functional>
#include <memory>

#include "trainer/cli/options.hpp"
#include "trainer/step/loop.hpp"
#include "trainer/step/replica.hpp"

namespace rondo::trainer {

/// One rank's. One thread.
class DeviceTrainer {
 public:
  virtual ~DeviceTrainer() = default;
  /// What the run sees of the model.
  virtual Model<float>& model() = 0;
  /// Trains; Run::weights are its mirror.
  virtual Status train(Run<float>& run) = 0;
  /// `strategy` does, with the replica that it gets: --strategy dp. kUnavailable unless in fp32.
  using ReplicaStrategy = std::function<Status(Run<float>& run, Replica& replica)>;
  virtual Status train_replica(Run<float>& run, const ReplicaStrategy& strategy) = 0;
};

/// A rank's GPU, and a communicator of all ranks' GPUs, created with Config::device.
struct RankDevice {
  int number;
  Communicator communicator;
  /// What trains there. `host`: the communicator of the same ranks that is on no device. Borrows
  /// everything. Throws std::bad_alloc.
  Result<std::unique_ptr<DeviceTrainer>> (*open)(const TrainOptions& options,
                                                 const SampleShape& shape, RankDevice& device,
                                                 Communicator& host);
};

/// RankDevice::open. kUnavailable: this program has no CUDA.
Result<std::unique_ptr<DeviceTrainer>> open_device_trainer(const TrainOptions& options,
                                                           const SampleShape& shape,
                                                           RankDevice& device, Communicator& host);

/// GPU `number` with its communicator: as `config`, that of the hosts, but with a name of its own and few
/// thread blocks, because the multiprocessors are backward's. Blocks until all ranks have met.
inline Result<RankDevice> make_rank_device(Config config, int number) {
  config.device = number;
  config.name = "gradients";
  config.max_channels = 8;
  return RankDevice{.number = number,
                    .communicator = RONDO_TRY(Communicator::create(config)),
                    .open = &open_device_trainer};
}

}  // namespace rondo::trainer
