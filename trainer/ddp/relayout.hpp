// Lays buckets out anew, on all ranks alike, from what each has measured: rank 0 decides, on what is
// the worst of all ranks, and sends the integers. See bucket_plan.hpp for the decision.
#pragma once

#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/ddp/bucket_plan.hpp"
#include "trainer/ddp/layout.hpp"
#include "trainer/ddp/readiness.hpp"

namespace rondo::ddp {

/// One rank's. Borrowed.
struct MeasuredLayout {
  const std::vector<DdpTensor>& tensors;
  const BucketLayout& layout;  // with which it was measured
  const DdpOptions& options;
  const ReadinessLog& log;
  bool direct;  // gradients lie in library memory
};

/// Where buckets may end: with tensors, between the parts in which a gradient is reported, inside what
/// is large, and where they end now. At most about kMostUnits, of what is small the larger parts.
std::vector<size_t> possible_ends(const MeasuredLayout& measured);
inline constexpr size_t kMostUnits = 256;

struct ChosenLayout {
  std::vector<size_t> ends;  // those there are, if no others are noticeably better
  int64_t exposed_before_ns = 0, exposed_ns = 0;  // predicted
};

/// Collective, blocking. The same on every rank.
Result<ChosenLayout> choose_layout(Communicator& communicator, const MeasuredLayout& measured);

}  // namespace rondo::ddp
