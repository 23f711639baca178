// See load_kernels.hpp.
#include "trainer/optim/cuda/load_kernels.hpp"

#include "trainer/layers/cuda/launch.hpp"
#include "trainer/optim/cuda/kernel_list.hpp"

namespace rondo::trainer {

void load_kernels(Device& device) {
  const auto load_one = [&](const void* kernel) {
    if (device.status().ok()) device.note(device.cuda().load(kernel));
  };
  const auto load = [&]<class... Kernels>(const Kernels*...) {
    (load_one(cuda::kernel_entry<Kernels>()), ...);
  };
  cuda::for_layer_kernels(load);
  cuda::for_layer_kernels_of_bits<cuda::Float16Bits>(load);
  cuda::for_optimizer_kernels(load);
}

}  // namespace rondo::trainer
