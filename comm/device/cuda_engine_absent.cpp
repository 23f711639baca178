// Replaces cuda_engine.cu in a build without CUDA, where open_cuda() fails before a kernel is used.
#include "comm/device/cuda_engine.hpp"

namespace rondo::engine {

const void* walk_kernel() { return nullptr; }
const void* walk_ll_kernel() { return nullptr; }

}  // namespace rondo::engine
