#include "transport/cuda_ipc/driver.hpp"

#include <dlfcn.h>

#include <string>

namespace rondo::transport::cuda_ipc {

void* driver_function(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver == nullptr ? nullptr : dlsym(driver, name);
}

Status driver_status(int code, const char* what) {
  if (code == 0) return {};
  const auto describe = find_driver_function<int (*)(int, const char**)>("cuGetErrorString");
  const char* text = nullptr;
  if (describe != nullptr) (void)describe(code, &text);
  constexpr int kOutOfMemory = 2;
  return {code == kOutOfMemory ? Code::kResourceExhausted : Code::kSystem,
          std::string(what) + ": " + (text != nullptr ? text : "the driver says ") +
              (text != nullptr ? "" : std::to_string(code))};
}

}  // namespace rondo::transport::cuda_ipc
