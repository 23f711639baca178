// Memory and time of a backend that has none of its own.
#include "bench/harness/backend.hpp"

#include <chrono>
#include <cstdlib>

namespace rondo::bench {

void* Backend::allocate(size_t bytes) { return std::malloc(bytes); }
void Backend::release(void* memory) { std::free(memory); }

Result<double> Backend::time(const BackendCall& operation, size_t iterations) {
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < iterations; ++i) RONDO_RETURN_IF_ERROR(run(operation));
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  return took.count() / static_cast<double>(iterations);
}

}  // namespace rondo::bench
