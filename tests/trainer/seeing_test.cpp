// What rondo-train shows of a run, as a program with ranks as processes: the trace of all ranks,
// the summary's account of the time, control steps that leave no mark, --scaling, and the bar.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/harness/terminal.hpp"
#include "tests/trainer/synthetic_data.hpp"

namespace rondo::trainer::seeing_test {

using nlohmann::json;
using rondo::testing::ProgramResult;
using rondo::testing::run_program;
using rondo::testing::TempDirectory;

namespace {

const std::vector<std::string> kNoLauncher = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

using Words = std::vector<std::string>;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A model that is small enough, and the layers that backward visits.
struct Small {
  std::string name;
  Words flags;
  std::vector<std::string> layers;
};

class Workplace {
 public:
  Workplace() {
    namespace t = rondo::trainer::testing;
    t::write_file(file("text"), t::synthetic_text(4000, 1));
    t::write_pictures(file("pictures"), "train", 60, 8, 4, 1);
  }
  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }

  std::vector<Small> models() const {
    const Words text = {"--data", file("text")};
    return {{"mlp",
             Words{"--model", "mlp", "--width", "32"} + text,
             {"output", "hidden2", "hidden1", "embedding"}},
            {"gpt",
             Words{"--model", "gpt", "--layers", "2", "--width", "16", "--heads", "2", "--context",
                   "8", "--dropout", "0.1"} +
                 text,
             {"head", "h.1.mlp", "h.1.attn", "h.0.mlp", "h.0.attn", "embedding"}},
            {"cnn",
             {"--model", "cnn", "--width", "4", "--classes", "4", "--sync-batch-norm", "--data",
              file("pictures")},
             {"linear", "bn2", "conv2", "bn1", "conv1"}}};
  }

  ProgramResult run(Words words) const {
    return run_program(Words{RONDO_TRAIN} + words, kNoLauncher, std::chrono::seconds{120});
  }
  /// A run that must succeed; its JSON document.
  json train(const Words& words) const {
    const ProgramResult result = run(words + Words{"--json", file("json")});
    INFO(result.err);
    REQUIRE(!result.timed_out);
    REQUIRE(result.exit_code == 0);
    return read_json("json");
  }
  json read_json(const std::string& name) const {
    std::ifstream stream(file(name));
    return json::parse(stream);
  }

 private:
  TempDirectory folder_;
};

struct Span {
  std::string name;
  double begin, end;
};

/// By process and row, then in order of beginning, enclosing ones first.
std::map<std::pair<int, int>, std::vector<Span>> rows_of(const json& trace) {
  std::map<std::pair<int, int>, std::vector<Span>> rows;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    REQUIRE(event["dur"].get<double>() >= 0);
    rows[{event["pid"], event["tid"]}].push_back(
        {event["name"], event["ts"], event["ts"].get<double>() + event["dur"].get<double>()});
  }
  for (auto& [key, spans] : rows) {
    std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
  }
  return rows;
}

}  // namespace

TEST_CASE("the trace has every layer of forward and backward, on every rank, and rows that nest") {
  const Workplace place;
  for (const Small& model : place.models()) {
    INFO(model.name);
    place.train(model.flags + Words{"--ranks", "2", "--steps", "2", "--batch", "4", "--trace",
                                    place.file("trace")});
    const json trace = place.read_json("trace");
    CHECK(trace["displayTimeUnit"] == "ms");
    const auto rows = rows_of(trace);
    constexpr double kRounding = 1e-3;  // us: a nanosecond
    for (const auto& [row, spans] : rows) {
      std::vector<Span> open;
      for (const Span& span : spans) {
        while (!open.empty() && open.back().end <= span.begin + kRounding) open.pop_back();
        INFO("rank " << row.first << ", row " << row.second << ": " << span.name);
        if (!open.empty()) CHECK(span.end <= open.back().end + kRounding);
        if (!open.empty()) CHECK(!open.back().name.starts_with("wait "));  // or it worked
        open.push_back(span);
      }
    }
    for (const int rank : {0, 1}) {
      std::map<std::string, int> times;
      for (const auto& [row, spans] : rows) {
        for (const Span& span : spans) times[span.name] += row.first == rank ? 1 : 0;
      }
      for (const char* name : {"data", "forward", "wait for communication", "optimizer",
                               "all-gather of headers", "all-reduce of the loss",
                               "ready, waits for its turn", "queued", "all-reduce bucket 0"}) {
        INFO("rank " << rank << ": " << name);
        CHECK(times[name] >= 2);  // in each step
      }
    }
    std::vector<std::string> expected;
    for (size_t l = model.layers.size(); l-- > 0;) expected.push_back("forward " + model.layers[l]);
    for (const std::string& layer : model.layers) expected.push_back("backward " + layer);
    expected = expected + expected;  // two steps
    for (const int rank : {0, 1}) {
      std::vector<std::string> visited;
      double forward_end = 0;
      for (const Span& span : rows.at({rank, 0})) {
        if (span.name == "forward") forward_end = span.end;
        if (span.name.starts_with("forward ")) CHECK(span.end <= forward_end + kRounding);
        if (span.name.starts_with("backward ")) CHECK(span.begin >= forward_end - kRounding);
        if (span.name.find("ward ") != std::string::npos) visited.push_back(span.name);
      }
      CHECK(visited == expected);
    }
  }
}

TEST_CASE("the summary accounts for every bucket and for the step") {
  const Workplace place;
  const Words flags =
      place.models()[0].flags +
      Words{"--ranks", "2", "--steps", "6", "--bucket-cap-mb", "0.005", "--log-every", "0"};
  const json summary = place.train(flags)["summary"];
  REQUIRE(summary["buckets"].size() > 2);
  for (const json& bucket : summary["buckets"]) {
    for (const char* key : {"bytes", "predicted_us", "ready_ms", "waited_ms", "queued_ms",
                            "transfer_ms", "cost_ms", "hidden_ms", "exposed_ms"}) {
      REQUIRE(bucket.contains(key));
      CHECK(bucket[key].get<double>() >= 0);
    }
    CHECK(bucket["transfer_ms"].get<double>() > 0);
    CHECK(bucket["ready_ms"].get<double>() <= summary["step_ms"].get<double>());
  }
  CHECK(summary["hidden_fraction"].get<double>() ==
        Approx(summary["hidden_comm_ms"].get<double>() / (summary["comm_us"].get<double>() / 1e3)));
  std::vector<std::string> ready;
  for (const json& gradient : summary["gradients"]) ready.push_back(gradient["tensor"]);
  CHECK(ready == std::vector<std::string>{"output.bias", "output.weight", "hidden2.bias",
                                          "hidden2.weight", "hidden1.bias", "hidden1.weight",
                                          "embedding"});
  // What another program needs to lay the same buckets out.
  CHECK(summary["tensors"].size() == 7);
  CHECK(summary["tensors"][1]["name"] == "output.weight");
  CHECK(summary["tensors"][1]["shape"].size() == 2);
  CHECK(summary["update_ms"].get<double>() > 0);
  const json& last = summary["gradients"].back();
  CHECK(last["elements"] == 512);
  CHECK(last["ready_ms"].get<double>() <= summary["backward_ms"].get<double>());
  CHECK(summary["gradients"][0]["ready_ms"].get<double>() < last["ready_ms"].get<double>());
  const json& account = summary["accounting"];
  const double compute = account["compute_ms"], cost = account["cost_ms"];
  CHECK(compute > 0);
  CHECK(cost > 0);
  CHECK(account["sum_ms"].get<double>() == Approx(compute + cost));
  CHECK(account["max_ms"].get<double>() == Approx(std::max(compute, cost)));
  CHECK(account["measured_ms"].get<double>() > 0);
  CHECK(account["contention"].is_null());  // nothing to compare with
  CHECK(account["control_steps"] == 0);
  CHECK(!summary["diagnosis"].get<std::string>().empty());
  CHECK(summary["cap_predictions"].size() >= 2);
  CHECK(summary["cap_predictions"][0]["cap_mb"] == 0);
  CHECK(summary["cap_predictions"].back()["buckets"] == 1);
  // A cap that gains nothing is not suggested in place of this one.
  CHECK((summary["suggested_bucket_cap_mb"] == 0.005) == (summary["suggested_gain_ms"] == 0));

  const json alone = place.train(place.models()[0].flags + Words{"--steps", "2"})["summary"];
  CHECK(alone["diagnosis"] == "one rank: nothing is communicated");
  CHECK(!alone.contains("cap_predictions"));
}

TEST_CASE("a rate in tokens stands beside that in samples, where a sample has tokens") {
  const Workplace place;
  for (const Small& model : place.models()) {
    INFO(model.name);
    const json run = place.train(model.flags + Words{"--ranks", "2", "--steps", "3"});
    std::vector<json> rates = run["steps"];
    REQUIRE(rates.size() == 3);
    rates.push_back(run["summary"]);
    for (const json& rate : rates) {
      REQUIRE(rate.contains("tokens_per_s") == (model.name == "gpt"));
      if (model.name != "gpt") continue;
      CHECK(rate["tokens_per_s"].get<double>() == Approx(8 * rate["samples_per_s"].get<double>()));
    }
  }
}

TEST_CASE("communication is gradients', hidden and exposed; other waits have a name of their own") {
  const Workplace place;
  for (const Small& model : place.models()) {
    for (const Words& more : {Words{"--no-overlap"}, Words{}, Words{"--zero", "1"}}) {
      INFO(model.name << (more.empty() ? "" : more[0]));
      const json document = place.train(model.flags + more +
                                        Words{"--ranks", "2", "--steps", "4", "--log-every", "0"});
      for (const json& step : document["steps"]) {
        const auto ms = [&](const char* field) { return step[field].get<double>(); };
        CHECK(ms("comm_ms") > 0);
        CHECK(ms("exposed_comm_ms") >= 0);
        CHECK(ms("exposed_comm_ms") <= ms("comm_ms"));
        // The loss's all-reduce goes on during backward, the gradients' do not.
        if (more == Words{"--no-overlap"}) CHECK(ms("exposed_comm_ms") == ms("comm_ms"));
        CHECK(ms("other_wait_ms") >= 0);
        CHECK(ms("compute_ms") > 0);
        CHECK(ms("step_ms") == Approx(ms("compute_ms") + ms("exposed_comm_ms") +
                                      ms("other_wait_ms") + ms("data_wait_ms")));
      }
      const json& summary = document["summary"];
      CHECK(summary["comm_us"].get<double>() / 1e3 ==
            Approx(summary["hidden_comm_ms"].get<double>() +
                   summary["exposed_comm_ms"].get<double>()));
      if (more == Words{"--no-overlap"}) CHECK(summary["hidden_comm_ms"] == 0);
      CHECK(summary.contains("other_wait_ms"));
    }
  }
}

TEST_CASE("caps are predicted without overlap where the run has none") {
  const Workplace place;
  const json summary = place.train(Words{
      "--model", "mlp", "--layers", "7", "--width", "64", "--batch", "512", "--ranks", "2",
      "--steps", "6", "--pace", "1GB/s,20us", "--bucket-cap-mb", "0", "--no-overlap"})["summary"];
  double costs_ms = 0;
  for (const json& bucket : summary["buckets"]) costs_ms += bucket["cost_ms"].get<double>();
  // Only the optimizer hides something.
  const double hidden_ms = summary["update_ms"];
  CHECK(summary["cap_predictions"][0]["exposed_ms"].get<double>() > 0.99 * costs_ms - hidden_ms);
  CHECK(summary["backward_ms"].get<double>() > hidden_ms);  // or this says nothing
}

// Rank 0 waits 200 ms for rank 1 in each step, and rank 1 for nobody.
TEST_CASE("what communication exposes is told without the wait for a rank that comes late") {
  const Workplace place;
  const json summary =
      place.train(place.models()[0].flags + Words{"--ranks", "2", "--steps", "3", "--no-overlap",
                                                  "--break", "straggler"})["summary"];
  CHECK(summary["exposed_cost_ms"].get<double>() > 0);
  CHECK(summary["exposed_cost_ms"].get<double>() < summary["exposed_comm_ms"].get<double>());
}

TEST_CASE("control steps measure and leave no mark") {
  const Workplace place;
  for (const Small& model : place.models()) {
    for (const Words& more : {Words{}, Words{"--dtype", "fp16", "--accum", "2"}}) {
      INFO(model.name);
      // Buffers are part of the checkpoint.
      const auto train = [&](const std::string& name, const std::string& steps) {
        const json document =
            place.train(model.flags + more +
                        Words{"--ranks", "2", "--steps", "4", "--batch", "4", "--control-steps",
                              steps, "--checkpoint-dir", place.file(model.name + name)});
        std::ifstream tensors(place.file(model.name + name + "/step-00000004/model.safetensors"),
                              std::ios::binary);
        std::string bits{std::istreambuf_iterator<char>(tensors), {}};
        REQUIRE(bits.size() > 8);
        // The header knows the options' hash, which differs.
        uint64_t header = 0;
        for (size_t i = 8; i-- > 0;) header = header << 8 | static_cast<uint8_t>(bits[i]);
        return std::pair(document, bits.substr(8 + header));
      };
      const std::string tag = more.empty() ? "" : "16";
      const auto [with, bits_with] = train(tag + "with", "2");
      const auto [without, bits_without] = train(tag + "without", "0");
      REQUIRE(with["steps"].size() == without["steps"].size());
      for (size_t s = 0; s < with["steps"].size(); ++s) {
        CHECK(with["steps"][s]["loss"] == without["steps"][s]["loss"]);
      }
      CHECK(with["summary"]["parameter_hash"] == without["summary"]["parameter_hash"]);
      CHECK(with["summary"]["bytes_sent_per_step"] == without["summary"]["bytes_sent_per_step"]);
      const bool same_bits = bits_with == bits_without;
      CHECK(same_bits);
      CHECK(with["summary"]["warnings"] == without["summary"]["warnings"]);
      const json& account = with["summary"]["accounting"];
      CHECK(account["control_steps"] == 2);
      CHECK(account["contention"].is_number());
      CHECK(account["cost_ms"].get<double>() > 0);
    }
  }
}

// Seventeen tensors cost 34 latencies of 2 ms one by one, and two or three of them together.
TEST_CASE("on a slow link the suggested cap exposes less than one bucket per tensor") {
  const Workplace place;
  const auto train = [&](const std::string& cap_mb) {
    return place.train(place.models()[0].flags + Words{"--layers", "7", "--ranks", "2", "--steps",
                                                       "10", "--pace", "200MB/s,2ms",
                                                       "--bucket-cap-mb", cap_mb})["summary"];
  };
  const json apart = train("0");
  CHECK(apart["buckets"].size() == 17);
  CHECK(apart["suggested_gain_ms"].get<double>() > 1);
  const double cap_mb = apart["suggested_bucket_cap_mb"];
  CHECK(cap_mb > 0);
  const json together = train(std::to_string(cap_mb));
  CHECK(together["buckets"].size() <= 5);
  CHECK(together["exposed_comm_ms"].get<double>() < apart["exposed_comm_ms"].get<double>());
}

TEST_CASE("--scaling runs each number of ranks, and says where they share cores") {
  const Workplace place;
  const Words flags = place.models()[0].flags + Words{"--steps", "3", "--batch", "4"};
  const ProgramResult result =
      place.run(flags + Words{"--scaling", "2,4", "--json", place.file("scaling")});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.find("1 rank is added") != std::string::npos);
  const json document = json::parse(result.out);
  CHECK(document == place.read_json("scaling"));
  CHECK(document["program"] == "rondo-train");
  const json& rows = document["scaling"];
  REQUIRE(rows.size() == 3);
  const uint64_t cores = document["config"]["cores"];
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t ranks = uint64_t{1} << i;
    CHECK(rows[i]["ranks"] == ranks);
    CHECK(rows[i]["batch"] == 4);
    CHECK(rows[i]["global_batch"] == 4 * ranks);
    CHECK(rows[i]["samples_per_s"].get<double>() > 0);
    CHECK(rows[i]["oversubscribed"] == (ranks > cores));
    CHECK(rows[i].contains("note") == (ranks > cores));
    CHECK(rows[i]["efficiency"].get<double>() ==
          Approx(rows[i]["samples_per_s"].get<double>() /
                 (static_cast<double>(ranks) * rows[0]["samples_per_s"].get<double>())));
    CHECK(rows[i].contains("exposed_comm_ms"));
  }
  const ProgramResult strong = place.run(flags + Words{"--scaling", "1,2", "--strong"});
  REQUIRE(strong.exit_code == 0);
  const json fixed = json::parse(strong.out);
  for (const json& row : fixed["scaling"]) CHECK(row["global_batch"] == 4);
}

TEST_CASE("--json on a disk that is full ends the run, in the step in which that is known") {
  const Workplace place;
  const std::string file = place.file("json");
  const std::string command = "trap '' XFSZ; exec '" RONDO_TRAIN
                              "' --width 16 --steps 1000000 --log-every 0 --json '" +
                              file + "'";
  const ProgramResult result =
      run_program({"sh", "-c", command}, kNoLauncher, std::chrono::seconds{120}, [&](pid_t pid) {
        std::error_code none;
        while (std::filesystem::file_size(file, none) < 10'000 || none) std::this_thread::yield();
        const rlimit limit{1'000'000, 1'000'000};  // of a file: it fails as on such a disk
        prlimit(pid, RLIMIT_FSIZE, &limit, nullptr);
      });
  INFO(result.err);
  CHECK(result.exit_code == 1);
  CHECK(result.err.find("cannot write --json") != std::string::npos);
  const json document = place.read_json("json");
  CHECK(document["steps"].size() >= 100);
  CHECK(document["error"].get<std::string>().find("cannot write --json") != std::string::npos);
}

TEST_CASE("--scaling refuses what it cannot run") {
  const Workplace place;
  const auto refused = [&](const Words& words, const std::string& why) {
    const ProgramResult result = place.run(place.models()[0].flags + words);
    INFO(result.err);
    CHECK(result.exit_code != 0);
    CHECK(result.err.find(why) != std::string::npos);
    CHECK(result.out.find("scaling") == std::string::npos);
  };
  refused({"--scaling", "0,2"}, "--scaling");
  refused({"--scaling", "two"}, "--scaling");
  refused({"--strong"}, "--scaling");
  refused({"--scaling", "1,2", "--ranks", "2"}, "leave out --ranks");
  refused({"--scaling", "1,2", "--trace", "t"}, "--trace");
  refused({"--scaling", "1,4", "--strong", "--batch", "6"}, "4 ranks cannot share --batch 6");
  const ProgramResult unwritable =
      place.run({"--scaling", "1,2", "--json", place.file("no/folder")});
  CHECK(unwritable.exit_code != 0);
  CHECK(unwritable.err.find("cannot write --json") != std::string::npos);
  CHECK(unwritable.err.find("batch") == std::string::npos);  // nothing was run
  // A run's own complaint is heard.
  const ProgramResult failed = place.run(
      {"--scaling", "1,2", "--data", place.file("nowhere"), "--json", place.file("failed")});
  CHECK(place.read_json("failed")["error"].get<std::string>().find("a run of --scaling failed") !=
        std::string::npos);
  CHECK(failed.exit_code != 0);
  CHECK(failed.err.find("nowhere") != std::string::npos);
  CHECK(failed.out.empty());
  const ProgramResult launched =
      run_program(Words{RONDO_RUN, "-n", "2", "--", RONDO_TRAIN, "--scaling", "1,2"}, kNoLauncher);
  CHECK(launched.exit_code != 0);
  CHECK(launched.err.find("leave out the launcher") != std::string::npos);
}

TEST_CASE("the bar is drawn for every model, by epochs, and from where a resumed run goes on") {
  const Workplace place;
  for (const Small& model : place.models()) {
    INFO(model.name);
    const auto shown = [&](const Words& words) {
      const rondo::testing::Terminal terminal;
      std::string command = "exec";
      for (const std::string& word : Words{RONDO_TRAIN} + model.flags + words) {
        command += " '" + word + "'";
      }
      const ProgramResult result = run_program(
          {"sh", "-c", command + " --ranks 2 --log-every 0 2>'" + terminal.path() + "'"},
          kNoLauncher);
      CHECK(result.exit_code == 0);
      return terminal.read();
    };
    const Words folder = {"--checkpoint-dir", place.file("bar-" + model.name)};
    CHECK(shown(folder + Words{"--steps", "4"}).find("step 4 of 4") != std::string::npos);
    const std::string resumed = shown(folder + Words{"--steps", "8", "--resume"});
    CHECK(resumed.find("step 4 of 8") == std::string::npos);
    CHECK(resumed.find("] step 5 of 8") != std::string::npos);
    CHECK(resumed.find("step 8 of 8") != std::string::npos);
    // Nothing is left to do: no bar, and an end in order.
    CHECK(shown(folder + Words{"--steps", "8", "--resume"}).find(" of 8, loss") ==
          std::string::npos);
    const std::string epochs = shown({"--epochs", "2", "--batch", "30"});
    const size_t last = epochs.rfind("] step ");
    REQUIRE(last != std::string::npos);
    uint64_t step = 0, of = 1;
    REQUIRE(std::sscanf(epochs.c_str() + last, "] step %lu of %lu", &step, &of) == 2);
    CHECK(step == of);
  }
}

}  // namespace rondo::trainer::seeing_test
