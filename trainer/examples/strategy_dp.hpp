// --strategy dp, an example of how not to do it: what torch.nn.DataParallel does, with ranks as its
// replicas, to be compared with data parallelism as it should be (step/step.hpp). In every step
// rank 0 reads the whole global batch and scatters it with its parameters, all ranks compute, the
// gradients come back to rank 0, and it alone updates. No overlap, no buckets.
//
//                                      ddp                   dp
//   bytes that rank 0 sends            2 (N-1)/N gradients   N-1 times the parameters and samples
//   bytes that any other rank sends    2 (N-1)/N gradients   the gradients
//   hidden                             all but the tail      nothing
//
// The lesson: rondo-train --lesson star.
#pragma once

#include "trainer/step/loop.hpp"
#include "trainer/step/replica.hpp"

namespace rondo::trainer {

/// Threads that read ahead for one rank's samples: all on rank 0, together as many as one rank of
/// ddp has.
size_t dp_workers(const TrainOptions& options, const Communicator& communicator);

/// The same samples in the same steps, so that losses are ddp's up to rounding; the same report.
template <class T>
Status train_dp(Run<T>& run);
/// With a replica that is not in the host's memory; Run::ddp() is its storage.
template <class T>
Status train_dp(Run<T>& run, Replica& replica);

}  // namespace rondo::trainer
