// The models on a device: the same as in the host's memory (gpt.hpp, mlp.hpp, cnn.hpp), over
// layers/cuda.
#pragma once

#include <memory>

#include "trainer/base/device.hpp"
#include "trainer/layers/cuda/block.hpp"
#include "trainer/models/cnn.hpp"
#include "trainer/models/gpt.hpp"
#include "trainer/models/mlp.hpp"

namespace rondo::trainer {

/// T is float, cuda::BFloat16Bits or cuda::Float16Bits. Borrow the device, which must have come to the end of what a
/// model has enqueued before the model goes. kUnavailable: there are no matrix products. Throw
/// std::bad_alloc, whose cause is the device's status().
///
/// A head of attention has at most 128 numbers. `split_tied` is false whatever the shape says.
template <class T>
Result<std::unique_ptr<Model<T>>> make_cuda_gpt(Device& device, const GptShape& shape);
template <class T>
Result<std::unique_ptr<Model<T>>> make_cuda_mlp(Device& device, const MlpShape& shape);
/// `sum` gets doubles in the device's memory, and enqueues.
template <class T>
Result<std::unique_ptr<Model<T>>> make_cuda_cnn(Device& device, const CnnShape& shape,
                                                SumOverRanks sum);

}  // namespace rondo::trainer
