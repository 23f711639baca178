// A program of its own, because it replaces operator new: a crash whose report waits for the heap
// ends the program all the same.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace {

std::atomic<bool> heap_is_locked{false};

}  // namespace

void* operator new(size_t bytes) {
  while (heap_is_locked) pause();
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

TEST_CASE("a crash that cannot be reported ends the test program") {
  if (std::getenv("RONDO_TEST_CRASH") != nullptr) {  // started by itself
    heap_is_locked = true;
    std::abort();
  }
  const auto result = rondo::testing::run_program({"/proc/self/exe"}, {"RONDO_TEST_CRASH=1"},
                                                  std::chrono::seconds{90});
  INFO(result.out << result.err);
  CHECK(result.err.find("The test program has crashed") != std::string::npos);
  CHECK(result.exit_code == 128 + SIGALRM);
}
