// GPT-2's weights from and to Hugging Face's names and layouts.
#include "trainer/checkpoint/gpt2_weights.hpp"

#include <cstring>
#include <functional>

#include "kernels/half.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::trainer::gpt2_weights_test {

using namespace rondo;
using rondo::testing::contains;
using rondo::testing::TempDirectory;

namespace {

/// A GPT-2 of one layer: vocabulary 5, context 3, width 2. In an order of backward's.
std::vector<Parameter> parameters_of_gpt(const std::string& prefix = "") {
  const auto parameter = [&](const char* name, std::vector<size_t> shape) {
    return Parameter{.name = prefix + name, .shape = std::move(shape), .init = {}};
  };
  std::vector<Parameter> parameters = {parameter("ln_f.bias", {2}),
                                       parameter("h.0.mlp.c_proj.bias", {2}),
                                       parameter("h.0.mlp.c_proj.weight", {2, 8}),
                                       parameter("h.0.mlp.c_fc.weight", {8, 2}),
                                       parameter("h.0.attn.c_proj.weight", {2, 2}),
                                       parameter("h.0.attn.c_attn.bias", {6}),
                                       parameter("h.0.attn.c_attn.weight", {6, 2}),
                                       parameter("h.0.ln_1.weight", {2}),
                                       parameter("wte.weight", {5, 2}),
                                       parameter("wpe.weight", {3, 2}),
                                       parameter("lookup", {5, 2})};
  parameters.back().adds_to = 8;  // a second gradient of wte.weight
  return parameters;
}

/// A model's values, element i of parameter p being 100 p + i.
template <class T>
struct Values {
  std::vector<std::vector<T>> storage;

  explicit Values(const std::vector<Parameter>& parameters, bool fill = true) {
    for (const Parameter& parameter : parameters) {
      std::vector<T>& values = storage.emplace_back(parameter.count());
      for (size_t i = 0; fill && i < values.size(); ++i) {
        values[i] = static_cast<T>(100 * storage.size() + i);
      }
    }
  }
  std::vector<T*> pointers() {
    std::vector<T*> all;
    for (auto& values : storage) all.push_back(values.data());
    all.back() = nullptr;  // of the parameter that only adds
    return all;
  }
  std::vector<const T*> constant_pointers() {
    const std::vector<T*> all = pointers();
    return {all.begin(), all.end()};
  }
};

TensorFile open(const std::string& path) {
  Result<TensorFile> file = TensorFile::open(path);
  INFO(file.status().to_string());
  REQUIRE(file.ok());
  return std::move(file).value();
}

/// A saved model's tensors, to be changed and written again.
struct Rewritten {
  std::string path;
  TensorFile file;
  std::vector<TensorView> tensors;

  explicit Rewritten(const std::string& folder)
      : path(folder + "/changed"), file(saved(folder)), tensors(file.tensors()) {}

  TensorView& operator[](const std::string& name) {
    for (TensorView& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    FAIL("no tensor " + name);
    return tensors[0];
  }
  void erase(const std::string& name) {
    std::erase_if(tensors, [&](const TensorView& tensor) { return tensor.name == name; });
  }
  /// What loading it says; empty: nothing, and all values are the saved ones.
  std::string load_error() {
    REQUIRE(write_tensor_file(path, tensors, {}).ok());
    const std::vector<Parameter> parameters = parameters_of_gpt();
    Values<float> loaded(parameters, false);
    const Status status = load_gpt2_weights(open(path), parameters, loaded.pointers());
    if (!status.ok()) {
      CHECK(status.code() == Code::kDataError);
      CHECK_THAT(status.message(), contains(path));
      return status.message();
    }
    Values<float> expected(parameters);
    expected.storage.back() = loaded.storage.back();
    CHECK(loaded.storage == expected.storage);
    return "";
  }

  static TensorFile saved(const std::string& folder) {
    const std::vector<Parameter> parameters = parameters_of_gpt();
    REQUIRE(save_gpt2_weights(folder + "/saved", parameters,
                              Values<float>(parameters).constant_pointers())
                .ok());
    return open(folder + "/saved");
  }
};

}  // namespace

TEMPLATE_TEST_CASE("gpt2 weights: what is saved is loaded", "", float, double) {
  const TempDirectory folder;
  const std::string path = folder.path() + "/gpt2";
  for (const char* save_prefix : {"", "transformer."}) {
    for (const char* load_prefix : {"", "transformer."}) {
      const std::vector<Parameter> parameters = parameters_of_gpt(save_prefix);
      Values<TestType> saved(parameters);
      REQUIRE(save_gpt2_weights(path, parameters, saved.constant_pointers()).ok());
      Values<TestType> loaded(parameters, false);
      const Status status =
          load_gpt2_weights(open(path), parameters_of_gpt(load_prefix), loaded.pointers());
      INFO(status.to_string());
      REQUIRE(status.ok());
      for (size_t p = 0; p + 1 < parameters.size(); ++p) {
        CHECK(loaded.storage[p] == saved.storage[p]);
      }
      CHECK(loaded.storage.back() == std::vector<TestType>(10));  // only adds: nothing is loaded
    }
  }
}

TEST_CASE("gpt2 weights: names and layouts in the file are Hugging Face's") {
  const TempDirectory folder;
  const TensorFile file = Rewritten::saved(folder.path());
  CHECK(file.tensors().size() == 10);
  CHECK(file.metadata().at("format") == "pt");
  const auto values_of = [&](const std::string& name) {
    const TensorView* tensor = file.find(name);
    REQUIRE(tensor != nullptr);
    std::vector<float> values(tensor->count());
    std::memcpy(values.data(), tensor->data, tensor->bytes());
    return std::pair(tensor->shape, values);
  };
  using Shape = std::vector<size_t>;
  using Floats = std::vector<float>;
  CHECK(values_of("transformer.ln_f.bias") == std::pair(Shape{2}, Floats{100, 101}));
  // [6 x 2] with rows 700 701, 702 703, ... in the model.
  CHECK(values_of("transformer.h.0.attn.c_attn.weight") ==
        std::pair(Shape{2, 6}, Floats{700, 702, 704, 706, 708, 710, 701, 703, 705, 707, 709, 711}));
  CHECK(values_of("transformer.h.0.attn.c_proj.weight") ==
        std::pair(Shape{2, 2}, Floats{500, 502, 501, 503}));
  CHECK(values_of("transformer.h.0.mlp.c_proj.weight").first == Shape{8, 2});
  CHECK(values_of("transformer.h.0.mlp.c_fc.weight").first == Shape{2, 8});
  // Embeddings are as they are.
  CHECK(values_of("transformer.wpe.weight") ==
        std::pair(Shape{3, 2}, Floats{1000, 1001, 1002, 1003, 1004, 1005}));
}

TEST_CASE("gpt2 weights: masks and a tied output layer are ignored") {
  const TempDirectory folder;
  Rewritten rewritten(folder.path());
  const uint8_t mask[9] = {1, 0, 0, 1, 1, 0, 1, 1, 1};
  const float masked = -1e4f;
  rewritten.tensors.push_back({.name = "transformer.h.0.attn.bias",
                               .type = DataType::kUint8,
                               .shape = {1, 1, 3, 3},
                               .data = mask});
  rewritten.tensors.push_back({.name = "transformer.h.0.attn.masked_bias",
                               .type = DataType::kFloat32,
                               .shape = {},
                               .data = &masked});
  TensorView head = rewritten["transformer.wte.weight"];
  head.name = "lm_head.weight";
  rewritten.tensors.push_back(head);
  CHECK(rewritten.load_error() == "");

  const std::vector<float> other(10, 1);
  rewritten["lm_head.weight"].data = other.data();
  CHECK_THAT(rewritten.load_error(), contains("'lm_head.weight' differs from wte.weight"));
}

TEST_CASE("gpt2 weights: a model with an output layer of its own gets it") {
  const TempDirectory folder;
  const std::vector<Parameter> parameters = {
      {.name = "lm_head.weight", .shape = {2, 3}, .init = {}},
      {.name = "wte.weight", .shape = {2, 3}, .init = {}}};
  const std::vector<float> head = {1, 2, 3, 4, 5, 6}, tokens = {6, 5, 4, 3, 2, 1};
  const std::string path = folder.path() + "/gpt2";
  REQUIRE(save_gpt2_weights<float>(path, parameters, {head.data(), tokens.data()}).ok());
  CHECK(open(path).find("lm_head.weight") != nullptr);  // never with a prefix
  std::vector<float> loaded_head(6), loaded_tokens(6);
  REQUIRE(
      load_gpt2_weights<float>(open(path), parameters, {loaded_head.data(), loaded_tokens.data()})
          .ok());
  CHECK(loaded_head == head);
  CHECK(loaded_tokens == tokens);
}

TEMPLATE_TEST_CASE("gpt2 weights: every floating-point type is converted", "", float, double) {
  const TempDirectory folder;
  const std::vector<Parameter> parameters = {
      {.name = "h.0.mlp.c_fc.weight", .shape = {3, 2}, .init = {}}};
  const std::vector<float> exact = {1, -2, 0.5, 3.25, -0.125, 96};  // [in x out]
  const std::vector<TestType> expected = {1, 3.25, -2, -0.125, 0.5, 96};
  const std::vector<double> doubles(exact.begin(), exact.end());
  std::vector<uint16_t> halves, bfloats;
  for (const float value : exact) {
    halves.push_back(kernels::half_from_float(value));
    bfloats.push_back(kernels::bfloat16_from_float(value));
  }
  const std::pair<DataType, const void*> types[] = {{DataType::kFloat32, exact.data()},
                                                    {DataType::kFloat64, doubles.data()},
                                                    {DataType::kFloat16, halves.data()},
                                                    {DataType::kBFloat16, bfloats.data()}};
  for (const auto& [type, data] : types) {
    INFO(name(type));
    const TensorView tensor{
        .name = "h.0.mlp.c_fc.weight", .type = type, .shape = {2, 3}, .data = data};
    REQUIRE(write_tensor_file(folder.path() + "/file", {&tensor, 1}, {}).ok());
    std::vector<TestType> values(6);
    REQUIRE(load_gpt2_weights<TestType>(open(folder.path() + "/file"), parameters, {values.data()})
                .ok());
    CHECK(values == expected);
  }
}

TEST_CASE("gpt2 weights: what does not fit the model is named") {
  const TempDirectory folder;
  const auto message_of = [&](const std::function<void(Rewritten&)>& change) {
    Rewritten changed(folder.path());
    change(changed);
    return changed.load_error();
  };
  const auto copied_as = [](const std::string& name) {
    return [name](Rewritten& r) {
      TensorView copy = r["transformer.ln_f.bias"];
      copy.name = name;
      r.tensors.push_back(copy);
    };
  };
  const std::string missing = message_of([](auto& r) { r.erase("transformer.wpe.weight"); });
  CHECK_THAT(missing, contains("'wpe.weight', of shape [3 x 2], is missing"));
  CHECK_THAT(missing, !contains("--layers"));  // nothing that flags could mend
  CHECK_THAT(message_of([](auto& r) {
               r["transformer.wte.weight"].shape = {2, 5};
             }),
             contains("'transformer.wte.weight' has the shape [2 x 5]") &&
                 contains("the model needs [5 x 2]"));
  // As a model, and not as a file, would have it.
  CHECK_THAT(message_of([](auto& r) {
               r["transformer.h.0.attn.c_attn.weight"].shape = {6, 2};
             }),
             contains("has the shape [6 x 2], but the model needs [2 x 6]"));
  const std::string more = message_of(copied_as("transformer.h.1.ln_1.bias"));
  CHECK_THAT(more, contains("no parameter for tensor 'transformer.h.1.ln_1.bias'"));
  CHECK_THAT(more, contains("give --layers 2 --width 2 --context 3 --vocabulary 5"));
  CHECK_THAT(more, !contains("--heads"));
  CHECK_THAT(message_of(copied_as("ln_f.bias")), contains("'ln_f.bias' is there with and without"));
  CHECK_THAT(message_of([](auto& r) { r["transformer.wte.weight"].type = DataType::kInt32; }),
             contains("'transformer.wte.weight' has the type int32"));
}

TEST_CASE("gpt2 weights: a file of another size says which flags make a model of its size") {
  const TempDirectory folder;
  const std::vector<float> zeros(1024 * 128);
  const std::vector<TensorView> tensors = {
      {.name = "wte.weight", .type = DataType::kFloat32, .shape = {300, 128}, .data = zeros.data()},
      {.name = "wpe.weight",
       .type = DataType::kFloat32,
       .shape = {1024, 128},
       .data = zeros.data()},
      {.name = "h.11.ln_1.bias", .type = DataType::kFloat32, .shape = {128}, .data = zeros.data()}};
  REQUIRE(write_tensor_file(folder.path() + "/file", tensors, {}).ok());
  const std::vector<Parameter> parameters = parameters_of_gpt();
  Values<float> loaded(parameters, false);
  const Status status =
      load_gpt2_weights(open(folder.path() + "/file"), parameters, loaded.pointers());
  REQUIRE(!status.ok());
  CHECK_THAT(status.message(),
             contains("for the model of this file give --layers 12 --width 128 --context 1024 "
                      "--vocabulary 300 --heads 2 (which the file does not say"));
}

}  // namespace rondo::trainer::gpt2_weights_test
