// Brings updated parameters together where each rank has updated its shard: an asynchronous
// all-gather per bucket, in place; on a GPU, on the communication stream. Knows no optimizer; whoever
// updates says when a bucket is done.
#pragma once

#include <optional>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/ddp/layout.hpp"
#include "trainer/ddp/routes.hpp"
#include "trainer/ddp/shards.hpp"
#include "trainer/ddp/stream_transfers.hpp"

namespace rondo::ddp {

/// One thread. Borrows everything; waits, when destroyed, for what is under way.
class ParameterGather {
 public:
  /// `parameters`: flat, of these tensors.
  ParameterGather(const Routes& routes, const std::vector<DdpTensor>& tensors,
                  const BucketLayout& layout, const Shards& shards, std::byte* parameters);
  ~ParameterGather();
  ParameterGather(const ParameterGather&) = delete;
  ParameterGather& operator=(const ParameterGather&) = delete;

  /// A bucket that does not exist, or that is under way, is an error of every later wait().
  void start(size_t bucket);
  /// On a GPU the compute stream waits.
  Status wait(size_t bucket);
  /// Zeros on a GPU.
  const std::vector<Work::Times>& times() const { return times_; }

 private:
  bool is_under_way(size_t bucket) const { return works_[bucket] || on_stream_[bucket]; }
  void fail(const Status& status);

  const Routes routes_;
  const std::vector<DdpTensor>& tensors_;
  const BucketLayout& layout_;
  const Shards& shards_;
  std::byte* const parameters_;
  std::vector<std::optional<Work>> works_;    // by bucket
  std::optional<StreamTransfers> transfers_;  // on a GPU, instead
  std::vector<bool> on_stream_;               // by bucket: sent by these, and not received
  std::vector<Work::Times> times_;
  Status failure_;
};

}  // namespace rondo::ddp
