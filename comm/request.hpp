// A request: what a call asks for, before and after it is checked. Knows nothing of how an operation
// is carried out.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "comm/host/lanes.hpp"
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
  const schedule::BlockLayout* layout = nullptr;  // of a _v collective; whose it is outlives this
  bool is_split = false;                          // see board::Call
};

/// A request that has its layout with it, for the time of a call.
struct VaryingRequest : Request {
  VaryingRequest(Request request, schedule::BlockLayout own)
      : Request(request), own_layout(std::move(own)) {
    layout = &own_layout;
  }
  VaryingRequest(const VaryingRequest&) = delete;
  VaryingRequest& operator=(const VaryingRequest&) = delete;

  const schedule::BlockLayout own_layout;
};

/// The layout of a _v collective from the caller's spans. No offsets: one block after the other.
schedule::BlockLayout make_layout(std::span<const size_t> in_counts,
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

/// The same for a message.
const char* word_for(const engine::Transfer& transfer);
Status check(const engine::Transfer& transfer, const CallOptions& options, int size);

/// What the plans need to know of a request that check() has passed.
Shape shape_of(const Request& request, const CallOptions& options, int rank);

}  // namespace rondo::comm
