// The errors for a missing or wrong cuBLASLt library, and the alignments that products announce to it.
#include "trainer/layers/cuda/products.hpp"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "tests/trainer/cuda/fake_device.hpp"

namespace rondo::trainer::products_test {

using cuda::testing::FakeDevice;
using rondo::device::test::FakeGpu;

namespace {

auto open_with(Device& device, const char* library) {
  setenv("RONDO_CUBLASLT", library, 1);
  auto opened = cuda::open_products(device);
  unsetenv("RONDO_CUBLASLT");
  return opened;
}

/// A function of the fake library that tells what it was told.
template <class Function>
Function fake_function(const char* name) {
  void* const library = dlopen(RONDO_FAKE_CUBLASLT, RTLD_NOW);
  REQUIRE(library != nullptr);
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

TEST_CASE("products need cuBLASLt, which an error names") {
  FakeDevice fake(std::make_shared<FakeGpu>());
  for (const auto& [library, text] :
       {std::pair{"/nowhere/libcublasLt.so", "/nowhere/libcublasLt.so: cannot open"},
        std::pair{"libm.so.6", "libm.so.6 has no cublasLt"}}) {
    const Status status = open_with(*fake.device, library).status();
    CHECK(status.code() == Code::kUnavailable);
    CHECK(rondo::device::test::says(status, text));
  }
}

TEST_CASE("products announce to cuBLASLt the alignment of matrices and their rows") {
  FakeDevice fake(std::make_shared<FakeGpu>());
  auto products = open_with(*fake.device, RONDO_FAKE_CUBLASLT);
  REQUIRE(products.ok());
  const auto alignments = fake_function<const uint32_t* (*)()>("fake_cublaslt_alignments")();
  std::byte* const memory = *fake.device->cuda().allocate(1 << 16);
  REQUIRE(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
  using Wanted = std::vector<uint32_t>;
  /// The alignments announced for a, b and c; the library's first operand is our second.
  const auto told = [&](const cuda::DeviceProduct& product) {
    (*products)->multiply(DataType::kBFloat16, product);
    CHECK(fake.device->status().ok());
    CHECK(alignments[2] == alignments[3]);
    return Wanted{alignments[1], alignments[0], alignments[2]};
  };
  cuda::DeviceProduct product{.m = 6,
                              .n = 8,
                              .k = 128,
                              .a = {.data = memory, .stride = 128},
                              .b = {.data = memory, .stride = 128, .transposed = true},
                              .c = memory,
                              .c_stride = 128};
  CHECK(told(product) == Wanted{256, 256, 256});
  // A panel that begins at the third row of 20 numbers of two bytes.
  product.a = {.data = memory + 3 * 40, .stride = 20};
  product.k = 20;
  CHECK(told(product) == Wanted{8, 256, 256});
  product.b.stride = 21;  // from the beginning, but other rows are at odd places
  CHECK(told(product) == Wanted{8, 2, 256});
  product.c = memory + 32;
  CHECK(told(product) == Wanted{8, 2, 32});
  products = Status(Code::kAborted, "ended");  // before the library's memory and the device go
  CHECK(fake.device->cuda().release(memory).ok());
}

TEST_CASE("products of floats are TF32's only where the device allows it") {
  FakeDevice fake(std::make_shared<FakeGpu>());
  const auto arithmetic = fake_function<cublasComputeType_t (*)()>("fake_cublaslt_arithmetic");
  for (const bool allowed : {false, true}) {
    fake.device->set_tf32(allowed);
    auto products = open_with(*fake.device, RONDO_FAKE_CUBLASLT);
    REQUIRE(products.ok());
    std::byte* const memory = *fake.device->cuda().allocate(1 << 12);
    const cuda::DeviceProduct product{.m = 8,
                                      .n = 8,
                                      .k = 8,
                                      .a = {.data = memory, .stride = 8},
                                      .b = {.data = memory, .stride = 8},
                                      .c = memory,
                                      .c_stride = 8};
    (*products)->multiply(DataType::kFloat32, product);
    CHECK(arithmetic() == (allowed ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F));
    (*products)->multiply(DataType::kBFloat16, product);
    CHECK(arithmetic() == CUBLAS_COMPUTE_32F);
    products = Status(Code::kAborted, "ended");
    CHECK(fake.device->cuda().release(memory).ok());
  }
}

}  // namespace rondo::trainer::products_test
