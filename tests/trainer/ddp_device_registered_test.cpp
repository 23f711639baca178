// DistributedDataParallel on a GPU (a stand-in for one) with ranks that count as processes of their
// own: its memory is registered while it lives, so that peers' kernels reduce and gather in place.
#include <atomic>
#include <mutex>

#include "rondo/log.hpp"
#include "tests/trainer/ddp_device_rig.hpp"
#include "trainer/ddp/gpu.hpp"
#include "trainer/ddp/registered.hpp"

using namespace rondo;
using namespace rondo::testing;

namespace {

std::shared_ptr<FakeGpu> make_processes() {
  const auto gpu = std::make_shared<FakeGpu>(2);
  gpu->imports_elsewhere = true;
  gpu->ranks_of_a_process = 1;
  return gpu;
}

/// Buckets for which the communicator chooses direct algorithms where it can.
Training in_large_buckets() {
  Training training;
  training.options.bucket_cap_mb = 100000.0 / (1 << 20);
  training.steps = 2;
  return training;
}

/// Whether a kernel has told peers of a buffer in that memory, and so has let them access it.
bool was_told(FakeGpu& gpu, const void* memory, size_t elements) {
  const auto* const begin = static_cast<const std::byte*>(memory);
  const auto told = gpu.told();
  const auto found = told.lower_bound(begin);
  return found != told.end() && *found < begin + elements * sizeof(float);
}
bool are_gradients_told(FakeGpu& gpu, Ddp& ddp) {
  return was_told(gpu, ddp.gradients(), ddp.gradient_elements());
}
bool are_parameters_told(FakeGpu& gpu, Ddp& ddp) {
  return was_told(gpu, ddp.parameters(), ddp.parameter_elements());
}

/// Only at other addresses may other ranks touch it.
void guard(FakeGpu& gpu, DdpRank& self, Ddp& ddp) {
  const auto rank = static_cast<uint32_t>(self.ranks.rank());
  gpu.belongs_to(rank, ddp.gradients(), ddp.gradient_elements() * sizeof(float));
  gpu.belongs_to(rank, ddp.parameters(), ddp.parameter_elements() * sizeof(float));
}

/// Is there, and reduces nothing.
struct IdleHook : SummingHook {
  explicit IdleHook(size_t its_bytes) : bytes(its_bytes) {}
  bool works_on_device() const override { return true; }
  size_t wire_bytes(DataType /*type*/) const override { return bytes; }
  const size_t bytes;
};

/// Nothing is left, and nothing was freed that a peer had imported.
void check_clean(FakeGpu& gpu) {
  CHECK(gpu.freed_while_imported == 0);
  CHECK(gpu.imported() == 0);
  CHECK(gpu.alive() == 0);
}

/// What all ranks together see, while none goes on.
size_t together(DdpRank& self, const std::function<size_t()>& look) {
  ok(self.host->barrier());
  const size_t seen = look();
  ok(self.host->barrier());
  return seen;
}

}  // namespace

TEST_CASE("ddp device: ranks that are processes reduce and gather in place, to the host's bits") {
  for (const bool shard : {false, true}) {
    for (const int ranks : {2, 3}) {
      INFO(ranks << (shard ? " ranks with shards" : " ranks"));
      Training training = in_large_buckets();
      training.options.shard = shard;
      const TrainedRanks wanted = trained_on_host(ranks, training);
      TrainedRanks found(static_cast<size_t>(ranks));
      const auto gpu = make_processes();
      on_gpu(gpu, ranks, [&](DdpRank& self) {
        const auto imported = [&] { return gpu->imported(); };
        const size_t before = together(self, imported);
        {
          Ddp ddp = make(self, training);
          guard(*gpu, self, ddp);
          train_with(self, ddp, training, found);
          gpu->drain(self.stream);
          expect(shard || are_gradients_told(*gpu, ddp), "gradients go through slots");
        }
        expect_eq(together(self, imported), before, "imported");
        ok(self.ranks.status());
        ok(self.host->status());
      });
      require_equal(wanted, found);
      CHECK(gpu->trespasses == 0);
      check_clean(*gpu);
    }
  }
}

TEST_CASE("ddp device: only what rondo owns is registered, and on all ranks alike") {
  // Rank 0's gradients lie as their bucket does, so it needs no memory for them.
  const auto gpu = make_processes();
  on_gpu(gpu, 2, [&](DdpRank& self) {
    const bool lies = self.ranks.rank() == 0;
    std::byte* const own = *gpu->allocate(20032 + 64);
    {
      Ddp ddp = make(self, DdpOptions{},
                     {{.name = "w", .shape = {5008}, .gradient = own + (lies ? 0 : 4)}});
      ok(ddp.begin({.loss_terms = 1}));
      auto* const gradient = ddp.gradient<float>(0);
      self.compute([=] { std::fill_n(gradient, 5008, lies ? 1.0F : 3.0F); });
      ddp.gradient_ready(0);
      ok(ddp.finish());
      float first = 0, last = 0;
      self.compute([&] { first = gradient[0], last = gradient[5007]; });
      gpu->drain(self.stream);
      expect_eq(first, 2.0F, "first");
      expect_eq(last, 2.0F, "last");
      expect(!was_told(*gpu, own, 5008), "the caller's memory is accessed by peers");
      expect(self.ranks.unregister_device_memory(own).code() == Code::kInvalidArgument,
             "registered");
      ok(self.ranks.unregister_device_memory(ddp.parameters()));  // once; the destructor finds none
    }
    ok(self.host->barrier());
    ok(gpu->release(own));
  });
  CHECK(gpu->freed_while_imported == 0);
}

TEST_CASE("ddp device: gradients are not registered for a hook that sends others") {
  for (const bool sends : {false, true}) {
    const auto gpu = make_processes();
    on_gpu(gpu, 2, [&](DdpRank& self) {
      Training training = in_large_buckets();
      training.options.hook = std::make_shared<IdleHook>(sends ? 4 : 2);
      Ddp ddp = make(self, training);
      expect_eq(self.ranks.unregister_device_memory(ddp.gradients()).ok(), sends, "gradients are");
      ok(self.ranks.unregister_device_memory(ddp.parameters()));
      ok(self.host->barrier());
    });
    check_clean(*gpu);
  }
}

TEST_CASE("ddp device: threads of one process, and one rank, register nothing") {
  for (const bool reproducible : {false, true}) {
    for (const int ranks : {1, 2}) {
      for (const bool processes : {false, true}) {
        const auto gpu = processes ? make_processes() : std::make_shared<FakeGpu>();
        on_gpu(
            gpu, ranks,
            [&](DdpRank& self) {
              for (int object = 0; object < 2; ++object) {  // the second finds what the first left
                Ddp ddp = make(self, in_large_buckets());
                const bool registered = processes && ranks > 1;
                expect_eq(ddp::is_worth_registering(self.ranks), registered, "worth it");
                expect_eq(self.ranks.unregister_device_memory(ddp.gradients()).ok(), registered,
                          "is");
                ok(self.host->barrier());
              }
            },
            reproducible);
      }
    }
  }
}

TEST_CASE("ddp device: objects one after the other and at once, over one communicator") {
  const Training training = in_large_buckets();
  const TrainedRanks wanted = trained_on_host(2, training);
  std::vector<TrainedRanks> found(4, TrainedRanks(2));
  const auto gpu = make_processes();
  on_gpu(gpu, 2, [&](DdpRank& self) {
    const auto imported = [&] { return gpu->imported(); };
    const size_t before = together(self, imported);
    const auto use = [&](Ddp& ddp, size_t number) {
      train_with(self, ddp, training, found[number]);
      gpu->drain(self.stream);
      expect(are_gradients_told(*gpu, ddp), "gradients go through slots");
    };
    for (size_t number = 0; number < 2; ++number) {
      {
        Ddp ddp = make(self, training);
        use(ddp, number);
      }
      expect_eq(together(self, imported), before, "imported");
    }
    std::optional<Ddp> first = make(self, training);
    Ddp second = make(self, training);
    use(*first, 2);
    first.reset();
    use(second, 3);
    second = make(self, training);  // the old one ends when the new one is there
    expect_eq(together(self, imported), before + 4, "imported");
  });
  for (const TrainedRanks& each : found) require_equal(wanted, each);
  check_clean(*gpu);
}

TEST_CASE("ddp device: what cannot be registered is no error, and goes through slots") {
  const Training training = in_large_buckets();
  const TrainedRanks wanted = trained_on_host(2, training);
  for (const size_t free_places : {0, 1}) {
    INFO(free_places << " places are free");
    std::mutex mutex;
    std::vector<std::string> said;
    set_log_level(LogLevel::kInfo);
    set_log_callback([&](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex);
      if (text.find("cannot be registered") != std::string_view::npos) said.emplace_back(text);
    });
    TrainedRanks found(2);
    const auto gpu = make_processes();
    on_gpu(gpu, 2, [&](DdpRank& self) {
      ok(gpu->set_device(self.ranks.device()));
      std::byte* const slab = *gpu->allocate(256);
      const size_t taken = transport::cuda_ipc::kMostRegistrations - free_places;
      for (size_t i = 0; i < taken; ++i) ok(self.ranks.register_device_memory(slab + i, 1));
      {
        Ddp ddp = make(self, training);
        train_with(self, ddp, training, found);
        gpu->drain(self.stream);
        expect_eq(are_gradients_told(*gpu, ddp), free_places > 0, "gradients in place");
        expect(!are_parameters_told(*gpu, ddp), "parameters in place");
      }
      for (size_t i = 0; i < taken; ++i) ok(self.ranks.unregister_device_memory(slab + i));
      ok(self.host->barrier());
      ok(gpu->release(slab));
    });
    set_log_callback({});
    set_log_level(LogLevel::kWarn);
    require_equal(wanted, found);
    CHECK(said.size() == 1);
    for (const std::string& text : said) {
      CHECK(text.find("256 registrations") != std::string::npos);
    }
    check_clean(*gpu);
  }
}

TEST_CASE("ddp device: a rank that gives up or aborts leaves nothing registered on any rank") {
  for (const bool aborts : {false, true}) {
    INFO((aborts ? "aborts" : "gives up"));
    const auto gpu = make_processes();
    on_gpu(gpu, 3, [&](DdpRank& self) {
      const size_t before = together(self, [&] { return gpu->imported(); });
      const bool is_it = self.ranks.rank() == 1;
      {
        Ddp ddp = make(self, in_large_buckets());
        ok(ddp.replicate());
        (void)self.host->barrier();  // rank 1 may abort before another one has left it
        if (is_it && aborts) {
          self.ranks.abort("it is over");
          self.host->abort("it is over");
        }
        Status status = ddp.begin({.loss_terms = 1});
        for (size_t t = 0; status.ok() && t < (is_it ? 3 : 5); ++t) ddp.gradient_ready(t);
        const int64_t began = now_ns();
        while (!is_it && status.ok() && now_ns() - began < 60'000'000'000) status = ddp.finish();
      }
      const int64_t began = now_ns();
      while (gpu->imported() > before && now_ns() - began < 60'000'000'000) {
        std::this_thread::yield();
      }
      expect(gpu->imported() <= before, "imported");  // a rank that has left has let go of more
    });
    check_clean(*gpu);
  }
}

TEST_CASE("ddp device: what a late rank may still map is left, and nobody waits for it for ever") {
  const auto gpu = make_processes();
  constexpr size_t kBytes = 3000;
  std::atomic<const std::byte*> memory{nullptr};
  on_gpu(gpu, 2, [&](DdpRank& self) {
    ddp::Gpu own({.device = self.ranks.device(), .compute = self.stream, .owner = "a rank"});
    const ddp::Routes routes{.data = self.ranks, .host = *self.host, .gpu = &own};
    std::optional<ddp::RegisteredMemory> registered;
    registered.emplace(routes, std::chrono::milliseconds(self.ranks.rank() == 0 ? 50 : 60'000));
    std::byte* const here = own.allocate(kBytes);
    ok(registered->add({here, kBytes}));
    if (self.ranks.rank() == 0) {
      memory = here;
      registered.reset();
      ok(self.host->barrier());  // which is as it was
      return;
    }
    ok(self.host->barrier());
    registered.reset();
  });
  CHECK(gpu->freed_while_imported == 0);
  CHECK(gpu->alive() == 2);  // that of both
  CHECK(gpu->imported() == 0);
  CHECK(gpu->release(const_cast<std::byte*>(memory.load())).ok());
}

TEST_CASE("ddp device: whichever call fails, ranks that are processes leave nothing registered") {
  Training training = in_large_buckets();
  training.tensors[3].shape = {3000};
  training.options.shard = true;
  training.steps = 1;
  fail_calls(2, kSanitized ? 101 : 13, training, make_processes);
}
