// One run of the chaos test, by its seed: who does what, what goes wrong when, and how that may end.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/comm/faults/hosts_world.hpp"
#include "tests/harness/bad_network.hpp"

namespace rondo::testing {

enum class Fault : uint8_t {
  kNone,
  kKill,
  kKillTwo,
  kStop,
  kCut,     // the victim's host, from all others
  kMute,    // the same, but it still hears them
  kFreeze,  // the victim's host
  kAbort,
  kDisagree,
  kLeave,        // while it is created: it never comes
  kMemory,       // the victim may map no more, for a while
  kDescriptors,  // nor open
};
const char* name(Fault fault);

/// What the ranks are in when the fault strikes.
enum class During : uint8_t { kCreate, kWork, kShrink, kLeave };
const char* name(During during);

struct Run {
  explicit Run(unsigned seed);

  unsigned seed;
  Placement placement;
  During during;
  Fault fault;
  int victim, other;                 // ranks; kKillTwo: both; kShrink: `other` was killed before
  int turn;                          // in which the victim does something else
  std::chrono::microseconds moment;  // from the last rank's announcement to the fault
  std::optional<Wire> wire;          // of a bad network
  bool host_timeout;                 // RONDO_HOST_TIMEOUT=3

  int size() const { return static_cast<int>(placement.size()); }
  int host_of(int rank) const { return placement[static_cast<size_t>(rank)]; }
  bool takes_host() const {
    return fault == Fault::kCut || fault == Fault::kMute || fault == Fault::kFreeze;
  }
  /// The victim does it by itself, in `turn`.
  bool strikes_itself() const { return fault >= Fault::kAbort; }
  /// The rank may not end by itself, or without an error of its own.
  bool is_struck(int rank) const;
  /// Never ends by itself.
  bool is_gone(int rank) const;
  Config config() const;
  std::string to_string() const;
};

/// What became of a rank after its first communicator.
struct Afterwards {
  int64_t struck_ns;  // of a victim that strikes itself: when
  bool shrank;        // called shrink(), and that returned
  uint32_t members;   // of what it got, a bit each; 0: an error
  Code code;
  char text[500];
};

/// The life of one rank: create, work, shrink, work, destroy.
Status live(const Run& run, const Config& own, Link& link, Outcome& outcome,
            Afterwards& afterwards);

/// Checks how all ranks ended. Returns the longest time from the fault to an error.
double judge(const Run& run, HostsGang& gang, const Afterwards* afterwards, int64_t struck_ns);

}  // namespace rondo::testing
