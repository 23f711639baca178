// nlohmann-json reads and writes single values; no document of it exists.
#include "comm/tuner/json_value.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "comm/base/printable.hpp"

namespace rondo::tuner {
namespace {

using nlohmann::json;

constexpr size_t kMostDeep = 16;

/// Receives a document's parts in order; false ends it.
class Builder final : public json::json_sax_t {
 public:
  bool null() override { return add({}); }
  bool boolean(bool truth) override { return add({.kind = JsonKind::kBool, .truth = truth}); }
  bool number_integer(int64_t number) override {
    return add({.kind = JsonKind::kNumber,
                .number = static_cast<double>(number),
                .text = std::to_string(number)});
  }
  bool number_unsigned(uint64_t number) override {
    return add({.kind = JsonKind::kNumber,
                .number = static_cast<double>(number),
                .is_whole = true,
                .whole = number,
                .text = std::to_string(number)});
  }
  bool number_float(double number, const std::string&) override {
    return add({.kind = JsonKind::kNumber, .number = number});
  }
  bool string(std::string& text) override {
    return add({.kind = JsonKind::kString, .text = std::move(text)});
  }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open({.kind = JsonKind::kObject}); }
  bool key(std::string& name) override {
    open_.back().names.push_back(std::move(name));
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open({.kind = JsonKind::kArray}); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    error_ = error.what();
    return false;
  }

  JsonValue& root() { return root_; }
  const std::string& error() const { return error_; }

 private:
  bool add(JsonValue value) {
    (open_.empty() ? root_ : open_.back().items.emplace_back()) = std::move(value);
    return true;
  }
  bool open(JsonValue value) {
    if (open_.size() == kMostDeep) {
      error_ = "it is nested more than " + std::to_string(kMostDeep) + " deep";
      return false;
    }
    open_.push_back(std::move(value));
    return true;
  }
  bool close() {
    JsonValue value = std::move(open_.back());
    open_.pop_back();
    return add(std::move(value));
  }

  JsonValue root_;
  std::vector<JsonValue> open_;
  std::string error_;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view name) const {
  const auto at = std::find(names.rbegin(), names.rend(), name);
  return at == names.rend() ? nullptr : &items[static_cast<size_t>(names.rend() - at) - 1];
}

std::string JsonValue::to_text(size_t most) const {
  switch (kind) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBool:
      return truth ? "true" : "false";
    case JsonKind::kNumber:
      return text.empty() ? json_text(number) : text;
    case JsonKind::kString:
      return json_text(text);
    case JsonKind::kArray:
    case JsonKind::kObject:
      break;
  }
  const bool is_object = kind == JsonKind::kObject;
  std::string all(1, is_object ? '{' : '[');
  for (size_t i = 0; i < items.size() && all.size() < most; ++i) {
    if (i > 0) all += ',';
    if (is_object) all += json_text(names[i]) + ':';
    all += items[i].to_text(most);
  }
  return all + (is_object ? '}' : ']');
}

std::string json_text(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string json_text(double number) { return json(number).dump(); }

Result<JsonValue> parse_json(std::string_view text) {
  Builder builder;
  if (json::sax_parse(text, &builder)) return std::move(builder.root());
  constexpr size_t kMostText = 300;  // the parser quotes what it has read of a token, of any length
  return Status(Code::kDataError, base::printable(builder.error(), kMostText));
}

}  // namespace rondo::tuner
