// Gradients that travel in a smaller type than they are kept in. See CommunicationHook.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "kernels/half.hpp"
#include "rondo/ddp.hpp"
#include "trainer/base/buffer.hpp"
#include "trainer/ddp/host_lane.hpp"

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

/// One buffer per bucket, made when the bucket first travels.
template <Narrow narrow, Widen widen>
class Compression : public CommunicationHook {
 public:
  Compression(DataType wire, const char* name) : wire_(wire), name_(name) {}

  std::string name() const override { return name_; }

  Work start(Communicator& communicator, const GradientBucket& bucket) override {
    if (!is_wider(bucket.type)) return ddp::reduce_bucket(communicator, bucket);
    // Buckets that ended elsewhere (kDdpAutoCap): what began inside this one travels no more.
    const std::byte* const begin = static_cast<const std::byte*>(bucket.data);
    buffers_.erase(buffers_.upper_bound(begin),
                   buffers_.lower_bound(begin + bucket.count * size_of(bucket.type)));
    trainer::Buffer<uint16_t>& buffer = buffers_[bucket.data];
    if (buffer.count() != bucket.count) buffer = trainer::Buffer<uint16_t>(bucket.count);
    uint16_t* wire = buffer.data();
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
    if (!is_wider(bucket.type)) return;
    const uint16_t* wire = buffers_.at(bucket.data).data();
    if (bucket.type == DataType::kFloat64) {
      decompress<double, widen>(wire, bucket);
    } else {
      decompress<float, widen>(wire, bucket);
    }
  }

  size_t wire_bytes(DataType type) const override {
    return std::min(size_of(type), size_of(wire_));
  }

 private:
  bool is_wider(DataType type) const { return size_of(type) > size_of(wire_); }

  const DataType wire_;
  const char* const name_;
  std::map<const void*, trainer::Buffer<uint16_t>, std::less<>> buffers_;  // by the bucket's memory
};

}  // namespace

Result<std::shared_ptr<CommunicationHook>> make_compression_hook(DataType wire) {
  using namespace kernels;  // NOLINT: the conversions
  std::shared_ptr<CommunicationHook> hook;
  if (wire == DataType::kFloat16) {
    hook = std::make_shared<Compression<half_from_float, float_from_half>>(wire, "fp16");
  } else if (wire == DataType::kBFloat16) {
    hook = std::make_shared<Compression<bfloat16_from_float, float_from_bfloat16>>(wire, "bf16");
  } else {
    return Status(
        Code::kInvalidArgument,
        fmt::format("gradients cannot be compressed to {}: use fp16 or bf16", rondo::name(wire)));
  }
  return hook;
}

}  // namespace rondo
