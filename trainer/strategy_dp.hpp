// --strategy dp: what torch.nn.DataParallel does, with ranks as its replicas, to be compared with
// data parallelism as it should be (train.hpp). In every step rank 0 reads the whole global batch,
// scatters it and its parameters; all compute; gradients come back to rank 0, which alone updates.
// All by the star. Refuses to be good: no overlap, no buckets, no checkpoints (see strategy.hpp).
#pragma once

#include <optional>

#include "rondo/communicator.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/options.hpp"
#include "trainer/report.hpp"

namespace rondo::trainer {

/// As train(): the same samples in the same steps, so that losses are ddp's up to rounding; the
/// same report, which rank 0 opens. T is the type of arithmetic.
template <class T>
Status train_dp(const Options& options, const Dataset& data, const Dataset* validation,
                Communicator& communicator, std::optional<Report>& report);

}  // namespace rondo::trainer
