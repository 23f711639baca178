// Pace: a decorator that makes a transport in shared memory as slow as a given wire. It behaves like a
// network card: it delays what peers can see, and takes no CPU time.
//
// Each rank has one outgoing wire, which all its channels share. A message departs when the wire is
// free, occupies it for bytes / bandwidth, and can be seen `latency` after its last byte. Bytes that
// a peer reads from this rank's buffers in place, or that this rank writes into a peer's, occupy the
// wire as well (Transport::carry), and the signal that announces them is seen after they have
// arrived. Only the receiver waits, and Receiver::ready_at_ns and signal_ready_at_ns tell it until when.
// The FIFO's slots bound what is in flight: if depth * capacity is below bandwidth * latency, the FIFO
// sets the speed, not the wire.
#pragma once

#include <memory>
#include <string_view>

#include "rondo/status.hpp"
#include "transport/link.hpp"

namespace rondo::transport {

struct PaceOptions {
  double bytes_per_second = 0;  // > 0; infinity: latency only
  double latency_seconds = 0;   // >= 0
};

/// "1GB/s,20us", "100Mbit/s", "inf,20us": a bandwidth (B, KB, MB, GB, kbit, Mbit, Gbit per second,
/// powers of 1000) and, if given, a latency (ns, us, ms, s). Errors: kInvalidArgument, naming the
/// text and an example.
Result<PaceOptions> parse_pace(std::string_view text);

/// Memory that the ranks of a host share, all zero when the first of them begins: one outgoing wire for
/// each rank, and the times at which signals arrive.
struct Wires {
  std::byte* base;  // aligned to 64 bytes; wires_bytes() long; outlives the transports
  int ranks, channels, rank;
};
size_t wires_bytes(int ranks, int channels);

/// `inner` with that wire in front of it. Links, references and signals are delayed; publishers and
/// copies by the kernel are not offered. Slots carry 8 bytes less. REQUIRES: slots of more than 8
/// bytes.
std::unique_ptr<Transport> pace(std::unique_ptr<Transport> inner, PaceOptions options, Wires wires);

}  // namespace rondo::transport
