// See failing_allocation.hpp.
#include "tests/harness/failing_allocation.hpp"

#include <cstdlib>
#include <new>

namespace {

bool fails_now() {
  using namespace rondo::testing;
  const bool is_watched = watched == Watched::kCaller ? is_caller : !is_test;
  return is_watched && remaining.load() > 0 && remaining.fetch_sub(1) == 1;
}

}  // namespace

// GCC takes these for a mismatch of new and free where it inlines only one of them.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t bytes) {
  void* const memory = fails_now() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return fails_now() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
