// Part of every test program that needs a GPU. Without a GPU the program prints the reason and
// exits with 77 before the first case, which CTest shows as skipped: a test that did not run must
// not look as if it had passed. A GPU that cannot be used (an old driver, an interfering sanitizer)
// is a failure.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

namespace {

[[maybe_unused]] const bool kDeviceIsThere = [] {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices > 0) return true;
  int driver = 0;
  const bool is_absent = code == cudaSuccess || code == cudaErrorNoDevice ||
                         cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0;
  std::printf("%s: %s\n", is_absent ? "skipped: no CUDA device" : "a GPU that cannot be used",
              cudaGetErrorString(code));
  std::fflush(stdout);
  std::_Exit(is_absent ? 77 : 1);
}();

}  // namespace
