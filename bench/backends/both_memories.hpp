// Buffers of plain and of library memory, to measure rondo on both.
#pragma once

#include <cstdlib>
#include <cstring>

#include "bench/harness/measure.hpp"
#include "rondo/memory.hpp"

namespace rondo::bench {

/// Owns two buffers of each kind.
class BothMemories {
 public:
  explicit BothMemories(size_t bytes)
      : plain_{.in = std::malloc(bytes), .out = std::malloc(bytes)},
        library_{.in = rondo::alloc(bytes), .out = rondo::alloc(bytes)} {
    if (!ok()) return;
    for (void* buffer : {plain_.in, plain_.out, library_.in, library_.out}) {
      std::memset(buffer, 0, bytes);  // page faults are not to be timed
    }
  }
  ~BothMemories() {
    std::free(plain_.in);
    std::free(plain_.out);
    rondo::free(library_.in);
    rondo::free(library_.out);
  }
  BothMemories(const BothMemories&) = delete;
  BothMemories& operator=(const BothMemories&) = delete;

  bool ok() const { return plain_.in && plain_.out && library_.in && library_.out; }
  const Buffers& of(bool library) const { return library ? library_ : plain_; }

 private:
  Buffers plain_, library_;
};

}  // namespace rondo::bench
