// See relayout.hpp.
#include "trainer/ddp/relayout.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "trainer/ddp/host_lane.hpp"

namespace rondo::ddp {
namespace {

/// Of all tensors.
DataType type_of(const MeasuredLayout& m) { return *m.tensors.front().type; }

bool adds(const MeasuredLayout& m, size_t tensor) { return m.tensors[tensor].adds_to >= 0; }

/// All ranks have rank 0's.
Status share_ends(Communicator& communicator, std::vector<size_t>& ends) {
  uint64_t count = ends.size();
  RONDO_TRY(communicator.broadcast(&count, &count, 1, DataType::kUint64, 0));
  ends.resize(count);
  static_assert(sizeof(size_t) == sizeof(uint64_t));
  return communicator.broadcast(ends.data(), ends.data(), count, DataType::kUint64, 0);
}

/// What all ranks have measured: the latest of the times, and of each transfer the shortest, that of
/// the rank that came last and waited for no other.
struct WorstTimes {
  std::vector<int64_t> ready_ns;  // of each unit
  int64_t backward_ns, update_ns;
  std::vector<int64_t> cost_ns;  // of each bucket: the median over the steps
};

Result<WorstTimes> measure(Communicator& communicator, const MeasuredLayout& m,
                           const std::vector<size_t>& ends) {
  std::vector<int64_t> latest;
  for (size_t u = 0; u < ends.size(); ++u) {
    latest.push_back(m.log.ready_ns(m.tensors, m.layout, u == 0 ? 0 : ends[u - 1], ends[u]));
  }
  latest.push_back(m.log.backward_ns());
  latest.push_back(m.log.update_ns());
  RONDO_TRY(communicator.all_reduce(latest.data(), latest.data(), latest.size(), DataType::kInt64,
                                    ReduceOp::kMax));
  std::vector<int64_t> transfers = m.log.transfers_ns();
  RONDO_TRY(communicator.all_reduce(transfers.data(), transfers.data(), transfers.size(),
                                    DataType::kInt64, ReduceOp::kMin));
  WorstTimes worst{.ready_ns = {latest.begin(), latest.end() - 2},
                   .backward_ns = latest.end()[-2],
                   .update_ns = latest.back(),
                   .cost_ns = {}};
  const size_t buckets = m.layout.buckets.size();
  for (size_t b = 0; b < buckets; ++b) {
    std::vector<int64_t> of_steps;
    for (size_t i = b; i < transfers.size(); i += buckets) of_steps.push_back(transfers[i]);
    worst.cost_ns.push_back(middle(of_steps));
  }
  return worst;
}

/// Of the operation that carries so many gradients.
double predicted_ns(const Communicator& chooser, const MeasuredLayout& m, size_t elements) {
  const Communicator& communicator = m.carrier != nullptr ? *m.carrier : chooser;
  const DataType type = type_of(m);
  const size_t wire_bytes = m.options.hook ? m.options.hook->wire_bytes(type) : size_of(type);
  const size_t as_wide = std::max<size_t>(1, elements * wire_bytes / size_of(type));
  return 1e3 * communicator
                   .plan(Collective::kAllReduce, as_wide, type, m.direct, Algorithm::kAuto,
                         scales_here(communicator, type) ? ReduceOp::kSum : ReduceOp::kMulSum)
                   .predicted_us;
}

CostCurve cost_curve(const Communicator& communicator, const MeasuredLayout& m,
                     const WorstTimes& worst) {
  std::vector<CostCurve::PricedSize> prices;
  for (size_t elements = 16; prices.empty() || prices.back().elements < m.layout.gradient_elements;
       elements += (elements + 1) / 2) {
    prices.push_back(
        {.elements = elements, .predicted_ns = predicted_ns(communicator, m, elements)});
  }
  CostCurve curve(std::move(prices));
  std::vector<std::pair<size_t, int64_t>> measured;
  for (size_t b = 0; b < m.layout.buckets.size(); ++b) {
    const DdpBucket& bucket = m.layout.buckets[b];
    if (!adds(m, bucket.pieces.front().tensor))
      measured.push_back({bucket.count, worst.cost_ns[b]});
  }
  curve.correct(measured);
  return curve;
}

BucketModel model_of(const Communicator& communicator, const MeasuredLayout& m,
                     const std::vector<size_t>& ends, const WorstTimes& worst) {
  BucketModel model{
      .units = {}, .backward_ns = worst.backward_ns, .cost_ns = cost_curve(communicator, m, worst)};
  std::set<size_t> waiting;  // tensors to which something is added: updated after that
  bool all_wait = !m.options.overlap;
  for (const DdpTensor& tensor : m.tensors) {
    if (tensor.adds_to >= 0) waiting.insert(static_cast<size_t>(tensor.adds_to));
    all_wait = all_wait || tensor.may_skip;
  }
  size_t begin = 0, tensor = 0;
  for (size_t u = 0; u < ends.size(); ++u) {
    while (tensor + 1 < m.tensors.size() && m.layout.offsets[tensor + 1] <= begin) ++tensor;
    const double share =
        static_cast<double>(ends[u] - begin) / static_cast<double>(m.layout.parameter_elements);
    BucketUnit unit{
        .end = ends[u],
        .ready_ns = m.options.overlap ? worst.ready_ns[u] : worst.backward_ns,
        .update_ns = static_cast<int64_t>(share * static_cast<double>(worst.update_ns))};
    if (all_wait || waiting.count(tensor) > 0 || adds(m, tensor)) unit.update_ns = 0;
    for (size_t b = 0; adds(m, tensor) && b < m.layout.buckets.size(); ++b) {
      if (m.layout.buckets[b].offset == begin) unit.alone_ns = worst.cost_ns[b];
    }
    model.units.push_back(unit);
    begin = ends[u];
  }
  return model;
}

}  // namespace

std::vector<size_t> possible_ends(const MeasuredLayout& m) {
  return unit_ends({.tensors = m.tensors,
                    .layout = m.layout,
                    .element_bytes = size_of(type_of(m)),
                    .reported_parts = [&](size_t tensor) { return m.log.reported_parts(tensor); }});
}

Result<ChosenEnds> choose_layout(Communicator& communicator, const MeasuredLayout& m) {
  std::vector<size_t> ends;
  if (communicator.rank() == 0) ends = possible_ends(m);
  RONDO_TRY(share_ends(communicator, ends));
  const WorstTimes worst = RONDO_TRY(measure(communicator, m, ends));
  ChosenEnds chosen{.ends = ends_of(m.layout)};
  if (communicator.rank() == 0) {
    chosen = choose_ends(model_of(communicator, m, ends, worst), chosen.ends);
  }
  RONDO_TRY(share_ends(communicator, chosen.ends));
  int64_t exposed[] = {chosen.exposed_before_ns, chosen.exposed_ns};
  RONDO_TRY(communicator.broadcast(exposed, exposed, 2, DataType::kInt64, 0));
  chosen.exposed_before_ns = exposed[0];
  chosen.exposed_ns = exposed[1];
  return chosen;
}

}  // namespace rondo::ddp
