// Matrix products on a device: cuBLASLt's, or in tests a stand-in's.
#pragma once

#include <cstddef>
#include <memory>

#include "rondo/status.hpp"
#include "rondo/types.hpp"
#include "trainer/base/device.hpp"

namespace rondo::trainer::cuda {

/// A row-major matrix in device memory: `stride` elements from a row to the next.
struct DeviceMatrix {
  const void* data;
  size_t stride;
  bool transposed = false;  // it is the transpose of what lies there
};

/// c = a b, or c += a b; a: [m x k], b: [k x n], c: [m x n].
struct DeviceProduct {
  size_t m, n, k;
  DeviceMatrix a, b;
  void* c;
  size_t c_stride;
  bool accumulate = false;
  const void* bias = nullptr;  // [n]: added to every row of c, not where c accumulates
};

/// One thread. Borrows the device.
class DeviceProducts {
 public:
  virtual ~DeviceProducts() = default;
  /// Enqueues it on the device's stream; `type` (kFloat32, kBFloat16, kFloat16) is that of all
  /// elements. Sums are float; floats are multiplied as they are, or as TF32 if the device's tf32()
  /// said so. The same bits from run to run on one kind of GPU. Nothing where m or n is 0. An error
  /// is the device's.
  virtual void multiply(DataType type, const DeviceProduct& product) = 0;
};

/// kUnavailable, with what was looked for: there is no cuBLASLt.
Result<std::unique_ptr<DeviceProducts>> open_products(Device& device);

}  // namespace rondo::trainer::cuda
