// A request: what a call asks for, before and after it is checked. Knows the public contract
// (communicator.hpp) and nothing of how an operation is carried out.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "comm/plans.hpp"
#include "rondo/communicator.hpp"

namespace rondo::comm {

struct Request {
  Collective collective;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::shared_ptr<const schedule::Layout> layout{};  // of a _v collective
  bool is_split = false;                             // see recorder::Call

  friend bool operator==(const Request& a, const Request& b) {
    const bool same_layout =
        a.layout == b.layout || (a.layout && b.layout && *a.layout == *b.layout);
    return a.collective == b.collective && a.in == b.in && a.out == b.out && a.count == b.count &&
           a.type == b.type && a.op == b.op && a.root == b.root && a.is_split == b.is_split &&
           same_layout;
  }
};

/// The layout of a _v collective from the caller's spans. No offsets: one block after the other.
std::shared_ptr<const schedule::Layout> make_layout(std::span<const size_t> in_counts,
                                                    std::span<const size_t> in_offsets,
                                                    std::span<const size_t> out_counts,
                                                    std::span<const size_t> out_offsets);

/// Whether `rank` uses its In, or Out, at all.
bool reads(const Request& request, int rank);
bool writes(const Request& request, int rank);

/// kInvalidArgument, with the offending value, when the call makes no sense on this rank.
Status check(const Request& request, const CallOptions& options, int rank, int size);
/// Its part that does not look at buffers.
Status check_values(const Request& request, const CallOptions& options, int size);

/// What the plans need to know of a request that check() has passed.
Shape shape_of(const Request& request, const CallOptions& options, int rank);

}  // namespace rondo::comm
