// Operations on a GPU's communication stream, one for each bucket. Does not know what they do. Never
// waits for the GPU, and takes no time down (Gpu::mark_transfers()).
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/ddp/gpu.hpp"

namespace rondo::ddp {

/// One thread. A round is: send() and then receive() of some buckets.
class StreamTransfers {
 public:
  using Stream = Gpu::Stream;
  /// Throws GpuFailure. `gathers`: parameters, for DdpTransferMark.
  StreamTransfers(Gpu& gpu, size_t buckets, bool gathers);

  /// What `enqueue` puts on that stream comes after everything that the compute stream has.
  Status send(size_t bucket, const std::function<Status(Stream)>& enqueue);
  /// What the compute stream gets from now on comes after that.
  Status receive(size_t bucket);

 private:
  void mark(DdpTransferMark::At at, size_t bucket, Stream stream) const {
    gpu_.mark({.at = at, .gathers = gathers_, .bucket = bucket, .stream = stream});
  }

  Gpu& gpu_;
  const bool gathers_;
  std::vector<Gpu::Event> sent_;  // by bucket
};

}  // namespace rondo::ddp
