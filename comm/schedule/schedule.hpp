// A schedule is data: what one rank does for a collective, as steps over symbolic chunks. It knows
// no bytes, pointers or dtypes, and there are three instructions only:
//
//   move    fold k sources (left to right) into m destinations. With slots as sources and
//           destinations this one instruction is send, recv, copy, reduce, recv_reduce_send,
//           recv_reduce_copy_send, recv_copy_send, publish, ... (name_of() gives the field's word).
//   signal  raise this rank's counter, which every peer can see.
//   wait    until a peer's counter has come as far as this rank's own (its last signal of this
//           operation), or, with flag kPosted, until the peer has posted this operation, its
//           buffers included.
//
// A chunk is one rank's share of a collective (or everything, where a collective is not divided).
// algorithms/ builds schedules; lowering turns one into a Program; see program.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/base/host_map.hpp"
#include "rondo/types.hpp"

namespace rondo::schedule {

/// Where an operand lies.
enum class OperandKind : uint8_t {
  kIn,    // own input buffer, chunk `chunk`; all_to_all: block `chunk`, see below
  kOut,   // own output buffer, likewise. In place, a copy of In onto itself is no access at
          // all: skip it
  kSlot,  // as a source: the next slot of the link from `peer`; as a destination: the next slot of
          // the link to `peer`
  kPublished,  // as a source: the next slot that `peer` publishes; as a destination: own next
               // published slot (`peer` unused)
  kPeerIn,     // `peer`'s input buffer, chunk `chunk`, read or written in place
  kPeerOut,    // `peer`'s output buffer, likewise
  kIdentity,   // as the only source of a move to Out: the operator's identity, in every element
};

struct Operand {
  OperandKind place;
  int32_t peer = -1;
  int32_t chunk = 0;
};
constexpr bool in_slot(const Operand& o) {
  return o.place == OperandKind::kSlot || o.place == OperandKind::kPublished;
}
/// A peer's buffer.
constexpr bool in_peer(const Operand& o) {
  return o.place == OperandKind::kPeerIn || o.place == OperandKind::kPeerOut;
}
constexpr bool is_in(const Operand& o) {
  return o.place == OperandKind::kIn || o.place == OperandKind::kPeerIn;
}
constexpr bool is_out(const Operand& o) {
  return o.place == OperandKind::kOut || o.place == OperandKind::kPeerOut;
}

enum class Action : uint8_t { kMove, kSignal, kWait };
enum class Flag : uint8_t { kPosted, kSignalled };

struct Step {
  Action action;
  Flag flag = Flag::kSignalled;  // kWait only
  bool finishes = false;  // kMove: its result is the finished reduction (where an average divides)
  int32_t peer = -1;      // kWait only
  /// kMove: which chunk of the collective this step is about; fixes offsets and lengths of its slot
  /// operands too.
  int32_t chunk = 0;
  std::vector<Operand> sources;
  std::vector<Operand> destinations;
};

/// Which block of In, or of Out, chunk `chunk` of a collective is. One and the same for all but
/// all_to_all, whose chunk from * N + to is block `to` of rank `from`'s In and block `from` of rank
/// `to`'s Out.
constexpr int block_in(Collective collective, int chunk, int ranks) {
  return base_of(collective) == Collective::kAllToAll ? chunk % ranks : chunk;
}
constexpr int block_out(Collective collective, int chunk, int ranks) {
  return base_of(collective) == Collective::kAllToAll ? chunk / ranks : chunk;
}

/// Which ranks share a host, held by the schedules of all ranks together; null: all do.
using SharedHosts = std::shared_ptr<const base::HostMap>;

/// One rank's part.
struct Schedule {
  Collective collective;
  Algorithm algorithm;
  int ranks;
  int rank;
  int root;                  // of the collectives that have one, else 0
  int chunks;                // into how many chunks the collective's data is divided
  uint32_t least_depth = 1;  // the smallest FIFO depth that it runs with
  std::vector<Step> steps;
  SharedHosts hosts = nullptr;
};

/// The field's word for a step: "send", "recv", "recv_reduce_send", "recv_reduce_copy_send",
/// "publish", "copy", "reduce", ...
const char* name_of(const Step& step);

}  // namespace rondo::schedule
