// DistributedDataParallel in the memory of a GPU (a stand-in for one): results. Whatever the
// options, every rank has the bits that it has on the host, where each operation folds in rank
// order.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

#include "kernels/half.hpp"
#include "tests/trainer/ddp_device_rig.hpp"

using namespace rondo;
using namespace rondo::testing;

namespace {

const std::vector<int> kRanks = kSanitized ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 4};

TrainedRanks trained_on_gpu(int ranks, const Training& training,
                            const std::shared_ptr<FakeGpu>& gpu = std::make_shared<FakeGpu>()) {
  // What does not wait for a reduction then comes before it.
  gpu->first_block_is_late = ranks == 2;
  TrainedRanks all(static_cast<size_t>(ranks));
  on_gpu(gpu, ranks, [&](DdpRank& self) { train(self, training, all); });
  CHECK(gpu->alive() == 0);
  return all;
}

/// Reduces a bucket by two collectives, and does something before, between and after them, all on
/// the stream: each rank's gradients are made wrong and right again, at the end by another's value.
struct OnStream : CommunicationHook {
  explicit OnStream(FakeGpu& its_gpu) : gpu(its_gpu) {}

  std::string name() const override { return "on a stream"; }
  Work start(Communicator& /*communicator*/, const GradientBucket& /*bucket*/) override {
    throw std::logic_error("start() on a device");
  }
  void finish(const GradientBucket& /*bucket*/) override {
    throw std::logic_error("finish() on a device");
  }
  bool works_on_device() const override { return true; }
  Status enqueue(Communicator& communicator, const GradientBucket& bucket, void* stream) override {
    auto* const data = static_cast<float*>(bucket.data);
    float* const own = data + bucket.own_offset;
    const auto negate = [=, this](float* from, size_t count) {
      gpu.enqueue(stream, [=] { std::transform(from, from + count, from, std::negate<>()); });
    };
    CallOptions call;
    call.stream = stream;
    call.factor = bucket.factor;
    negate(data, bucket.count);
    RONDO_TRY(bucket.shard_counts.empty()
                  ? communicator.all_reduce(data, data, bucket.count, bucket.type,
                                            ReduceOp::kMulSum, call)
                  : communicator.reduce_scatter(data, own, bucket.own_count, bucket.type,
                                                ReduceOp::kMulSum, call));
    negate(own, bucket.own_count);
    const int rank = communicator.rank();
    gpu.enqueue(stream, [this, rank] { turns[static_cast<size_t>(rank)] = 1.0F; });
    call.factor = 1;
    float* const turn = &turns[static_cast<size_t>(rank)];
    RONDO_TRY(communicator.all_reduce(turn, turn, 1, DataType::kFloat32, ReduceOp::kSum, call));
    gpu.enqueue(stream, [=, this, ranks = static_cast<float>(communicator.size())] {
      if (*turn != ranks) own[0] = 12345;
      ++calls;
    });
    return {};
  }

  FakeGpu& gpu;
  std::vector<float> turns = std::vector<float>(8);  // by rank
  std::atomic<int> calls{0};
};

void require_same(const Training& training, const std::vector<int>& ranks = kRanks) {
  for (const int n : ranks) {
    INFO(n << " ranks");
    require_equal(trained_on_host(n, training), trained_on_gpu(n, training));
  }
}

}  // namespace

TEST_CASE("ddp device: steps have the host's bits") { require_same({}); }

TEST_CASE("ddp device: accumulated micro-batches, without overlap, one bucket a tensor") {
  Training training;
  training.micro_batches = 3;
  require_same(training, {2});
  training.options.overlap = false;
  require_same(training, {3});
  training.options.bucket_cap_mb = 0;
  require_same(training, {2});
}

TEST_CASE("ddp device: before and after buckets are laid out anew") {
  Training training;
  training.options.bucket_cap_mb = kDdpAutoCap;
  training.options.auto_after_steps = 2;
  require_same(training);
  training.micro_batches = 2;
  training.options.overlap = false;
  training.may_skip = true;
  require_same(training, {3});
}

TEST_CASE("ddp device: means over ranks, and gradients of sums") {
  Training training;
  training.options.average = DdpOptions::Average::kRanks;
  require_same(training, {3});
  training.options.gradients = kOfSum;
  require_same(training, {2});
  training.options.average = DdpOptions::Average::kLossTerms;
  require_same(training, {3});
  training.options.average = DdpOptions::Average::kNone;
  require_same(training, {3});
  training.options.shard = true;
  require_same(training, {2});
}

TEST_CASE("ddp device: a rank that runs out of data joins with empty batches") {
  Training training;
  training.runs_out = true;
  training.options.join = true;
  require_same(training, {2, 3});
}

TEST_CASE("ddp device: tensors that ranks skip, or all ranks do") {
  Training training;
  training.micro_batches = 2;
  training.may_skip = true;
  require_same(training);
}

TEST_CASE("ddp device: shards") {
  Training training;
  training.options.shard = true;
  require_same(training);
  training.options.bucket_cap_mb = 25;
  require_same(training, {2, 4});
}

TEST_CASE("ddp device: shards are equal blocks, which together are all") {
  for (const double cap_mb : {0.0, 20000.0 / (1 << 20), 25.0}) {
    for (const int ranks : kRanks) {
      INFO(ranks << " ranks, " << cap_mb << " MiB");
      Training training;
      training.tensors[3].shape = {400, 50};  // panels of rows
      training.options.shard = true;
      training.options.bucket_cap_mb = cap_mb;
      on_gpu(std::make_shared<FakeGpu>(), ranks, [&](DdpRank& self) {
        const Ddp ddp = make(self, training);
        size_t begin = 0;
        for (size_t b = 0; b < ddp.layout().size(); ++b) {
          const DdpBucket& bucket = ddp.layout()[b];
          const auto n = static_cast<size_t>(ranks);
          expect_eq(bucket.offset, begin, "buckets follow each other");
          expect(n == 1 || bucket.count % (n * 16) == 0, "blocks of whole lines");
          const DdpRange own = ddp.own_range(b);
          expect_eq(own.count(), bucket.count / n, "a block");
          expect_eq(own.begin, begin + static_cast<size_t>(self.ranks.rank()) * own.count(),
                    "this rank's");
          begin += bucket.count;
        }
        expect_eq(begin, ddp.gradient_elements(), "all gradients");
        expect_eq(begin, ddp.parameter_elements(), "all parameters");
        ok(self.host->barrier());
      });
      require_same(training, {ranks});
    }
  }
}

TEST_CASE("ddp device: a hook enqueues what reduces a bucket") {
  for (const bool shard : {false, true}) {
    for (const int ranks : {1, 3}) {
      INFO(ranks << " ranks, shard " << shard);
      Training training;
      training.options.shard = shard;
      const TrainedRanks wanted = trained_on_host(ranks, training);
      const auto gpu = std::make_shared<FakeGpu>();
      const auto hook = std::make_shared<OnStream>(*gpu);
      training.options.hook = hook;
      require_equal(wanted, trained_on_gpu(ranks, training, gpu));
      CHECK(hook->calls >= ranks * training.steps * 2);  // at least two buckets
    }
  }
}

TEST_CASE("ddp device: each rank keeps its buffers if they are not broadcast") {
  Training training;
  training.options.broadcast_buffers = false;
  require_same(training, {2});
}

TEST_CASE("ddp device: the caller's memory, some of it as buckets lie, has the same bits") {
  const Training training;
  for (const bool flat : {false, true}) {
    const TrainedRanks wanted = trained_on_host(2, training);
    const auto gpu = std::make_shared<FakeGpu>();
    TrainedRanks found(2);
    on_gpu(gpu, 2, [&](DdpRank& self) {
      Training own = training;
      std::vector<std::byte*> pieces;
      const auto give = [&](size_t bytes) {
        pieces.push_back(*gpu->allocate(bytes + 64));
        std::memset(pieces.back(), 0, bytes + 64);
        return pieces.back();
      };
      // Where there are gaps, or none: then as rondo lays them out.
      std::byte* const all = give(1 << 20);
      size_t used = 0;
      for (DdpTensor& tensor : own.tensors) {
        tensor.data = give(tensor.count() * 4) + 4;
        tensor.gradient = flat ? all + used : give(tensor.count() * 4) + 4;
        used += (tensor.count() * 4 + 63) / 64 * 64;
      }
      for (DdpTensor& buffer : own.buffers) buffer.data = give(buffer.count() * 8);
      ok(self.host->barrier());
      const size_t before = gpu->alive();
      ok(self.host->barrier());
      train(self, own, found);
      gpu->drain(self.stream);
      ok(self.host->barrier());
      expect_eq(gpu->alive(), before, "alive");
      ok(self.host->barrier());
      for (std::byte* const piece : pieces) ok(gpu->release(piece));
    });
    require_equal(wanted, found);
  }
}

TEST_CASE("ddp device: bfloat16, whose sums are exact here") {
  for (const int ranks : {1, 2, 4}) {
    const auto gpu = std::make_shared<FakeGpu>();
    on_gpu(
        gpu, ranks,
        [&](DdpRank& self) {
          const int rank = self.ranks.rank();
          Ddp ddp = make(self, {.type = DataType::kBFloat16}, {{.name = "w", .shape = {700}}});
          ok(ddp.begin({.loss_terms = 1}));
          auto* const gradient = ddp.gradient<uint16_t>(0);
          self.compute([=] {
            for (size_t i = 0; i < 700; ++i) {
              gradient[i] = kernels::bfloat16_from_float(static_cast<float>(rank + i % 16));
            }
          });
          ddp.gradient_ready(0);
          ok(ddp.finish());
          std::vector<float> found;
          self.compute([&] {
            for (size_t i = 0; i < 700; ++i) {
              found.push_back(kernels::float_from_bfloat16(gradient[i]));
            }
          });
          gpu->drain(self.stream);
          for (size_t i = 0; i < 700; ++i) {
            expect_eq(found[i], static_cast<float>(i % 16) + static_cast<float>(ranks - 1) / 2,
                      "mean");
          }
        },
        false);
  }
}
