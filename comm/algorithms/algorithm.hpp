// What an algorithm is to the rest of the project: a row of traits. Each algorithm is one file of
// this folder, which defines its builders and its row; registry.cpp lists the rows. Everything else
// looks a row up and switches over no algorithms.
#pragma once

#include <span>

#include "comm/algorithms/formulas.hpp"
#include "comm/schedule/schedule.hpp"
#include "rondo/status.hpp"

namespace rondo::algorithms {

using schedule::Schedule;

/// What an algorithm needs of a transport.
struct Needs {
  bool publish = false;     // slots with one writer and many readers
  bool references = false;  // peers' buffers; an algorithm with this need is called direct
  bool signals = false;     // counters; an algorithm with this need uses no slots
  bool hosts = false;       // ranks on several hosts
  bool copies = false;  // a GPU's copy engines, which carry out its moves; never chosen by itself

  /// Memory that ranks share, which ranks of several hosts do not.
  bool one_host() const { return publish || references || signals; }
};

/// On which ranks peers access a buffer in place.
enum class Touched : uint8_t { kNowhere, kOnRoot, kOnOthers, kEverywhere };
constexpr bool is_touched(Touched where, int rank, int root) {
  return where == Touched::kEverywhere || (where == Touched::kOnRoot && rank == root) ||
         (where == Touched::kOnOthers && rank != root);
}

/// How an algorithm does one collective, and the _v form of it.
struct CollectiveTraits {
  Collective collective;
  /// Sets chunks and steps, for two ranks or more.
  void (*build)(Schedule&);
  Terms (*terms)(const Load&);
  /// nullptr: moves no data (a barrier).
  Volume (*volume)(const Position&) = nullptr;
  /// Between hosts; nullptr: the algorithm needs all ranks on one.
  WireTerms (*wire)(const Load&) = nullptr;
  /// The smallest FIFO depth: 2 where a rank passes on what it receives over links that it also
  /// starts on.
  uint32_t least_depth = 1;
  /// Whether In and Out may be in place (communicator.hpp).
  bool in_place = true;
  bool has_v_form = true;
  /// Whether small operations may go by LL on a device (DeviceEngine): every rank must hear from
  /// every other, which is what makes LL's areas free again.
  bool ll = false;
  /// A scan that folds rank after rank: each rank adds its input to what came through a slot. Where
  /// slots do not round the type, that gives the bits of a fold at once.
  bool folds_along = false;
  Touched in = Touched::kNowhere, out = Touched::kNowhere;
};

struct AlgorithmTraits {
  Algorithm algorithm;
  Needs needs = {};
  /// Every reduction folds the ranks' contributions in rank order 0..N-1, at once and in one place,
  /// so that the bits do not depend on where an element stands (VerifyReport::rank_order).
  bool folds_in_rank_order = true;
  /// Scaled inputs of types below four bytes may be folded. Not where every rank folds its own
  /// input as it is and the others' as they were rounded: results would differ between ranks.
  bool scales_small_floats = true;
  std::span<const CollectiveTraits> collectives = {};
};

/// Every algorithm, in the order of Algorithm.
std::span<const AlgorithmTraits* const> all();

/// The row; for kAuto, and values outside the enumeration, one that needs nothing and does nothing.
const AlgorithmTraits& traits_of(Algorithm algorithm);

/// How the algorithm does the collective; null: it does not.
const CollectiveTraits* find(Collective collective, Algorithm algorithm);

/// Whether the algorithm does the collective, and may when In and Out are in place. No all_to_all_v
/// may: its blocks differ in size.
bool is_in_place_safe(Collective collective, Algorithm algorithm);

/// Whether a reduction of `type` has the bits of a fold in rank order, at once and in one place.
bool folds_in_rank_order(Collective collective, Algorithm algorithm, DataType type);

/// Whether the algorithm does the collective, and may by LL. No _v form may.
bool may_go_by_ll(Collective collective, Algorithm algorithm);

/// What `rank` must move by the formula. REQUIRES: find(collective, algorithm), two ranks or more,
/// on hosts for which build() has a schedule.
Volume volume_of(Collective collective, Algorithm algorithm, const base::HostMap& hosts, int rank,
                 int root);

/// Why the algorithm cannot do with these hosts; null: it can.
const char* refusal_on(Algorithm algorithm, const base::HostMap& hosts);

/// Pure: the schedule of one rank. kUnavailable when the algorithm does not do that collective, or
/// not on these hosts. For one rank every algorithm is one local copy (nothing for a barrier). Ranks
/// up to 65536. `hosts` is not null.
Result<Schedule> build(Collective collective, Algorithm algorithm,
                       const schedule::SharedHosts& hosts, int rank, int root);

/// The same where all ranks are on one host.
Result<Schedule> build(Collective collective, Algorithm algorithm, int ranks, int rank, int root);

}  // namespace rondo::algorithms
