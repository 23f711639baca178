// Gradients that travel in a smaller type than they are kept in. See CommunicationHook.
#include <map>
#include <memory>

#include "kernels/half.hpp"
#include "rondo/ddp.hpp"
#include "trainer/buffer.hpp"

namespace rondo {
namespace {

using Narrow = uint16_t (*)(float);
using Widen = float (*)(uint16_t);

template <class T, Narrow narrow>
void compress(const GradientBucket& bucket, uint16_t* wire) {
  const T* from = static_cast<const T*>(bucket.data);
  const T factor = static_cast<T>(bucket.factor);
  for (size_t i = 0; i < bucket.count; ++i) wire[i] = narrow(static_cast<float>(from[i] * factor));
}

template <class T, Widen widen>
void decompress(const uint16_t* wire, const GradientBucket& bucket) {
  T* to = static_cast<T*>(bucket.data);
  const size_t end = bucket.own_offset + bucket.own_count;
  for (size_t i = bucket.own_offset; i < end; ++i) to[i] = static_cast<T>(widen(wire[i]));
}

/// One buffer per bucket, made at the bucket's first turn.
template <Narrow narrow, Widen widen>
class Compression : public CommunicationHook {
 public:
  Compression(DataType wire, const char* name) : wire_(wire), name_(name) {}

  std::string name() const override { return name_; }

  Work start(Communicator& communicator, const GradientBucket& bucket) override {
    auto [found, added] = buffers_.try_emplace(bucket.index);
    if (added) found->second = trainer::Buffer<uint16_t>(bucket.count);
    RONDO_CHECK(found->second.count() == bucket.count, "a hook serves one model's buckets only");
    uint16_t* wire = found->second.data();
    if (bucket.type == DataType::kFloat64) {
      compress<double, narrow>(bucket, wire);
    } else {
      compress<float, narrow>(bucket, wire);
    }
    if (bucket.shard_counts.empty()) {
      return communicator.all_reduce_async(wire, wire, bucket.count, wire_);
    }
    return communicator.reduce_scatter_v_async(wire, wire + bucket.own_offset, bucket.shard_counts,
                                               bucket.shard_offsets, wire_);
  }

  void finish(const GradientBucket& bucket) override {
    const uint16_t* wire = buffers_.at(bucket.index).data();
    if (bucket.type == DataType::kFloat64) {
      decompress<double, widen>(wire, bucket);
    } else {
      decompress<float, widen>(wire, bucket);
    }
  }

 private:
  const DataType wire_;
  const char* const name_;
  std::map<size_t, trainer::Buffer<uint16_t>> buffers_;
};

}  // namespace

std::shared_ptr<CommunicationHook> make_compression_hook(DataType wire) {
  using namespace kernels;  // NOLINT: the conversions
  RONDO_CHECK(wire == DataType::kFloat16 || wire == DataType::kBFloat16, "type %d",
              static_cast<int>(wire));
  if (wire == DataType::kFloat16) {
    return std::make_shared<Compression<half_from_float, float_from_half>>(wire, "fp16");
  }
  return std::make_shared<Compression<bfloat16_from_float, float_from_bfloat16>>(wire, "bf16");
}

}  // namespace rondo
