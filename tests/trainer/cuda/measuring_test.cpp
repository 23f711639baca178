// What rondo-train --device cuda measures, over the fake CUDA runtime: steps' times, traces,
// control steps, and buckets that are laid out by what was measured.
#include <algorithm>
#include <chrono>
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
  const json document = json::parse(read_text(file));
  std::map<json, std::string> rows;
  for (const json& event : document["traceEvents"]) {
    if (event["pid"] == 0 && event["name"] == "thread_name") {
      rows[event["tid"]] = event["args"]["name"];
    }
  }
  std::vector<DrawnStep> steps;
  double queued = 0;  // before the span that is next
  for (const json& span : spans_of(file, 0)) {
    CHECK(span["dur"] >= 0);
    const std::string name = span["name"], row = rows[span["tid"]];
    const double begin = span["ts"], end = begin + number(span, "dur");
    steps.resize(std::max(steps.size(), span["args"]["step"].get<size_t>()));
    DrawnStep& step = steps[span["args"]["step"].get<size_t>() - 1];
    if (name.starts_with("wait for ")) step.waits.emplace_back(begin, end);
    if (name == "wait for parameters") step.parameters_came = end;
    if (name.starts_with("optimizer bucket ")) {
      step.buckets[std::stoi(name.substr(17))].updated = begin;
    }
    if (!row.starts_with("bucket ")) continue;
    DrawnStep::Bucket& bucket = step.buckets[std::stoi(row.substr(7))];
    if (name == "queued") {
      queued = begin;
    } else if (name.find("bucket") != std::string::npos) {
      step.transfers.emplace_back(queued, end);
    }
    if (name.starts_with("all-gather")) bucket.gathered = end;
    if (name == "ready, waits for its turn") bucket.ready = begin;
    if (name.starts_with("all-reduce") || name.starts_with("reduce-scatter")) {
      bucket.started = begin;
      bucket.ended = end;
    }
  }
  return steps;
}

/// Of a checkpoint, as long as its list of buckets.
json ends_after(const std::string& folder, const std::string& step) {
  const json state = json::parse(read_text(folder + "/step-0000000" + step + "/state.json"));
  const json ends = state["extra"].value("bucket_ends", json());
  CHECK(state["buckets"].size() == ends.size());
  return ends;
}

const Words kAutomatic = "--model mlp --width 512 --batch 4 --workers 0 --bucket-cap-mb auto"_words;

}  // namespace

TEST_CASE("on GPUs no step has waited for an evaluation or a checkpoint before it") {
  const Workplace place;
  const Words words =
      kMlp + "--steps 8 --validate-every 2 --checkpoint-every 5"_words +
      Words{"--validation", place.tiny_data(), "--checkpoint-dir", folder_in(place, "checkpoints")};
  const json document = on_gpus(place, words, 2);
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
  const json document = on_gpus(place, kGpt + "--steps 4"_words + Words{"--trace", file}, 2);
  std::map<std::string, int> spans;  // of rank 0
  double first_us = 1e18, last_us = 0;
  for (const json& span : spans_of(file, 0)) {
    first_us = std::min(first_us, number(span, "ts"));
    last_us = std::max(last_us, number(span, "ts") + number(span, "dur"));
    ++spans[span["name"]];
  }
  for (const char* name : {"forward", "forward h.0.attn", "backward h.1.mlp", "backward embedding",
                           "optimizer bucket 0", "wait for communication", "all-gather of headers",
                           "all-reduce bucket 0"}) {
    INFO(name);
    CHECK(spans[name] == 4);
  }
  double together_ms = 0;
  for (const json& step : document["steps"]) {
    CHECK(number(step, "step_ms") ==
          Approx(number(step, "compute_ms") + number(step, "exposed_comm_ms") +
                 number(step, "other_wait_ms") + number(step, "data_wait_ms")));
    CHECK(step["compute_ms"] > 0);
    together_ms += number(step, "step_ms");
  }
  CHECK(last_us - first_us ==
        Approx(together_ms * 1e3).epsilon(0.5));  // headers go before and beside
}

// Also where events' times are coarse: the order of those on one stream is known.
TEST_CASE("a trace of GPUs has what both streams did in the order in which they did it") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  const Words words =
      kGpt + "--steps 4 --bucket-cap-mb 0.02 --lr 0.01"_words + Words{"--trace", file};
  constexpr double kNudges = 0.5;  // us, by which equal times may have been moved
  const auto exact = std::chrono::nanoseconds(1), coarse = std::chrono::nanoseconds(100'000'000);
  for (const auto& [how, tick] :
       {std::pair(std::string(), coarse), {"--no-overlap", coarse}, {"--zero 1", exact}}) {
    INFO(how);
    const auto gpu = cuda::testing::make_gpu();
    gpu->tick = tick;
    const json document = on_gpus(gpu, place, words + words_of(how), 2);
    const std::vector<DrawnStep> steps = steps_of(file);
    REQUIRE(steps.size() == 4);
    for (const DrawnStep& step : steps) {
      REQUIRE(step.buckets.size() == document["summary"]["buckets"].size());
      REQUIRE(step.buckets.size() > 2);
      REQUIRE(!step.waits.empty());
      const double backward_ended = step.waits.front().first;
      for (const auto& [number, bucket] : step.buckets) {
        INFO("bucket " << number);
        CHECK((how == "--no-overlap" ? bucket.ready > backward_ended
                                     : bucket.ready < backward_ended));
        CHECK(bucket.started >= bucket.ready);
        if (how == "--zero 1") {
          CHECK(bucket.gathered > bucket.ended);
          CHECK(bucket.gathered <= step.parameters_came + kNudges);
        } else {
          CHECK(bucket.ended <= bucket.updated + kNudges);
        }
      }
    }
  }
}

TEST_CASE("on GPUs communication is exposed as the trace shows it, and as on the host") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  for (const std::string how : {"", "--no-overlap", "--zero 1"}) {
    INFO(how);
    const Words all = kGpt + "--steps 5 --bucket-cap-mb 0.02"_words + words_of(how);
    const json document = on_gpus(place, all + Words{"--trace", file}, 2);
    const std::vector<DrawnStep> drawn = steps_of(file);
    REQUIRE(drawn.size() == 5);
    for (size_t i = 0; i < 5; ++i) {
      const json& step = document["steps"][i];
      const double hidden_ms = number(step, "comm_ms") - number(step, "exposed_comm_ms");
      CHECK(number(step, "exposed_comm_ms") > 0);
      CHECK(hidden_ms == Approx(drawn[i].hidden_ms()).margin(1e-3));
      CHECK((hidden_ms > 1e-3) == (how != "--no-overlap"));
    }
    if (!how.empty()) continue;
    // Nothing is known of replayed steps: they have what was measured last.
    const json replayed = on_gpus(place, all, 2);
    REQUIRE(replayed["summary"]["replayed_steps"] == 3);
    const json& measured = replayed["steps"][1];
    for (size_t i = 2; i < 5; ++i) {
      const json& step = replayed["steps"][i];
      CHECK(number(step, "exposed_comm_ms") <= number(measured, "exposed_comm_ms"));
      CHECK(number(step, "comm_ms") - number(step, "exposed_comm_ms") ==
            Approx(number(measured, "comm_ms") - number(measured, "exposed_comm_ms")).margin(1e-6));
    }
  }
}

TEST_CASE(
    "on GPUs auto buckets: laid out anew after step 5, with the same bits, and replayed then") {
  const Workplace place;
  const std::string trace = place.file("trace.json");
  const Words automatic = kAutomatic + "--steps 9 --reproducible"_words;
  const json fixed = on_gpus(place, with(automatic, "--bucket-cap-mb", "25"), 3);
  const json got = on_gpus(place, automatic + "--control-steps 1"_words, 3);
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
  const std::vector<DrawnStep> steps = steps_of(trace);
  REQUIRE(steps.size() == 9);
  CHECK(steps[0].buckets.size() == traced["summary"]["relayout"]["buckets_before"]);
  CHECK(steps[8].buckets.size() == traced["summary"]["relayout"]["buckets"]);
}

TEST_CASE("on GPUs auto buckets: a checkpoint settles them, and a run that resumes has them") {
  const Workplace place;
  for (const std::string dtype : {"bf16", "fp32"}) {
    if (rondo::testing::kSanitized && dtype == "fp32") continue;
    const std::string folder = folder_in(place, dtype);
    const Words words = kAutomatic + words_of(std::string("--steps 5 --resume --dtype ") + dtype) +
                        Words{"--checkpoint-dir", folder};
    const json whole = on_gpus(place, words + "--checkpoint-every 2 --checkpoint-keep 9"_words, 3);
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
  const std::string folder = folder_in(place, "checkpoints");
  const Words words =
      kAutomatic + "--dtype bf16 --resume"_words + Words{"--checkpoint-dir", folder};
  const json measured = on_host(
      place, words + "--steps 3 --checkpoint-every 2 --pace 1GB/s,2ms --no-overlap"_words, 3);
  REQUIRE(measured["summary"]["buckets"].size() == 1);
  const json ends = ends_after(folder, "3");
  CHECK(on_gpus(place, words + "--steps 4"_words, 3)["summary"]["buckets"].size() == 1);
  CHECK(ends_after(folder, "4") == ends);
  CHECK(on_host(place, words + "--steps 5"_words, 3)["summary"]["buckets"].size() == 1);
  CHECK(ends_after(folder, "5") == ends);
}

TEST_CASE("on GPUs control steps measure and leave no mark") {
  const Workplace place;
  const std::string trace = place.file("control-trace.json");
  const Words gpt = kGpt + "--steps 3 --bucket-cap-mb 0.02"_words,
              cnn = cnn_on(place, 40) + "--steps 3"_words;
  for (const Words& words :
       {gpt + "--dropout 0.1 --layer-drop 0.3 --accum 2"_words,
        gpt + "--zero 1 --clip 0.3 --compress bf16"_words,
        gpt + "--dtype fp16 --average-over ranks"_words,
        cnn + Words{"--validation", place.file("images")}, cnn + "--sync-batch-norm"_words}) {
    const json without = on_gpus(place, words, 2);
    const json with =
        on_gpus(place, words + "--control-steps 2"_words + Words{"--trace", trace}, 2);
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
    const double cost_ms = number(account, "cost_ms");
    const double saved_ms = number(account, "sum_ms") - number(account, "measured_ms");
    if (cost_ms > 0.05 * number(account, "compute_ms")) {
      CHECK(number(with["summary"], "hidden_comm_ms") ==
            Approx(std::min(saved_ms, cost_ms)).margin(1e-9));
    } else {
      CHECK(with["summary"]["hidden_comm_ms"].is_null());
    }
    CHECK(account["compute_ms"] > 0);
    CHECK(account["cost_ms"] > 0);
    const std::vector<json> spans = spans_of(trace, 0);
    const auto forwards = std::count_if(spans.begin(), spans.end(),
                                        [](const json& span) { return span["name"] == "forward"; });
    CHECK(forwards == 3 * with["config"]["accum"].get<int>());  // no pass of the control run
  }
}

}  // namespace rondo::trainer::measuring_test
