// Buffers of plain and of library memory, to measure rondo on both.
#pragma once

#include <cstdlib>

#include "bench/harness/machine.hpp"
#include "bench/harness/measure.hpp"
#include "rondo/memory.hpp"

namespace rondo::bench {

/// Owns two buffers of each kind.
class BothMemories {
 public:
  BothMemories(size_t bytes, int ranks)
      : plain_{.in = std::malloc(bytes), .out = std::malloc(bytes)},
        library_{.in = rondo::alloc(bytes), .out = rondo::alloc(bytes)} {
    size_t later_bytes = 4 * bytes;
    for (void* buffer : {plain_.in, plain_.out, library_.in, library_.out}) {
      later_bytes -= bytes;
      if (buffer == nullptr || !zero_if_available(buffer, bytes, later_bytes, ranks)) return;
    }
    ok_ = true;
  }
  ~BothMemories() {
    std::free(plain_.in);
    std::free(plain_.out);
    rondo::dealloc(library_.in);
    rondo::dealloc(library_.out);
  }
  BothMemories(const BothMemories&) = delete;
  BothMemories& operator=(const BothMemories&) = delete;

  /// Whether there is memory for all.
  bool ok() const { return ok_; }
  const Buffers& of(bool library) const { return library ? library_ : plain_; }

 private:
  Buffers plain_, library_;
  bool ok_ = false;
};

}  // namespace rondo::bench
