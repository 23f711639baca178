// Samples of one pass, in the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rondo::trainer {

/// Borrowed. What a model does not use may be null.
struct Batch {
  size_t size;             // samples, 0 allowed
  const int32_t* tokens;   // [size x context]
  const float* images;     // [size x channels x height x width], in [0, 1]
  const int32_t* targets;  // [size x loss terms per sample]
  const uint64_t* ids;     // [size] positions in the data: keys of random numbers
};

}  // namespace rondo::trainer
