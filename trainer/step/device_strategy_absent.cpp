// In the place of device_strategy.cpp where there is no nvcc.
#include "trainer/step/device_strategy.hpp"

namespace rondo::trainer {

Result<std::unique_ptr<DeviceTrainer>> open_device_trainer(const TrainOptions& options,
                                                           const SampleShape& /*shape*/,
                                                           RankDevice& /*device*/,
                                                           Communicator& /*host*/) {
  return Status(Code::kUnavailable,
                "--device " + options.device + ": this rondo-train was built without CUDA");
}

}  // namespace rondo::trainer
