// A JSON document as plain values. Not nlohmann's: the destructor of its arrays and objects
// allocates, and ends the process where that fails.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::tuner {

enum class JsonKind { kNull, kBool, kNumber, kString, kArray, kObject };

struct JsonValue {
  JsonKind kind = JsonKind::kNull;
  bool truth = false;
  double number = 0;
  bool is_whole = false;  // a number that is not negative, also in `whole`
  uint64_t whole = 0;
  std::string text{};                // a string; of an integer, its digits
  std::vector<JsonValue> items{};    // of an array or object
  std::vector<std::string> names{};  // of an object's items

  /// The last item of that name; null: none.
  const JsonValue* find(std::string_view name) const;
  bool is(std::string_view wanted) const { return kind == JsonKind::kString && text == wanted; }
  /// As JSON, cut to about `most` bytes.
  std::string to_text(size_t most) const;
};

/// A string as JSON, with its quotes; a number with as many digits as it takes.
std::string json_text(std::string_view text);
std::string json_text(double number);

/// kDataError: `text` is not JSON, or is nested more than 16 deep.
Result<JsonValue> parse_json(std::string_view text);

}  // namespace rondo::tuner
