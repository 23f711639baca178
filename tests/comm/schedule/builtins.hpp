// What the schedule tests have in common: lists of the built-in algorithms, limits, and proofs.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/comm/schedule/operations.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/sanitized.hpp"

namespace rondo::schedule::test {

using testing::kSanitized;

/// Matches a message that contains `words`.
inline auto says(const std::string& words) { return testing::contains(words); }

using Builtin = std::pair<Collective, Algorithm>;

/// Those of all collectives.
inline std::vector<Builtin> builtins_by(std::vector<Algorithm> (*algorithms)(Collective)) {
  std::vector<Builtin> all;
  for (const Collective collective : collectives()) {
    for (const Algorithm algorithm : algorithms(collective))
      all.emplace_back(collective, algorithm);
  }
  return all;
}
/// Every built-in algorithm of every collective on one host.
inline std::vector<Builtin> builtins() { return builtins_by(algorithms_of); }
/// The same on several hosts.
inline std::vector<Builtin> builtins_between_hosts() {
  return builtins_by(algorithms_between_hosts);
}
/// Those that need several hosts.
inline std::vector<Builtin> hierarchical_builtins() {
  std::vector<Builtin> some = builtins_between_hosts();
  std::erase_if(some, [](const Builtin& one) { return !needs_hosts(one.second); });
  return some;
}
inline std::vector<Builtin> all_builtins() {
  std::vector<Builtin> all = builtins();
  for (const Builtin& one : hierarchical_builtins()) all.push_back(one);
  return all;
}

/// The smallest FIFO depth of a built-in.
inline uint32_t least_depth(Collective collective, Algorithm algorithm) {
  return algorithms::find(collective, algorithm)->least_depth;
}

/// Slots of 16 floats: little data reaches many rounds. `min_slice_bytes` 0: as many slices as the
/// FIFOs take.
inline Limits tiny(uint32_t depth, int channels = 1) {
  return {.element_bytes = 4,
          .slot_bytes = 64,
          .depth = depth,
          .channels = channels,
          .align = 4,
          .min_slice_bytes = 0};
}

/// `count` elements by a built-in on its usual hosts.
inline OperationShape shape_of(const Builtin& builtin, int ranks, uint64_t count, int root = 0) {
  return {.collective = builtin.first,
          .algorithm = builtin.second,
          .ranks = ranks,
          .root = root,
          .count = count};
}

inline std::string describe(const SharedHosts& hosts) {
  std::string text;
  for (int r = 0; hosts && r < std::min(hosts->ranks(), 32); ++r) {
    text += (r == 0 ? ", hosts " : " ") + std::to_string(hosts->host_of(r));
  }
  return text;
}

inline std::string describe(const OperationShape& s, const Limits& limits) {
  return std::string(name(s.algorithm)) + " " + std::string(name(s.collective)) + " of " +
         std::to_string(s.count) + " elements, " + std::to_string(s.ranks) + " ranks, root " +
         std::to_string(s.root) + describe(s.hosts) + (s.in_place ? ", in place" : "") +
         ", depth " + std::to_string(limits.depth) + ", channels " +
         std::to_string(limits.channels);
}

/// Blocks of about `count` elements, some of them empty, in an order of their own and with gaps.
inline std::pair<std::vector<uint64_t>, std::vector<uint64_t>> uneven(
    int ranks, const std::function<uint64_t(uint64_t)>& count) {
  const auto n = static_cast<size_t>(ranks);
  std::vector<uint64_t> counts(n), offsets(n);
  for (size_t b = 0; b < n; ++b) counts[b] = count(b);
  uint64_t at = 1;
  for (size_t b = n; b-- > 0; at += counts[b] + b % 2) offsets[b] = at;
  return {counts, offsets};
}

/// The shape, with layouts if it is a _v collective: blocks are as large as `count` or a bit larger
/// (one element more at most where count is small), or empty.
inline OperationShape laid_out(OperationShape shape) {
  if (!is_varying(shape.collective)) return shape;
  const auto n = static_cast<uint64_t>(shape.ranks);
  const uint64_t count = shape.count;
  const auto block = [&](uint64_t from, uint64_t to) -> uint64_t {
    const uint64_t kind = (from * 3 + to * 5) % 7;
    return kind == 1 ? 0 : count + (kind == 2 ? 1 : 0) + (kind == 3 ? count / 2 : 0);
  };
  shape.layouts.clear();
  for (uint64_t r = 0; r < n; ++r) {
    BlockLayout layout;
    const internal::Form form = internal::form_of(shape.collective);
    if (form.in == internal::Holds::kEach) {
      std::tie(layout.in_counts, layout.in_offsets) = uneven(shape.ranks, [&](uint64_t b) {
        return shape.collective == Collective::kAllToAllV ? block(r, b) : block(b, 0);
      });
    }
    if (form.out == internal::Holds::kEach) {
      std::tie(layout.out_counts, layout.out_offsets) = uneven(shape.ranks, [&](uint64_t b) {
        return shape.collective == Collective::kAllToAllV ? block(b, r) : block(b, 0);
      });
    }
    shape.layouts.push_back(std::move(layout));
  }
  return shape;
}

inline LoweredOperation operation(const OperationShape& shape, const Limits& limits) {
  INFO(describe(shape, limits));
  Result<LoweredOperation> made = make_operation(laid_out(shape), limits);
  if (!made.ok()) FAIL(made.status().to_string());
  return std::move(*made);
}

/// The verdict on one operation, or on a sequence.
inline Status verdict(const std::vector<LoweredOperation>& operations, const Limits& limits) {
  return verify(operations, limits).status();
}

inline VerifyReport report_of(const LoweredOperation& op, const Limits& limits) {
  Result<VerifyReport> report = verify(std::span(&op, 1), limits);
  if (!report.ok()) FAIL(report.status().to_string());
  return std::move(*report);
}

/// The operation is right; in place only where it may be.
inline void prove(const OperationShape& shape, const Limits& limits) {
  if (shape.in_place && !algorithms::is_in_place_safe(shape.collective, shape.algorithm)) return;
  INFO(describe(shape, limits));
  (void)report_of(operation(shape, limits), limits);
}

}  // namespace rondo::schedule::test
