// Ranks as threads with a DistributedDataParallel each, and gradients that tell who made them.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "rondo/rondo.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::testing {

using Ddp = DistributedDataParallel;

inline int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

inline void ok(const Status& status) { expect(status.ok(), status.to_string()); }

/// Runs `body` as `ranks` ranks of one communicator.
inline void with_ranks(int ranks, const std::function<void(Communicator&)>& body,
                       bool reproducible = false, How how = How::kThreads) {
  const TempDirectory meeting;
  require_all_ok(run_ranks(how, ranks, [&](int rank) {
    Config config;
    config.rank = rank;
    config.world_size = ranks;
    config.rendezvous = meeting.path();
    config.reproducible = reproducible;
    Result<Communicator> communicator = Communicator::create(config);
    ok(communicator.status());
    body(communicator.value());
  }));
}

/// Five tensors of 16 floats, by default in three buckets: {0, 1}, {2, 3}, {4}.
inline std::vector<DdpTensor> five() {
  std::vector<DdpTensor> tensors;
  for (const char* name : {"p0", "p1", "p2", "p3", "p4"}) {
    tensors.push_back({.name = name, .shape = {16}});
  }
  return tensors;
}
inline DdpOptions small_buckets() { return {.bucket_cap_mb = 128.0 / (1 << 20)}; }

inline Ddp make(Communicator& communicator, const DdpOptions& options = small_buckets(),
                std::vector<DdpTensor> tensors = five()) {
  Result<Ddp> ddp = Ddp::create(communicator, std::move(tensors), {}, options);
  ok(ddp.status());
  ok(ddp->replicate());
  return std::move(ddp).value();
}

/// Tensors around a shard's unit and off it, the last one a second gradient of the first.
inline const std::vector<DdpTensor> kUnequal = {{.name = "table", .shape = {500, 30}},
                                                {.name = "small", .shape = {7}},
                                                {.name = "long", .shape = {9001}},
                                                {.name = "more", .shape = {500, 30}, .adds_to = 0}};

/// Runs `body` on `ranks` ranks that hold kUnequal, in buckets so small that panels of `table` end
/// inside a unit.
inline void with_unequal(int ranks, bool shard, const std::function<void(Ddp&)>& body) {
  with_ranks(ranks, [&](Communicator& communicator) {
    Ddp ddp = make(communicator, {.bucket_cap_mb = 5000.0 / (1 << 20), .shard = shard}, kUnequal);
    body(ddp);
  });
}

/// A value that tells rank, step and element apart; sums of a few are exact in float.
inline float contribution(int rank, int step, size_t element) {
  return static_cast<float>((rank + 1) * 1000 + step * 100 + static_cast<int>(element));
}

inline void fill(Ddp& ddp, int rank, int step) {
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    for (size_t i = 0; i < ddp.tensors()[t].count(); ++i) {
      ddp.gradient<float>(t)[i] = contribution(rank, step, 16 * t + i);
    }
  }
}

inline void all_ready(Ddp& ddp) {
  for (size_t t = 0; t < ddp.tensors().size(); ++t) ddp.gradient_ready(t);
}

}  // namespace rondo::testing
