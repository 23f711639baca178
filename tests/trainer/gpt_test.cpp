// The whole GPT: every parameter's gradient against central differences, what it tells while it
// computes them, and what it leaves out.
#include "trainer/models/gpt.hpp"

#include <algorithm>
#include <set>

#include "tests/trainer/gradient_check.hpp"
#include "trainer/base/random.hpp"

namespace rondo::trainer::gpt_test {

using rondo::trainer::testing::check_gradient;

namespace {

/// What backward said: how much of each parameter is final, and the order.
struct Listener : BackwardListener {
  void layer_begins(int layer) override { layers.push_back(layer); }
  void gradient_ready(int parameter, size_t count) override {
    ready.emplace_back(parameter, count);
  }
  void gradient_skipped(int parameter) override { skipped.insert(parameter); }
  std::vector<int> layers;
  std::vector<std::pair<int, size_t>> ready;
  std::set<int> skipped;
};

template <class T>
struct Fixture {
  static constexpr GptShape kSmall{
      .layers = 2, .width = 16, .heads = 2, .context = 5, .vocabulary = 11, .batch = 2};

  explicit Fixture(const GptShape& shape_ = kSmall) : shape(shape_), model(make_gpt<T>(shape)) {
    std::vector<T*> value_pointers, gradient_pointers;
    for (const Parameter& parameter : model->parameters()) {
      // By name, so that both ways to share the embedding start alike; and larger than they would
      // start in training, so that every parameter matters.
      uint64_t key = 5;
      for (const char c : parameter.name) key = mix(key ^ static_cast<uint64_t>(c));
      values.emplace_back(parameter.count());
      for (size_t i = 0; i < values.back().size(); ++i) {
        const double start = parameter.init.kind == Init::kConstant ? parameter.init.value : 0;
        values.back()[i] = static_cast<T>(start + 0.4 * symmetric_unit(key ^ i));
      }
      gradients.emplace_back(parameter.count(), T{77});
    }
    for (size_t p = 0; p < values.size(); ++p) {
      value_pointers.push_back(parameter(p).adds_to >= 0 ? nullptr : values[p].data());
      gradient_pointers.push_back(gradients[p].data());
    }
    model->bind(value_pointers, gradient_pointers, {});
    for (size_t i = 0; i < shape.batch * shape.context; ++i) {
      tokens.push_back(static_cast<int32_t>(mix(i) % shape.vocabulary));
      targets.push_back(static_cast<int32_t>(mix(~i) % shape.vocabulary));
    }
    for (size_t i = 0; i < shape.batch; ++i) ids.push_back(1000 + 7 * i);
  }
  const Parameter& parameter(size_t p) const { return model->parameters()[p]; }
  size_t index(const std::string& name) const {
    for (size_t p = 0; p < values.size(); ++p) {
      if (parameter(p).name == name) return p;
    }
    FAIL("no parameter " << name);
    return 0;
  }
  Batch batch(size_t size, size_t first = 0) const {
    return {.size = size,
            .tokens = tokens.data() + first * shape.context,
            .images = nullptr,
            .targets = targets.data() + first * shape.context,
            .ids = ids.data() + first};
  }
  double forward(const Pass& pass, const Batch& samples) {
    double loss = 0;
    REQUIRE(model->forward(samples, pass, &loss).ok());
    return loss;
  }
  double forward(const Pass& pass, size_t size) { return forward(pass, batch(size)); }
  Listener step(const Pass& pass, size_t size, double scale = 1, bool accumulate = false) {
    Listener listener;
    forward(pass, size);
    REQUIRE(model->backward(batch(size), pass, scale, accumulate, listener).ok());
    return listener;
  }
  /// The gradient of a parameter, with what adds to it.
  std::vector<T> gradient(size_t p) const {
    std::vector<T> sum = gradients[p];
    for (size_t other = 0; other < values.size(); ++other) {
      if (parameter(other).adds_to != static_cast<int>(p)) continue;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradients[other][i];
    }
    return sum;
  }

  GptShape shape;
  std::unique_ptr<Model<T>> model;
  std::vector<std::vector<T>> values, gradients;
  std::vector<int32_t> tokens, targets;
  std::vector<uint64_t> ids;
};

GptShape with(bool split_tied, double dropout = 0, double layer_drop = 0) {
  GptShape shape = Fixture<double>::kSmall;
  shape.split_tied = split_tied;
  shape.dropout = dropout;
  shape.layer_drop = layer_drop;
  return shape;
}

constexpr Pass kPass{.training = true, .seed = 3, .step = 4};

/// Of a pass that skips these parameters.
void check_all_gradients(Fixture<double>& f, const Pass& pass, const std::set<int>& skipped = {}) {
  const double scale = 0.25;
  f.step(pass, 2, scale);
  for (size_t p = 0; p < f.values.size(); ++p) {
    if (f.parameter(p).adds_to >= 0 || skipped.count(static_cast<int>(p)) == 1) continue;
    INFO(f.parameter(p).name);
    check_gradient(
        f.values[p], f.gradient(p), [&] { return scale * f.forward(pass, 2); }, 2e-7);
  }
}

}  // namespace

TEST_CASE("gpt: the gradient of every parameter equals central differences") {
  for (const bool split : {true, false}) {
    Fixture<double> f(with(split));
    check_all_gradients(f, kPass);
  }
}

TEST_CASE("gpt: so it does with dropout, whose zeros are fixed by their keys") {
  for (const bool split : {true, false}) {
    Fixture<double> f(with(split, 0.3));
    check_all_gradients(f, kPass);
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
    const Listener listener = f.step(kPass, 2);
    REQUIRE(listener.ready.size() == f.values.size());
    for (size_t p = 0; p < f.values.size(); ++p) {
      CHECK(listener.ready[p] == std::pair(static_cast<int>(p), f.values[p].size()));
    }
    CHECK(listener.layers == std::vector<int>{0, 1, 2, 3, 4, 5});
    CHECK(f.model->layers() == std::vector<std::string>{"head", "h.1.mlp", "h.1.attn", "h.0.mlp",
                                                        "h.0.attn", "embedding"});
    CHECK(f.parameter(f.values.size() - 1).name == (split ? "wte.weight rows" : "wte.weight"));
    CHECK(f.parameter(f.values.size() - 1).adds_to == (split ? 0 : -1));
    CHECK(f.parameter(0).name == (split ? "wte.weight" : "ln_f.weight"));
  }
}

namespace {

/// Keeps and spoils each gradient, or each part of one, as soon as it is said to be final.
struct Spoiler : BackwardListener {
  explicit Spoiler(std::vector<std::vector<float>>& gradients_) : gradients(gradients_) {
    for (const auto& gradient : gradients) kept.emplace_back(gradient.size(), 0.0f);
    done.resize(gradients.size());
  }
  void layer_begins(int) override {}
  void gradient_ready(int parameter, size_t count) override {
    const auto p = static_cast<size_t>(parameter);
    REQUIRE(count > done[p]);
    for (size_t i = done[p]; i < count; ++i) {
      kept[p][i] = gradients[p][i];
      gradients[p][i] = -1e30f;
    }
    if (done[p] > 0) later_parts.push_back(done[p]);
    done[p] = count;
  }
  void gradient_skipped(int) override { FAIL("nothing is skipped"); }
  std::vector<std::vector<float>>& gradients;
  std::vector<std::vector<float>> kept;
  std::vector<size_t> done;
  std::vector<size_t> later_parts;  // where they begin
};

}  // namespace

TEST_CASE("gpt: a large gradient is told in panels; what was told is not touched again") {
  // 9000 x 256 floats are 8.8 MiB, three panels; 1024 x 256 are 1 MiB.
  const GptShape shape{
      .layers = 1, .width = 256, .heads = 4, .context = 3, .vocabulary = 9000, .batch = 1};
  Fixture<float> f(shape);
  f.step(kPass, 1);
  const auto expected = f.gradients;
  Spoiler spoiler(f.gradients);
  f.forward(kPass, 1);
  REQUIRE(f.model->backward(f.batch(1), kPass, 1, false, spoiler).ok());
  // Whole rows of dy, 64 of them: a multiple of 128 bytes in any type.
  CHECK(spoiler.later_parts == std::vector<size_t>{3008 * 256, 2 * 3008 * 256});
  CHECK(spoiler.kept == expected);
  for (size_t p = 0; p < f.values.size(); ++p) {
    CHECK(spoiler.done[p] == f.values[p].size());
    CHECK(std::all_of(f.gradients[p].begin(), f.gradients[p].end(),
                      [](float g) { return g == -1e30f; }));
  }
}

TEST_CASE("gpt: single samples, accumulated, are the batch, whatever their place in it") {
  Fixture<double> f(with(true, 0.2));  // with dropout: it goes by the sample's id
  const double loss = f.forward(kPass, 2);
  f.step(kPass, 2);
  const auto expected = f.gradients;
  double sum = 0;
  Listener listener;
  for (const size_t sample : {size_t{1}, size_t{0}}) {
    sum += f.forward(kPass, f.batch(1, sample));
    REQUIRE(f.model->backward(f.batch(1, sample), kPass, 1, sample == 0, listener).ok());
  }
  CHECK(sum == Approx(loss).epsilon(1e-13));
  for (size_t p = 0; p < expected.size(); ++p) {
    for (size_t i = 0; i < expected[p].size(); ++i) {
      REQUIRE(f.gradients[p][i] == Approx(expected[p][i]).epsilon(1e-10).margin(1e-13));
    }
  }
}

TEST_CASE("gpt: an empty batch has no loss, and a zero gradient or none to add") {
  for (const bool split : {true, false}) {
    Fixture<double> f(with(split));
    CHECK(f.forward(kPass, 0) == 0);
    Listener listener = f.step(kPass, 0, 1, true);
    CHECK(listener.ready.size() == f.values.size());
    for (const auto& gradient : f.gradients) {
      CHECK(std::all_of(gradient.begin(), gradient.end(), [](double g) { return g == 77; }));
    }
    f.step(kPass, 0, 1, false);
    for (const auto& gradient : f.gradients) {
      CHECK(std::all_of(gradient.begin(), gradient.end(), [](double g) { return g == 0; }));
    }
  }
}

TEST_CASE("gpt: LayerDrop leaves out whole blocks, in training only, and says so") {
  Fixture<double> f(with(true, 0, 0.5)), whole(with(true));
  std::set<std::set<int>> seen;
  const size_t block = 12, head = 3;
  for (uint64_t step = 0; step < 16; ++step) {
    const Pass pass{.training = true, .seed = 1, .step = step};
    for (auto& gradient : f.gradients) std::fill(gradient.begin(), gradient.end(), 5);
    const Listener listener = f.step(pass, 2, 1, true);
    const Listener again = f.step(pass, 2, 1, true);
    CHECK(listener.skipped == again.skipped);
    CHECK(listener.ready.size() + listener.skipped.size() == f.values.size());
    for (const int p : listener.skipped) {
      CHECK(f.parameter(static_cast<size_t>(p)).may_skip);
      for (const double g : f.gradients[static_cast<size_t>(p)]) REQUIRE(g == 5);
    }
    if (seen.insert(listener.skipped).second) check_all_gradients(f, pass, listener.skipped);
  }
  CHECK(seen.size() == 4);  // of two blocks none, either, both
  CHECK(seen.count({}) == 1);
  for (const auto& skipped : seen) CHECK(skipped.size() % block == 0);
  CHECK(!f.parameter(0).may_skip);
  CHECK(!f.parameter(head - 1).may_skip);
  CHECK(!f.parameter(f.values.size() - 1).may_skip);
  const Pass evaluation{.training = false, .seed = 1, .step = 0};
  CHECK(f.forward(evaluation, 2) == whole.forward(evaluation, 2));
}

TEST_CASE("gpt: without training there is no dropout, and ids are not read") {
  Fixture<double> f(with(true, 0.5, 0.5)), plain(with(true));
  Batch batch = f.batch(2);
  batch.ids = nullptr;
  const Pass evaluation{.training = false, .seed = 1, .step = 0};
  CHECK(f.forward(evaluation, batch) == plain.forward(kPass, 2));
  CHECK(f.forward(kPass, 2) != plain.forward(kPass, 2));
}

TEST_CASE("gpt: float follows double within a relative 1e-4, and repeats itself bit for bit") {
  const GptShape shape{
      .layers = 2, .width = 24, .heads = 3, .context = 70, .vocabulary = 37, .batch = 2};
  Fixture<float> narrow(shape);
  Fixture<double> wide(shape);
  for (size_t p = 0; p < wide.values.size(); ++p) {
    std::copy(narrow.values[p].begin(), narrow.values[p].end(), wide.values[p].begin());
  }
  CHECK(narrow.forward(kPass, 2) == Approx(wide.forward(kPass, 2)).epsilon(1e-6));
  narrow.step(kPass, 2);
  wide.step(kPass, 2);
  const auto first = narrow.gradients;
  for (size_t p = 0; p < wide.values.size(); ++p) {
    double largest = 0;
    for (const double g : wide.gradients[p]) largest = std::max(largest, std::abs(g));
    INFO(wide.parameter(p).name << ", largest " << largest);
    for (size_t i = 0; i < wide.gradients[p].size(); ++i) {
      REQUIRE(std::abs(double(narrow.gradients[p][i]) - wide.gradients[p][i]) <= 1e-4 * largest);
    }
  }
  narrow.step(kPass, 2);
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
