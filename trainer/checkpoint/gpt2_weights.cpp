// See gpt2_weights.hpp.
#include "trainer/checkpoint/gpt2_weights.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <string_view>

#include "kernels/half.hpp"

namespace rondo::trainer {
namespace {

constexpr std::string_view kTransformer = "transformer.";
constexpr char kHead[] = "lm_head.weight";
constexpr char kTokens[] = "wte.weight";
constexpr char kPositions[] = "wpe.weight";

std::string without_prefix(const std::string& name) {
  return name.starts_with(kTransformer) ? name.substr(kTransformer.size()) : name;
}

/// Whether a name (without prefix) is a matrix that Hugging Face keeps as [in x out] (its Conv1D).
bool is_transposed(const std::string& name) {
  for (const char* ending : {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

/// The causal mask, which old files keep as if it were learnt.
bool is_mask(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

std::vector<size_t> shape_in_file(const std::string& name, const Parameter& parameter) {
  std::vector<size_t> shape = parameter.shape;
  if (is_transposed(name) && shape.size() == 2) std::swap(shape[0], shape[1]);
  return shape;
}

std::string to_text(const std::vector<size_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? " x " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

/// What a model of GPT-2's is given by flags.
struct Gpt2Sizes {
  size_t layers = 0, width = 0, context = 0, vocabulary = 0;
  bool operator==(const Gpt2Sizes&) const = default;

  /// Learns from one tensor; its shape is the same in a file and in a model.
  void note(const std::string& name, const std::vector<size_t>& shape) {
    if (name == kTokens && shape.size() == 2) {
      vocabulary = shape[0];
      width = shape[1];
    }
    if (name == kPositions && shape.size() == 2) context = shape[0];
    size_t layer = 0;
    if (!name.starts_with("h.")) return;
    const auto [end, error] = std::from_chars(name.data() + 2, name.data() + name.size(), layer);
    if (error == std::errc{} && *end == '.') layers = std::max(layers, layer + 1);
  }
  bool known() const { return layers > 0 && width > 0 && context > 0 && vocabulary > 0; }
};

/// Which flags make a model of the file's sizes; empty where they are the model's, or cannot be
/// told.
std::string flags_for(const TensorFile& file, const std::vector<Parameter>& parameters) {
  Gpt2Sizes wanted, given;
  for (const TensorView& tensor : file.tensors()) {
    wanted.note(without_prefix(tensor.name), tensor.shape);
  }
  for (const Parameter& parameter : parameters) {
    given.note(without_prefix(parameter.name), parameter.shape);
  }
  if (!wanted.known() || wanted == given) return {};
  std::string flags = "; for the model of this file give --layers " +
                      std::to_string(wanted.layers) + " --width " + std::to_string(wanted.width) +
                      " --context " + std::to_string(wanted.context) + " --vocabulary " +
                      std::to_string(wanted.vocabulary);
  if (wanted.width % kGpt2HeadWidth == 0) {
    flags += " --heads " + std::to_string(wanted.width / kGpt2HeadWidth) +
             " (which the file does not say: GPT-2's heads are 64 wide)";
  }
  return flags;
}

template <class Stored>
Stored stored_at(const TensorView& tensor, size_t i) {
  Stored value;  // its address need not be aligned
  std::memcpy(&value, static_cast<const char*>(tensor.data) + i * sizeof value, sizeof value);
  return value;
}

/// Calls use(index in the file, index in the model) for every element.
template <class Use>
void for_each_element(const std::string& name, const TensorView& tensor, const Use& use) {
  if (!is_transposed(name) || tensor.shape.size() != 2) {
    const size_t count = tensor.count();
    for (size_t i = 0; i < count; ++i) use(i, i);
    return;
  }
  const size_t in = tensor.shape[0];
  const size_t out = tensor.shape[1];
  for (size_t o = 0; o < out; ++o) {
    for (size_t i = 0; i < in; ++i) use(i * out + o, o * in + i);
  }
}

template <class T>
Status convert(const std::string& name, const TensorView& tensor, T* values) {
  switch (tensor.type) {
    case DataType::kFloat32:
      for_each_element(name, tensor, [&](size_t from, size_t to) {
        values[to] = static_cast<T>(stored_at<float>(tensor, from));
      });
      return {};
    case DataType::kFloat64:
      for_each_element(name, tensor, [&](size_t from, size_t to) {
        values[to] = static_cast<T>(stored_at<double>(tensor, from));
      });
      return {};
    case DataType::kFloat16:
      for_each_element(name, tensor, [&](size_t from, size_t to) {
        values[to] = T{kernels::float_from_half(stored_at<uint16_t>(tensor, from))};
      });
      return {};
    case DataType::kBFloat16:
      for_each_element(name, tensor, [&](size_t from, size_t to) {
        values[to] = T{kernels::float_from_bfloat16(stored_at<uint16_t>(tensor, from))};
      });
      return {};
    default:
      return Status(Code::kDataError, "tensor '" + tensor.name + "' has the type " +
                                          std::string(rondo::name(tensor.type)) +
                                          "; weights are float, double, half or bfloat16");
  }
}

bool same_content(const TensorView& a, const TensorView& b) {
  return a.type == b.type && a.shape == b.shape && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

/// What the file holds besides the parameters must be of no consequence.
Status check_rest(const std::map<std::string, const TensorView*>& rest, const TensorView* tokens) {
  for (const auto& [name, tensor] : rest) {
    if (is_mask(name)) continue;
    if (name != kHead) {
      return Status(Code::kDataError, "the model has no parameter for tensor '" + tensor->name +
                                          "': is the model smaller than the file's?");
    }
    if (tokens == nullptr || !same_content(*tensor, *tokens)) {
      return Status(Code::kDataError, "tensor '" + tensor->name +
                                          "' differs from wte.weight, but the model's output layer "
                                          "uses wte.weight");
    }
  }
  return {};
}

template <class T>
Status load(const TensorFile& file, const std::vector<Parameter>& parameters,
            const std::vector<T*>& values) {
  std::map<std::string, const TensorView*> by_name;
  for (const TensorView& tensor : file.tensors()) {
    if (by_name.emplace(without_prefix(tensor.name), &tensor).second) continue;
    return Status(Code::kDataError, "tensor '" + without_prefix(tensor.name) +
                                        "' is there with and without 'transformer.'");
  }
  std::map<std::string, const TensorView*> rest = by_name;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].adds_to >= 0) continue;
    const std::string name = without_prefix(parameters[i].name);
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      return Status(Code::kDataError, "tensor '" + name + "', of shape " +
                                          to_text(shape_in_file(name, parameters[i])) +
                                          ", is missing");
    }
    const TensorView& tensor = *found->second;
    if (tensor.shape != shape_in_file(name, parameters[i])) {
      return Status(Code::kDataError, "tensor '" + tensor.name + "' has the shape " +
                                          to_text(tensor.shape) + ", but the model needs " +
                                          to_text(shape_in_file(name, parameters[i])));
    }
    RONDO_TRY(convert(name, tensor, values[i]));
    rest.erase(name);
  }
  const auto tokens = by_name.find(kTokens);
  return check_rest(rest, tokens == by_name.end() ? nullptr : tokens->second);
}

}  // namespace

template <class T>
Status load_gpt2_weights(const TensorFile& file, const std::vector<Parameter>& parameters,
                         const std::vector<T*>& values) {
  const Status status = load(file, parameters, values);
  if (status.ok()) return status;
  return Status(status.code(), "GPT-2 weights '" + file.path() + "': " + status.message() +
                                   flags_for(file, parameters));
}

template <class T>
Status save_gpt2_weights(const std::string& path, const std::vector<Parameter>& parameters,
                         const std::vector<const T*>& values) {
  constexpr DataType kType = sizeof(T) == 4 ? DataType::kFloat32 : DataType::kFloat64;
  std::vector<TensorView> tensors;
  std::vector<std::vector<T>> transposed;  // what tensors point into
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].adds_to >= 0) continue;
    const std::string name = without_prefix(parameters[i].name);
    TensorView& tensor = tensors.emplace_back(
        TensorView{.name = name == kHead ? name : std::string(kTransformer) + name,
                   .type = kType,
                   .shape = shape_in_file(name, parameters[i]),
                   .data = values[i]});
    if (!is_transposed(name)) continue;
    std::vector<T>& copy = transposed.emplace_back(tensor.count());
    for_each_element(name, tensor, [&](size_t to, size_t from) { copy[to] = values[i][from]; });
    tensor.data = copy.data();
  }
  // transformers refuses a file that does not say which library's tensors these are.
  return write_tensor_file(path, tensors, {{"format", "pt"}});
}

template Status load_gpt2_weights(const TensorFile&, const std::vector<Parameter>&,
                                  const std::vector<float*>&);
template Status load_gpt2_weights(const TensorFile&, const std::vector<Parameter>&,
                                  const std::vector<double*>&);
template Status save_gpt2_weights(const std::string&, const std::vector<Parameter>&,
                                  const std::vector<const float*>&);
template Status save_gpt2_weights(const std::string&, const std::vector<Parameter>&,
                                  const std::vector<const double*>&);

}  // namespace rondo::trainer
