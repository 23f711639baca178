// The page's answers, natively: what they say of sound and of broken schedules, and of requests that nobody should send.
#include "explain/answer.hpp"

#include <nlohmann/json.hpp>

#include "tests/harness/catch.hpp"

namespace rondo::explain::answer_test {

using nlohmann::json;

json asked(const json& request) { return json::parse(answer(request.dump())); }

json operation(const char* question, const char* collective, const char* algorithm, int ranks) {
  return {{"question", question},
          {"collective", collective},
          {"algorithm", algorithm},
          {"ranks", ranks},
          {"size_bytes", 720720 * 64}};
}

TEST_CASE("a ring's steps hold what they say, and every rank sends 2(N-1)/N of the data") {
  for (const int ranks : {2, 3, 5, 7, 16}) {
    const json plan = asked(operation("schedule", "all_reduce", "ring", ranks));
    REQUIRE(plan["levels"] == 2 * (ranks - 1) + 1);
    REQUIRE(plan["verification"]["verified"] == true);
    for (const json& bytes : plan["bytes"]) {
      REQUIRE(bytes["sent"] == 2 * (ranks - 1) * (720720 * 64 / ranks));
    }
    // Every block of every rank is written once with all contributions.
    std::vector<int> complete(static_cast<size_t>(ranks * ranks));
    uint64_t sent = 0;
    for (const json& box : plan["boxes"]) {
      if (box["rank"] == 0)
        sent += box["sends"].get<uint64_t>() * plan["chunk_bytes"].get<uint64_t>();
      for (const json& write : box["writes"]) {
        REQUIRE(box["holds"].size() == static_cast<size_t>(ranks));
        ++complete[static_cast<size_t>(write[0].get<int>() * ranks + write[1].get<int>())];
      }
    }
    REQUIRE(complete == std::vector<int>(complete.size(), 1));
    REQUIRE(sent == plan["bytes"][0]["sent"]);
  }
}

TEST_CASE("a rank starts with its own block of an all_gather, and with all of an all_reduce") {
  REQUIRE(asked(operation("schedule", "all_gather", "ring", 3))["starts"] ==
          json::parse("[[0],[1],[2]]"));
  REQUIRE(asked(operation("schedule", "all_reduce", "ring", 3))["starts"][1] ==
          json::parse("[0,1,2]"));
  REQUIRE(asked(operation("schedule", "broadcast", "tree", 3))["starts"][1].empty());
}

TEST_CASE("the verifier refuses every single broken step of a ring, and says which") {
  json request = operation("verify", "all_reduce", "ring", 4);
  REQUIRE(asked(request)["verified"] == true);
  for (const char* how : {"drop", "double"}) {
    for (int rank = 0; rank < 4; ++rank) {
      for (int step = 0; step < 7; ++step) {
        request["break"] = {{{"rank", rank}, {"step", step}, {"how", how}}};
        const json verdict = asked(request);
        CAPTURE(how, rank, step);
        REQUIRE(verdict["verified"] == false);
        REQUIRE(verdict["why"].get<std::string>().find("rank") != std::string::npos);
      }
    }
  }
  request["break"] = {{{"rank", 4}, {"step", 0}, {"how", "drop"}}};
  REQUIRE(asked(request)["error"] == "break[0]: rank is 4, and must be 0 to 3");
}

TEST_CASE("a bill's parts are its total, and more bandwidth costs less") {
  json request = {{"question", "bill"}, {"collective", "all_reduce"}, {"ranks", 8},
                  {"per_host", 2},      {"latency_us", 10},           {"bytes_per_second", 1e9},
                  {"sizes", {1 << 20}}};
  const json slow = asked(request);
  request["bytes_per_second"] = 1e10;
  const json fast = asked(request);
  REQUIRE(slow["hosts"] == 4);
  REQUIRE(slow["bus_factor"] == 1.75);
  bool hierarchical = false;
  for (const json& c : slow["rows"][0]["candidates"]) {
    double sum = 0;
    for (const char* part : {"overhead_us", "latency_us", "slots_us", "memory_us", "reduce_us",
                             "process_copy_us", "wire_us"}) {
      sum += c[part].get<double>();
    }
    REQUIRE(sum == Approx(c["predicted_us"].get<double>()));
    const json& terms = c["terms"];
    if (c["refused"].is_null()) {
      REQUIRE(c["wire_us"].get<double>() == Approx(10 * terms["wire_hops"].get<double>() +
                                                   0.5 * terms["wire_messages"].get<double>() +
                                                   1e-3 * terms["wire_bytes"].get<double>()));
    }
    hierarchical = hierarchical || c["algorithm"] == "hierarchical";
    for (const json& f : fast["rows"][0]["candidates"]) {
      if (f["algorithm"] == c["algorithm"] && c["refused"].is_null())
        REQUIRE(f["predicted_us"] < c["predicted_us"]);
    }
  }
  REQUIRE(hierarchical);
}

TEST_CASE("predictions are those of the profile that a file holds, auto is what would be chosen") {
  const json rows = {
      {{"collective", "all_reduce"}, {"algorithm", "ring"}, {"ranks", 4}, {"size_bytes", 1 << 20}},
      {{"collective", "all_reduce"}, {"algorithm", "auto"}, {"ranks", 4}, {"size_bytes", 1 << 20}},
      {{"collective", "all_reduce"},
       {"algorithm", "hierarchical"},
       {"ranks", 4},
       {"size_bytes", 8}}};
  const json built_in = asked({{"question", "predict"}, {"rows", rows}});
  REQUIRE(built_in["rows"][0]["us"] > 0);
  REQUIRE(built_in["rows"][1]["us"] <= built_in["rows"][0]["us"]);
  REQUIRE(built_in["rows"][2]["error"] == "rows[2]: algorithm has no price here");
  const json paced = asked({{"question", "predict"},
                            {"rows", rows},
                            {"pace_bytes_per_second", 1e8},
                            {"pace_latency_us", 100}});
  REQUIRE(paced["rows"][0]["us"].get<double>() > 600);
  const json bad = asked({{"question", "profile"},
                          {"profile", "{\"format\": \"rondo link profile\", \"version\": 1}"}});
  REQUIRE(bad["error"].get<std::string>().find("version is 1") != std::string::npos);
}

TEST_CASE("what is no request gets a sentence") {
  for (
      const char* request :
      {"",
       "[]",
       "7",
       "{",
       "{\"question\":7}",
       "{\"question\":\"who\"}",
       "{\"question\":\"schedule\"}",
       "\xff\xfe",
       R"({"question":"schedule","collective":"all_reduce","ranks":1e9})",
       R"({"question":"schedule","collective":"all_reduce","ranks":2.5})",
       R"({"question":"schedule","collective":"all_reduce","ranks":"4"})",
       R"({"question":"schedule","collective":"all_reduce","ranks":4,"size_bytes":-1})",
       R"({"question":"schedule","collective":"all_reduce","algorithm":"flat","ranks":4})",
       R"({"question":"schedule","collective":"broadcast","algorithm":"ring","ranks":4,"root":4})",
       R"({"question":"schedule","collective":"all_reduce","algorithm":"one-shot","ranks":4,"per_host":2})",
       R"({"question":"verify","collective":"all_reduce","algorithm":"ring","ranks":4,"break":7})",
       R"({"question":"verify","collective":"all_reduce","algorithm":"ring","ranks":4,"break":[7]})",
       R"({"question":"verify","collective":"all_reduce","algorithm":"ring","ranks":4,"break":[{"rank":0,"step":0,"how":"eat"}]})",
       R"({"question":"bill","collective":"all_reduce","ranks":4,"sizes":[-1]})",
       R"({"question":"bill","collective":"all_reduce","ranks":5000,"sizes":[]})",
       R"({"question":"bill","collective":"all_reduce","ranks":4,"bytes_per_second":0,"sizes":[]})",
       R"({"question":"bill","collective":"all_reduce","ranks":4,"latency_us":NaN,"sizes":[]})",
       R"({"question":"profile","profile":"<b>"})",
       R"({"question":"predict","rows":{}})"}) {
    CAPTURE(request);
    const json said = json::parse(answer(request));
    REQUIRE(said.size() == 1);
    REQUIRE(said["error"].get<std::string>().size() > 10);
  }
  const std::string deep(100000, '[');
  REQUIRE(json::parse(answer(deep)).contains("error"));
  REQUIRE(json::parse(answer("{\"question\":\"" + std::string(9 << 20, 'a') + "\"}"))["error"] ==
          "the request is longer than 8 MiB");
}

}  // namespace rondo::explain::answer_test
