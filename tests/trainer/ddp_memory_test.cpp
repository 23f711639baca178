// Parameters, gradients and buffers in the caller's memory, and tensors of different types. What
// the caller's memory holds after a step has the bits that rondo's has.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "kernels/half.hpp"
#include "tests/trainer/ddp_rig.hpp"

using namespace rondo;
using namespace rondo::testing;

namespace {

constexpr DataType kF32 = DataType::kFloat32, kF64 = DataType::kFloat64, kF16 = DataType::kFloat16,
                   kBF16 = DataType::kBFloat16;

/// Off every cache line and vector width; two of each type, the last added to the first.
Tensors mixed() {
  return {{.name = "table", .shape = {20, 7}, .type = kBF16},
          {.name = "b", .shape = {33}, .type = kBF16},
          {.name = "c", .shape = {5, 16}, .type = kF16},
          {.name = "d", .shape = {1}},
          {.name = "e", .shape = {90}, .may_skip = true},
          {.name = "f", .shape = {40}, .type = kF64},
          {.name = "rows", .shape = {20, 7}, .type = kBF16, .adds_to = 0}};
}

double value_of(const DdpTensor& tensor, size_t i) {
  switch (*tensor.type) {
    case kF64:
      return static_cast<double*>(tensor.gradient)[i];
    case kBF16:
      return kernels::float_from_bfloat16(static_cast<uint16_t*>(tensor.gradient)[i]);
    case kF16:
      return kernels::float_from_half(static_cast<uint16_t*>(tensor.gradient)[i]);
    default:
      return static_cast<float*>(tensor.gradient)[i];
  }
}

void set(void* data, DataType type, size_t i, double value) {
  const auto single = static_cast<float>(value);
  if (type == kF64) static_cast<double*>(data)[i] = value;
  if (type == kF32) static_cast<float*>(data)[i] = single;
  if (type == kBF16) static_cast<uint16_t*>(data)[i] = kernels::bfloat16_from_float(single);
  if (type == kF16) static_cast<uint16_t*>(data)[i] = kernels::half_from_float(single);
}

double made_by(int rank, int step, size_t tensor, size_t i) {
  return std::sin(static_cast<double>((rank + 3) * (step + 2)) * static_cast<double>(i + 1) +
                  static_cast<double>(tensor));
}

/// A caller's memory, one array a tensor.
struct Arrays {
  void* add(size_t bytes, bool library) {
    if (library) {
      owned.emplace_back(rondo::alloc(bytes), [](void* p) { rondo::dealloc(p); });
    } else {  // off the cache line: aligned to the widest type only
      auto* all = new double[bytes / 8 + 2]();
      owned.emplace_back(all, [](void* p) { delete[] static_cast<double*>(p); });
      return all + 1;
    }
    return owned.back().get();
  }
  std::vector<std::shared_ptr<void>> owned;
};

enum class Whose { kRondos, kPlain, kLibrary };

void give_memory(Tensors& tensors, Whose whose, DataType otherwise, Arrays& arrays,
                 bool gradients = true) {
  if (whose == Whose::kRondos) return;
  for (DdpTensor& tensor : tensors) {
    const size_t bytes = tensor.count() * size_of(tensor.type.value_or(otherwise));
    const bool library = whose == Whose::kLibrary;
    if (tensor.adds_to < 0) tensor.data = arrays.add(bytes, library);
    if (gradients) tensor.gradient = arrays.add(bytes, library);
  }
}

/// All gradients of this rank after some steps, one after the other as bytes.
using Bits = std::vector<std::byte>;

/// Three steps, of which each has a micro-batch without communication; rank 1 skips 'e'.
void make_steps(Ddp& ddp, int rank, Bits& bits) {
  for (int step = 0; step < 3; ++step) {
    ok(ddp.begin({.loss_terms = static_cast<uint64_t>(rank + 2)}));
    const std::vector<int32_t> rows = {3, 17, 5 + rank};
    ddp.touches_rows(6, rows);
    const auto backward = [&](int micro) {
      for (size_t t = 0; t < ddp.tensors().size(); ++t) {
        const DdpTensor& tensor = ddp.tensors()[t];
        if (tensor.may_skip && rank == 1) {
          ddp.gradient_skipped(t);
          continue;
        }
        for (size_t i = 0; i < tensor.count(); ++i) {
          const bool looked_up = tensor.adds_to < 0 || i / 7 == 3 || i / 7 == 17 ||
                                 i / 7 == static_cast<size_t>(5 + rank);
          const double before = micro == 0 ? 0 : value_of(tensor, i);
          set(tensor.gradient, *tensor.type, i, looked_up ? before + made_by(rank, step, t, i) : 0);
        }
        ddp.gradient_ready(t, tensor.count() / 2);
        ddp.gradient_ready(t);
      }
    };
    {
      const auto quiet = ddp.no_sync();
      backward(0);
    }
    backward(1);
    ok(ddp.finish());
    for (const DdpTensor& tensor : ddp.tensors()) {
      const auto* data = static_cast<std::byte*>(tensor.gradient);
      bits.insert(bits.end(), data, data + tensor.count() * size_of(*tensor.type));
    }
  }
}

void require_same_bits(Communicator& communicator, const DdpOptions& options) {
  Bits expected;
  for (const Whose whose : {Whose::kRondos, Whose::kPlain, Whose::kLibrary}) {
    Tensors tensors = mixed();
    Arrays arrays;
    give_memory(tensors, whose, options.type, arrays);
    Ddp ddp = make(communicator, options, tensors);
    Bits bits;
    make_steps(ddp, communicator.rank(), bits);
    if (whose == Whose::kRondos) expected = bits;
    expect(bits.size() > 1000 && bits == expected, "the caller's memory has other bits");
  }
}

/// Fills this rank's gradients and averages them.
void reduce(Ddp& ddp) {
  for (size_t t = 0; t < ddp.tensors().size(); ++t) {
    const DdpTensor& tensor = ddp.tensors()[t];
    for (size_t i = 0; i < tensor.count(); ++i) {
      set(tensor.gradient, *tensor.type, i, made_by(ddp.communicator().rank(), 0, t, i));
    }
  }
  make_step(ddp);
}

/// This rank's part of a bucket in flat storage, as bytes.
std::span<std::byte> own_bytes(Ddp& ddp, void* storage, size_t bucket) {
  const DdpBucket& its = ddp.layout()[bucket];
  const size_t each = size_of(*ddp.tensors()[its.pieces.front().tensor].type);
  const DdpRange own = ddp.own_range(bucket);
  return {static_cast<std::byte*>(storage) + its.byte_offset + (own.begin - its.offset) * each,
          own.count() * each};
}

}  // namespace

TEST_CASE("ddp caller's memory: the bits of rondo's, by threads and processes, N = 1 to 4") {
  const auto body = [](Communicator& communicator) {
    using Rows = DdpOptions::Rows;
    for (const Rows rows : {Rows::kWhole, Rows::kTouched}) {
      require_same_bits(communicator, {.bucket_cap_mb = 100.0 / (1 << 20), .rows = rows});
    }
    require_same_bits(communicator, {.bucket_cap_mb = 0, .overlap = false});
  };
  for (const How how : {How::kForks, How::kThreads}) {
    for (const int ranks : {1, 2, 3, 4}) with_ranks(ranks, {}, body, how);
  }
}

TEST_CASE("ddp types: the mean of every type, each rounded as its type is") {
  with_ranks(3, [](Communicator& communicator) {
    Tensors tensors = mixed();
    tensors.pop_back();
    tensors[4].may_skip = false;
    Ddp ddp = make(communicator, {.bucket_cap_mb = 25}, tensors);
    // A bucket for each type in a row.
    std::vector<size_t> pieces;
    for (const DdpBucket& bucket : ddp.layout()) pieces.push_back(bucket.pieces.size());
    expect(pieces == std::vector<size_t>{2, 1, 2, 1}, "buckets lie otherwise");
    reduce(ddp);
    for (size_t t = 0; t < tensors.size(); ++t) {
      const DdpTensor& tensor = ddp.tensors()[t];
      const double epsilon = *tensor.type == kF64   ? 1e-15
                             : *tensor.type == kF32 ? 3e-7
                             : *tensor.type == kF16 ? 2e-3
                                                    : 2e-2;
      for (size_t i = 0; i < tensor.count(); ++i) {
        double mean = 0;
        for (int r = 0; r < 3; ++r) mean += made_by(r, 0, t, i) / 3;
        expect_near(value_of(tensor, i), mean, epsilon, tensor.name + " " + std::to_string(i));
      }
    }
  });
}

TEST_CASE("ddp types: shards of mixed types hold what plain steps give, and are gathered") {
  const Tensors tensors = {{.name = "a", .shape = {90, 100}, .type = kBF16},
                           {.name = "b", .shape = {9000}},
                           {.name = "c", .shape = {9001}, .type = kF64}};
  with_ranks(3, reproducible(), [&](Communicator& communicator) {
    for (const bool compress : {false, true}) {
      const auto averaged = [&](bool shard) {
        DdpOptions options{.bucket_cap_mb = 0.02, .shard = shard};
        if (compress) options.hook = make_compression_hook(kBF16).value();
        Ddp ddp = make(communicator, options, tensors);
        reduce(ddp);
        return ddp;
      };
      Ddp plain = averaged(false), sharded = averaged(true);
      size_t owned = 0;
      for (size_t b = sharded.layout().size(); b-- > 0;) {
        const std::span<std::byte> own = own_bytes(sharded, sharded.gradients(), b);
        const std::byte* expected = static_cast<std::byte*>(plain.gradients()) +
                                    (own.data() - static_cast<std::byte*>(sharded.gradients()));
        expect(std::equal(own.begin(), own.end(), expected), "other bits in a shard");
        const auto mine = static_cast<std::byte>(1 + communicator.rank());
        const std::span<std::byte> updated = own_bytes(sharded, sharded.parameters(), b);
        std::fill(updated.begin(), updated.end(), mine);
        owned += own.size();
        sharded.gather_parameters(b);
      }
      expect(owned > 10000, "this rank owns too little for this test");
      ok(sharded.wait_parameters());
      for (const DdpTensor& tensor : sharded.tensors()) {
        const auto* bytes = static_cast<std::byte*>(tensor.data);
        for (size_t i = 0; i < tensor.count() * size_of(*tensor.type); ++i) {
          expect(bytes[i] != std::byte{0}, "nobody's parameter in " + tensor.name);
        }
      }
    }
  });
}

TEST_CASE("ddp caller's memory: replicated, saved and loaded with its types") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/model.safetensors";
  for (const Whose whose : {Whose::kRondos, Whose::kPlain}) {
    with_ranks(2, [&](Communicator& communicator) {
      Tensors tensors = mixed();
      Tensors buffers = {{.name = "mean", .shape = {3}},
                         {.name = "batches", .shape = {1}, .type = DataType::kInt64}};
      Arrays arrays;
      give_memory(tensors, whose, kF32, arrays);
      give_memory(buffers, whose, kF32, arrays, false);
      Result<Ddp> made = Ddp::create(communicator, tensors, buffers);
      ok(made.status());
      Ddp& ddp = made.value();
      expect_eq(ddp.parameters() == nullptr, whose == Whose::kPlain, "flat parameters");
      const auto for_each_value = [&](const auto& body) {
        for (size_t t = 0; t < 6; ++t) {
          const DdpTensor& tensor = ddp.tensors()[t];
          for (size_t i = 0; i < tensor.count(); ++i) body(tensor, t, i);
        }
      };
      auto* batches = static_cast<int64_t*>(ddp.buffer(1));
      const auto fill_with = [&](int maker) {
        for_each_value([&](const DdpTensor& tensor, size_t t, size_t i) {
          set(tensor.data, *tensor.type, i, made_by(maker, 0, t, i));
        });
        *batches = (int64_t{1} << 40) + maker;
      };
      const auto require_rank_0s = [&] {
        for_each_value([&](const DdpTensor& tensor, size_t t, size_t i) {
          double expected = 0;
          set(&expected, *tensor.type, 0, made_by(0, 0, t, i));
          const size_t each = size_of(*tensor.type);
          expect(std::memcmp(static_cast<std::byte*>(tensor.data) + i * each, &expected, each) == 0,
                 tensor.name + " is not rank 0's");
        });
        expect_eq(*batches, int64_t{1} << 40, "batches");
      };
      fill_with(communicator.rank());
      ok(ddp.replicate());
      require_rank_0s();
      std::vector<float> momentum(ddp.parameter_elements(), 0.5f);
      momentum[ddp.offset(5)] = static_cast<float>(7 + communicator.rank());
      if (whose == Whose::kRondos) ok(ddp.save(path, {{"momentum", momentum.data()}}));
      fill_with(9);  // the other turn reads what this one has written
      momentum.assign(momentum.size(), 0);
      ok(ddp.load(path, {{"momentum", momentum.data()}}).status());
      require_rank_0s();
      expect_eq(momentum[ddp.offset(5)], 7.0f, "momentum of f");
    });
  }
}

TEST_CASE("ddp caller's memory: its buffers become rank 0's in every step") {
  with_ranks(3, [](Communicator& communicator) {
    Tensors buffers = {{.name = "batches", .shape = {1}, .type = DataType::kInt64},
                       {.name = "mean", .shape = {5}}};
    Arrays arrays;
    give_memory(buffers, Whose::kPlain, kF32, arrays, false);
    Ddp ddp = make(communicator, small_buckets(), five(), buffers);
    for (int step = 0; step < 2; ++step) {
      *static_cast<int64_t*>(ddp.buffer(0)) = 100 * step + communicator.rank();
      static_cast<float*>(ddp.buffer(1))[4] = static_cast<float>(communicator.rank());
      make_step(ddp);
      expect_eq(*static_cast<int64_t*>(buffers[0].data), int64_t{100 * step}, "batches");
      expect_eq(static_cast<float*>(buffers[1].data)[4], 0.0f, "mean");
    }
  });
}

TEST_CASE(
    "ddp caller's memory: begin() sets the gradients that may be skipped to zero, no others") {
  with_ranks(2, [](Communicator& communicator) {
    std::vector<std::vector<float>> gradients(5, std::vector<float>(16, 7));
    Tensors tensors = five();
    for (size_t t = 0; t < 5; ++t) tensors[t].gradient = gradients[t].data();
    tensors[1].may_skip = true;
    Ddp ddp = make(communicator, small_buckets(), tensors);
    ok(ddp.begin({.loss_terms = 1}));
    for (size_t t = 0; t < 5; ++t) {
      expect(gradients[t] == std::vector<float>(16, t == 1 ? 0 : 7), "tensor " + std::to_string(t));
    }
    all_ready(ddp);
    ok(ddp.finish());
  });
}

// The hook sees where a bucket is reduced.
TEST_CASE("ddp caller's memory: no copy of a bucket that lies in library memory as it should") {
  struct Places : SummingHook {
    Work start(Communicator& communicator, const GradientBucket& bucket) override {
      all.push_back(bucket.data);
      return SummingHook::start(communicator, bucket);
    }
    std::vector<void*> all;
  };
  struct Freed {
    void operator()(float* p) const { rondo::dealloc(p); }
  };
  with_ranks(2, [](Communicator& communicator) {
    const std::unique_ptr<float, Freed> memory(static_cast<float*>(rondo::alloc(160 * 4)));
    float* const g = memory.get();
    std::vector<float> plain(16);
    // {0, 1} lie side by side, {2, 3} in the wrong order, {4} in plain memory, {5} ends in a gap.
    float* const at[] = {g, g + 16, g + 48, g + 32, plain.data(), g + 64};
    Tensors tensors = five();
    tensors.push_back({.name = "p5", .shape = {17}});
    for (size_t t = 0; t < 6; ++t) tensors[t].gradient = at[t];
    const auto hook = std::make_shared<Places>();
    Ddp ddp = make(communicator, {.bucket_cap_mb = kSmallMb, .hook = hook}, tensors);
    g[64 + 17] = 5;  // what lies behind is not touched
    for (size_t t = 0; t < 6; ++t) at[t][3] = static_cast<float>(10 * t + 1);
    make_step(ddp);
    expect_eq(hook->all.size(), size_t{4}, "buckets");
    expect(hook->all[0] == g, "the first bucket was copied");
    for (size_t b = 1; b < 4; ++b) {
      for (float* const place : at) expect(hook->all[b] != place, "a bucket was not copied");
    }
    for (size_t t = 0; t < 6; ++t) expect_eq(at[t][3], static_cast<float>(20 * t + 2), "sum");
    expect_eq(g[64 + 17], 5.0f, "after the end");
  });
}

TEST_CASE("ddp caller's memory: a wrong one is refused with tensor and rank, on every rank") {
  float memory[64] = {};
  struct Given {
    Tensors tensors = {{.name = "a", .shape = {4}}, {.name = "b", .shape = {4}}};
    Tensors buffers = {{.name = "c", .shape = {4}}, {.name = "d", .shape = {4}}};
    DdpOptions options;
  };
  struct Mistake {
    const char* says;
    std::function<void(Given&)> make;
  };
  const Mistake mistakes[] = {
      {"rank 1: the gradient of 'b' is null, but that of 'a' is not",
       [](Given& g) { g.tensors[1].gradient = nullptr; }},
      {"rank 1: the parameter of 'a' is null, but that of 'b' is not",
       [](Given& g) { g.tensors[0].data = nullptr; }},
      {"rank 1: the buffer of 'd' is null, but that of 'c' is not",
       [](Given& g) { g.buffers[1].data = nullptr; }},
      {"rank 1: the gradient of 'b' overlaps the parameter of 'a'",
       [](Given& g) { g.tensors[1].gradient = static_cast<float*>(g.tensors[0].data) + 3; }},
      {"rank 1: the gradient of 'a' is not aligned to the 4 bytes of its elements",
       [&](Given& g) { g.tensors[0].gradient = reinterpret_cast<char*>(memory) + 2; }},
      {"rank 1: tensor 'b' has the type int64, whose gradients cannot be averaged",
       [](Given& g) { g.tensors[1].type = DataType::kInt64; }},
      {"rank 1: tensor 'b' has the type ?, whose gradients cannot be averaged",
       [](Given& g) { g.tensors[1].type = static_cast<DataType>(99); }},
      {"rank 1: buffer 'c' has the unknown type 99",
       [](Given& g) { g.buffers[0].type = static_cast<DataType>(99); }},
      {"rank 1: buffer 'd' has a gradient", [&](Given& g) { g.buffers[1].gradient = memory; }},
      {"rank 1: the parameter of 'a' is the caller's memory, which shards cannot use",
       [](Given& g) { g.options.shard = true; }},
      {"rank 0 has parameter 'b' [4], but rank 1 has parameter 'b' double [4]",
       [](Given& g) { g.tensors[1].type = kF64; }},
      {"gradients=rondo's",
       [](Given& g) { g.tensors[0].gradient = g.tensors[1].gradient = nullptr; }},
  };
  for (const Mistake& mistake : mistakes) {
    with_ranks(2, [&](Communicator& communicator) {
      Given given;
      std::vector<double> own(64);
      double* next = own.data();
      for (auto* list : {&given.tensors, &given.buffers}) {
        for (DdpTensor& tensor : *list) {
          tensor.data = next, next += 8;
          if (list == &given.tensors) tensor.gradient = next, next += 8;
        }
      }
      if (communicator.rank() == 1) mistake.make(given);
      const Result<Ddp> ddp =
          Ddp::create(communicator, given.tensors, given.buffers, given.options);
      expect_error(ddp.status(), mistake.says);
    });
  }
}
