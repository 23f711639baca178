// Buckets of a run that change, with --bucket-cap-mb auto: what follows them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trainer/step/loop.hpp"

namespace rondo::trainer {

/// Where these buckets, of the same tensors, end in the flat storages of `ddp`: where tensors are of
/// another type, there is other padding between them.
std::vector<size_t> ends_in(const DistributedDataParallel& ddp,
                            const std::vector<DdpBucket>& buckets);

/// Before the first step: what is planned for each bucket. Where gradients travel on a device, their
/// buckets become those that a checkpoint has given to Run::weights. Rank 0 warns if the losses will not
/// be those of the run that made the checkpoint.
template <class T>
Status begin_buckets(Run<T>& run);

/// Collective, before a checkpoint: buckets are laid out anew now, unless they have been. A run that
/// goes on, and one that resumes there, then have the same, and so the same bits.
template <class T>
Status settle_buckets(Run<T>& run);

/// One thread. Borrows the run.
template <class T>
class BucketWatch {
 public:
  explicit BucketWatch(Run<T>& run);
  /// After each step: if buckets were laid out anew before it, the run follows, and rank 0 says so.
  Status look(uint64_t step);

 private:
  Run<T>& run_;
  const std::vector<size_t> before_;  // elements of each bucket
  bool relaid_ = false;
};

}  // namespace rondo::trainer
