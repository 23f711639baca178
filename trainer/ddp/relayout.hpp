// Lays buckets out anew, on all ranks alike, from what each has measured: rank 0 decides, on what is
// the worst of all ranks, and sends the integers. See bucket_plan.hpp for the decision.
#pragma once

#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/ddp/bucket_plan.hpp"
#include "trainer/ddp/layout.hpp"
#include "trainer/ddp/readiness.hpp"
#include "trainer/ddp/unit_ends.hpp"

namespace rondo::ddp {

/// One rank's. Borrowed.
struct MeasuredLayout {
  const std::vector<DdpTensor>& tensors;
  const BucketLayout& layout;  // with which it was measured
  const DdpOptions& options;
  const ReadinessLog& log;
  bool direct;                            // gradients lie in library memory
  const Communicator* carrier = nullptr;  // of gradients; null: the one that chooses
};

/// As unit_ends().
std::vector<size_t> possible_ends(const MeasuredLayout& measured);

/// Collective, blocking. The same on every rank.
Result<ChosenEnds> choose_layout(Communicator& communicator, const MeasuredLayout& measured);

}  // namespace rondo::ddp
