// What travels between two ranks over UCX: tags, messages, and the address that a rank gives to the
// others. Numbers are in the byte order of the hosts, which UCX requires to be the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rondo::transport::ucx {

// A tag. Each channel has a worker of its own, so a tag needs no channel.
//   bits    field
//   56..63  kind
//   32..55  rank of the sender
//    0..31  kData, kPayload: slot, which is the sequence number modulo depth; kControl: 0
enum class WireKind : uint64_t { kData = 1, kControl = 2, kPayload = 3 };
constexpr uint64_t kMaxRanks = uint64_t{1} << 24;

constexpr uint64_t tag_of(WireKind kind, int sender, uint32_t slot) {
  return static_cast<uint64_t>(kind) << 56 | static_cast<uint64_t>(sender) << 32 | slot;
}
static_assert(tag_of(WireKind::kData, 3, 5) == 0x01000003'00000005u);

// A data message, sent and received in one piece that ends in the slot's payload:
//   offset  bytes  field
//   0       8      word: the engine's
//   8       8      sequence: number of the message on its link, from 0
//   16      8      released: messages of the opposite link that the sender has released
//   24      8      bytes: of the payload (UCX 1.13 does not always say how long a message was that had
//                  come before its receive was posted)
//   32      n      payload; of slots in a GPU's memory a message of its own (kPayload), if n > 0
struct DataHeader {
  uint64_t word;
  uint64_t sequence;
  uint64_t released;
  uint64_t bytes;
};
static_assert(sizeof(DataHeader) == 32 && offsetof(DataHeader, sequence) == 8 &&
              offsetof(DataHeader, released) == 16 && offsetof(DataHeader, bytes) == 24);

// A control message:
//   offset  bytes  field
//   0       8      released: as in DataHeader
//   8       8      leaves: 1 where the sender closes its links, and this is its last message
struct ControlMessage {
  uint64_t released;
  uint64_t leaves;
};
static_assert(sizeof(ControlMessage) == 16 && offsetof(ControlMessage, leaves) == 8);

// An address, followed for each channel by the length of its worker's address (4 bytes) and that
// address:
//   offset  bytes  field
//   0       4      magic
//   4       2, 2   major, minor version of UCX
//   8       4      channels
//   12      4      depth
//   16      8      slot_bytes
struct AddressHeader {
  uint32_t magic;
  uint16_t major, minor;
  uint32_t channels;
  uint32_t depth;
  uint64_t slot_bytes;
};
constexpr uint32_t kAddressMagic = 0x72756378;
static_assert(sizeof(AddressHeader) == 24 && offsetof(AddressHeader, channels) == 8 &&
              offsetof(AddressHeader, slot_bytes) == 16);

}  // namespace rondo::transport::ucx
