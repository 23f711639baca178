// What a device engine is given, and what it leaves behind: data only, shared by the host that
// launches and the kernel that walks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/engine/interpreter.hpp"
#include "rondo/types.hpp"
#include "transport/cuda_ipc/layout.hpp"

namespace rondo::engine {

inline constexpr uint32_t kMaxDeviceRanks = 64;

/// One end of a message (send or recv), of the host's Transfer what a kernel needs. Messages of one
/// peer and direction are a lane: the k-th send to a peer meets its k-th recv from this rank.
struct DeviceMessage {
  std::byte* buffer = nullptr;  // only read by the sending end
  uint64_t count : 51 = 0, peer : 6 = 0, type : 6 = 0, sends : 1 = 0;

  /// What both ends must have alike.
  constexpr uint64_t tag() const { return uint64_t{type} << 56 | count; }
  static constexpr DeviceMessage of_tag(uint64_t tag) {
    return {.buffer = nullptr,
            .count = tag & ((uint64_t{1} << 51) - 1),
            .peer = 0,
            .type = tag >> 56 & 63,
            .sends = 0};
  }
  constexpr uint64_t bytes() const { return count * size_of(static_cast<DataType>(type)); }
};
static_assert(sizeof(DeviceMessage) == 16 && kMaxDeviceRanks <= 64 && kDataTypes <= 64);

/// Why a channel gave up first, and for what it waited then; one per channel, read by the host,
/// which has cleared it. What goes well writes nothing: this is the host's memory, and far away.
struct DeviceReport {
  enum Ended : uint32_t { kNot, kAborted, kTimeout, kMismatch };
  enum Awaited : uint32_t { kNothing, kSlot, kFreeSlot, kSignal, kPost };
  Ended ended;
  Awaited awaited;
  int32_t peer;
  uint32_t step;  // instruction of the program
  uint64_t round;
  uint64_t epoch;
  uint64_t sequence = 0;  // DeviceOperation's; 0: it was a message
  DeviceMessage message;  // that one
  uint64_t found = 0;     // kMismatch of a message: the tag of what has come instead
  uint64_t whole = 0;     // 1: all of it is there; written last
};

/// What a rank's kernels know of their surroundings, the same for every operation. Trivially
/// copyable; a kernel's parameter, so that an address is at hand without a load from memory.
struct DeviceLinks {
  transport::cuda_ipc::Shape shape;
  uint32_t rank;
  const uint64_t* host_abort;            // not 0: who waits gives up
  DeviceReport* reports;                 // [channel]
  std::byte* segments[kMaxDeviceRanks];  // by rank, where this rank's GPU has them
};

/// How what is published travels. Equal on all ranks.
enum class Protocol : uint8_t {
  kSimple,  // NCCL's word: through slots with counters
  kLl,      // in lines that carry their flags (ll.hpp). REQUIRES: fits_ll()
};

/// One operation. Trivially copyable; a replayed graph brings the same one again.
struct DeviceOperation {
  ProgramView program;
  const schedule::Geometry* geometries;  // [channel]
  const std::byte* in;
  std::byte* out;
  DataType type;
  ReduceOp op;
  Protocol protocol;
  bool direct;       // peers touch these buffers: they are told where they are
  uint32_t divisor;  // in finishing moves
  bool scaled;       // In is multiplied by `factor` wherever it is read
  double factor;
  uint64_t fingerprint;   // of the call: what all ranks must agree on
  uint64_t limit_ns;      // without any movement of this channel
  uint64_t sequence = 0;  // the host's number for the call, for reports
  uint32_t channels = 0;  // those with something to do are the first ones
};

/// What one launch carries out: messages all at once, then operations one after the other. A
/// kernel's parameter, so that nothing has to be copied to the device for it.
struct DeviceGroup {
  static constexpr uint32_t kMostOperations = 8;
  static constexpr uint32_t kMostMessages = 128;  // a send and a recv for every peer

  uint32_t operation_count = 0, lane_count = 0;
  uint64_t limit_ns = 0;  // for messages: without any movement of this channel
  DeviceOperation operations[kMostOperations];
  DeviceMessage messages[kMostMessages];  // lane by lane
  uint8_t lane_ends[kMostMessages];       // [lane] behind its last message
};

/// How to lower an operation that is to go by LL: a channel's part is one slice. `element_bytes`
/// and `channels` are the operation's, `ll_bytes` the Shape's.
inline schedule::Limits ll_limits(size_t element_bytes, int channels, size_t ll_bytes) {
  return {.element_bytes = element_bytes,
          .slot_bytes = ll_bytes,
          .depth = 1,
          .channels = channels,
          .min_slice_bytes = ll_bytes};
}

/// Whether an operation, lowered so, can go by LL. It takes no more than an area holds, and
/// everybody has to hear from everybody in it, which is what makes areas free again (DeviceEngine):
/// a broadcast, or blocks of different sizes, would not do.
inline bool fits_ll(Collective collective, Algorithm algorithm, const schedule::Program& program,
                    size_t element_bytes, size_t ll_bytes) {
  if (algorithm != Algorithm::kOneShot) return false;
  if (collective != Collective::kAllReduce && collective != Collective::kAllGather &&
      collective != Collective::kBarrier) {
    return false;
  }
  for (const schedule::Geometry& part : program.channels) {
    if (part.rounds > 1 || part.slices > 1) return false;
    if (part.rounds == 1 && (part.end - part.begin) * element_bytes > ll_bytes) return false;
  }
  return true;
}

}  // namespace rondo::engine
