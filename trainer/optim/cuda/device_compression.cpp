// See device_compression.hpp.
#include "trainer/optim/cuda/device_compression.hpp"

#include <stdexcept>

#include "trainer/layers/cuda/launch.hpp"
#include "trainer/optim/cuda/compression.hpp"

namespace rondo::trainer {

void DeviceCompression::prepare(DistributedDataParallel& ddp) {
  gradients_ = static_cast<const float*>(ddp.gradients());
  travelling_ = DeviceArray<uint16_t>(device_, ddp.gradient_elements());
}

Work DeviceCompression::start(Communicator& /*communicator*/, const GradientBucket& /*bucket*/) {
  throw std::logic_error("this compression is for gradients on a device");
}

template <DataType kWire>
Status DeviceCompression::enqueue_as(Communicator& communicator, const GradientBucket& bucket,
                                     void* stream) {
  auto* const gradients = static_cast<float*>(bucket.data);
  uint16_t* const wire = travelling_.data() + (gradients - gradients_);
  uint16_t* const own = wire + bucket.own_offset;
  cuda::launch(device_, "compress",
               cuda::CompressKernel<kWire>{.factor = static_cast<float>(bucket.factor),
                                           .count = bucket.count,
                                           .gradients = gradients,
                                           .wire = wire},
               stream);
  const CallOptions call = {.stream = stream};
  RONDO_TRY(device_.status());
  RONDO_TRY(
      bucket.shard_counts.empty()
          ? communicator.all_reduce(wire, wire, bucket.count, kWire, ReduceOp::kSum, call)
          : communicator.reduce_scatter(wire, own, bucket.own_count, kWire, ReduceOp::kSum, call));
  cuda::launch(
      device_, "decompress",
      cuda::DecompressKernel<kWire>{
          .count = bucket.own_count, .wire = own, .gradients = gradients + bucket.own_offset},
      stream);
  return device_.status();
}

Status DeviceCompression::enqueue(Communicator& communicator, const GradientBucket& bucket,
                                  void* stream) {
  return wire_ == DataType::kFloat16
             ? enqueue_as<DataType::kFloat16>(communicator, bucket, stream)
             : enqueue_as<DataType::kBFloat16>(communicator, bucket, stream);
}

}  // namespace rondo::trainer
