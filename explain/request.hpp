// A request of the page, read with checks: it may come from a link or a file that somebody else wrote. Every reader
// returns a sentence instead of a value that is absent, of the wrong kind or out of range. Nothing throws, because
// WebAssembly is built without exceptions.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "rondo/status.hpp"
#include "rondo/types.hpp"

namespace rondo::explain {

using Json = nlohmann::ordered_json;

/// An object of a request. Refers to the document, which must outlive it.
class PageRequest {
 public:
  /// `where`: how messages name the object; empty for the whole request.
  explicit PageRequest(const Json& object, std::string where = "")
      : object_(object), where_(std::move(where)) {}

  /// An absent field has the value `absent`, if there is one.
  Result<int64_t> whole(const char* field, int64_t least, int64_t most,
                        std::optional<int64_t> absent = std::nullopt) const;
  Result<double> number(const char* field, double least, double most,
                        std::optional<double> absent = std::nullopt) const;
  /// Of `most` bytes at most.
  Result<std::string> text(const char* field, size_t most,
                           std::optional<std::string> absent = std::nullopt) const;
  Result<bool> truth(const char* field, bool absent) const;

  /// One of an enumeration's names, as in one_of<Collective>("collective", kCollectiveNames).
  template <class Enum, size_t N>
  Result<Enum> one_of(const char* field, const std::string_view (&names)[N],
                      std::optional<Enum> absent = std::nullopt) const {
    if (absent && !has(field)) return *absent;
    const std::string word = RONDO_TRY(text(field, 64));
    if (const auto value = internal::parse<Enum>(word, names)) return *value;
    return refuse(field, "is '" + word + "', which rondo does not know");
  }

  /// An array of `most` items at most; null if the field is absent.
  Result<const Json*> list(const char* field, size_t most) const;
  /// The object at `index` of such an array.
  Result<PageRequest> item(const char* field, size_t index) const;

  bool has(const char* field) const { return object_.contains(field) && !object_[field].is_null(); }
  Status refuse(const char* field, const std::string& what) const;

 private:
  Result<const Json*> find(const char* field) const;

  const Json& object_;
  std::string where_;
};

}  // namespace rondo::explain
