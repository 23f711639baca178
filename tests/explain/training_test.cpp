// The page's answers about training, natively: a step replayed with other buckets, efficiency on more ranks.
#include <cmath>
#include <nlohmann/json.hpp>

#include "explain/answer.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::explain::training_test {

using nlohmann::json;

json asked(const json& request) { return json::parse(answer(request.dump())); }

/// Eight matrices of 1 MiB, final one after the other, a millisecond apart; a wire that takes 1 ms for each.
json step() {
  json request = {
      {"question", "replay"},          {"backward_ms", 8},  {"ranks", 2}, {"latency_us", 0},
      {"bytes_per_second", 1048576e3}, {"element_bytes", 4}};
  for (int t = 0; t < 8; ++t) {
    const std::string name = "t" + std::to_string(t);
    request["tensors"].push_back({{"name", name}, {"shape", {512, 512}}});
    request["gradients"].push_back(
        {{"tensor", name}, {"elements", 512 * 512}, {"ready_ms", t + 1}});
  }
  return request;
}

/// Up to rounding.
bool is_nearly(double value, double expected) {
  return std::abs(value - expected) < 1e-12 * expected;
}

TEST_CASE("replay: one per tensor hides all but the last, one large bucket exposes nearly all") {
  json request = step();
  request["cap_mb"] = 0;
  const json each = asked(request);
  REQUIRE(each["buckets"] == 8);
  REQUIRE(each["layout"][3]["ready_ms"] == 4);
  const double cost = each["layout"][0]["cost_ms"];
  REQUIRE(std::abs(cost - 1) < 0.5);
  REQUIRE(each["exposed_ms"].get<double>() < 3);
  request["cap_mb"] = 100;
  const json large = asked(request);
  REQUIRE(large["buckets"] == 3);  // the first and the last stay small
  REQUIRE(large["exposed_ms"].get<double>() > 4);
  REQUIRE(each["caps"] == large["caps"]);
  request["auto"] = true;
  const json automatic = asked(request);
  REQUIRE(automatic["exposed_ms"].get<double>() < large["exposed_ms"].get<double>());
}

TEST_CASE(
    "replay: half the bytes, a slower wire, and what this run measured over what was predicted") {
  json request = step();
  request["cap_mb"] = 0;
  const double cost = asked(request)["layout"][0]["cost_ms"];
  request["wire_bytes"] = 2;
  REQUIRE(asked(request)["layout"][0]["cost_ms"].get<double>() < 0.6 * cost);
  request["wire_bytes"] = 4;
  request["scale"] = 3;
  REQUIRE(is_nearly(asked(request)["layout"][0]["cost_ms"], 3 * cost));
  // A tensor that adds to another travels alone, at its own price.
  request["tensors"].push_back(
      {{"name", "rows"}, {"shape", {512, 512}}, {"adds_to", 0}, {"scale", 0.5}});
  const json last = asked(request)["layout"].back();
  REQUIRE(last["pieces"][0]["tensor"] == "rows");
  REQUIRE(is_nearly(last["cost_ms"], 0.5 * cost));
}

json lesson() {
  return {{"question", "scaling"}, {"parameters", 7e9}, {"gradient_bytes", 2},
          {"compute_ms", 430},     {"link_gb_s", 50},   {"ranks", {8, 16, 32, 256}}};
}

TEST_CASE("scaling: the lesson's example, and which assumption loses half from 32 ranks on") {
  const json plain = asked(lesson());
  const int expected[] = {88, 82, 79, 77};
  for (size_t i = 0; i < 4; ++i) {
    REQUIRE(std::lround(100 * plain["rows"][i]["flat"]["efficiency"].get<double>()) == expected[i]);
  }
  REQUIRE(is_nearly(plain["rows"][0]["sent_bytes"], 24.5e9));
  REQUIRE(is_nearly(plain["rows"][0]["flat"]["comm_ms"], 490));
  REQUIRE(plain["half_lost_flat"].is_null());

  json latency = lesson();
  latency.update({{"link_us", 10}, {"bucket_bytes", 25e6}});
  REQUIRE(asked(latency)["all_reduces"] == 560);
  REQUIRE(asked(latency)["half_lost_flat"] == 32);
  json hosts = lesson();
  hosts.update({{"per_host", 16}, {"host_gb_s", 50}});
  const json across = asked(hosts);
  REQUIRE(across["half_lost_flat"] == 32);
  REQUIRE_FALSE(across["rows"][1].contains("hierarchical"));  // one host
  REQUIRE(across["rows"][2]["hierarchical"]["comm_ms"].get<double>() <
          across["rows"][2]["flat"]["comm_ms"].get<double>());
  json strong = lesson();
  strong["strong_from"] = 8;
  REQUIRE(asked(strong)["half_lost_flat"] == 16);
  REQUIRE(is_nearly(asked(strong)["rows"][1]["compute_ms"], 215));
}

TEST_CASE("replay and scaling: what cannot be answered is a sentence") {
  std::vector<json> wrong;
  const auto changed = [&](json request, const char* field, json value) {
    request[field] = std::move(value);
    wrong.push_back(std::move(request));
  };
  changed(step(), "tensors", json::array());
  changed(step(), "tensors", {{{"name", "a"}, {"shape", {1 << 30, 1 << 30}}}});
  changed(step(), "tensors", {{{"name", "a"}, {"shape", {0}}}});
  changed(step(), "tensors", {{{"name", "a"}, {"shape", {4}}, {"adds_to", 0}}});
  changed(step(), "gradients", {{{"tensor", "gone"}, {"elements", 1}, {"ready_ms", 1}}});
  changed(step(), "backward_ms", -1);
  changed(step(), "element_bytes", 3);
  changed(step(), "cap_mb", 1e-5);
  changed(step(), "ranks", 1);
  changed(step(), "bytes_per_second", 0);
  changed(lesson(), "ranks", {1});
  changed(lesson(), "ranks", {4097});
  changed(lesson(), "compute_ms", "long");
  changed(lesson(), "hidden", 2);
  changed(lesson(), "bucket_bytes", 1);
  for (const json& request : wrong) {
    CAPTURE(request.dump());
    const json said = asked(request);
    REQUIRE(said.size() == 1);
    REQUIRE(said["error"].get<std::string>().size() > 10);
  }
}

}  // namespace rondo::explain::training_test
