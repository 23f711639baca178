// See sampler.hpp.
#include "trainer/sampler.hpp"

#include <bit>

#include "trainer/random.hpp"

namespace rondo::trainer {

Permutation::Permutation(uint64_t size, uint64_t key) : size_(size), key_(key) {
  half_bits_ = (std::bit_width(size - 1) + 1) / 2;
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
}

uint64_t Permutation::operator()(uint64_t i) const {
  do {
    uint64_t left = i >> half_bits_, right = i & half_mask_;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (mix(key_ ^ mix(right + (round << 56))) & half_mask_);
      left = right;
      right = next;
    }
    i = left << half_bits_ | right;
  } while (i >= size_);
  return i;
}

Permutation SampleOrder::permutation_of(uint64_t step) const {
  return Permutation(samples, mix(mix(seed) ^ epoch_of(step)));
}

}  // namespace rondo::trainer
