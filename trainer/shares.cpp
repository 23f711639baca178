// See shares.hpp.
#include "trainer/shares.hpp"

#include <cstring>

namespace rondo::trainer {
namespace {

template <class V>
void put_values(const V* values, size_t count, std::byte* to) {
  if (values != nullptr && count > 0) std::memcpy(to, values, count * sizeof(V));
}

/// Null where a sample has nothing of it.
template <class V>
const V* part_at(const std::byte* at, size_t per_sample) {
  return per_sample == 0 ? nullptr : reinterpret_cast<const V*>(at);
}

}  // namespace

void ShareFormat::pack(const Batch& batch, std::byte* block) const {
  const uint64_t samples = batch.size;
  put_values(&samples, 1, block);
  put_values(batch.ids, samples, block + ids());
  put_values(batch.tokens, samples * shape_.context, block + tokens());
  put_values(batch.targets, samples * shape_.targets, block + targets());
  put_values(batch.images, samples * shape_.pixels(), block + images());
}

void ShareFormat::set_all_terms(uint64_t terms, std::byte* block) const {
  put_values(&terms, 1, block + sizeof(uint64_t));
}

Batch ShareFormat::unpack(const std::byte* block) const {
  uint64_t samples = 0;
  std::memcpy(&samples, block, sizeof(samples));
  return {.size = samples,
          .tokens = part_at<int32_t>(block + tokens(), shape_.context),
          .images = part_at<float>(block + images(), shape_.pixels()),
          .targets = part_at<int32_t>(block + targets(), shape_.targets),
          .ids = part_at<uint64_t>(block + ids(), 1)};
}

uint64_t ShareFormat::all_terms(const std::byte* block) const {
  uint64_t terms = 0;
  std::memcpy(&terms, block + sizeof(uint64_t), sizeof(terms));
  return terms;
}

}  // namespace rondo::trainer
