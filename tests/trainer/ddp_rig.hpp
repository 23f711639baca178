// Ranks as threads with a DistributedDataParallel each, and gradients that tell who made them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "rondo/rondo.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::testing {

using Ddp = DistributedDataParallel;
using Tensors = std::vector<DdpTensor>;

inline constexpr auto kOfSum = DdpOptions::Gradients::kOfSum;

inline int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

inline void ok(const Status& status) { expect(status.ok(), status.to_string()); }

/// That it is an error which says this.
inline void expect_error(const Status& status, const std::string& part) {
  expect(!status.ok(), "no error: " + part);
  expect_contains(status.to_string(), part);
}
inline void expect_code(const Status& status, Code code) {
  expect_eq(to_string(status.code()), to_string(code), status.to_string());
}

inline void expect_near(double actual, double expected, double bound, const std::string& what) {
  std::ostringstream text;
  text << what << " is " << actual << ", should be " << expected;
  expect(std::abs(actual - expected) <= bound, text.str());
}

/// Runs `body` as `ranks` ranks of one communicator, which is as `config` says.
inline void with_ranks(int ranks, Config config, const std::function<void(Communicator&)>& body,
                       How how = How::kThreads) {
  const TempDirectory meeting;
  config.world_size = ranks;
  config.rendezvous = meeting.path();
  require_all_ok(run_ranks(how, ranks, [&](int rank) {
    Config own = config;
    own.rank = rank;
    Result<Communicator> communicator = Communicator::create(own);
    ok(communicator.status());
    body(communicator.value());
  }));
}
inline void with_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  with_ranks(ranks, {}, body);
}
inline Config reproducible() {
  Config config;
  config.reproducible = true;
  return config;
}

/// Five tensors of 16 floats, by default in three buckets: {0, 1}, {2, 3}, {4}.
inline Tensors five() {
  Tensors tensors;
  for (const char* name : {"p0", "p1", "p2", "p3", "p4"}) {
    tensors.push_back({.name = name, .shape = {16}});
  }
  return tensors;
}
inline constexpr double kSmallMb = 128.0 / (1 << 20);
inline DdpOptions small_buckets() { return {.bucket_cap_mb = kSmallMb}; }

/// As many tensors of 1 MiB.
inline Tensors mebibytes(size_t count) {
  Tensors tensors;
  for (size_t t = 0; t < count; ++t) {
    tensors.push_back({.name = std::to_string(t), .shape = {1 << 18}});
  }
  return tensors;
}

inline Ddp make(Communicator& communicator, const DdpOptions& options = small_buckets(),
                Tensors tensors = five(), Tensors buffers = {}) {
  Result<Ddp> ddp = Ddp::create(communicator, std::move(tensors), std::move(buffers), options);
  ok(ddp.status());
  ok(ddp->replicate());
  return std::move(ddp).value();
}

/// Runs `body` on `ranks` ranks that have made one.
inline void with_ddp(int ranks, const DdpOptions& options, const Tensors& tensors,
                     const std::function<void(Ddp&)>& body) {
  with_ranks(ranks, [&](Communicator& communicator) {
    Ddp ddp = make(communicator, options, tensors);
    body(ddp);
  });
}
inline void with_ddp(int ranks, const DdpOptions& options, const std::function<void(Ddp&)>& body) {
  with_ddp(ranks, options, five(), body);
}

/// Tensors around a shard's unit and off it, the last one a second gradient of the first.
inline const Tensors kUnequal = {{.name = "table", .shape = {500, 30}},
                                 {.name = "small", .shape = {7}},
                                 {.name = "long", .shape = {9001}},
                                 {.name = "more", .shape = {500, 30}, .adds_to = 0}};

/// Runs `body` on `ranks` ranks that hold kUnequal, in buckets so small that panels of `table` end
/// inside a unit.
inline void with_unequal(int ranks, bool shard, const std::function<void(Ddp&)>& body) {
  with_ddp(ranks, {.bucket_cap_mb = 5000.0 / (1 << 20), .shard = shard}, kUnequal, body);
}

inline int rank_of(Ddp& ddp) { return ddp.communicator().rank(); }
inline float* gradients_of(Ddp& ddp) { return static_cast<float*>(ddp.gradients()); }
inline float* parameters_of(Ddp& ddp) { return static_cast<float*>(ddp.parameters()); }
inline void set_gradients(Ddp& ddp, float value) {
  std::fill_n(gradients_of(ddp), ddp.gradient_elements(), value);
}
inline std::vector<float> copy_of_gradients(Ddp& ddp) {
  return {gradients_of(ddp), gradients_of(ddp) + ddp.gradient_elements()};
}
inline std::vector<size_t> ends_of(const Ddp& ddp) {
  std::vector<size_t> ends;
  for (const DdpBucket& bucket : ddp.layout()) ends.push_back(bucket.offset + bucket.count);
  return ends;
}

/// "tensor:begin-end ..." for each bucket.
inline std::string show(const std::vector<DdpBucket>& layout) {
  std::ostringstream text;
  for (size_t b = 0; b < layout.size(); ++b) {
    if (b > 0) text << " |";
    for (const DdpBucket::Piece& p : layout[b].pieces) {
      text << " " << p.tensor << ":" << p.begin << "-" << p.end;
    }
  }
  return text.str().substr(1);
}

/// A value that tells rank, step and element apart; sums of a few are exact in float.
inline float contribution(int rank, int step, size_t element) {
  return static_cast<float>((rank + 1) * 1000 + step * 100 + static_cast<int>(element));
}
inline double sum_of_contributions(int ranks, int step, size_t element) {
  double sum = 0;
  for (int r = 0; r < ranks; ++r) sum += contribution(r, step, element);
  return sum;
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

/// A step of gradients that are there already; returns what finish() does.
inline Status try_step(Ddp& ddp, const DdpHeader& header = {.loss_terms = 1}) {
  ok(ddp.begin(header));
  all_ready(ddp);
  return ddp.finish();
}
/// The same; it must succeed.
inline void make_step(Ddp& ddp, const DdpHeader& header = {.loss_terms = 1}) {
  ok(try_step(ddp, header));
}

/// A hook that sums each bucket where it lies. Tests override what they watch.
struct SummingHook : CommunicationHook {
  std::string name() const override { return "summing"; }
  Work start(Communicator& communicator, const GradientBucket& bucket) override {
    return communicator.all_reduce_async(bucket.data, bucket.data, bucket.count, bucket.type);
  }
  void finish(const GradientBucket& /*bucket*/) override {}
};

}  // namespace rondo::testing
