// See request.hpp.
#include "explain/request.hpp"

#include <cmath>

namespace rondo::explain {
namespace {

/// 12, 0.5, 1e+06: as short as it can be said.
std::string number_text(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  return whole ? std::to_string(static_cast<int64_t>(value)) : Json(value).dump();
}

}  // namespace

Status PageRequest::refuse(const char* field, const std::string& what) const {
  return {Code::kInvalidArgument, where_ + (where_.empty() ? "" : ": ") + field + " " + what};
}

Result<const Json*> PageRequest::find(const char* field) const {
  const auto at = object_.find(field);
  if (at == object_.end() || at->is_null()) return refuse(field, "is missing");
  return &*at;
}

Result<int64_t> PageRequest::whole(const char* field, int64_t least, int64_t most,
                                   std::optional<int64_t> absent) const {
  if (absent && !has(field)) return *absent;
  const double value =
      RONDO_TRY(number(field, static_cast<double>(least), static_cast<double>(most)));
  if (value != std::floor(value)) return refuse(field, "is not a whole number");
  return static_cast<int64_t>(value);
}

Result<double> PageRequest::number(const char* field, double least, double most,
                                   std::optional<double> absent) const {
  if (absent && !has(field)) return *absent;
  const Json* const value = RONDO_TRY(find(field));
  if (!value->is_number()) return refuse(field, "is not a number");
  const auto found = value->get<double>();
  if (!(found >= least && found <= most)) {
    return refuse(field, "is " + number_text(found) + ", and must be " + number_text(least) +
                             " to " + number_text(most));
  }
  return found;
}

Result<std::string> PageRequest::text(const char* field, size_t most,
                                      std::optional<std::string> absent) const {
  if (absent && !has(field)) return *absent;
  const Json* const value = RONDO_TRY(find(field));
  if (!value->is_string()) return refuse(field, "is not a text");
  const auto& found = value->get_ref<const std::string&>();
  if (found.size() > most) {
    return refuse(field, "is longer than " + std::to_string(most) + " bytes");
  }
  return found;
}

Result<bool> PageRequest::truth(const char* field, bool absent) const {
  if (!has(field)) return absent;
  if (!object_[field].is_boolean()) return refuse(field, "is neither true nor false");
  return object_[field].get<bool>();
}

Result<const Json*> PageRequest::list(const char* field, size_t most) const {
  if (!has(field)) return static_cast<const Json*>(nullptr);
  const Json& value = object_[field];
  if (!value.is_array()) return refuse(field, "is not a list");
  if (value.size() > most) {
    return refuse(field, "has more than " + std::to_string(most) + " items");
  }
  return &value;
}

Result<PageRequest> PageRequest::item(const char* field, size_t index) const {
  const Json& value = object_[field][index];
  const std::string name = std::string(field) + "[" + std::to_string(index) + "]";
  if (!value.is_object()) return refuse(name.c_str(), "is not an object");
  return PageRequest(value, where_.empty() ? name : where_ + "." + name);
}

}  // namespace rondo::explain
