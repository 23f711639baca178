// A heap in which one allocation fails. A program that uses it has failing_allocation.cpp among its own
// sources, which replaces operator new.
#pragma once

#include <atomic>

namespace rondo::testing {

enum class Watched { kCaller, kOwnThreads };  // of the call under test; the library's own threads
inline std::atomic<Watched> watched{Watched::kCaller};
// Counts down with every allocation that is watched; the one that finds 1 fails. 0: none does.
inline std::atomic<long> remaining{0};
inline thread_local bool is_caller = false;  // of the call under test
inline thread_local bool is_test = false;    // a thread of the test's, not of the library's

/// While it lives, one allocation fails, if the call gets as far.
class Failing {
 public:
  explicit Failing(long allocation) {
    is_caller = true;
    remaining = allocation;
  }
  ~Failing() {
    is_caller = false;
    remaining = 0;
  }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
  static bool has_failed() { return remaining <= 0; }
};

}  // namespace rondo::testing
