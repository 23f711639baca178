// Ranks as threads with a DistributedDataParallel each in the memory of a stand-in for a GPU
// (tests/comm/device/fake_gpu.hpp), and the same training there and on the host. The test touches
// memory only in tasks of a rank's compute stream; on the host these run at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/comm/device/world.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/trainer/ddp_rig.hpp"

namespace rondo::testing {

using device::test::FakeGpu;
using device::test::Installed;

/// What a rank of a test has.
struct DdpRank {
  Communicator& ranks;
  Communicator* host;  // null: `ranks` is on the host itself
  void* stream;        // the compute stream
  std::function<void(FakeGpu::Task)> compute;

  DdpOptions with(DdpOptions options) const {
    options.host = host;
    options.stream = stream;
    return options;
  }
};
using RankBody = std::function<void(DdpRank&)>;

/// Buckets take several rounds.
inline Config small_slots(const std::string& meeting, int rank, int ranks, bool reproducible) {
  Config config;
  config.channels = 2;
  config.slots = 4;
  config.slot_bytes = 2048;
  config.reproducible = reproducible;
  return world_config(meeting, rank, ranks, config);
}

inline void on_host(int ranks, const RankBody& body, bool reproducible = true) {
  const TempDirectory meeting;
  require_all_ok(run_ranks(
      How::kThreads, ranks,
      [&](int rank) {
        auto made = Communicator::create(small_slots(meeting.path(), rank, ranks, reproducible));
        ok(made.status());
        DdpRank self{.ranks = *made, .host = nullptr, .stream = nullptr, .compute = [](auto task) {
                       task();
                     }};
        body(self);
      },
      std::chrono::seconds{300}));
}

/// The same on one GPU, with a stream for each rank. `links`: Config's.
inline void on_gpu(const std::shared_ptr<FakeGpu>& gpu, int ranks, const RankBody& body,
                   bool reproducible = true, const std::string& links = {}) {
  const Installed installed(gpu);
  const TempDirectory meeting, host_meeting;
  require_all_ok(run_ranks(
      How::kThreads, ranks,
      [&](int rank) {
        Config config = small_slots(meeting.path(), rank, ranks, reproducible);
        config.device = rank % static_cast<int>(gpu->devices.size());
        config.links = links;
        auto on_device = Communicator::create(config);
        ok(on_device.status());
        auto host =
            Communicator::create(small_slots(host_meeting.path(), rank, ranks, reproducible));
        ok(host.status());
        const device::Stream stream = *gpu->FakeGpu::create_stream();
        DdpRank self{.ranks = *on_device,
                     .host = &*host,
                     .stream = stream,
                     .compute = [&](FakeGpu::Task task) { gpu->enqueue(stream, std::move(task)); }};
        body(self);
        gpu->drain(stream);
        on_device = Status(Code::kAborted, "ended");  // before its stream
        ok(gpu->destroy_stream(stream));
      },
      std::chrono::seconds{300}));
}

/// Off and on the units of shards; "skipped" may be.
inline Tensors odd_tensors() {
  return {{.name = "head", .shape = {30, 20}},
          {.name = "bias", .shape = {20}},
          {.name = "skipped", .shape = {33}},
          {.name = "long", .shape = {5 * kDdpShardUnit + 9}},
          {.name = "last", .shape = {7}}};
}
inline Tensors two_buffers() {
  return {{.name = "mean", .shape = {5}},
          {.name = "steps", .shape = {3}, .type = DataType::kFloat64}};
}

/// How to train, the same on every rank.
struct Training {
  Training() { options.bucket_cap_mb = 20000.0 / (1 << 20); }

  DdpOptions options;
  Tensors tensors = odd_tensors(), buffers = two_buffers();
  int steps = 4, micro_batches = 1;
  bool runs_out = false;  // rank 0 has no data in the last two steps
  bool may_skip = false;  // ranks skip "skipped" in turn; in step 1 all do
  bool equal_terms = false;
};

inline float gradient_part(int rank, int step, int micro, size_t element) {
  return std::sin(static_cast<float>(element % 997 + 1) *
                  static_cast<float>(3 * rank + step + 2 * micro + 1));
}

/// What a rank's parameters, own gradients and buffers are after each step.
using Trained = std::vector<float>;
using TrainedRanks = std::vector<Trained>;

inline void require_equal(const TrainedRanks& wanted, const TrainedRanks& found) {
  for (size_t r = 0; r < wanted.size(); ++r) {
    INFO("rank " << r);
    REQUIRE(found[r].size() == wanted[r].size());
    const auto differ = std::mismatch(wanted[r].begin(), wanted[r].end(), found[r].begin());
    INFO("differs at " << differ.first - wanted[r].begin() << " of " << wanted[r].size());
    const bool same = differ.first == wanted[r].end();
    CHECK(same);
  }
}

/// One rank's training, in which everything that touches memory is a task of the compute stream:
/// gradients depend on parameters, and parameters are updated as each bucket is reduced.
class Trainer {
 public:
  Trainer(DdpRank& self, Ddp& ddp, const Training& training)
      : self_(self), ddp_(ddp), training_(training), rank_(self.ranks.rank()) {}

  void set_parameters() {
    for (const DdpTensor& tensor : ddp_.tensors()) {
      self_.compute([data = static_cast<float*>(tensor.data), count = tensor.count(), r = rank_] {
        for (size_t i = 0; i < count; ++i) {
          data[i] = r == 0 ? static_cast<float>(i % 13) / 8 - 0.5F : 77.0F;
        }
      });
    }
    write_buffers(-1);
    ok(ddp_.replicate());
  }

  void step(int s) {
    const bool empty = training_.runs_out && rank_ == 0 && s + 2 >= training_.steps;
    const uint64_t terms = training_.equal_terms ? 4 : static_cast<uint64_t>(5 * rank_ + s + 1);
    ok(ddp_.begin({.loss_terms = empty ? 0 : terms, .end_of_data = empty}));
    write_buffers(s);
    const int last = training_.micro_batches - 1;
    for (int micro = 0; micro < last; ++micro) {
      const auto quiet = ddp_.no_sync();
      backward(s, micro, empty);
    }
    backward(s, last, empty);
    ok(ddp_.finish([&](size_t bucket) { update(bucket); }));
    if (!ddp_.is_sharded()) return;
    for (size_t b = ddp_.layout().size(); b-- > 0;) ddp_.gather_parameters(b);
    ok(ddp_.wait_parameters());
  }

  /// Adds what memory holds when the compute stream gets there.
  void note(Trained& trained) {
    const auto add = [&](const float* from, size_t count) {
      self_.compute([=, &trained] { trained.insert(trained.end(), from, from + count); });
    };
    for (const DdpTensor& tensor : ddp_.tensors()) {
      add(static_cast<const float*>(tensor.data), tensor.count());
    }
    // With shards this rank's are others on the host, and only parameters tell.
    for (size_t b = 0; b < ddp_.layout().size() && !ddp_.is_sharded(); ++b) {
      for_own(b, [&](size_t tensor, size_t begin, size_t end) {
        add(ddp_.gradient<float>(tensor) + begin, end - begin);
      });
    }
    add(static_cast<const float*>(ddp_.buffer(0)), 5);
    self_.compute([from = static_cast<const double*>(ddp_.buffer(1)), &trained] {
      for (size_t i = 0; i < 3; ++i) trained.push_back(static_cast<float>(from[i]));
    });
  }

 private:
  bool skips(size_t tensor, int s, int micro) const {
    return training_.may_skip && tensor == 2 && (s == 1 || (rank_ + s + micro) % 3 == 0);
  }

  void write_buffers(int s) {
    self_.compute([mean = static_cast<float*>(ddp_.buffer(0)),
                   steps = static_cast<double*>(ddp_.buffer(1)), s, r = rank_] {
      for (int i = 0; i < 5; ++i) mean[i] = static_cast<float>(100 * r + 10 * s + i);
      for (int i = 0; i < 3; ++i) steps[i] = -1000.0 * r - s;
    });
  }

  void backward(int s, int micro, bool empty) {
    for (size_t t = 0; t < ddp_.tensors().size(); ++t) {
      if (skips(t, s, micro)) {
        ddp_.gradient_skipped(t);
        continue;
      }
      // Begun by begin() with zeros where it may be skipped.
      const bool adds = micro > 0 || (training_.may_skip && t == 2);
      self_.compute([gradient = ddp_.gradient<float>(t), parameter = ddp_.parameter<float>(t),
                     count = ddp_.tensors()[t].count(), r = rank_, s, micro, adds, empty] {
        for (size_t i = 0; i < count; ++i) {
          const float part =
              empty ? 0.0F : gradient_part(r, s, micro, i) + 0.01F * parameter[i] * parameter[i];
          gradient[i] = (adds ? gradient[i] : 0.0F) + part;
        }
      });
      const size_t half = ddp_.tensors()[t].count() / 2;
      if (t == 3) ddp_.gradient_ready(t, half);
      ddp_.gradient_ready(t);
    }
  }

  template <class Body>
  void for_own(size_t bucket, const Body& body) const {
    const DdpRange own = ddp_.own_range(bucket);
    for (const DdpBucket::Piece& piece : ddp_.layout()[bucket].pieces) {
      const size_t offset = ddp_.offset(piece.tensor);
      const size_t begin = std::max(own.begin, offset + piece.begin);
      const size_t end = std::min(own.end, offset + piece.end);
      if (begin < end) body(piece.tensor, begin - offset, end - offset);
    }
  }

  void update(size_t bucket) {
    for_own(bucket, [&](size_t tensor, size_t begin, size_t end) {
      if (!ddp_.used(tensor)) return;
      self_.compute(
          [p = ddp_.parameter<float>(tensor), g = ddp_.gradient<float>(tensor), begin, end] {
            for (size_t i = begin; i < end; ++i) p[i] -= 0.5F * g[i];
          });
    });
  }

  DdpRank& self_;
  Ddp& ddp_;
  const Training& training_;
  const int rank_;
};

inline Ddp make(DdpRank& self, const DdpOptions& options = small_buckets(),
                const Tensors& tensors = five()) {
  return make(self.ranks, self.with(options), tensors);
}
inline Ddp make(DdpRank& self, const Training& training) {
  Tensors tensors = training.tensors;
  tensors[2].may_skip = training.may_skip;
  Result<Ddp> ddp =
      Ddp::create(self.ranks, std::move(tensors), training.buffers, self.with(training.options));
  ok(ddp.status());
  return std::move(ddp).value();
}

/// A rank's whole training; `trained` is complete once the compute stream is through.
inline void train_with(DdpRank& self, Ddp& ddp, const Training& training, TrainedRanks& trained) {
  Trained& own = trained[static_cast<size_t>(self.ranks.rank())];
  Trainer trainer(self, ddp, training);
  trainer.set_parameters();
  trainer.note(own);
  for (int s = 0; s < training.steps; ++s) {
    trainer.step(s);
    trainer.note(own);
  }
}
inline void train(DdpRank& self, const Training& training, TrainedRanks& trained) {
  Ddp ddp = make(self, training);
  train_with(self, ddp, training, trained);
}

inline TrainedRanks trained_on_host(int ranks, const Training& training) {
  TrainedRanks all(static_cast<size_t>(ranks));
  on_host(ranks, [&](DdpRank& self) { train(self, training, all); });
  return all;
}

/// Trains on new GPUs of `make_gpu`, again and again: each time another call of rank 0's fails, every
/// `stride`-th in turn, until none does. That is the only error. `check` runs behind each training,
/// and is told how much was alive before.
inline void fail_calls(int ranks, int stride, const Training& training,
                       const std::function<std::shared_ptr<FakeGpu>()>& make_gpu,
                       const std::function<void(FakeGpu&, size_t before)>& check = {}) {
  bool failed = true;
  int tried = 0;
  for (int k = 0; failed; k += stride) {
    REQUIRE(k < 4000);
    INFO("call " << k << " of " << ranks << " ranks");
    ++tried;
    const auto gpu = make_gpu();
    std::atomic<bool> has_failed{false};
    on_gpu(gpu, ranks, [&](DdpRank& self) {
      ok(self.host->barrier());
      const size_t before = gpu->alive();
      ok(self.host->barrier());
      if (self.ranks.rank() == 0) {
        gpu->calls = 0;
        gpu->fail_at = k;
      }
      ok(self.host->barrier());
      try {
        TrainedRanks trained(static_cast<size_t>(ranks));
        train(self, training, trained);
        gpu->drain(self.stream);
      } catch (const std::exception& error) {  // of ok()
        expect_contains(error.what(), "told to fail");
      }
      gpu->drain(self.stream);
      if (gpu->calls > k) has_failed = true;
      if (check) check(*gpu, before);
      gpu->fail_at = -1;
    });
    CHECK(gpu->freed_while_imported == 0);
    CHECK(gpu->imported() == 0);
    CHECK(gpu->alive() == 0);
    failed = has_failed;
  }
  CHECK(tried > (kSanitized ? 3 : 10));
}

}  // namespace rondo::testing
