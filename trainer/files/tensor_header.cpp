// Reading the JSON header of a tensor file: what it says of itself, before it is held against the
// data. See tensor_format.hpp.
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "trainer/files/tensor_format.hpp"

namespace rondo::trainer {
namespace {

using Json = nlohmann::json;

/// The header, or why it is none.
Result<Json> parse_json(const char* text, size_t bytes) {
  // The parser keeps the last of several equal keys, and says nothing.
  std::vector<std::set<std::string>> open_objects;
  std::string twice;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const std::string key = parsed.get<std::string>();
      if (!open_objects.back().insert(key).second && twice.empty()) twice = key;
    }
    return true;
  };
  // To the parser a zero byte is the end; JSON has none.
  const bool is_text = std::memchr(text, 0, bytes) == nullptr;
  Json header = Json::parse(text, text + bytes, watch, /*allow_exceptions=*/false);
  if (header.is_discarded() || !is_text) return tensor_format::wrong("its header is no valid JSON");
  if (!header.is_object()) return tensor_format::wrong("its header is no JSON object");
  if (!twice.empty()) return tensor_format::wrong("its header has '" + twice + "' twice");
  return header;
}

/// Numbers that are no negatives and no fractions.
Result<std::vector<size_t>> parse_sizes(const Json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array()) {
    return tensor_format::wrong(std::string("has no list '") + key + "'");
  }
  std::vector<size_t> sizes;
  for (const Json& value : *found) {
    if (!value.is_number_unsigned()) {
      return tensor_format::wrong(std::string("has something other than whole numbers in '") + key +
                                  "'");
    }
    sizes.push_back(value.get<size_t>());
  }
  return sizes;
}

/// Bytes of a tensor, or an error where that is more than a number can hold.
Result<size_t> bytes_of(const TensorView& tensor) {
  size_t bytes = size_of(tensor.type);
  for (const size_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return tensor_format::wrong("has a shape of more elements than there can be");
    }
  }
  return bytes;
}

/// Fills in everything but name and data.
Status parse_entry(const Json& entry, tensor_format::TensorEntry& to) {
  if (!entry.is_object()) return tensor_format::wrong("is described by no JSON object");
  const auto type_name = entry.find("dtype");
  if (type_name == entry.end() || !type_name->is_string()) {
    return tensor_format::wrong("has no text 'dtype'");
  }
  const auto type =
      internal::parse<DataType>(type_name->get<std::string>(), tensor_format::kTypeNames);
  if (!type) {
    return tensor_format::wrong("has the type '" + type_name->get<std::string>() +
                                "', which rondo does not know");
  }
  to.tensor.type = *type;
  to.tensor.shape = RONDO_TRY(parse_sizes(entry, "shape"));
  const std::vector<size_t> range = RONDO_TRY(parse_sizes(entry, "data_offsets"));
  if (range.size() != 2 || range[0] > range[1]) {
    return tensor_format::wrong("has 'data_offsets' that are no [begin, end]");
  }
  const size_t bytes = RONDO_TRY(bytes_of(to.tensor));
  if (range[1] - range[0] != bytes) {
    return tensor_format::wrong("has " + std::to_string(range[1] - range[0]) +
                                " bytes of data, but its shape and type say " +
                                std::to_string(bytes));
  }
  to.begin = range[0];
  to.end = range[1];
  return {};
}

Status parse_metadata(const Json& entry, std::map<std::string, std::string>& metadata) {
  if (!entry.is_object()) return tensor_format::wrong("its metadata is no JSON object");
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) {
      return tensor_format::wrong("its metadata '" + key + "' is no text");
    }
    metadata[key] = value.get<std::string>();
  }
  return {};
}

}  // namespace

Status tensor_format::parse_header(const char* text, size_t bytes, TensorHeader& header) {
  const Json json = RONDO_TRY(parse_json(text, bytes));
  for (const auto& [key, value] : json.items()) {
    if (key == kMetadataKey) {
      RONDO_TRY(parse_metadata(value, header.metadata));
      continue;
    }
    TensorEntry entry{.tensor = {.name = key, .type = {}, .shape = {}, .data = nullptr}};
    const Status status = parse_entry(value, entry);
    if (!status.ok()) {
      return tensor_format::wrong("tensor '" + key + "' " + status.message());
    }
    header.entries.push_back(std::move(entry));
  }
  return {};
}

}  // namespace rondo::trainer
