// A GPU for the trainer where there is none: FakeGpu, whose streams walk the trainer's kernels and
// have OpenBLAS multiply. Link stand_in.cpp instead of rondo_trainer_cuda.
#pragma once

#include <memory>

#include "tests/comm/device/world.hpp"

namespace rondo::trainer::cuda::testing {

/// A FakeGpu that knows the trainer's kernels.
std::shared_ptr<rondo::device::test::FakeGpu> make_gpu(int device_count = 1);

}  // namespace rondo::trainer::cuda::testing
