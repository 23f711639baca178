// The arithmetic of shapes; no buffers are made here.
#include "bench/harness/shape.hpp"

#include <algorithm>
#include <numeric>

namespace rondo::bench {

CallShape shape_of(Collective collective, DataType type, ReduceOp op, int root, size_t bytes,
                   int ranks) {
  size_t count = bytes / size_of(type);
  const internal::Form form = internal::form_of(collective);
  if (form.in == internal::Holds::kEach || form.out == internal::Holds::kEach)
    count /= static_cast<size_t>(ranks);
  if (collective == Collective::kBarrier) count = 0;
  return {.collective = collective, .type = type, .op = op, .root = root, .count = count};
}

namespace {

size_t elements_of(internal::Holds holds, const CallShape& shape, int ranks) {
  if (shape.collective == kSendRecv) return shape.count;
  const size_t all = internal::elements(holds, shape.count, static_cast<size_t>(ranks));
  if (holds != internal::Holds::kOne || !is_varying(shape.collective)) return all;
  return block_counts(shape, 0, ranks).back();  // the largest
}

}  // namespace

std::vector<size_t> block_counts(const CallShape& shape, int rank, int ranks) {
  const auto n = static_cast<size_t>(ranks);
  std::vector<size_t> counts(n, shape.count);
  if (!is_varying(shape.collective)) return counts;
  // 1 + 3 + ... + (2b + 1) = (b + 1)^2, of n^2 parts.
  const double part = static_cast<double>(shape.count) / static_cast<double>(ranks);
  const auto end = [&](size_t b) {
    return b == n ? n * shape.count : static_cast<size_t>(part * static_cast<double>(b * b));
  };
  const size_t turn = shape.collective == Collective::kAllToAllV ? static_cast<size_t>(rank) : 0;
  for (size_t b = 0; b < n; ++b) {
    const size_t step = (b + turn) % n;
    counts[b] = end(step + 1) - end(step);
  }
  return counts;
}

size_t own_block_begin(const CallShape& shape, int rank, int ranks) {
  const std::vector<size_t> counts = block_counts(shape, rank, ranks);
  return std::accumulate(counts.begin(), counts.begin() + rank, size_t{0});
}

size_t in_elements(const CallShape& shape, int ranks) {
  return elements_of(internal::form_of(shape.collective).in, shape, ranks);
}

size_t out_elements(const CallShape& shape, int ranks) {
  return elements_of(internal::form_of(shape.collective).out, shape, ranks);
}

size_t size_bytes(const CallShape& shape, int ranks) {
  return std::max(in_elements(shape, ranks), out_elements(shape, ranks)) * size_of(shape.type);
}

double alg_bandwidth(const CallShape& shape, int ranks, double time_us) {
  return time_us > 0 ? static_cast<double>(size_bytes(shape, ranks)) / time_us / 1e3 : 0;
}

double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  if (collective == kSendRecv) return 1;
  switch (base_of(collective)) {
    case Collective::kAllReduce:
      return 2 * (n - 1) / n;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
      return (n - 1) / n;
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kInclusiveScan:
    case Collective::kExclusiveScan:
      return 1;
    default:  // barrier
      return 0;
  }
}

LeastTraffic least_traffic(const CallShape& shape, int rank, int ranks) {
  size_t in = in_elements(shape, ranks) * size_of(shape.type);
  size_t out = out_elements(shape, ranks) * size_of(shape.type);
  if (is_varying(shape.collective)) {
    const internal::Form form = internal::form_of(shape.collective);
    const size_t own =
        block_counts(shape, rank, ranks)[static_cast<size_t>(rank)] * size_of(shape.type);
    if (form.in == internal::Holds::kOne) in = own;
    if (form.out == internal::Holds::kOne) out = own;
  }
  return {.reads = reads(shape, rank) ? in : 0, .writes = writes(shape, rank) ? out : 0};
}

}  // namespace rondo::bench
