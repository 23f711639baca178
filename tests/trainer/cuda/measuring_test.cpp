// What rondo-train --device cuda measures, over the stand-in: steps' times, traces, control steps, and
// buckets that are laid out by what was measured.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/harness/sanitized.hpp"
#include "tests/trainer/cuda/gpu_runs.hpp"

namespace rondo::trainer::measuring_test {
namespace {

using namespace trainer::testing;  // NOLINT: the trainer's

}  // namespace

TEST_CASE("on GPUs no step has waited for an evaluation or a checkpoint before it") {
  const Workplace place;
  const std::string folder = place.file("checkpoints");
  std::filesystem::create_directory(folder);
  const json document = on_gpus(
      place,
      kMlp + Words{"--data", place.data(), "--steps", "8", "--validation", place.tiny_data(),
                   "--validate-every", "2", "--checkpoint-dir", folder, "--checkpoint-every", "5"},
      2);
  for (const int before : {0, 2, 4, 5, 6}) {
    const json& step = document["steps"][before];
    INFO(step.dump());
    CHECK(step["other_wait_ms"] == 0);
    CHECK(step["data_wait_ms"] == 0);
  }
}

TEST_CASE("a trace of GPUs has their times") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  const json document =
      on_gpus(place, kGpt + Words{"--data", place.data(), "--steps", "4", "--trace", file}, 2);
  const json trace = json::parse(read_text(file));
  std::map<std::string, int> spans;  // of rank 0
  double first_us = 1e18, last_us = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["pid"] != 0) continue;
    CHECK(event["dur"] >= 0);
    first_us = std::min(first_us, event["ts"].get<double>());
    last_us = std::max(last_us, event["ts"].get<double>() + event["dur"].get<double>());
    ++spans[event["name"]];
  }
  for (const char* name :
       {"forward", "forward h.0.attn", "backward h.1.mlp", "backward embedding",
        "optimizer bucket 0", "wait for communication", "all-gather of headers"}) {
    INFO(name);
    CHECK(spans[name] == 4);
  }
  CHECK(spans["all-reduce bucket 0"] == 4);
  double together_ms = 0;
  for (const json& step : document["steps"]) {
    const double parts = step["compute_ms"].get<double>() + step["exposed_comm_ms"].get<double>() +
                         step["other_wait_ms"].get<double>() + step["data_wait_ms"].get<double>();
    CHECK(step["step_ms"].get<double>() == Approx(parts));
    CHECK(step["compute_ms"] > 0);
    together_ms += step["step_ms"].get<double>();
  }
  CHECK(last_us - first_us ==
        Approx(together_ms * 1e3).epsilon(0.5));  // headers go before and beside
}

namespace {

/// Of a rank's step in a trace, in microseconds.
struct DrawnStep {
  struct Bucket {
    double ready = 0, started = 0, ended = 0, updated = 0, gathered = 0;
  };
  std::map<int, Bucket> buckets;
  std::vector<std::pair<double, double>> waits;      // for gradients, then for parameters
  std::vector<std::pair<double, double>> transfers;  // from their queue on
  double parameters_came = 0;

  double hidden_ms() const {
    std::vector<std::pair<double, double>> sorted = transfers;
    std::sort(sorted.begin(), sorted.end());
    double all = 0, until = 0;
    for (const auto& [queued, ended] : sorted) {
      const double from = std::max(until, queued);
      until = std::max(until, ended);
      all += std::max(0.0, until - from);
      for (const auto& [begin, end] : waits) {
        all -= std::max(0.0, std::min(end, until) - std::max(begin, from));
      }
    }
    return all / 1e3;
  }
};

/// Rank 0's steps, from 1 on.
std::vector<DrawnStep> steps_of(const std::string& file) {
  const json events = json::parse(read_text(file))["traceEvents"];
  std::map<json, std::string> rows;
  for (const json& event : events) {
    if (event["pid"] == 0 && event["name"] == "thread_name") {
      rows[event["tid"]] = event["args"]["name"];
    }
  }
  std::vector<DrawnStep> steps;
  double queued = 0;  // before the span that is next
  for (const json& event : events) {
    if (event["pid"] != 0 || event["ph"] != "X") continue;
    CHECK(event["dur"] >= 0);
    const std::string name = event["name"], row = rows[event["tid"]];
    const double begin = event["ts"], end = begin + event["dur"].get<double>();
    steps.resize(std::max(steps.size(), event["args"]["step"].get<size_t>()));
    DrawnStep& step = steps[event["args"]["step"].get<size_t>() - 1];
    if (name.find("wait for ") == 0) step.waits.emplace_back(begin, end);
    if (name == "wait for parameters") step.parameters_came = end;
    if (name.find("optimizer bucket ") == 0) {
      step.buckets[std::stoi(name.substr(17))].updated = begin;
    }
    if (row.find("bucket ") != 0) continue;
    DrawnStep::Bucket& bucket = step.buckets[std::stoi(row.substr(7))];
    if (name == "queued") {
      queued = begin;
    } else if (name.find("bucket") != std::string::npos) {
      step.transfers.emplace_back(queued, end);
    }
    if (name.find("all-gather") == 0) bucket.gathered = end;
    if (name == "ready, waits for its turn") bucket.ready = begin;
    if (name.find("all-reduce") == 0 || name.find("reduce-scatter") == 0) {
      bucket.started = begin;
      bucket.ended = end;
    }
  }
  return steps;
}

}  // namespace

// Also where events' times are coarse: the order of those on one stream is known.
TEST_CASE("a trace of GPUs has what both streams did in the order in which they did it") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  const Words words = kGpt + Words{"--data", place.data(), "--steps", "4",    "--bucket-cap-mb",
                                   "0.02",   "--trace",    file,      "--lr", "0.01"};
  constexpr double kNudges = 0.5;  // us, by which equal times may have been moved
  const auto exact = std::chrono::nanoseconds(1), coarse = std::chrono::nanoseconds(100'000'000);
  for (const auto& [how, tick] :
       {std::pair(Words{}, coarse), std::pair(Words{"--no-overlap"}, coarse),
        std::pair(Words{"--zero", "1"}, exact)}) {
    INFO((how.empty() ? "" : how[0]));
    const auto gpu = cuda::testing::make_gpu();
    gpu->tick = tick;
    const json document = on_gpus(gpu, place, words + how, 2);
    const std::vector<DrawnStep> steps = steps_of(file);
    REQUIRE(steps.size() == 4);
    for (const DrawnStep& step : steps) {
      REQUIRE(step.buckets.size() == document["summary"]["buckets"].size());
      REQUIRE(step.buckets.size() > 2);
      REQUIRE(!step.waits.empty());
      const double backward_ended = step.waits.front().first;
      for (const auto& [number, bucket] : step.buckets) {
        INFO("bucket " << number);
        CHECK((how == Words{"--no-overlap"} ? bucket.ready > backward_ended
                                            : bucket.ready < backward_ended));
        CHECK(bucket.started >= bucket.ready);
        if (how == Words{"--zero", "1"}) {
          CHECK(bucket.gathered > bucket.ended);
          CHECK(bucket.gathered <= step.parameters_came + kNudges);
        } else {
          CHECK(bucket.ended <= bucket.updated + kNudges);
        }
      }
    }
  }
}

TEST_CASE("on GPUs communication is hidden and exposed as the trace shows it, and as on the host") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  const Words words = kGpt + Words{"--data", place.data(), "--steps", "5"};
  for (const Words& how : {Words{}, Words{"--no-overlap"}, Words{"--zero", "1"}}) {
    INFO((how.empty() ? "" : how[0]));
    const Words all = words + how + Words{"--bucket-cap-mb", "0.02"};
    const auto ms = [](const json& of, const char* name) { return of[name].get<double>(); };
    const json document = on_gpus(place, all + Words{"--trace", file}, 2);
    const std::vector<DrawnStep> drawn = steps_of(file);
    REQUIRE(drawn.size() == 5);
    for (size_t i = 0; i < 5; ++i) {
      const json& step = document["steps"][i];
      const double hidden_ms = ms(step, "comm_ms") - ms(step, "exposed_comm_ms");
      CHECK(ms(step, "exposed_comm_ms") > 0);
      CHECK(hidden_ms == Approx(drawn[i].hidden_ms()).margin(1e-3));
      CHECK((hidden_ms > 1e-3) == (how != Words{"--no-overlap"}));
    }
    const json& summary = document["summary"];
    CHECK(ms(summary, "comm_us") / 1e3 ==
          Approx(ms(summary, "hidden_comm_ms") + ms(summary, "exposed_comm_ms")));
    CHECK(ms(summary, "hidden_fraction") ==
          Approx(ms(summary, "hidden_comm_ms") / (ms(summary, "comm_us") / 1e3)));
    if (!how.empty()) continue;
    // Nothing is known of replayed steps: they have what was measured last.
    const json replayed = on_gpus(place, all, 2);
    REQUIRE(replayed["summary"]["replayed_steps"] == 3);
    const json& measured = replayed["steps"][1];
    for (size_t i = 2; i < 5; ++i) {
      const json& step = replayed["steps"][i];
      CHECK(ms(step, "exposed_comm_ms") <= ms(measured, "exposed_comm_ms"));
      CHECK(ms(step, "comm_ms") - ms(step, "exposed_comm_ms") ==
            Approx(ms(measured, "comm_ms") - ms(measured, "exposed_comm_ms")).margin(1e-6));
    }
  }
}

TEST_CASE(
    "on GPUs auto buckets: laid out anew after step 5, with the same bits, and replayed then") {
  const Workplace place;
  const std::string trace = place.file("trace.json");
  const Words words = with(kMlp, "--width", "512") +
                      Words{"--data", place.data(), "--steps", "9", "--reproducible"};
  const Words automatic = words + Words{"--bucket-cap-mb", "auto"};
  const json fixed = on_gpus(place, words, 3);
  const json got = on_gpus(place, automatic + Words{"--control-steps", "1"}, 3);
  const json& summary = got["summary"];
  CHECK(got["config"]["bucket_cap_mb"] == "auto");
  CHECK(summary["relayout"]["after_step"] == 5);
  CHECK(summary["relayout"]["buckets_before"] > 1);
  CHECK(summary["relayout"]["buckets"] == summary["buckets"].size());
  CHECK(summary["replayed_steps"] == 2);
  CHECK(fixed["summary"]["relayout"].is_null());
  CHECK(losses_of(got) == losses_of(fixed));
  CHECK(summary["parameter_hash"] == fixed["summary"]["parameter_hash"]);
  if (rondo::testing::kSanitized) return;
  const json traced = on_gpus(place, automatic + Words{"--trace", trace}, 3);
  CHECK(traced["summary"]["parameter_hash"] == fixed["summary"]["parameter_hash"]);
  REQUIRE(steps_of(trace).size() == 9);
  CHECK(steps_of(trace)[0].buckets.size() == traced["summary"]["relayout"]["buckets_before"]);
  CHECK(steps_of(trace)[8].buckets.size() == traced["summary"]["relayout"]["buckets"]);
}

namespace {

/// Of a checkpoint, as long as its list of buckets.
json ends_after(const std::string& folder, const std::string& step) {
  const json state = json::parse(read_text(folder + "/step-0000000" + step + "/state.json"));
  const json ends = state["extra"].value("bucket_ends", json());
  CHECK(state["buckets"].size() == ends.size());
  return ends;
}

Words automatic_words(const Workplace& place, const char* dtype, const std::string& folder) {
  std::filesystem::create_directory(folder);
  return with(kMlp, "--width", "512") +
         Words{"--data", place.data(),       "--dtype", dtype,     "--bucket-cap-mb",
               "auto",   "--checkpoint-dir", folder,    "--resume"};
}

}  // namespace

TEST_CASE("on GPUs auto buckets: a checkpoint settles them, and a run that resumes has them") {
  const Workplace place;
  for (const char* dtype : {"fp32", "bf16"}) {
    if (rondo::testing::kSanitized && dtype == std::string("fp32")) continue;
    const std::string folder = place.file(std::string("checkpoints-") + dtype);
    const Words words = automatic_words(place, dtype, folder) + Words{"--steps", "5"};
    const json whole =
        on_gpus(place, words + Words{"--checkpoint-every", "2", "--checkpoint-keep", "9"}, 3);
    const json ends = ends_after(folder, "2");
    CHECK(whole["summary"]["relayout"]["after_step"] == 2);
    CHECK(whole["summary"]["buckets"].size() == ends.size());
    CHECK(ends_after(folder, "5") == ends);
    std::ofstream(folder + "/latest") << "step-00000002\n";
    const json rest = on_gpus(place, words, 3);
    CHECK(rest["summary"]["relayout"].is_null());
    CHECK(ends_after(folder, "5") == ends);
    CHECK(rest["summary"]["parameter_hash"] == whole["summary"]["parameter_hash"]);
  }
}

// On the host every message takes 2 ms and nothing is hidden: one bucket is best.
TEST_CASE("on GPUs auto buckets: those of a checkpoint go from the host to GPUs and back") {
  const Workplace place;
  const std::string folder = place.file("checkpoints");
  const Words words = automatic_words(place, "bf16", folder);
  const json measured = on_host(place,
                                words + Words{"--steps", "3", "--checkpoint-every", "2", "--pace",
                                              "1GB/s,2ms", "--no-overlap"},
                                3);
  REQUIRE(measured["summary"]["buckets"].size() == 1);
  const json ends = ends_after(folder, "3");
  for (const bool host : {false, true}) {
    const Words more = words + Words{"--steps", host ? "5" : "4"};
    const json rest = host ? on_host(place, more, 3) : on_gpus(place, more, 3);
    CHECK(rest["summary"]["buckets"].size() == 1);
    CHECK(ends_after(folder, host ? "5" : "4") == ends);
  }
}

TEST_CASE("on GPUs control steps measure and leave no mark") {
  const Workplace place;
  const std::string images = place.file("images");
  std::filesystem::create_directory(images);
  write_images(images, 40);
  const Words gpt = kGpt + Words{"--data", place.data(), "--steps", "4", "--bucket-cap-mb", "0.02"};
  const Words cnn = kCnn + Words{"--data", images, "--steps", "4", "--workers", "0"};
  for (const Words& words :
       {gpt + Words{"--dropout", "0.1", "--layer-drop", "0.3", "--accum", "2"},
        gpt + Words{"--zero", "1", "--clip", "0.3", "--compress", "bf16"},
        gpt + Words{"--dtype", "fp16", "--average", "ranks"}, cnn + Words{"--validation", images},
        cnn + Words{"--sync-batch-norm"}}) {
    const std::string trace = place.file("control-trace.json");
    const json without = on_gpus(place, words, 2);
    const json with = on_gpus(place, words + Words{"--control-steps", "2", "--trace", trace}, 2);
    INFO(with["config"].dump());
    CHECK(losses_of(with) == losses_of(without));
    for (const char* same :
         {"parameter_hash", "bytes_sent_per_step_by_rank", "warnings", "skipped_steps"}) {
      INFO(same);
      CHECK(with["summary"].value(same, json()) == without["summary"].value(same, json()));
    }
    CHECK(with.value("validation", json()) == without.value("validation", json()));
    CHECK(without["summary"].value("accounting", json()).is_null());
    const json account = with["summary"]["accounting"];
    CHECK(account["control_steps"] == 2);
    CHECK(account["contention"].is_number());
    CHECK(account["compute_ms"] > 0);
    CHECK(account["cost_ms"] > 0);
    const json events = json::parse(read_text(trace));
    int forwards = 0;  // of rank 0: no pass of the control run
    for (const json& event : events["traceEvents"]) {
      if (event["ph"] == "X" && event["pid"] == 0) forwards += event["name"] == "forward";
    }
    CHECK(forwards == 4 * with["config"]["accum"].get<int>());
  }
}

}  // namespace rondo::trainer::measuring_test
