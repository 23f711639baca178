// Link profiles as files, and their fit to timings.
#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/tuner/profile_file.hpp"
#include "tests/comm/schedule/builtins.hpp"
#include "tests/comm/schedule/predictions.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::tuner::test {
namespace {

using nlohmann::json;
using schedule::test::builtins;
using schedule::test::says;

LinkProfile with_corrections() {
  LinkProfile profile = shared_memory_profile();
  profile.name = "a \"machine\"";
  profile.alpha_us = 1.0 / 3;
  profile.wire_alpha_us = 4.0 / 3;
  profile.wire_slot_bytes = 1 << 19;
  profile.wire_slots = 3;
  const Correction plain{.collective = Collective::kAllReduce,
                         .algorithm = Algorithm::kRing,
                         .mapped = false,
                         .points = {{64, 0.5}, {1024, 2}, {4096, 2}}};
  Correction library = plain, between_hosts = plain;
  library.mapped = true;
  library.points = {{64, 1.0 / 7}};
  between_hosts.points = {{64, 3}};
  profile.corrections = {
      {.hosts = base::HostMap::one_host(4), .tables = {plain, library}},
      {.hosts = base::HostMap({0, 1, 0, 1}), .tables = {between_hosts}},
  };
  return profile;
}

/// As version 2 or 3 wrote it.
json old_document(int version) {
  json document = json::parse(to_json_text(with_corrections()));
  document["version"] = version;
  document["corrections"] = {{"ranks", 4}, {"tables", document["corrections"][0]["tables"]}};
  document["constants"].erase("wire_both_us_per_byte");
  if (version >= 3) return document;
  for (const char* constant : {"wire_alpha_us", "wire_message_us", "wire_us_per_byte"}) {
    document["constants"].erase(constant);
  }
  document["machine"].erase("wire_slot_bytes");
  document["machine"].erase("wire_slots");
  return document;
}

Question ring(int ranks, uint64_t bytes, bool mapped = false) {
  Question question = question_of(Collective::kAllReduce, Algorithm::kRing, ranks, bytes);
  question.mapped = mapped;
  return question;
}

/// The message that a changed document gets.
std::string message_of(const std::function<void(json&)>& change) {
  json document = json::parse(to_json_text(with_corrections()));
  change(document);
  const auto parsed = parse_profile(document.dump(), "some/file.json");
  if (parsed.ok()) return "accepted";
  CHECK(parsed.status().code() == Code::kDataError);
  return parsed.status().message();
}

/// What every algorithm would take on a machine that is just as `profile` says.
std::vector<Timing> synthetic(const LinkProfile& profile, int ranks) {
  std::vector<Timing> timings;
  for (const auto& [collective, algorithm] : builtins()) {
    for (uint64_t bytes = 8; bytes <= uint64_t{64} << 20; bytes *= 4) {
      const Question q = question_of(collective, algorithm, ranks, bytes);
      timings.push_back({.question = q, .us = price(q, profile).total_us()});
    }
  }
  return timings;
}

}  // namespace

TEST_CASE("a profile comes back from its file as it was, to the last bit") {
  const LinkProfile profile = with_corrections();
  testing::TempDirectory directory;
  const std::string path = directory.path() + "/links.json";
  std::ofstream(path) << to_json_text(profile);
  const auto read = read_profile(path);
  REQUIRE(read.ok());
  CHECK(to_json_text(*read) == to_json_text(profile));
  CHECK(read->name == profile.name);
  for (const Constant& c : kConstants) CHECK(read.value().*c.value == profile.*c.value);
  CHECK(read->wire_slot_bytes == profile.wire_slot_bytes);
  CHECK(read->wire_slots == profile.wire_slots);
  REQUIRE(read->corrections.size() == 2);
  CHECK(read->corrections[1].hosts == profile.corrections[1].hosts);
  for (const int ranks : {2, 4}) {
    for (const bool mapped : {false, true}) {
      for (uint64_t bytes = 1; bytes < 1 << 20; bytes *= 3) {
        const Question question = ring(ranks, bytes, mapped);
        CHECK(price(question, *read).total_us() == price(question, profile).total_us());
      }
    }
  }
}

TEST_CASE("a profile that is not understood is refused, by file and field") {
  REQUIRE(message_of([](json&) {}) == "accepted");
  const auto refused = [](const std::function<void(json&)>& change, const std::string& words) {
    const std::string message = message_of(change);
    CHECK_THAT(message, says("some/file.json"));
    CHECK_THAT(message, says(words));
  };
  refused([](json& d) { d["format"] = "other"; }, "format");
  refused([](json& d) { d.erase("format"); }, "format");
  refused([](json& d) { d["version"] = 1; }, "version is 1: this rondo reads 2 to 4");
  refused([](json& d) { d["version"] = 5; }, "version is 5: this rondo reads 2 to 4");
  refused([](json& d) { d.erase("version"); }, "version");
  refused([](json& d) { d = json::array(); }, "format");
  refused([](json& d) { d["extra"] = 1; }, "unknown field extra");
  refused([](json& d) { d["constants"]["beta"] = 1; }, "unknown field constants.beta");
  refused([](json& d) { d["machine"]["cores"] = 1; }, "unknown field machine.cores");
  refused([](json& d) { d["corrections"][0]["tables"][0]["x"] = 1; },
          "unknown field corrections[0].tables[0].x");
  refused([](json& d) { d["constants"] = 3; }, "constants is 3, not an object");
  refused([](json& d) { d["name"] = 3; }, "name is 3: it must be a string");
  for (const char* group : {"constants", "machine", "corrections"}) {
    refused([&](json& d) { d.erase(group); }, std::string("field ") + group + " is missing");
  }
  for (const Constant& c : kConstants) {
    const std::string field = std::string("constants.") + c.name;
    refused([&](json& d) { d["constants"].erase(c.name); }, "field " + field + " is missing");
    refused([&](json& d) { d["constants"][c.name] = -1e-9; }, field + " is -1e-09: it must be");
    refused([&](json& d) { d["constants"][c.name] = "1"; }, field + " is \"1\": it must be");
  }
  for (const char* name :
       {"parallel_ranks", "llc_bytes", "slot_bytes", "slots", "wire_slot_bytes", "wire_slots"}) {
    const std::string field = std::string("machine.") + name;
    refused([&](json& d) { d["machine"].erase(name); }, "field " + field + " is missing");
    refused([&](json& d) { d["machine"][name] = -1; }, field + " is -1: it must be");
    refused([&](json& d) { d["machine"][name] = 2.5; }, field + " is 2.5: it must be");
    refused([&](json& d) { d["machine"][name] = uint64_t{1} << 60; }, field);
  }
  refused([](json& d) { d["machine"]["slots"] = 1; }, "machine.slots is 1");
  refused([](json& d) { d["machine"]["slot_bytes"] = 4; }, "machine.slot_bytes is 4");
  const auto table = [](json& d) -> json& { return d["corrections"][0]["tables"][0]; };
  const std::string first = "corrections[0].tables[0].";
  refused([&](json& d) { table(d).erase("memory"); }, "field " + first + "memory is missing");
  refused([&](json& d) { table(d)["memory"] = "fast"; }, first + "memory is \"fast\"");
  refused([&](json& d) { table(d)["collective"] = "sum"; }, first + "collective is \"sum\"");
  refused([&](json& d) { table(d)["algorithm"] = "flat"; }, first + "algorithm is \"flat\"");
  refused([&](json& d) { table(d)["bytes"] = {64, 64, 4096}; }, "ascending");
  refused([&](json& d) { table(d)["bytes"] = {-1, 64, 4096}; }, first + "bytes");
  refused([&](json& d) { table(d)["bytes"] = json::array(); }, "at least one size");
  refused([&](json& d) { table(d)["factor"] = {1, 2}; }, "as long as bytes");
  refused([&](json& d) { table(d)["factor"] = {1, 0, 2}; }, "numbers above 0");
  refused([&](json& d) { table(d)["factor"] = 1; }, "an array");
  const auto hosts = [&](const json& value, const std::string& words) {
    refused([&](json& d) { d["corrections"][0]["hosts"] = value; }, words);
  };
  hosts({0, -2}, "corrections[0].hosts is [0,-2]: it must be numbers of hosts");
  hosts({0, 2}, "below the number of ranks");
  hosts(json::array(), "it must be the host of every rank");
  hosts(4, "corrections[0].hosts is 4: it must be an array");
  hosts({5, 2}, "below");
  hosts({0, 1, 0, 1}, "corrections[1] repeats the hosts of another one");
  hosts({1, 0, 1, 0}, "corrections[1] repeats the hosts of another one");
  refused(
      [&](json& d) {
        d["corrections"] = {{"ranks", 4}};
      },
      "corrections is {\"ranks\":4}: it must");
  refused([&](json& d) { d["corrections"][0]["tables"].push_back(table(d)); },
          "corrections[0].tables[2] repeats all_reduce by ring on plain memory");
}

TEST_CASE("files of older versions are read, and what they do not know is built in") {
  const LinkProfile profile = with_corrections(), built_in = shared_memory_profile();
  for (const int version : {2, 3}) {
    INFO("version " << version);
    const auto read = parse_profile(old_document(version).dump(), "old.json");
    REQUIRE(read.ok());
    for (size_t c = 0; c < kConstantCount; ++c) {
      const std::string name = kConstants[c].name;
      const bool of_wire = name.rfind("wire_", 0) == 0;
      CHECK(of_wire == (c >= kHostConstantCount));
      const bool known = !of_wire || (version == 3 && name != "wire_both_us_per_byte");
      CHECK(read.value().*kConstants[c].value == (known ? profile : built_in).*kConstants[c].value);
    }
    CHECK(read->wire_slot_bytes == (version == 3 ? profile : built_in).wire_slot_bytes);
    CHECK(read->wire_slots == (version == 3 ? profile : built_in).wire_slots);
    REQUIRE(read->corrections.size() == 1);
    CHECK(read->corrections[0].hosts == base::HostMap::one_host(4));
    CHECK(read->corrections[0].tables.size() == 2);
  }
  json newer = old_document(2);
  newer["machine"]["wire_slots"] = 4;
  CHECK_THAT(parse_profile(newer.dump(), "x").status().message(),
             says("unknown field machine.wire_slots"));
  json none = old_document(3);
  none["corrections"] = {{"ranks", 0}, {"tables", json::array()}};
  CHECK(parse_profile(none.dump(), "x")->corrections.empty());
  none["corrections"]["ranks"] = -2;
  CHECK_THAT(parse_profile(none.dump(), "x").status().message(), says("corrections.ranks is -2"));
}

TEST_CASE("what is no JSON, no file, or too much is refused") {
  CHECK_THAT(parse_profile("{\"format\"", "x").status().message(), says("'x' is not JSON"));
  CHECK_THAT(parse_profile("", "x").status().message(), says("not JSON"));
  CHECK_THAT(read_profile("/no/such/file").status().message(), says("/no/such/file"));
  CHECK(read_profile("/no/such/file").status().code() == Code::kSystem);
  CHECK_FALSE(read_profile("/").ok());
  testing::TempDirectory directory;
  const std::string fifo = directory.path() + "/fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK_THAT(read_profile(fifo).status().message(), says("no regular file"));
  const std::string path = directory.path() + "/links.json";
  std::ofstream(path) << std::string(kMaxProfileBytes + 1, ' ');
  CHECK_THAT(read_profile(path).status().message(), says("more than"));
}

TEST_CASE(
    "corrections hold at their sizes, between them by the logarithm, and for their ranks only") {
  const LinkProfile profile = with_corrections();
  const auto factor = [&](int ranks, uint64_t bytes, bool mapped = false) {
    return price(ring(ranks, bytes, mapped), profile).correction;
  };
  CHECK(factor(4, 64) == 0.5);
  CHECK(factor(4, 1024) == 2);
  CHECK(factor(4, 256) == Approx(1));  // halfway in both logarithms
  CHECK(factor(4, 2048) == Approx(2));
  CHECK(factor(4, 0) == 0.5);
  CHECK(factor(4, 1 << 30) == 2);
  CHECK(factor(4, 1 << 30, true) == 1.0 / 7);
  CHECK(factor(3, 1024) == 1);
  const auto between = [&](const std::vector<int>& labels, bool mapped) {
    const base::HostMap hosts(labels);
    Question question = ring(4, 64, mapped);
    question.hosts = &hosts;
    return price(question, profile).correction;
  };
  CHECK(between({0, 0, 0, 0}, false) == 0.5);  // one host
  CHECK(between({0, 1, 0, 1}, false) == 3);
  CHECK(between({1, 0, 1, 0}, true) == 3);  // the kind of memory makes no difference between hosts
  CHECK(between({0, 0, 1, 1}, false) == 1);
  LinkProfile other = wire_profile(1e9, 1e-6, profile);
  CHECK(price(ring(4, 1024), other).correction == 1);
  CHECK(other.alpha_us == Approx(profile.alpha_us + 1));
  other = oversubscribed_profile(2, profile);
  CHECK(price(ring(4, 1024), other).correction == 1);
  CHECK(other.slot_us_per_byte == profile.slot_us_per_byte);
}

TEST_CASE("a fit finds the constants of the machine that the timings come from") {
  LinkProfile machine = shared_memory_profile();
  machine.overhead_us = 0.4;
  machine.alpha_us = 0.7;
  machine.peer_us = 0.05;
  machine.slot_us_per_byte = 7e-5;
  machine.one_way_us_per_byte = 2e-5;
  machine.memory_cached_us_per_byte = 2e-5;
  machine.memory_us_per_byte = 9e-5;
  machine.reduce_us_per_byte = 3e-5;
  for (const int ranks : {4, 5}) {
    const LinkProfile found = fitted(synthetic(machine, ranks), shared_memory_profile());
    for (const Constant& c : kConstants) {
      INFO(c.name << ", " << ranks << " ranks");
      CHECK(found.*c.value == Approx(machine.*c.value).epsilon(0.02));
    }
    CHECK(found.corrections.size() == 1);
    check_factors(found, 0.02);
  }
}

/// Of two ranks, as no constants can explain them.
std::vector<Timing> odd_timings() {
  std::vector<Timing> timings = synthetic(shared_memory_profile(), 2);
  for (size_t i = 0; i < timings.size(); ++i) timings[i].us *= i % 3 == 0 ? 2.5 : 0.8;
  return timings;
}

TEST_CASE("what the constants cannot explain is predicted all the same where it was measured") {
  const LinkProfile found = fitted(odd_timings(), shared_memory_profile());
  check_predictions(odd_timings(), found, 0.002);
  for (const Constant& c : kConstants) CHECK(found.*c.value >= 0);
  // Two ranks have no further peers: nothing was learnt about them.
  CHECK(found.peer_us == shared_memory_profile().peer_us);
  // And it can be written and read.
  const auto back = parse_profile(to_json_text(found), "back");
  REQUIRE(back.ok());
  REQUIRE(back->corrections.size() == 1);
  CHECK(back->corrections[0].hosts == base::HostMap::one_host(2));
  CHECK(back->corrections[0].tables.size() == found.corrections[0].tables.size());
}

TEST_CASE("a fit keeps what it does not measure: other ranks are predicted as before") {
  const std::vector<Timing> of_two = odd_timings();
  LinkProfile slower = shared_memory_profile();
  for (const Constant& c : kConstants) slower.*c.value *= 3;
  const LinkProfile both = fitted(synthetic(slower, 4), fitted(of_two, shared_memory_profile()));
  CHECK(both.corrections.size() == 2);
  CHECK(both.alpha_us == Approx(slower.alpha_us).epsilon(0.02));
  check_predictions(of_two, both, 0.003);
  // One collective of the two ranks is measured again: the others stay as they were.
  std::vector<Timing> of_one, of_others;
  for (Timing t : of_two) {
    const bool again = t.question.collective == Collective::kBroadcast;
    if (again) t.us *= 7;
    (again ? of_one : of_others).push_back(t);
  }
  const LinkProfile partly = fitted(of_one, both);
  CHECK(partly.corrections.size() == 2);
  for (const auto& timings : {of_one, of_others}) check_predictions(timings, partly, 0.005);
  const LinkProfile again = fitted(synthetic(shared_memory_profile(), 2), both);
  CHECK(again.corrections.size() == 2);  // not three: the newer ones replace those of two ranks
}

TEST_CASE("a fit needs enough timings, of one number of ranks, that are times") {
  const LinkProfile base = shared_memory_profile();
  std::vector<Timing> timings = synthetic(base, 2);
  CHECK_THAT(fit(std::span(timings).first(3), base).status().message(), says("cannot determine"));
  timings[5].question.ranks = 3;
  CHECK_THAT(fit(timings, base).status().message(), says("3 and of 2 ranks"));
  timings[5].question.ranks = 2;
  for (const double bad : {0.0, -1.0, double(INFINITY), double(NAN)}) {
    timings[5].us = bad;
    CHECK_THAT(fit(timings, base).status().message(), says("cannot have taken"));
  }
}

TEST_CASE("ranks that share a GPU are predicted as an H200 measured them") {
  struct Row {
    int ranks, channels;
    uint64_t bytes;
    Algorithm algorithm;
    double us;  // bench/results/2026-11-26-h200.md
  };
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  const Row rows[] = {{2, 8, 8 << 10, Algorithm::kOneShot, 7.4},
                      {4, 8, 8 << 10, Algorithm::kOneShot, 8.0},
                      {8, 4, 8 << 10, Algorithm::kOneShot, 10.0},
                      {2, 64, 8 << 10, Algorithm::kTwoShotDirect, 16.5},
                      {4, 32, 8 << 10, Algorithm::kTwoShotDirect, 22.4},
                      {8, 16, 8 << 10, Algorithm::kTwoShotDirect, 33.9},
                      {2, 64, 8 << 10, Algorithm::kTwoShot, 26.8},
                      {4, 32, 8 << 10, Algorithm::kTwoShot, 53.6},
                      {8, 16, 8 << 10, Algorithm::kTwoShot, 108.0},
                      {2, 8, 8 << 20, Algorithm::kTwoShotDirect, 39.4},
                      {2, 16, kGiB, Algorithm::kTwoShotDirect, 1743},
                      {2, 16, 2 << 20, Algorithm::kTwoShotDirect, 17.7},
                      {2, 64, kGiB, Algorithm::kTwoShotDirect, 1156},
                      {4, 32, kGiB, Algorithm::kTwoShotDirect, 2256},
                      {8, 16, kGiB, Algorithm::kTwoShotDirect, 4468}};
  for (const Row& row : rows) {
    const LinkProfile profile =
        device_profile(transport::cuda_ipc::Reach::kSameGpu, row.channels, row.ranks, row.ranks);
    const Question question =
        question_of(Collective::kAllReduce, row.algorithm, row.ranks, row.bytes);
    const double predicted = price(question, profile).total_us();
    INFO(row.ranks << " ranks, " << row.bytes << " bytes: " << predicted << " us");
    CHECK(predicted > 0.88 * row.us);
    CHECK(predicted < 1.12 * row.us);
  }
}

}  // namespace rondo::tuner::test
