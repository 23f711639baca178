// Plans: which programs an operation of a given shape may follow. Choosing, building and lowering
// happen once per shape; operations find the result by a look at the last one, or by a hash.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "comm/engine/operation.hpp"
#include "comm/tuner/choose.hpp"

namespace rondo::comm {

/// What is fixed for a communicator when it is made.
struct PlanLimits {
  int ranks, rank;
  int channels;
  uint32_t depth, publish_depth;
  size_t slot_bytes, publish_slot_bytes;
  bool on_device = false;
  size_t ll_bytes = 0;  // of an LL area, on a device (comm/device/ll.hpp); 0: nothing goes by LL
  tuner::LinkProfile profile;
  tuner::Available available;              // with `direct` as far as the transport goes
  Algorithm algorithm = Algorithm::kAuto;  // Config::algorithm
  bool wrapping_averages = false;          // Config::wrapping_averages
  base::HostMap hosts = {};                // of `ranks`, or empty: all on one host
  std::string title = {};                  // of the communicator, for messages
};

/// Everything about an operation but its buffers.
struct Shape {
  board::Fingerprint call;  // algorithm: CallOptions::algorithm
  bool in_place = false;
  schedule::BlockLayout layout{};  // of a _v collective

  friend bool operator==(const Shape&, const Shape&) = default;
};

/// Thread rule: the communicator's.
class Plans {
 public:
  explicit Plans(const PlanLimits& limits);

  /// Remembers what it makes, and says on rank 0 at level debug how it goes, but for _v collectives:
  /// their counts hardly repeat.
  /// Errors: kUnavailable (a forced algorithm cannot do it), kInvalidArgument (slots too small).
  Result<std::shared_ptr<const engine::Prepared>> find(const Shape& shape);
  /// The same, made anew and not remembered.
  Result<std::shared_ptr<const engine::Prepared>> prepare(const Shape& shape) const;

  const PlanLimits& limits() const { return limits_; }
  /// Payload that passes between a rank and the others by what that rank does, for the rank for
  /// which it is most (Stats::bytes_sent). Builds every rank's program.
  Result<uint64_t> most_bytes_moved(const Shape& shape, Algorithm algorithm) const;

 private:
  struct Hash {
    size_t operator()(const Shape& shape) const {
      return shape.call.hash() * 2 + (shape.in_place ? 1 : 0);
    }
  };
  void measure(const Shape& shape, engine::Prepared& prepared) const;
  void choose_kernel(const Shape& shape, engine::Prepared& prepared) const;
  Status check_scaling(const board::Fingerprint& call) const;
  Algorithm forced_algorithm(const board::Fingerprint& call) const;
  Result<engine::ExecutionPlan> make(const Shape& shape, Algorithm algorithm, int rank) const;
  std::string say_choice(const engine::Prepared& prepared) const;
  /// Whether the call is an average of integers whose sum must not wrap.
  bool averages_exactly(const board::Fingerprint& call) const;
  bool in_allowed_order(const board::Fingerprint& call, Algorithm algorithm) const;
  Status choose_forced(const Shape& shape, Algorithm forced, engine::Prepared& prepared) const;
  Status choose_automatically(const Shape& shape, engine::Prepared& prepared) const;
  /// Of those that need no `references` to peers' buffers, or no `process_copy`, if these are false.
  Algorithm cheapest(const Shape& shape, bool references, bool process_copy) const;

  PlanLimits limits_;
  schedule::SharedHosts hosts_;
  std::unordered_map<Shape, std::shared_ptr<const engine::Prepared>, Hash> prepared_;
};

}  // namespace rondo::comm
