// A device engine's input and its reports: data only, shared by the host that launches and the
// kernel that walks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/board/tags.hpp"
#include "comm/engine/interpreter.hpp"
#include "rondo/types.hpp"
#include "transport/cuda_ipc/layout.hpp"

namespace rondo::engine {

inline constexpr uint32_t kMaxDeviceRanks = 64;

/// One end of a message (send or recv): the part of the host's Transfer that a kernel needs.
/// Messages of one peer and direction are a lane: the k-th send to a peer matches its k-th recv
/// from this rank.
struct DeviceMessage {
  std::byte* buffer = nullptr;  // only read by the sending end
  uint64_t count : 51 = 0, peer : 6 = 0, type : 6 = 0, sends : 1 = 0;

  /// Must be equal at both ends.
  constexpr uint64_t tag() const { return board::message_word(static_cast<DataType>(type), count); }
  constexpr uint64_t bytes() const { return count * size_of(static_cast<DataType>(type)); }
};
static_assert(sizeof(DeviceMessage) == 16 && kMaxDeviceRanks <= 64 && kDataTypes <= 64);

/// Why a channel first gave up, and what it waited for; one per channel, cleared and read by the
/// host. Written only on failure, because it is host memory and slow to reach.
struct DeviceReport {
  enum Ended : uint32_t { kNot, kAborted, kTimeout, kMismatch };
  enum Awaited : uint32_t { kNothing, kSlot, kFreeSlot, kSignal, kPost, kMapping, kPlace, kEnded };
  Ended ended;
  Awaited awaited;
  int32_t peer;
  uint32_t step;  // instruction of the program
  uint64_t round;
  uint64_t epoch;
  uint64_t sequence = 0;  // DeviceOperation's; 0: it was a message
  DeviceMessage message;  // that one
  uint64_t found =
      0;  // kMismatch of a message: the tag of what has come instead; kPlace: the peer's
  uint64_t place = 0;  // kPlace: DeviceOperation's
  uint64_t whole = 0;  // 1: all of it is there; written last
};

/// What is the same for all operations of a rank's kernels. Trivially copyable; a kernel's
/// parameter, so that no address is loaded from memory.
struct DeviceLinks {
  transport::cuda_ipc::SegmentSizes shape;
  uint32_t rank;
  bool one_gpu = false;        // all ranks are threads of one process on one GPU
  const uint64_t* host_abort;  // not 0: waiting kernels end
  DeviceReport* reports;       // [channel]
  /// Null: peers' pointers are this rank's, too.
  const transport::cuda_ipc::PeerMapping* mappings = nullptr;
  /// A bit for each rank of another host: a proxy carries what passes between it and this rank
  /// (wire_proxy.hpp). Two further segments, in the host's memory: what such peers have written for
  /// this rank, and what this rank writes for them, as in theirs, but by their own numbers.
  uint64_t far = 0;
  std::byte *inbound = nullptr, *outbound = nullptr;
  /// The same of their slots alone, which by GPUDirect lie in the GPU's memory.
  std::byte *inbound_slots = nullptr, *outbound_slots = nullptr;
  std::byte* segments[kMaxDeviceRanks];  // by rank, where this rank's GPU has them; null: far
};

/// The protocol of published data. Equal on all ranks.
enum class Protocol : uint8_t {
  kSimple,  // NCCL's word: through slots with counters
  kLl,      // in lines that carry their flags (ll.hpp). REQUIRES: fits_ll()
};

/// A program and what it needs besides; in device memory.
struct StoredProgram {
  ProgramView view;
  const schedule::Geometry* geometries;  // [channel]
  Protocol protocol;
};

/// One operation. Trivially copyable; every replay of a graph repeats it.
struct DeviceOperation {
  ProgramView program;
  const schedule::Geometry* geometries;  // [channel]
  const std::byte* in;
  std::byte* out;
  DataType type;
  ReduceOp op;
  Protocol protocol;
  bool direct;            // peers touch these buffers, and get their addresses
  uint32_t divisor;       // in finishing moves
  bool scaled;            // In is multiplied by `factor` wherever it is read
  bool for_peers = true;  // peers can access these buffers; REQUIRES: else `staged`
  /// Of the buffers that peers access, where that takes registration: if it has ended since, as it
  /// may have before a replay, peers cannot access them. REQUIRES: then `staged`, too.
  transport::cuda_ipc::RegisteredIn registrations{};
  /// Begins copies (device_runner_copies.cpp): a barrier that fails unless all ranks have the same
  /// registrations and the same place.
  bool symmetric = false;
  uint64_t place = 0;
  double factor;
  uint64_t fingerprint;   // of the call: what all ranks must agree on
  uint64_t limit_ns;      // without any movement of this channel
  uint64_t sequence = 0;  // the host's number for the call, for reports
  uint64_t identity = 0;  // the operator's, in the first size_of(type) bytes
  uint32_t channels = 0;  // those with something to do are the first ones
  /// Not null, on every rank alike: the ranks tell each other whether peers can access their
  /// buffers, and if somewhere they cannot, all of them walk this program, which is not direct.
  const StoredProgram* staged = nullptr;
};

/// The work of one launch: messages all at once, then operations in order. A kernel parameter, so
/// that nothing has to be copied to the device.
struct DeviceGroup {
  static constexpr uint32_t kMostOperations = 8;
  static constexpr uint32_t kMostMessages = 128;  // a send and a recv per peer

  uint32_t operation_count = 0, lane_count = 0;
  uint64_t limit_ns = 0;  // for messages: without any movement of this channel
  DeviceOperation operations[kMostOperations];
  DeviceMessage messages[kMostMessages];  // lane by lane
  uint8_t lane_ends[kMostMessages];       // [lane] one past its last message
};

/// How to lower an operation for LL: a channel's part is one slice. `element_bytes` and `channels`
/// are the operation's, `ll_bytes` the SegmentSizes'.
inline schedule::Limits ll_limits(size_t element_bytes, int channels, size_t ll_bytes) {
  return {.element_bytes = element_bytes,
          .slot_bytes = ll_bytes,
          .depth = 1,
          .channels = channels,
          .min_slice_bytes = ll_bytes};
}

/// Whether an operation, lowered that way, fits into an area. It then uses LL if
/// algorithms::may_go_by_ll().
inline bool fits_ll(const schedule::Program& program, size_t element_bytes, size_t ll_bytes) {
  for (const schedule::Geometry& part : program.channels) {
    if (part.rounds > 1 || part.slices > 1) return false;
    if (part.rounds == 1 && (part.end - part.begin) * element_bytes > ll_bytes) return false;
  }
  return true;
}

}  // namespace rondo::engine
