// How librondo-nccl.so reads device memory, with CUDA's driver replaced (driver_standin.cpp).
#include "nccl/driver.hpp"

#include <dlfcn.h>

#include "tests/harness/catch.hpp"

namespace rondo::nccl {

// Of the second device, though this thread's is the first.
TEST_CASE("a scalar in device memory is read when its stream has come so far, never in a capture") {
  const double scalar = 2.5;
  double got = 0;
  void* const stream = reinterpret_cast<void*>(3);  // NOLINT: a number, which is asked so often
  auto reader = driver::ScalarReader::make(1);
  REQUIRE(reader.ok());
  REQUIRE((*reader)->read(&got, &scalar, sizeof got, stream).ok());
  CHECK(got == 2.5);
  void* const standin = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(standin != nullptr);
  CHECK(*static_cast<int*>(dlsym(standin, "driver_asked")) == 3);

  *static_cast<int*>(dlsym(standin, "driver_captures")) = 1;
  const Status refused = (*reader)->read(&got, &scalar, sizeof got, stream);
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK(refused.message().find("ncclScalarHostImmediate") != std::string::npos);
  CHECK(*static_cast<int*>(dlsym(standin, "driver_asked")) == 3);

  reader->reset();
  CHECK(*static_cast<int*>(dlsym(standin, "driver_ended_well")) == 1);
  const auto device = driver::current_device();
  REQUIRE(device.ok());
  CHECK(*device == 0);
}

}  // namespace rondo::nccl
