// The arithmetic of shapes; no buffers are made here.
#include "bench/harness/shape.hpp"

#include <algorithm>

namespace rondo::bench {

Shape shape_of(Collective collective, DataType type, ReduceOp op, int root, size_t bytes,
               int ranks) {
  size_t count = bytes / size_of(type);
  const Form form = form_of(collective);
  if (form.in == Holds::kEach || form.out == Holds::kEach) count /= static_cast<size_t>(ranks);
  if (collective == Collective::kBarrier) count = 0;
  return {.collective = collective, .type = type, .op = op, .root = root, .count = count};
}

size_t in_elements(const Shape& shape, int ranks) {
  return elements(form_of(shape.collective).in, shape.count, static_cast<size_t>(ranks));
}

size_t out_elements(const Shape& shape, int ranks) {
  return elements(form_of(shape.collective).out, shape.count, static_cast<size_t>(ranks));
}

size_t size_bytes(const Shape& shape, int ranks) {
  return std::max(in_elements(shape, ranks), out_elements(shape, ranks)) * size_of(shape.type);
}

double alg_bandwidth(const Shape& shape, int ranks, double time_us) {
  return time_us > 0 ? static_cast<double>(size_bytes(shape, ranks)) / time_us / 1e3 : 0;
}

double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  switch (collective) {
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
      return 1;
    case Collective::kBarrier:
      return 0;
  }
  return 0;
}

Traffic least_traffic(const Shape& shape, int rank, int ranks) {
  const size_t in = in_elements(shape, ranks) * size_of(shape.type);
  const size_t out = out_elements(shape, ranks) * size_of(shape.type);
  return {.reads = reads(shape, rank) ? in : 0, .writes = writes(shape, rank) ? out : 0};
}

}  // namespace rondo::bench
