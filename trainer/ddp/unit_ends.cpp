// See unit_ends.hpp.
#include "trainer/ddp/unit_ends.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace rondo::ddp {
namespace {

/// A tensor above this is also cut where nothing of it is final earlier: one part is updated while
/// the next travels.
constexpr size_t kLargeBytes = size_t{8} << 20;

/// Ends inside one tensor, in its elements, at 64 bytes and whole rows.
std::set<size_t> ends_inside(const ReportedLayout& r, size_t tensor) {
  const size_t count = r.tensors[tensor].count();
  const size_t unit = std::lcm(64 / r.element_bytes, row_elements(r.tensors[tensor]));
  std::set<size_t> ends;
  for (const size_t part : r.reported_parts(tensor)) ends.insert(part / unit * unit);
  const size_t large = kLargeBytes / r.element_bytes;
  for (size_t end = large; end < count; end += large) ends.insert(end / unit * unit);
  ends.erase(0);
  ends.erase(ends.lower_bound(count), ends.end());
  return ends;
}

}  // namespace

std::vector<size_t> unit_ends(const ReportedLayout& r) {
  const std::vector<size_t> present = ends_of(r.layout);
  std::set<size_t> all(present.begin(), present.end());
  for (size_t t = 0; t < r.tensors.size(); ++t) {
    const size_t next =
        t + 1 < r.tensors.size() ? r.layout.offsets[t + 1] : r.layout.gradient_elements;
    all.insert(next);
    if (r.tensors[t].adds_to >= 0) continue;
    for (const size_t end : ends_inside(r, t)) all.insert(r.layout.offsets[t] + end);
  }
  if (all.size() <= kMostUnits) return {all.begin(), all.end()};
  const size_t least = r.layout.gradient_elements / kMostUnits;
  std::vector<size_t> ends;
  size_t begin = 0;
  for (const size_t end : all) {
    if (end - begin < least && !std::binary_search(present.begin(), present.end(), end)) continue;
    ends.push_back(end);
    begin = end;
  }
  return ends;
}

}  // namespace rondo::ddp
