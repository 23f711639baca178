// What a rank does over and over until something goes wrong: calls with closed-form data, in which a
// missing, doubled or late contribution gives another number, and checks of every element.
#pragma once

#include <string>
#include <vector>

#include "tests/comm/faults/hosts_world.hpp"

namespace rondo::testing {

/// In and out, of `count` 64-bit integers on every rank. REQUIRES: count is a multiple of the ranks.
struct Buffers {
  Buffers(size_t elements, bool library)
      : count(elements), in(8 * count, library), out(8 * count, library) {}
  int64_t* input() { return reinterpret_cast<int64_t*>(in.data()); }
  int64_t* output() { return reinterpret_cast<int64_t*>(out.data()); }

  size_t count;
  Buffer in, out;
};

struct Operation {
  std::vector<std::string> names;  // by which errors call it, one of them
  /// Fails the rank, by expect(), if it returns ok and an element is wrong. `turn`: the same on all
  /// ranks, another one in each call.
  Status (*call)(Communicator& comm, Buffers& buffers, int turn);
};

/// Collectives, blocking and not, and messages.
const std::vector<Operation>& operations();

/// Announces "going" after three calls, and calls until one fails.
Status call_until_failure(Communicator& comm, Link& link, const Operation& operation,
                          Buffers& buffers);

/// Ranks that do so, once all of them are "going"; the first error stays.
HostsGang start(const Hosts& hosts, const Placement& placement, const Operation& operation,
                const Config& config = {}, size_t count = 1200, bool library = false);

}  // namespace rondo::testing
