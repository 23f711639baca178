// DistributedDataParallel in the memory of a GPU (a stand-in for one): what waits for what, times,
// refusals and failures.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/trainer/ddp_device_rig.hpp"
#include "trainer/ddp/gpu.hpp"

using namespace rondo;
using namespace rondo::testing;

namespace {

constexpr auto kTime = std::chrono::milliseconds(30);  // for what would be wrong to happen

/// Memory of whole pages that nobody may touch for a while.
class Forbidden {
 public:
  explicit Forbidden(size_t bytes) : bytes_(bytes) {
    void* const got = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(got != MAP_FAILED, "mmap");
    memory_ = static_cast<std::byte*>(got);
  }
  ~Forbidden() { munmap(memory_, bytes_); }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;
  void allow() { expect(mprotect(memory_, bytes_, PROT_READ | PROT_WRITE) == 0, "mprotect"); }
  /// The next so many bytes.
  std::byte* take(size_t bytes) {
    std::byte* const at = memory_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    expect(used_ <= bytes_, "room");
    return at;
  }

 private:
  const size_t bytes_;
  std::byte* memory_;
  size_t used_ = 0;
};

}  // namespace

// A touch by the host would end the program.
TEST_CASE(
    "ddp device: with a compute stream that stands still all calls return, and touch nothing") {
  Training training;
  training.steps = 3;
  training.micro_batches = 2;
  training.may_skip = true;
  TrainedRanks found(2);
  const auto gpu = std::make_shared<FakeGpu>();
  on_gpu(gpu, 2, [&](DdpRank& self) {
    Forbidden memory(4 << 20);
    Training own = training;
    for (DdpTensor& tensor : own.tensors) {
      tensor.data = memory.take(tensor.count() * 4);
      tensor.gradient = memory.take(tensor.count() * 4 + 64) + 4;
    }
    for (DdpTensor& buffer : own.buffers) buffer.data = memory.take(buffer.count() * 8);
    gpu->hold(self.stream);
    Ddp ddp = make(self, own);
    train_with(self, ddp, own, found);
    ok(self.host->barrier());
    std::this_thread::sleep_for(kTime);
    memory.allow();
    gpu->let_go(self.stream);
    gpu->drain(self.stream);
  });
  require_equal(trained_on_host(2, training), found);
}

TEST_CASE(
    "ddp device: with shards and its own memory all calls return, too, before the stream moves") {
  const auto gpu = std::make_shared<FakeGpu>();
  Training training;
  training.steps = 2;
  training.options.shard = true;
  TrainedRanks found(3);
  on_gpu(gpu, 3, [&](DdpRank& self) {
    gpu->hold(self.stream);
    Ddp ddp = make(self, training);
    train_with(self, ddp, training, found);
    expect(found[static_cast<size_t>(self.ranks.rank())].empty(), "the stream has moved");
    gpu->let_go(self.stream);
    gpu->drain(self.stream);
  });
  require_equal(trained_on_host(3, training), found);
}

TEST_CASE("ddp device: a reduction waits for gradients that come late, and what follows for it") {
  const auto gpu = std::make_shared<FakeGpu>();
  gpu->first_block_is_late = true;
  on_gpu(gpu, 3, [&](DdpRank& self) {
    const int rank = self.ranks.rank();
    Ddp ddp = make(self);
    std::vector<float> found;
    for (int s = 0; s < 3; ++s) {
      ok(ddp.begin({.loss_terms = 1}));
      for (size_t t = 0; t < 5; ++t) {
        self.compute([gradient = ddp.gradient<float>(t), t, s, rank] {
          std::this_thread::sleep_for(std::chrono::milliseconds(rank == 1 ? 10 : 1));
          for (size_t i = 0; i < 16; ++i) gradient[i] = 3 * contribution(rank, s, 16 * t + i);
        });
        ddp.gradient_ready(t);
      }
      ok(ddp.finish([&](size_t bucket) {
        for (const DdpBucket::Piece& piece : ddp.layout()[bucket].pieces) {
          self.compute([&found, from = ddp.gradient<float>(piece.tensor)] {
            found.insert(found.end(), from, from + 16);
          });
        }
      }));
    }
    gpu->drain(self.stream);
    for (int s = 0; s < 3; ++s) {
      for (size_t i = 0; i < 80; ++i) {
        expect_eq(found[static_cast<size_t>(s) * 80 + i], sum_of_contributions(3, s, i), "sum");
      }
    }
  });
}

TEST_CASE(
    "ddp device: places of transfers are marked on their streams, in order; there are no times") {
  using At = DdpTransferMark::At;
  const auto gpu = std::make_shared<FakeGpu>();
  Training training;
  training.options.shard = true;
  training.steps = 3;
  on_gpu(gpu, 2, [&](DdpRank& self) {
    Ddp ddp = make(self, training);
    Trainer trainer(self, ddp, training);
    trainer.set_parameters();
    struct Passed {
      DdpTransferMark here;
      device::Event event;
    };
    std::vector<Passed> passed;
    ddp.mark_transfers([&](const DdpTransferMark& here) {
      passed.push_back({here, *gpu->create_timed_event()});
      ok(gpu->record(passed.back().event, here.stream));
    });
    const int64_t began = now_ns();
    for (int s = 0; s < training.steps; ++s) trainer.step(s);
    ddp.mark_transfers({});
    trainer.step(3);
    gpu->drain(self.stream);
    const auto steps = static_cast<size_t>(training.steps), buckets = ddp.layout().size();
    expect(buckets > 1, "one bucket");
    expect_eq(passed.size(), steps * buckets * 2 * 3, "marks");
    void* const other = passed[1].here.stream;
    expect(other != self.stream, "one stream");
    device::Event last = passed[0].event;  // on the other stream
    for (size_t i = 0; i < passed.size(); ++i) {
      const auto& [here, event] = passed[i];
      const size_t transfer = i / 3, b = transfer % buckets;
      const bool gathers = transfer / buckets % 2 == 1;
      expect_eq(here.gathers, gathers, "gathers");
      expect_eq(here.bucket, gathers ? buckets - 1 - b : b, "bucket");
      expect(here.at == At(i % 3), "place");
      expect(here.stream == (i % 3 == 0 ? self.stream : other), "stream");
      if (i % 3 == 0) continue;
      expect(*gpu->elapsed_ms(passed[i - 1].event, event) >= 0, "before the place before");
      expect(*gpu->elapsed_ms(last, event) >= 0, "before the transfer before");
      last = event;
    }
    for (const DdpBucketTimes& times : ddp.times())
      expect_eq(times.work.ended_ns, int64_t{0}, "time");
    for (const Work::Times& times : ddp.gather_times())
      expect_eq(times.ended_ns, int64_t{0}, "time");
    expect(ddp.header_times().ended_ns > began, "headers");
    for (const Passed& each : passed) ok(gpu->destroy_event(each.event));
  });
}

TEST_CASE("ddp device: what there is not is refused by name, and so are wrong communicators") {
  const auto gpu = std::make_shared<FakeGpu>();
  const auto refused = [&](const DdpOptions& wrong, const Tensors& tensors, const char* text) {
    on_gpu(gpu, 2, [&](DdpRank& self) {
      const Status status = Ddp::create(self.ranks, tensors, {}, self.with(wrong)).status();
      expect_code(status, Code::kUnavailable);
      expect_error(status, text);
      expect(status.message().find("rank " + std::to_string(self.ranks.rank())) == 0, "no rank");
    });
  };
  refused({.hook = *make_compression_hook(DataType::kBFloat16)}, five(),
          "communication hooks without CommunicationHook::enqueue()");
  refused({.rows = DdpOptions::Rows::kTouched}, five(), "kTouched rows");
  refused({}, {{.name = "table", .shape = {4, 4}}, {.name = "rows", .shape = {4, 4}, .adds_to = 0}},
          "such as 'rows'");
  refused({}, {{.name = "w", .shape = {4}, .type = DataType::kBFloat16}},
          "reproducible sums of bfloat16, the type of 'w'");
  on_gpu(gpu, 2, [&](DdpRank& self) {
    const auto made_with = [&](Communicator* host) {
      DdpOptions own = self.with({});
      own.host = host;
      return Ddp::create(self.ranks, five(), {}, own).status();
    };
    auto other = self.host->split(0, -self.ranks.rank());  // the other way round
    ok(other.status());
    const Status none = made_with(nullptr);
    expect_code(none, Code::kInvalidArgument);
    expect_error(none, "DdpOptions::host is null");
    expect_error(made_with(&self.ranks), "DdpOptions::host is on GPU 0");
    expect_error(made_with(&**other), "of 2, but in the communicator on a device rank");
  });
  with_ranks(1, [](Communicator& communicator) {
    int not_a_stream = 0;
    expect_error(Ddp::create(communicator, five(), {}, {.stream = &not_a_stream}).status(),
                 "DdpOptions::stream is for communicators on a device");
  });
  on_gpu(gpu, 2, [&](DdpRank& self) {
    Ddp ddp = make(self);
    expect_code(ddp.save("/nowhere"), Code::kUnavailable);
    expect_code(ddp.load("/nowhere").status(), Code::kUnavailable);
    expect_code(ddp.set_bucket_ends({80}), Code::kInvalidArgument);
    ok(ddp.settle_buckets());
    ok(ddp.replicate());
  });
}

TEST_CASE(
    "ddp device: another model on one rank is an error on all, before anything is on a stream") {
  const auto gpu = std::make_shared<FakeGpu>();
  on_gpu(gpu, 3, [&](DdpRank& self) {
    Tensors tensors = five();
    if (self.ranks.rank() == 2) tensors[3].shape = {17};
    const Status status = Ddp::create(self.ranks, tensors, {}, self.with({})).status();
    expect_code(status, Code::kMismatch);
    expect_error(status, "'p3' [16], but rank 2 has parameter 'p3' [17]");
  });
  CHECK(gpu->alive() == 0);
}

TEST_CASE("ddp device: a rank that gives up in the middle of a step ends it for all, and all end") {
  const auto gpu = std::make_shared<FakeGpu>();
  on_gpu(gpu, 3, [&](DdpRank& self) {
    Ddp ddp = make(self);
    const auto step = [&](size_t ready) {
      const Status begun = ddp.begin({.loss_terms = 1});
      for (size_t t = 0; begun.ok() && t < ready; ++t) ddp.gradient_ready(t);
      return begun;
    };
    const bool gives_up = self.ranks.rank() == 1;
    ok(step(gives_up ? 3 : 5));
    if (gives_up) return;
    // All buckets are on the streams of these two, so finish() may know of nothing yet.
    Status status = ddp.finish();
    const int64_t began = now_ns();
    while (status.ok() && now_ns() - began < 60'000'000'000) {
      status = step(5);
      if (status.ok()) status = ddp.finish();
    }
    expect_error(status, "rank 1 gave up in the middle of a step");
  });
  CHECK(gpu->alive() == 0);
}

TEST_CASE("ddp device: what fails on the GPU is found by a later step, without waiting for it") {
  const auto gpu = std::make_shared<FakeGpu>();
  on_gpu(gpu, 2, [&](DdpRank& self) {
    Ddp ddp = make(self);
    make_step(ddp);
    ok(self.host->barrier());
    gpu->hold(self.stream);
    if (self.ranks.rank() == 1) self.ranks.abort("it is over");
    (void)self.host->barrier();  // rank 0's begin() may abort it before rank 1 has left
    const Status status = ddp.begin({.loss_terms = 1});
    expect_code(status, Code::kAborted);
    expect_error(status, "rank 1 aborted: it is over");
    gpu->let_go(self.stream);
  });
  CHECK(gpu->alive() == 0);
}

TEST_CASE("ddp device: whichever call of CUDA fails, that is the error, and nothing is left") {
  Training training;
  training.tensors[3].shape = {100};
  training.steps = 2;
  training.options.shard = true;
  const auto make_gpu = [] { return std::make_shared<FakeGpu>(); };
  fail_calls(1, kSanitized ? 53 : 7, training, make_gpu,
             [](FakeGpu& gpu, size_t before) { expect_eq(gpu.alive(), before, "alive"); });
  fail_calls(2, kSanitized ? 53 : 3, training, make_gpu);
}

TEST_CASE("ddp device: the stream that reduces is urgent, the one that computes is not") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  const device::Stream stream = *gpu->FakeGpu::create_stream();
  {
    const ddp::Gpu streams({.device = 0, .compute = stream, .owner = "rank 0"});
    CHECK(gpu->is_urgent(streams.communication()));
    CHECK_FALSE(gpu->is_urgent(streams.compute()));
  }
  CHECK(gpu->destroy_stream(stream).ok());
}

TEST_CASE("ddp device: streams that do not end keep their memory, and hold up nobody for ever") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  const device::Stream stream = *gpu->FakeGpu::create_stream();
  const size_t before = gpu->alive();
  gpu->hold(stream);
  {
    ddp::Gpu held(
        {.device = 0, .compute = stream, .owner = "rank 0", .longest_end_ns = 20'000'000});
    (void)held.allocate(100);
  }
  CHECK(gpu->alive() == before + 4);  // its stream, two events, the memory
  gpu->let_go(stream);
  {
    ddp::Gpu ends({.device = 0, .compute = stream, .owner = "rank 0"});
    (void)ends.allocate(100);
  }
  CHECK(gpu->alive() == before + 4);
  CHECK(gpu->destroy_stream(stream).ok());
}
