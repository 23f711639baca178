// Gradients that travel in a smaller type than they are kept in. See CommunicationHook.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "kernels/convert.hpp"
#include "rondo/ddp.hpp"
#include "trainer/base/buffer.hpp"
#include "trainer/ddp/host_lane.hpp"

namespace rondo {
namespace {

/// As many fp64 gradients at a time become fp32 and then 16-bit values. They stay in the cache.
constexpr size_t kTile = 1024;

void compress(const GradientBucket& bucket, const kernels::Conversion& conversion, uint16_t* wire) {
  if (bucket.type == DataType::kFloat32) {
    conversion.narrow(static_cast<const float*>(bucket.data), wire, bucket.count,
                      static_cast<float>(bucket.factor));
    return;
  }
  const auto* from = static_cast<const double*>(bucket.data);
  float tile[kTile];
  for (size_t begin = 0; begin < bucket.count; begin += kTile) {
    const size_t count = std::min(kTile, bucket.count - begin);
    for (size_t i = 0; i < count; ++i) {
      tile[i] = static_cast<float>(from[begin + i] * bucket.factor);
    }
    conversion.narrow(tile, wire + begin, count, 1);
  }
}

/// What this rank needs of it.
void decompress(const uint16_t* wire, const kernels::Conversion& conversion,
                const GradientBucket& bucket) {
  const size_t first = bucket.own_offset, end = first + bucket.own_count;
  if (bucket.type == DataType::kFloat32) {
    conversion.widen(wire + first, static_cast<float*>(bucket.data) + first, bucket.own_count);
    return;
  }
  auto* to = static_cast<double*>(bucket.data);
  float tile[kTile];
  for (size_t begin = first; begin < end; begin += kTile) {
    const size_t count = std::min(kTile, end - begin);
    conversion.widen(wire + begin, tile, count);
    std::copy_n(tile, count, to + begin);
  }
}

/// One buffer per bucket, made when the bucket first travels.
class Compression : public CommunicationHook {
 public:
  explicit Compression(DataType wire)
      : wire_(wire),
        name_(wire == DataType::kFloat16 ? "fp16" : "bf16"),
        conversion_(kernels::conversion(wire)) {}

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
    compress(bucket, conversion_, wire);
    if (bucket.shard_counts.empty()) {
      return communicator.all_reduce_async(wire, wire, bucket.count, wire_);
    }
    return communicator.reduce_scatter_v_async(wire, wire + bucket.own_offset, bucket.shard_counts,
                                               bucket.shard_offsets, wire_);
  }

  void finish(const GradientBucket& bucket) override {
    if (!is_wider(bucket.type)) return;
    decompress(buffers_.at(bucket.data).data(), conversion_, bucket);
  }

  size_t wire_bytes(DataType type) const override {
    return std::min(size_of(type), size_of(wire_));
  }

 private:
  bool is_wider(DataType type) const { return size_of(type) > size_of(wire_); }

  const DataType wire_;
  const std::string name_;
  const kernels::Conversion conversion_;
  std::map<const void*, trainer::Buffer<uint16_t>, std::less<>> buffers_;  // by the bucket's memory
};

}  // namespace

Result<std::shared_ptr<CommunicationHook>> make_compression_hook(DataType wire) {
  if (wire != DataType::kFloat16 && wire != DataType::kBFloat16) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("gradients cannot be compressed to {}: use fp16 or bf16", rondo::name(wire)));
  }
  return std::shared_ptr<CommunicationHook>(std::make_shared<Compression>(wire));
}

}  // namespace rondo
