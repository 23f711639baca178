// Pace: a decorator that makes any transport as slow as a given wire, and burns no CPU for it.
//
// Each rank has one outgoing wire, shared by all its links and channels like one network card. A
// message departs when the wire is free, holds it for bytes / bandwidth, and can be seen `latency`
// after its last byte. The due time travels after the payload, so only the receiver waits, and
// Receiver::ready_at_ns says until when. What is in flight is bounded by the FIFO's slots:
// depth * capacity below bandwidth * latency means that the FIFO, not the wire, sets the pace.
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

/// `inner` with that wire in front of every link. It has links only. Slots carry 8 bytes less.
/// REQUIRES: slots of more than 8 bytes.
std::unique_ptr<Transport> pace(std::unique_ptr<Transport> inner, PaceOptions options);

}  // namespace rondo::transport
