// Part of every test program that needs a GPU. Without one the program says why and ends with 77,
// before the first case, and CTest calls it skipped: a test that did not run must not look as if it
// had passed.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

namespace {

[[maybe_unused]] const bool kDeviceIsThere = [] {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices > 0) return true;
  std::printf("skipped: no CUDA device: %s\n", cudaGetErrorString(code));
  std::fflush(stdout);
  std::_Exit(77);
}();

}  // namespace
