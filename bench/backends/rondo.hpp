// rondo behind the harness' interface.
#pragma once

#include <memory>
#include <optional>

#include "bench/harness/backend.hpp"
#include "rondo/rondo.hpp"

namespace rondo::bench {

/// `direct`: every rank's buffers are mapped by all, as library memory and threads' memory is; only
/// predictions need it.
struct RondoOptions {
  Config config;
  Algorithm algorithm = Algorithm::kAuto;  // of what is measured
  bool library_memory = false;
  bool direct = false;
};

/// What only rondo can do.
class RondoBackend : public Backend {
 public:
  /// From now on: the algorithm of what is measured (kAuto: rondo's choice), and whether
  /// predictions are for buffers that all ranks map.
  virtual void select(Algorithm algorithm, bool direct) = 0;
  /// What select()ed means for this shape; nothing where it is not possible here.
  virtual std::optional<Plan> planned(const Shape& shape) const = 0;
};

/// Blocks until all ranks have come.
Result<std::unique_ptr<RondoBackend>> make_rondo_backend(const RondoOptions& options);

}  // namespace rondo::bench
