// See profile_file.hpp. Exceptions of the JSON library end here.
#include "comm/tuner/profile_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/algorithms/algorithm.hpp"
#include "comm/base/limits.hpp"

namespace rondo::tuner {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kFormat = "rondo link profile";

/// An error in a profile; thrown within this file only.
struct Fault {
  std::string what;
};

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

/// A JSON object all of whose fields are known and present.
class Fields {
 public:
  Fields(const json& object, std::string path, std::initializer_list<const char*> names)
      : Fields(object, std::move(path), std::vector<std::string>(names.begin(), names.end())) {}
  Fields(const json& object, std::string path, const std::vector<std::string>& names)
      : object_(object), path_(std::move(path)) {
    if (!object.is_object()) {
      throw Fault{(path_.empty() ? "it" : path_) + " is " + shown(object) + ", not an object"};
    }
    for (const auto& [name, value] : object.items()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        throw Fault{"unknown field " + full(name)};
      }
    }
    for (const std::string& name : names) {
      if (!object.contains(name)) throw Fault{"field " + full(name) + " is missing"};
    }
  }

  std::string full(const std::string& name) const {
    return path_.empty() ? name : path_ + "." + name;
  }
  const json& at(const std::string& name) const { return object_.at(name); }
  std::string text(const std::string& name) const {
    if (!at(name).is_string()) refuse(name, "a string");
    return at(name).get<std::string>();
  }
  double number(const std::string& name) const {
    const json& value = at(name);
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0) {
      refuse(name, "a number that is not negative");
    }
    return value.get<double>();
  }
  uint64_t whole(const std::string& name, uint64_t least, uint64_t most) const {
    const json& value = at(name);
    if (!value.is_number_unsigned() || value.get<uint64_t>() < least ||
        value.get<uint64_t>() > most) {
      refuse(name, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return value.get<uint64_t>();
  }
  template <class Enum, size_t N>
  Enum one_of(const std::string& name, const std::string_view (&names)[N]) const {
    const auto value = parse<Enum>(text(name), names);
    if (!value) refuse(name, "one of rondo's");
    return *value;
  }
  const json& array(const std::string& name) const {
    if (!at(name).is_array()) refuse(name, "an array");
    return at(name);
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& wanted) const {
    throw Fault{full(name) + " is " + shown(at(name)) + ": it must be " + wanted};
  }

 private:
  const json& object_;
  std::string path_;
};

Correction::Point read_point(const Fields& table, size_t i) {
  const json& bytes = table.array("bytes")[i];
  const json& factor = table.array("factor")[i];
  if (!bytes.is_number_unsigned()) table.refuse("bytes", "whole numbers that are not negative");
  if (!factor.is_number() || !std::isfinite(factor.get<double>()) || factor.get<double>() <= 0) {
    table.refuse("factor", "numbers above 0");
  }
  return {.bytes = bytes.get<uint64_t>(), .factor = factor.get<double>()};
}

Correction read_correction(const json& object, const std::string& path) {
  const Fields table(object, path, {"collective", "algorithm", "memory", "bytes", "factor"});
  Correction c{.collective = table.one_of<Collective>("collective", kCollectiveNames),
               .algorithm = table.one_of<Algorithm>("algorithm", kAlgorithmNames),
               .mapped = table.text("memory") == "library",
               .points = {}};
  if (!c.mapped && table.text("memory") != "plain") table.refuse("memory", "plain or library");
  if (algorithms::find(c.collective, c.algorithm) == nullptr) {
    table.refuse("algorithm", "one that does " + std::string(name(c.collective)));
  }
  const size_t points = table.array("bytes").size();
  if (points == 0) table.refuse("bytes", "at least one size");
  if (table.array("factor").size() != points) table.refuse("factor", "as long as bytes");
  for (size_t i = 0; i < points; ++i) {
    c.points.push_back(read_point(table, i));
    if (i > 0 && c.points[i].bytes <= c.points[i - 1].bytes) table.refuse("bytes", "ascending");
  }
  return c;
}

void read_corrections(const json& object, LinkProfile& profile) {
  const Fields corrections(object, "corrections", {"ranks", "tables"});
  profile.corrected_ranks =
      static_cast<int>(corrections.whole("ranks", 0, base::kMaxScheduleRanks));
  const json& tables = corrections.array("tables");
  for (size_t i = 0; i < tables.size(); ++i) {
    const std::string path = corrections.full("tables[" + std::to_string(i) + "]");
    Correction read = read_correction(tables[i], path);
    for (const Correction& c : profile.corrections) {
      if (c.collective == read.collective && c.algorithm == read.algorithm &&
          c.mapped == read.mapped) {
        throw Fault{path + " repeats " + std::string(name(c.collective)) + " by " +
                    std::string(name(c.algorithm)) + " on " + (c.mapped ? "library" : "plain") +
                    " memory"};
      }
    }
    profile.corrections.push_back(std::move(read));
  }
}

LinkProfile read_document(const json& document) {
  // Checked first, so that another version's fields are not reported as unknown.
  if (!document.is_object() || document.value("format", json()) != kFormat) {
    throw Fault{std::string("it does not say \"format\": \"") + kFormat + "\""};
  }
  if (document.value("version", json()) != kProfileVersion) {
    throw Fault{"version is " + shown(document.value("version", json())) + ": this rondo reads " +
                std::to_string(kProfileVersion) + "; calibrate again"};
  }
  const Fields top(document, "",
                   {"format", "version", "name", "constants", "machine", "corrections"});
  LinkProfile profile{};
  profile.name = top.text("name");
  std::vector<std::string> names;
  for (const Constant& c : kConstants) names.emplace_back(c.name);
  const Fields constants(top.at("constants"), "constants", names);
  for (const Constant& c : kConstants) profile.*c.value = constants.number(c.name);
  const Fields machine(top.at("machine"), "machine",
                       {"parallel_ranks", "llc_bytes", "slot_bytes", "slots"});
  profile.parallel_ranks =
      static_cast<int>(machine.whole("parallel_ranks", 0, base::kMaxScheduleRanks));
  profile.llc_bytes = machine.whole("llc_bytes", 1, uint64_t{1} << 50);
  profile.slot_bytes = machine.whole("slot_bytes", 8, base::kMaxSlotBytes);
  profile.slots = static_cast<uint32_t>(machine.whole("slots", 2, base::kMaxSlots));
  read_corrections(top.at("corrections"), profile);
  return profile;
}

}  // namespace

std::string to_json_text(const LinkProfile& profile) {
  ordered_json head = {{"format", kFormat}, {"version", kProfileVersion}, {"name", profile.name}};
  for (const Constant& c : kConstants) head["constants"][c.name] = profile.*c.value;
  head["machine"] = {{"parallel_ranks", profile.parallel_ranks},
                     {"llc_bytes", profile.llc_bytes},
                     {"slot_bytes", profile.slot_bytes},
                     {"slots", profile.slots}};
  std::string text = head.dump(2);
  text.resize(text.size() - 2);  // "\n}"
  // A line for each table: people read these files.
  text += ",\n  \"corrections\": {\n    \"ranks\": " + std::to_string(profile.corrected_ranks) +
          ",\n    \"tables\": [";
  const char* separator = "\n";
  for (const Correction& c : profile.corrections) {
    ordered_json table = {{"collective", name(c.collective)},
                          {"algorithm", name(c.algorithm)},
                          {"memory", c.mapped ? "library" : "plain"},
                          {"bytes", json::array()},
                          {"factor", json::array()}};
    for (const Correction::Point& point : c.points) {
      table["bytes"].push_back(point.bytes);
      table["factor"].push_back(point.factor);
    }
    text += separator + ("      " + table.dump());
    separator = ",\n";
  }
  return text + "\n    ]\n  }\n}\n";
}

Result<LinkProfile> parse_profile(std::string_view text, const std::string& where) {
  try {
    return read_document(json::parse(text));
  } catch (const Fault& fault) {
    return Status(Code::kDataError, "link profile '" + where + "': " + fault.what);
  } catch (const json::exception& error) {
    return Status(Code::kDataError, "link profile '" + where + "' is not JSON: " + error.what());
  }
}

Result<LinkProfile> read_profile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxProfileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  const auto size = static_cast<size_t>(file.gcount());
  if (!file.is_open() || file.bad() || (size == 0 && !file.eof())) {
    return Status(Code::kSystem,
                  "cannot read the link profile '" + path + "': " + std::strerror(errno));
  }
  if (size > kMaxProfileBytes) {
    return Status(Code::kDataError, "link profile '" + path + "' has more than " +
                                        std::to_string(kMaxProfileBytes) + " bytes");
  }
  text.resize(size);
  return parse_profile(text, path);
}

}  // namespace rondo::tuner
