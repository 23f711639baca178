// See profile_file.hpp.
#include "comm/tuner/profile_file.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "comm/algorithms/algorithm.hpp"
#include "comm/base/limits.hpp"
#include "comm/tuner/json_value.hpp"

namespace rondo::tuner {
namespace {

constexpr size_t kConstantCountOfVersion3 = kConstantCount - 1;
constexpr const char* kFormat = "rondo link profile";

/// The first fault found in a profile, as a sentence; empty: none yet. What is read after a fault is not used. Not an
/// exception, because the page that explains is built without them.
class Fault {
 public:
  bool found() const { return !what_.empty(); }
  const std::string& what() const { return what_; }
  void add(std::string what) {
    if (what_.empty()) what_ = std::move(what);
  }

 private:
  std::string what_;
};

std::string shown(const JsonValue& value) {
  constexpr size_t kMost = 61;
  std::string text = value.to_text(kMost);
  return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

/// A JSON object all of whose fields are known and present. What a field should have been and is not is a fault; it is
/// then read as something harmless.
class Fields {
 public:
  Fields(const JsonValue& object, std::string path, const std::vector<std::string>& names,
         Fault& fault)
      : object_(object), path_(std::move(path)), fault_(fault) {
    if (object.kind != JsonKind::kObject) {
      fault.add((path_.empty() ? "it" : path_) + " is " + shown(object) + ", not an object");
    }
    for (const std::string& name : object.names) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        fault.add("unknown field " + full(name));
      }
    }
    for (const std::string& name : names) {
      if (object.find(name) == nullptr) fault.add("field " + full(name) + " is missing");
    }
  }

  Fault& fault() const { return fault_; }
  std::string full(const std::string& name) const {
    return path_.empty() ? name : path_ + "." + name;
  }
  const JsonValue& at(const std::string& name) const {
    static const JsonValue absent;
    const JsonValue* const value = object_.find(name);
    return value != nullptr ? *value : absent;
  }
  std::string text(const std::string& name) const {
    if (at(name).kind != JsonKind::kString) refuse(name, "a string");
    return at(name).text;
  }
  double number(const std::string& name) const {
    const JsonValue& value = at(name);
    if (value.kind != JsonKind::kNumber || !std::isfinite(value.number) || value.number < 0) {
      refuse(name, "a number that is not negative");
    }
    return value.number;
  }
  uint64_t whole(const std::string& name, uint64_t least, uint64_t most) const {
    const JsonValue& value = at(name);
    if (value.is_whole && value.whole >= least && value.whole <= most) return value.whole;
    refuse(name, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return least;
  }
  template <class Enum, size_t N>
  Enum one_of(const std::string& name, const std::string_view (&names)[N]) const {
    const auto value = internal::parse<Enum>(text(name), names);
    if (!value) refuse(name, "one of rondo's");
    return value.value_or(Enum{});
  }
  const std::vector<JsonValue>& array(const std::string& name) const {
    static const std::vector<JsonValue> none;
    if (at(name).kind == JsonKind::kArray) return at(name).items;
    refuse(name, "an array");
    return none;
  }
  void refuse(const std::string& name, const std::string& wanted) const {
    fault_.add(full(name) + " is " + shown(at(name)) + ": it must be " + wanted);
  }

 private:
  const JsonValue& object_;
  std::string path_;
  Fault& fault_;
};

Correction::Point read_point(const Fields& table, size_t i) {
  const JsonValue& bytes = table.array("bytes")[i];
  const JsonValue& factor = table.array("factor")[i];
  if (!bytes.is_whole) table.refuse("bytes", "whole numbers that are not negative");
  if (factor.kind != JsonKind::kNumber || !std::isfinite(factor.number) || factor.number <= 0) {
    table.refuse("factor", "numbers above 0");
  }
  return {.bytes = bytes.whole, .factor = factor.number};
}

Correction read_correction(const JsonValue& object, const std::string& path, Fault& fault) {
  const Fields table(object, path, {"collective", "algorithm", "memory", "bytes", "factor"}, fault);
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
  if (fault.found()) return c;
  for (size_t i = 0; i < points; ++i) {
    c.points.push_back(read_point(table, i));
    if (i > 0 && c.points[i].bytes <= c.points[i - 1].bytes) table.refuse("bytes", "ascending");
  }
  return c;
}

std::vector<Correction> read_tables(const Fields& corrections) {
  std::vector<Correction> read;
  const std::vector<JsonValue>& tables = corrections.array("tables");
  for (size_t i = 0; i < tables.size(); ++i) {
    const std::string path = corrections.full("tables[" + std::to_string(i) + "]");
    Correction table = read_correction(tables[i], path, corrections.fault());
    for (const Correction& c : read) {
      if (c.collective == table.collective && c.algorithm == table.algorithm &&
          c.mapped == table.mapped) {
        corrections.fault().add(path + " repeats " + std::string(name(c.collective)) + " by " +
                                std::string(name(c.algorithm)) + " on " +
                                (c.mapped ? "library" : "plain") + " memory");
      }
    }
    if (corrections.fault().found()) return {};
    read.push_back(std::move(table));
  }
  return read;
}

base::HostMap read_hosts(const Fields& corrections) {
  const std::vector<JsonValue>& hosts = corrections.array("hosts");
  if (hosts.empty() || hosts.size() > base::kMaxScheduleRanks) {
    corrections.refuse("hosts", "the host of every rank");
    return {};
  }
  std::vector<int> labels;
  for (const JsonValue& host : hosts) {
    if (!host.is_whole || host.whole >= hosts.size()) {
      corrections.refuse("hosts", "numbers of hosts, from 0 and below the number of ranks");
      return {};
    }
    labels.push_back(static_cast<int>(host.whole));
  }
  return base::HostMap(labels);
}

std::vector<Corrections> read_corrections(const Fields& top) {
  std::vector<Corrections> read;
  const std::vector<JsonValue>& all = top.array("corrections");
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string path = top.full("corrections[" + std::to_string(i) + "]");
    const Fields one(all[i], path, {"hosts", "tables"}, top.fault());
    Corrections corrections{.hosts = read_hosts(one), .tables = read_tables(one)};
    for (const Corrections& c : read) {
      if (c.hosts == corrections.hosts) {
        top.fault().add(path + " repeats the hosts of another one");
      }
    }
    if (top.fault().found()) return {};
    read.push_back(std::move(corrections));
  }
  return read;
}

/// Up to version 3.
std::vector<Corrections> read_old_corrections(const Fields& top) {
  const Fields one(top.at("corrections"), "corrections", {"ranks", "tables"}, top.fault());
  const auto ranks = static_cast<int>(one.whole("ranks", 0, base::kMaxScheduleRanks));
  std::vector<Correction> tables = read_tables(one);
  if (ranks == 0 || top.fault().found()) return {};
  return {{.hosts = base::HostMap::one_host(ranks), .tables = std::move(tables)}};
}

LinkProfile read_document(const JsonValue& document, Fault& fault) {
  LinkProfile profile = shared_memory_profile();
  // Checked first, so that another version's fields are not reported as unknown.
  const JsonValue* const format = document.find("format");
  if (format == nullptr || !format->is(kFormat)) {
    fault.add(std::string("it does not say \"format\": \"") + kFormat + "\"");
    return profile;
  }
  const JsonValue* const version = document.find("version");
  if (version == nullptr || !version->is_whole || version->whole < kOldestProfileVersion ||
      version->whole > kProfileVersion) {
    fault.add("version is " + shown(version != nullptr ? *version : JsonValue()) +
              ": this rondo reads " + std::to_string(kOldestProfileVersion) + " to " +
              std::to_string(kProfileVersion) + "; calibrate again");
    return profile;
  }
  const bool has_wire = version->whole >= 3;
  const Fields top(document, "",
                   {"format", "version", "name", "constants", "machine", "corrections"}, fault);
  profile.name = top.text("name");
  const size_t constant_count = version->whole >= 4 ? kConstantCount
                                : has_wire          ? kConstantCountOfVersion3
                                                    : kHostConstantCount;
  const std::span<const Constant> known(kConstants, constant_count);
  std::vector<std::string> names;
  for (const Constant& c : known) names.emplace_back(c.name);
  const Fields constants(top.at("constants"), "constants", names, fault);
  for (const Constant& c : known) profile.*c.value = constants.number(c.name);
  names = {"parallel_ranks", "llc_bytes", "slot_bytes", "slots"};
  if (has_wire) names.insert(names.end(), {"wire_slot_bytes", "wire_slots"});
  const Fields machine(top.at("machine"), "machine", names, fault);
  profile.parallel_ranks =
      static_cast<int>(machine.whole("parallel_ranks", 0, base::kMaxScheduleRanks));
  profile.llc_bytes = machine.whole("llc_bytes", 1, uint64_t{1} << 50);
  profile.slot_bytes = machine.whole("slot_bytes", 8, base::kMaxSlotBytes);
  profile.slots = static_cast<uint32_t>(machine.whole("slots", 2, base::kMaxSlots));
  if (has_wire) {
    profile.wire_slot_bytes = machine.whole("wire_slot_bytes", 8, base::kMaxSlotBytes);
    profile.wire_slots = static_cast<uint32_t>(machine.whole("wire_slots", 2, base::kMaxSlots));
  }
  profile.corrections = version->whole >= 4 ? read_corrections(top) : read_old_corrections(top);
  return profile;
}

/// Lists a value for each of `items`: what `text` gives.
template <class Items, class Text>
std::string join(const Items& items, const char* separator, const Text& text) {
  std::string all;
  for (const auto& item : items) {
    if (!all.empty()) all += separator;
    all += text(item);
  }
  return all;
}

std::string table_text(const Correction& c) {
  return "{\"collective\":" + json_text(name(c.collective)) +
         ",\"algorithm\":" + json_text(name(c.algorithm)) +
         ",\"memory\":" + json_text(c.mapped ? "library" : "plain") + ",\"bytes\":[" +
         join(c.points, ",", [](const auto& point) { return std::to_string(point.bytes); }) +
         "],\"factor\":[" +
         join(c.points, ",", [](const auto& point) { return json_text(point.factor); }) + "]}";
}

std::string corrections_text(const Corrections& corrections) {
  std::vector<int> hosts;
  for (int rank = 0; rank < corrections.hosts.ranks(); ++rank) {
    hosts.push_back(corrections.hosts.host_of(rank));
  }
  // A line for each table: people read these files.
  const auto table = [](const Correction& c) { return "\n      " + table_text(c); };
  return "\n    {\"hosts\": [" + join(hosts, ", ", [](int host) { return std::to_string(host); }) +
         "], \"tables\": [" + join(corrections.tables, ",", table) + "\n    ]}";
}

}  // namespace

std::string to_json_text(const LinkProfile& profile) {
  const auto constant = [&](const Constant& c) {
    return "    " + json_text(c.name) + ": " + json_text(profile.*c.value);
  };
  return "{\n  \"format\": " + json_text(kFormat) +
         ",\n  \"version\": " + std::to_string(kProfileVersion) +
         ",\n  \"name\": " + json_text(profile.name) + ",\n  \"constants\": {\n" +
         join(kConstants, ",\n", constant) + "\n  },\n  \"machine\": {\n    \"parallel_ranks\": " +
         std::to_string(profile.parallel_ranks) +
         ",\n    \"llc_bytes\": " + std::to_string(profile.llc_bytes) +
         ",\n    \"slot_bytes\": " + std::to_string(profile.slot_bytes) +
         ",\n    \"slots\": " + std::to_string(profile.slots) +
         ",\n    \"wire_slot_bytes\": " + std::to_string(profile.wire_slot_bytes) +
         ",\n    \"wire_slots\": " + std::to_string(profile.wire_slots) +
         "\n  },\n  \"corrections\": [" + join(profile.corrections, ",", corrections_text) +
         "\n  ]\n}\n";
}

Result<LinkProfile> parse_profile(std::string_view text, const std::string& where) {
  auto document = parse_json(text);
  if (!document.ok()) {
    return Status(Code::kDataError,
                  "link profile '" + where + "' is not JSON: " + document.status().message());
  }
  Fault fault;
  LinkProfile profile = read_document(*document, fault);
  if (fault.found())
    return Status(Code::kDataError, "link profile '" + where + "': " + fault.what());
  return profile;
}

}  // namespace rondo::tuner
