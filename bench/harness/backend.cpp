// Memory of a backend that has none of its own.
#include "bench/harness/backend.hpp"

#include <cstdlib>

namespace rondo::bench {

void* Backend::allocate(size_t bytes) { return std::malloc(bytes); }
void Backend::release(void* memory) { std::free(memory); }

}  // namespace rondo::bench
