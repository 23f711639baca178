// What carries a step's buckets, and the buffers before them: an interface. Knows neither when a
// bucket is complete nor what becomes of its gradients. HostLane holds a Work for
// each, StreamLane an event of a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/ddp/layout.hpp"
#include "trainer/ddp/memory.hpp"
#include "trainer/ddp/second_gradient.hpp"
#include "trainer/ddp/shards.hpp"

namespace rondo::ddp {

/// One rank's gradients. Borrowed.
struct GradientStorage {
  const std::vector<DdpTensor>& tensors;
  const BucketLayout& layout;
  const Shards& shards;
  GradientMemory& memory;
};

/// A bucket that leaves.
struct Departure {
  double factor;     // of this rank's gradients
  int64_t ready_ns;  // when the last of them was final
};

/// One thread. A step is: begin(), exchange_counts(), send_buffers(), start() and then finish() of each
/// bucket in order, settle().
class Lane {
 public:
  virtual ~Lane() = default;

  /// The first failure that is known without waiting.
  virtual Status status() = 0;
  virtual void begin() = 0;
  /// Null: the tensor adds to no other.
  virtual SecondGradient* second_gradient(size_t tensor) = 0;
  virtual void exchange_counts() = 0;
  /// Starts to copy these bytes of one rank to all; REQUIRES: receive_buffers() before they are read.
  virtual Status send_buffers(void* data, size_t bytes, int root) = 0;
  virtual Status receive_buffers() = 0;
  /// The next bucket's gradients are final on this rank: starts to reduce them. May throw.
  virtual Status start(const Departure& departure) = 0;
  virtual size_t started() const = 0;
  /// What follows finds that bucket reduced. May throw.
  virtual Status finish(size_t bucket) = 0;
  /// Of the last step; a StreamLane has zeros.
  virtual const std::vector<DdpBucketTimes>& times() = 0;
  /// Ends the step, however it went.
  virtual void settle() = 0;
};

}  // namespace rondo::ddp
