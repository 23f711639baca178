// The whole GPT: every parameter's gradient against central differences, what it tells while it
// computes them, and what it leaves out.
#include "trainer/models/gpt.hpp"

#include <algorithm>
#include <set>

#include "tests/trainer/model_rig.hpp"

namespace rondo::trainer::gpt_test {

using namespace rondo::trainer::testing;

namespace {

constexpr GptShape kSmall{
    .layers = 2, .width = 16, .heads = 2, .context = 5, .vocabulary = 11, .batch = 2};

template <class T>
struct Fixture : ModelRig<T> {
  explicit Fixture(const GptShape& shape_ = kSmall)
      : ModelRig<T>(make_gpt<T>(shape_)), shape(shape_) {
    for (size_t p = 0; p < this->values.size(); ++p) {
      // Larger than they would start in training, so that every parameter matters.
      const auto& init = this->parameter(p).init;
      const double start = init.kind == Init::kConstant ? init.value : 0;
      for (size_t i = 0; i < this->values[p].size(); ++i) {
        this->values[p][i] = static_cast<T>(start + 0.4 * symmetric_unit(mix(p + 5) ^ i));
      }
    }
    for (size_t i = 0; i < shape.batch * shape.context; ++i) {
      tokens.push_back(static_cast<int32_t>(mix(i) % shape.vocabulary));
      targets.push_back(static_cast<int32_t>(mix(~i) % shape.vocabulary));
    }
    for (size_t i = 0; i < shape.batch; ++i) ids.push_back(1000 + 7 * i);
  }
  Batch batch(size_t size, size_t first = 0) const {
    return {.size = size,
            .tokens = tokens.data() + first * shape.context,
            .images = nullptr,
            .targets = targets.data() + first * shape.context,
            .ids = ids.data() + first};
  }
  Batch all() const { return batch(shape.batch); }

  GptShape shape;
  std::vector<int32_t> tokens, targets;
  std::vector<uint64_t> ids;
};

GptShape with(bool split_tied, double dropout = 0, double layer_drop = 0) {
  GptShape shape = kSmall;
  shape.split_tied = split_tied;
  shape.dropout = dropout;
  shape.layer_drop = layer_drop;
  return shape;
}

constexpr Pass kPass{.training = true, .seed = 3, .step = 4};

}  // namespace

// Dropout's zeros are fixed by their keys.
TEST_CASE("gpt: the gradient of every parameter equals central differences, also with dropout") {
  for (const bool split : {true, false}) {
    for (const double dropout : {0.0, 0.3}) {
      Fixture<double> f(with(split, dropout));
      check_gradients(f, f.all(), kPass, 2e-7);
    }
  }
}

TEST_CASE("gpt: parameters are those of GPT-2, and as many") {
  for (const bool split : {true, false}) {
    const auto model = make_gpt<float>({.layers = 12,
                                        .width = 768,
                                        .heads = 12,
                                        .context = 1024,
                                        .vocabulary = 50257,
                                        .batch = 0,
                                        .split_tied = split});
    size_t count = 0;
    std::set<std::string> names;
    for (const Parameter& parameter : model->parameters()) {
      if (parameter.adds_to < 0) count += parameter.count();
      names.insert(parameter.name);
      CHECK(parameter.decays == (parameter.shape.size() == 2));
      CHECK(!parameter.may_skip);
    }
    CHECK(count == 124439808);
    CHECK(names.size() == 2 + 12 * 12 + 2 + (split ? 1 : 0));
    for (const char* name : {"wte.weight", "wpe.weight", "h.11.attn.c_attn.bias", "ln_f.weight",
                             "h.0.mlp.c_fc.weight", "h.3.ln_1.bias", "h.0.mlp.c_proj.weight"}) {
      CHECK(names.count(name) == 1);
    }
  }
}

TEST_CASE("gpt: gradients become final in parameter order, completely, layer by layer") {
  for (const bool split : {true, false}) {
    Fixture<double> f(with(split));
    f.train(f.all(), 1, false, kPass);
    const size_t last = f.values.size() - 1;
    std::vector<std::string> layers;
    for (const std::string& event : f.listener.events) {
      if (event.starts_with("layer ")) layers.push_back(event.substr(6));
      CHECK(!event.ends_with(" in part"));
    }
    CHECK(layers == std::vector<std::string>{"head", "h.1.mlp", "h.1.attn", "h.0.mlp", "h.0.attn",
                                             "embedding"});
    REQUIRE(f.listener.order.size() == f.values.size());
    for (size_t p = 0; p <= last; ++p) CHECK(f.listener.order[p] == static_cast<int>(p));
    CHECK(f.parameter(last).name == (split ? "wte.weight rows" : "wte.weight"));
    CHECK(f.parameter(last).adds_to == (split ? 0 : -1));
    CHECK(f.parameter(0).name == (split ? "wte.weight" : "ln_f.weight"));
  }
}

TEST_CASE("gpt: a large gradient is told in panels; what was told is not touched again") {
  // 9000 x 256 floats are 8.8 MiB, three panels; 1024 x 256 are 1 MiB.
  Fixture<float> f(
      {.layers = 1, .width = 256, .heads = 4, .context = 3, .vocabulary = 9000, .batch = 1});
  // Whole rows of dy, 64 of them: a multiple of 128 bytes in any type.
  CHECK(check_final_gradients(f, f.all(), kPass) ==
        std::vector<size_t>{3008 * 256, 2 * 3008 * 256});
}

TEST_CASE("gpt: single samples, accumulated, are the batch, whatever their place in it") {
  Fixture<double> f(with(true, 0.2));  // with dropout: it goes by the sample's id
  check_parts_add_up(f, f.all(), {f.batch(1, 1), f.batch(1, 0)}, kPass);
}

TEST_CASE("gpt: an empty batch has no loss, and a zero gradient or none to add") {
  for (const bool split : {true, false}) {
    Fixture<double> f(with(split));
    check_empty_batch(f, f.batch(0));
  }
}

TEST_CASE("gpt: LayerDrop leaves out whole blocks, in training only, and says so") {
  Fixture<double> f(with(true, 0, 0.5)), whole(with(true));
  std::set<std::set<int>> seen;
  const size_t block = 12, head = 3;
  for (uint64_t step = 0; step < 16; ++step) {
    const Pass pass{.training = true, .seed = 1, .step = step};
    for (auto& gradient : f.gradients) std::fill(gradient.begin(), gradient.end(), 5);
    f.train(f.all(), 1, true, pass);
    const std::set<int> skipped = f.listener.skipped;
    f.train(f.all(), 1, true, pass);
    CHECK(f.listener.skipped == skipped);
    CHECK(f.listener.order.size() + skipped.size() == f.values.size());
    for (const int p : skipped) {
      CHECK(f.parameter(static_cast<size_t>(p)).may_skip);
      REQUIRE(all_are(f.gradients[static_cast<size_t>(p)], 5.0));
    }
    if (seen.insert(skipped).second) check_gradients(f, f.all(), pass, 2e-7, skipped);
  }
  CHECK(seen.size() == 4);  // of two blocks none, either, both
  CHECK(seen.count({}) == 1);
  for (const auto& skipped : seen) CHECK(skipped.size() % block == 0);
  CHECK(!f.parameter(0).may_skip);
  CHECK(!f.parameter(head - 1).may_skip);
  CHECK(!f.parameter(f.values.size() - 1).may_skip);
  CHECK(f.loss(f.all(), kEvaluation) == whole.loss(whole.all(), kEvaluation));
}

TEST_CASE("gpt: without training there is no dropout, and ids are not read") {
  Fixture<double> f(with(true, 0.5, 0.5)), plain(with(true));
  Batch batch = f.all();
  batch.ids = nullptr;
  CHECK(f.loss(batch, kEvaluation) == plain.loss(plain.all(), kPass));
  CHECK(f.loss(f.all(), kPass) != plain.loss(plain.all(), kPass));
}

TEST_CASE("gpt: float follows double within a relative 1e-4, and repeats itself bit for bit") {
  const GptShape shape{
      .layers = 2, .width = 24, .heads = 3, .context = 70, .vocabulary = 37, .batch = 2};
  Fixture<float> narrow(shape);
  Fixture<double> wide(shape);
  check_float_follows_double(narrow, wide, wide.all(), 1e-4);
  const auto first = narrow.gradients;
  narrow.train(narrow.all());
  CHECK(narrow.gradients == first);
}

TEST_CASE("gpt: operations and bytes are those of the shapes") {
  const auto nano = make_gpt<float>({});
  // 6 per weight and token; 64 x 65 / 2 scores of 4 heads in 6 products of 32, two each.
  CHECK(nano->gemm_operations() ==
        6.0 * 64 * (4 * 12 * 128 * 128 + 128 * 256) + 4.0 * 4 * (64 * 65 / 2) * 32 * 12);
  CHECK(nano->loss_terms() == 64);
  const auto half = make_gpt<float>({.batch = 8});
  CHECK(nano->activation_bytes() > 1.9 * static_cast<double>(half->activation_bytes()));
  // Per token and block 2 x (2 width + 1) of norms, 3 + 1 + 4 + 4 widths and 64 scores of 4 heads.
  const double block = 16 * 64 * 4.0 * (2 * (2 * 128 + 1) + 12 * 128 + 64 * 4);
  CHECK(static_cast<double>(nano->activation_bytes()) > 4 * block);
  CHECK(static_cast<double>(nano->activation_bytes()) < 5.2 * block);
}

}  // namespace rondo::trainer::gpt_test
