// What rondo-train shows of a run, as a program with ranks as processes: the trace of all ranks,
// the summary's account of the time, control steps that leave no mark, --scaling, and the bar.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>
#include <thread>

#include "tests/harness/terminal.hpp"
#include "tests/trainer/training_rig.hpp"

namespace rondo::trainer::seeing_test {

using namespace testing;  // NOLINT: the trainer's
using rondo::testing::run_program;

namespace {

/// A model that is small enough, and the layers that backward visits.
struct Small {
  std::string name;
  Words flags;
  std::vector<std::string> layers;
};

std::vector<Small> models(const Workplace& place) {
  const std::string text = place.file("text"), pictures = place.file("pictures");
  write_file(text, synthetic_text(4000, 1));
  write_pictures(pictures, "train", 60, 8, 4, 1);
  return {
      {"mlp",
       "--model mlp --width 32 --data"_words + text,
       {"output", "hidden2", "hidden1", "embedding"}},
      {"gpt",
       "--model gpt --layers 2 --width 16 --heads 2 --context 8 --dropout 0.1 --data"_words + text,
       {"head", "h.1.mlp", "h.1.attn", "h.0.mlp", "h.0.attn", "embedding"}},
      {"cnn",
       "--model cnn --width 4 --classes 4 --sync-batch-norm --data"_words + pictures,
       {"linear", "bn2", "conv2", "bn1", "conv1"}}};
}
Words mlp(const Workplace& place) { return models(place)[0].flags; }

double number(const json& object, const char* key) { return object[key]; }

struct Named : Span {
  std::string name;
};

/// By process and row, then in order of beginning, enclosing ones first.
std::map<std::pair<int, int>, std::vector<Named>> rows_of(const json& trace) {
  std::map<std::pair<int, int>, std::vector<Named>> rows;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    REQUIRE(number(event, "dur") >= 0);
    rows[{event["pid"], event["tid"]}].push_back(
        {{event["ts"], number(event, "ts") + number(event, "dur")}, event["name"]});
  }
  for (auto& [key, spans] : rows) {
    std::stable_sort(spans.begin(), spans.end(), [](const Named& a, const Named& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
  }
  return rows;
}

}  // namespace

TEST_CASE("the trace has every layer of forward and backward, on every rank, and rows that nest") {
  const Workplace place;
  for (const Small& model : models(place)) {
    INFO(model.name);
    place.train_on(model.flags + "--ranks 2 --steps 2 --batch 4 --trace"_words +
                   place.file("trace"));
    const json trace = read_json(place.file("trace"));
    CHECK(trace["displayTimeUnit"] == "ms");
    const auto rows = rows_of(trace);
    constexpr double kRounding = 1e-3;  // us: a nanosecond
    for (const auto& [row, spans] : rows) {
      std::vector<Named> open;
      for (const Named& span : spans) {
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
        for (const Named& span : spans) times[span.name] += row.first == rank ? 1 : 0;
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
      for (const Named& span : rows.at({rank, 0})) {
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
  const Words flags = mlp(place) + "--ranks 2 --steps 6 --bucket-cap-mb 0.005 --log-every 0"_words;
  const json summary = place.train_on(flags)["summary"];
  REQUIRE(summary["buckets"].size() > 2);
  for (const json& bucket : summary["buckets"]) {
    for (const char* key : {"bytes", "predicted_us", "ready_ms", "waited_ms", "queued_ms",
                            "transfer_ms", "cost_ms", "hidden_ms", "exposed_ms"}) {
      REQUIRE(bucket.contains(key));
      CHECK(number(bucket, key) >= 0);
    }
    CHECK(number(bucket, "transfer_ms") > 0);
    CHECK(number(bucket, "ready_ms") <= number(summary, "step_ms"));
  }
  CHECK(summary["hidden_comm_ms"].is_null());  // six steps are too few for control steps
  CHECK(summary["hidden_fraction"].is_null());
  std::vector<std::string> ready;
  for (const json& gradient : summary["gradients"]) ready.push_back(gradient["tensor"]);
  CHECK(ready == std::vector<std::string>{"output.bias", "output.weight", "hidden2.bias",
                                          "hidden2.weight", "hidden1.bias", "hidden1.weight",
                                          "embedding"});
  // What another program needs to lay the same buckets out.
  CHECK(summary["tensors"].size() == 7);
  CHECK(summary["tensors"][1]["name"] == "output.weight");
  CHECK(summary["tensors"][1]["shape"].size() == 2);
  CHECK(number(summary, "update_ms") > 0);
  const json& last = summary["gradients"].back();
  CHECK(last["elements"] == 512);
  CHECK(number(last, "ready_ms") <= number(summary, "backward_ms"));
  CHECK(summary["gradients"][0]["ready_ms"].get<double>() < number(last, "ready_ms"));
  const json& account = summary["accounting"];
  const double compute = account["compute_ms"], cost = account["cost_ms"];
  CHECK(compute > 0);
  CHECK(cost > 0);
  CHECK(number(account, "sum_ms") == Approx(compute + cost));
  CHECK(number(account, "max_ms") == Approx(std::max(compute, cost)));
  CHECK(number(account, "measured_ms") > 0);
  CHECK(account["slowed_ms"].is_null());  // nothing to compare with
  CHECK(account["contention"].is_null());
  CHECK(account["control_steps"] == 0);
  CHECK(!summary["diagnosis"].get<std::string>().empty());
  CHECK(summary["cap_predictions"].size() >= 2);
  CHECK(summary["cap_predictions"][0]["cap_mb"] == 0);
  CHECK(summary["cap_predictions"].back()["buckets"] == 1);
  // A cap that gains nothing is not suggested in place of this one.
  CHECK((summary["suggested_bucket_cap_mb"] == 0.005) == (summary["suggested_gain_ms"] == 0));

  const json alone = place.train_on(mlp(place) + "--steps 2"_words)["summary"];
  CHECK(alone["diagnosis"] == "one rank: nothing is communicated");
  CHECK(!alone.contains("cap_predictions"));
}

TEST_CASE(
    "communication counts gradients only, hidden and exposed; gpt also reports tokens per second") {
  const Workplace place;
  for (const Small& model : models(place)) {
    for (const Words& more : {Words{"--no-overlap"}, Words{}, "--zero 1"_words}) {
      INFO(model.name << (more.empty() ? "" : more[0]));
      const json document =
          place.train_on(model.flags + more + "--ranks 2 --steps 4 --log-every 0"_words);
      for (const json& step : document["steps"]) {
        const auto ms = [&](const char* field) { return number(step, field); };
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
      // A sample of the text that gpt reads is eight tokens; that of the others is not told in them.
      std::vector<json> rates = document["steps"];
      rates.push_back(document["summary"]);
      for (const json& rate : rates) {
        REQUIRE(rate.contains("tokens_per_s") == (model.name == "gpt"));
        if (model.name == "gpt") {
          CHECK(number(rate, "tokens_per_s") == Approx(8 * number(rate, "samples_per_s")));
        }
      }
      const json& summary = document["summary"];
      if (more == Words{"--no-overlap"}) CHECK(summary["hidden_comm_ms"] == 0);
      CHECK(summary.contains("other_wait_ms"));
    }
  }
}

TEST_CASE(
    "the summary has the time that overlap saves, from control steps that change nothing else") {
  const Workplace place;
  const auto train = [&](const Words& more) {
    return place.train_on(mlp(place) + "--ranks 2 --log-every 0"_words + more);
  };
  const json document = train("--steps 40"_words);
  CHECK(document["config"]["control_steps"] == 4);
  const json& summary = document["summary"];
  const json& account = summary["accounting"];
  CHECK(account["control_steps"] == 4);
  const double cost_ms = number(account, "cost_ms");
  const double saved_ms = number(account, "sum_ms") - number(account, "measured_ms");
  if (cost_ms > 0.05 * number(account, "compute_ms")) {
    CHECK(number(summary, "hidden_comm_ms") == Approx(std::min(saved_ms, cost_ms)).margin(1e-9));
    CHECK(number(summary, "hidden_fraction") ==
          Approx(number(summary, "hidden_comm_ms") / cost_ms).margin(1e-9));
  } else {
    CHECK(summary["hidden_comm_ms"].is_null());
  }
  CHECK(number(account, "contention") ==
        Approx(number(account, "slowed_ms") / number(account, "compute_ms")).margin(1e-9));
  CHECK(train("--steps 29"_words)["config"]["control_steps"] == 0);
  CHECK(train("--steps 110"_words)["config"]["control_steps"] == 10);
  const json without = train("--steps 40 --control-steps 0"_words);
  CHECK(without["summary"]["hidden_comm_ms"].is_null());
  CHECK(without["summary"]["parameter_hash"] == summary["parameter_hash"]);
  CHECK(without["summary"]["bytes_sent_per_step"] == summary["bytes_sent_per_step"]);
  CHECK(train("--steps 40 --no-overlap"_words)["summary"]["hidden_comm_ms"] == 0);
}

TEST_CASE("caps are predicted without overlap where the run has none") {
  const Workplace place;
  const json summary = place.train(
      "--model mlp --layers 7 --width 64 --batch 512 --ranks 2 --steps 6 --pace 1GB/s,20us"_words +
      "--bucket-cap-mb 0 --no-overlap"_words)["summary"];
  double costs_ms = 0;
  for (const json& bucket : summary["buckets"]) costs_ms += number(bucket, "cost_ms");
  // Only the optimizer hides something.
  const double hidden_ms = summary["update_ms"];
  CHECK(number(summary["cap_predictions"][0], "exposed_ms") > 0.99 * costs_ms - hidden_ms);
  CHECK(number(summary, "backward_ms") > hidden_ms);  // or this says nothing
}

// Rank 0 waits 200 ms for rank 1 in each step, and rank 1 for nobody.
TEST_CASE("what communication exposes is told without the wait for a rank that comes late") {
  const Workplace place;
  const json summary = place.train_on(
      mlp(place) + "--ranks 2 --steps 3 --no-overlap --break straggler"_words)["summary"];
  CHECK(number(summary, "exposed_cost_ms") > 0);
  CHECK(number(summary, "exposed_cost_ms") < number(summary, "exposed_comm_ms"));
}

TEST_CASE("control steps measure and leave no mark") {
  const Workplace place;
  for (const Small& model : models(place)) {
    for (const Words& more : {Words{}, "--dtype fp16 --accum 2"_words}) {
      INFO(model.name);
      // Buffers are part of the checkpoint.
      const auto train = [&](const std::string& name, const std::string& steps) {
        const json document = place.train_on(
            model.flags + more + "--ranks 2 --steps 4 --batch 4 --control-steps"_words + steps +
            "--checkpoint-dir" + place.file(model.name + name));
        const std::string bits =
            read_text(place.file(model.name + name + "/step-00000004/model.safetensors"));
        REQUIRE(bits.size() > 8);
        // The header knows the options' hash, which differs.
        uint64_t header = 0;
        for (size_t i = 8; i-- > 0;) header = header << 8 | static_cast<uint8_t>(bits[i]);
        return std::pair(document, bits.substr(8 + header));
      };
      const std::string tag = more.empty() ? "" : "16";
      const auto [with, bits_with] = train(tag + "with", "2");
      const auto [without, bits_without] = train(tag + "without", "0");
      CHECK(losses_of(with) == losses_of(without));
      CHECK(hash_of(with) == hash_of(without));
      CHECK(with["summary"]["bytes_sent_per_step"] == without["summary"]["bytes_sent_per_step"]);
      const bool same_bits = bits_with == bits_without;
      CHECK(same_bits);
      CHECK(with["summary"]["warnings"] == without["summary"]["warnings"]);
      const json& account = with["summary"]["accounting"];
      CHECK(account["control_steps"] == 2);
      CHECK(account["contention"].is_number());
      CHECK(number(account, "cost_ms") > 0);
    }
  }
}

// Seventeen tensors cost 34 latencies of 2 ms one by one, and two or three of them together.
TEST_CASE("on a slow link the suggested cap exposes less than one bucket per tensor") {
  const Workplace place;
  const auto train = [&](const std::string& cap_mb) {
    return place.train_on(
        mlp(place) + "--layers 7 --ranks 2 --steps 10 --pace 200MB/s,2ms --bucket-cap-mb"_words +
        cap_mb)["summary"];
  };
  const json apart = train("0");
  CHECK(apart["buckets"].size() == 17);
  CHECK(number(apart, "suggested_gain_ms") > 1);
  const double cap_mb = apart["suggested_bucket_cap_mb"];
  CHECK(cap_mb > 0);
  const json together = train(std::to_string(cap_mb));
  CHECK(together["buckets"].size() <= 5);
  CHECK(number(together, "exposed_comm_ms") < number(apart, "exposed_comm_ms"));
}

TEST_CASE("--scaling runs each number of ranks, and says where they share cores") {
  const Workplace place;
  const Words flags = mlp(place) + "--steps 3 --batch 4"_words;
  const ProgramResult result = run_ok(flags + "--scaling 2,4 --json"_words + place.file("scaling"));
  CHECK_THAT(result.err, contains("1 rank is added"));
  const json document = json::parse(result.out);
  CHECK(document == read_json(place.file("scaling")));
  CHECK(document["program"] == "rondo-train");
  const json& rows = document["scaling"];
  REQUIRE(rows.size() == 3);
  const uint64_t cores = document["config"]["cores"];
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t ranks = uint64_t{1} << i;
    CHECK(rows[i]["ranks"] == ranks);
    CHECK(rows[i]["batch"] == 4);
    CHECK(rows[i]["global_batch"] == 4 * ranks);
    CHECK(number(rows[i], "samples_per_s") > 0);
    CHECK(rows[i]["oversubscribed"] == (ranks > cores));
    CHECK(rows[i].contains("note") == (ranks > cores));
    CHECK(number(rows[i], "efficiency") ==
          Approx(number(rows[i], "samples_per_s") /
                 (static_cast<double>(ranks) * number(rows[0], "samples_per_s"))));
    CHECK(rows[i].contains("exposed_comm_ms"));
  }
  const json fixed = json::parse(run_ok(flags + "--scaling 1,2 --strong"_words).out);
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
  check_failed(result, {"cannot write --json"});
  const json document = read_json(file);
  CHECK(document["steps"].size() >= 100);
  CHECK_THAT(document["error"].get<std::string>(), contains("cannot write --json"));
}

TEST_CASE("--scaling refuses what it cannot run") {
  const Workplace place;
  const auto refused = [&](const Words& flags, const std::string& why) {
    const ProgramResult result = run(mlp(place) + flags);
    check_failed(result, {why});
    CHECK_THAT(result.out, !contains("scaling"));
    return result;
  };
  refused("--scaling 0,2"_words, "--scaling");
  refused("--scaling two"_words, "--scaling");
  refused({"--strong"}, "--scaling");
  refused("--scaling 1,2 --ranks 2"_words, "leave out --ranks");
  refused("--scaling 1,2 --trace t"_words, "--trace");
  refused("--scaling 1,4 --strong --batch 6"_words, "4 ranks cannot share --batch 6");
  const Words json_to = "--scaling 1,2 --json"_words;
  const ProgramResult unwritable =
      refused(json_to + place.file("no/folder"), "cannot write --json");
  CHECK_THAT(unwritable.err, !contains("batch"));  // nothing was run
  // A run's own complaint is heard.
  const std::string file = place.file("failed");
  const ProgramResult failed = run(json_to + file + "--data" + place.file("nowhere"));
  check_failed(failed, {"nowhere"});
  CHECK(failed.out.empty());
  CHECK_THAT(read_json(file)["error"].get<std::string>(), contains("a run of --scaling failed"));
  check_failed(run_program(Words{RONDO_RUN} + "-n 2 --"_words + RONDO_TRAIN + "--scaling 1,2"_words,
                           kNoLauncher),
               {"leave out the launcher"});
}

TEST_CASE("the bar is drawn for every model, by epochs, and from where a resumed run goes on") {
  const Workplace place;
  for (const Small& model : models(place)) {
    INFO(model.name);
    const auto run_with_stderr = [&](const std::string& path, const Words& flags) {
      const std::string command = "exec \"$@\" --ranks 2 --log-every 0 2>'" + path + "'";
      const Words shell = {"sh", "-c", command, "sh", RONDO_TRAIN};
      CHECK(run_program(shell + model.flags + flags, kNoLauncher).exit_code == 0);
    };
    const auto shown = [&](const Words& flags) {
      const rondo::testing::Terminal terminal;
      run_with_stderr(terminal.path(), flags);
      return terminal.read();
    };
    run_with_stderr(place.file("err"), "--steps 4"_words);
    CHECK_THAT(read_text(place.file("err")), !contains("] step "));
    const Words folder = "--checkpoint-dir"_words + place.file("bar-" + model.name);
    CHECK_THAT(shown(folder + "--steps 4"_words), contains("step 4 of 4"));
    const std::string resumed = shown(folder + "--steps 8 --resume"_words);
    CHECK_THAT(resumed, !contains("step 4 of 8"));
    CHECK_THAT(resumed, contains("] step 5 of 8"));
    CHECK_THAT(resumed, contains("step 8 of 8"));
    // Nothing is left to do: no bar, and an end in order.
    CHECK_THAT(shown(folder + "--steps 8 --resume"_words), !contains(" of 8, loss"));
    const std::string epochs = shown({"--epochs", "2", "--batch", "30"});
    const size_t last = epochs.rfind("] step ");
    REQUIRE(last != std::string::npos);
    uint64_t step = 0, of = 1;
    REQUIRE(std::sscanf(epochs.c_str() + last, "] step %lu of %lu", &step, &of) == 2);
    CHECK(step == of);
  }
}

}  // namespace rondo::trainer::seeing_test
