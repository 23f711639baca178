// See stand_in.hpp. What a launch reads of the host (the kernel's arguments, a product's) is copied
// when it is launched; all else when the stream gets there.
#include "tests/trainer/cuda/stand_in.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <set>
#include <type_traits>
#include <vector>

#include "tests/trainer/cuda/walk.hpp"
#include "trainer/layers/cuda/launch.hpp"
#include "trainer/layers/cuda/products.hpp"
#include "trainer/layers/host/matmul.hpp"
#include "trainer/optim/cuda/kernel_list.hpp"

namespace rondo::trainer::cuda {
namespace testing {
namespace {

using rondo::device::test::FakeGpu;

struct Entry {
  FakeGpu::Task (*prepare)(const void* kernel);
};

template <class Kernel>
FakeGpu::Task prepare(const void* kernel) {
  return [copy = *static_cast<const Kernel*>(kernel)] { walk(copy); };
}

struct Link {
  template <class... Kernels>
  void operator()(const Kernels*...) const {
    (entries.push_back(&kernel_entry<Kernels>), ...);
  }
  std::vector<const void* (*)()>& entries;
};

template <class T>
float as_float(const void* data, size_t i) {
  return static_cast<float>(widen(static_cast<const T*>(data)[i]));
}

/// One of a product's matrices without gaps and transposition: [rows x columns].
template <class T>
std::vector<float> gather(const DeviceMatrix& from, size_t rows, size_t columns) {
  std::vector<float> values(rows * columns);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      const size_t at = from.transposed ? j * from.stride + i : i * from.stride + j;
      values[i * columns + j] = as_float<T>(from.data, at);
    }
  }
  return values;
}

/// Rounded to TF32: to 10 bits of mantissa, ties away from zero, as cvt.rna does.
void round_to_tf32(std::vector<float>& values) {
  for (float& value : values) {
    value = std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x1000) & 0xffffe000);
  }
}

template <class T>
void multiply_one(const DeviceProduct& p, bool tf32) {
  std::vector<float> a = gather<T>(p.a, p.m, p.k), b = gather<T>(p.b, p.k, p.n);
  if (tf32 && std::is_same_v<T, float>) {
    round_to_tf32(a);
    round_to_tf32(b);
  }
  std::vector<float> c(p.m * p.n);
  if (p.k > 0) {
    multiply<float>({.m = p.m,
                     .n = p.n,
                     .k = p.k,
                     .a = {.data = a.data(), .stride = p.k},
                     .b = {.data = b.data(), .stride = p.n},
                     .beta = 0,
                     .c = {.data = c.data(), .stride = p.n}});
  }
  T* const to = static_cast<T*>(p.c);
  for (size_t i = 0; i < p.m; ++i) {
    for (size_t j = 0; j < p.n; ++j) {
      float value = c[i * p.n + j];
      if (p.accumulate) value += static_cast<float>(widen(to[i * p.c_stride + j]));
      if (p.bias != nullptr) value += as_float<T>(p.bias, j);
      to[i * p.c_stride + j] = narrow<T>(value);
    }
  }
}

class Products final : public DeviceProducts {
 public:
  explicit Products(Device& device) : device_(device) {}

  void multiply(DataType type, const DeviceProduct& product) override {
    auto* const gpu = dynamic_cast<FakeGpu*>(&device_.cuda());
    if (!device_.status().ok()) return;
    const bool is_first =
        known_.insert({product.m, product.n, product.k, product.a.transposed, product.b.transposed})
            .second;
    if (is_first && gpu->driver_lock.exists) {
      device_.note(gpu->wait_for_everything());
      if (!device_.status().ok()) return;
    }
    gpu->enqueue(device_.stream(), [type, product, tf32 = device_.tf32()] {
      type == DataType::kBFloat16  ? multiply_one<BFloat16Bits>(product, tf32)
      : type == DataType::kFloat16 ? multiply_one<Float16Bits>(product, tf32)
                                   : multiply_one<float>(product, tf32);
    });
  }

 private:
  Device& device_;
  std::set<std::array<size_t, 5>> known_;
};

}  // namespace

std::shared_ptr<FakeGpu> make_gpu(int device_count) {
  auto gpu = std::make_shared<FakeGpu>(device_count, 16);
  for (auto& device : gpu->devices) {
    device.name = "stand-in on a CPU";
    device.most_shared_bytes = size_t{99} << 10;  // the least of GPUs since compute capability 8.0
  }
  gpu->other_kernels = [](const transport::cuda_ipc::Launch& launch) {
    return static_cast<const Entry*>(launch.kernel)->prepare(launch.arguments[0]);
  };
  return gpu;
}

std::vector<const void* (*)()> all_entries() {
  std::vector<const void* (*)()> entries;
  for_layer_kernels(Link{entries});
  for_layer_kernels_of_bits<Float16Bits>(Link{entries});
  for_optimizer_kernels(Link{entries});
  return entries;
}

}  // namespace testing

template <class Kernel>
const void* kernel_entry() {
  static constexpr testing::Entry kEntry{&testing::prepare<Kernel>};
  return &kEntry;
}

Result<std::unique_ptr<DeviceProducts>> open_products(Device& device) {
  return std::unique_ptr<DeviceProducts>(new testing::Products(device));
}

}  // namespace rondo::trainer::cuda
