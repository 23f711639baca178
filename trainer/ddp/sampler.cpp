// Which samples are whose. See DistributedSampler.
#include <algorithm>
#include <bit>

#include "rondo/ddp.hpp"
#include "trainer/base/random.hpp"
#include "trainer/ddp/permutation.hpp"

namespace rondo {
namespace ddp {

using trainer::mix;

Permutation::Permutation(uint64_t size, uint64_t key) : size_(size), key_(key) {
  half_bits_ = static_cast<int>(std::bit_width(size - 1) + 1) / 2;
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

}  // namespace ddp

DistributedSampler::DistributedSampler(const Options& options) : options_(options) {
  RONDO_CHECK(options.rank < options.ranks && options.samples <= uint64_t{1} << 62);
}

void DistributedSampler::set_epoch(uint64_t epoch, uint64_t consumed) {
  epoch_ = epoch;
  consumed_ = std::min(consumed, options_.samples);
}

uint64_t DistributedSampler::least() const {
  return options_.tail == Tail::kPad ? most() : left() / options_.ranks;
}

uint64_t DistributedSampler::most() const {
  const bool one_more = options_.tail != Tail::kDrop && left() % options_.ranks != 0;
  return left() / options_.ranks + (one_more ? 1 : 0);
}

uint64_t DistributedSampler::size() const {
  if (options_.tail != Tail::kKeep) return most();
  return least() + (options_.rank < left() % options_.ranks ? 1 : 0);
}

uint64_t DistributedSampler::index(uint64_t i) const {
  const uint64_t entry = (consumed_ + i * options_.ranks + options_.rank) % options_.samples;
  if (!options_.shuffle) return entry;
  return ddp::Permutation(options_.samples,
                          trainer::mix(trainer::mix(options_.seed) ^ epoch_))(entry);
}

uint64_t DistributedSampler::consumed_after(uint64_t count) const {
  return count >= most() ? options_.samples : consumed_ + count * options_.ranks;
}

}  // namespace rondo
