// Steps on a device that are replayed from graphs, over the fake CUDA runtime: the same
// bits as enqueued ones.
#include <atomic>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/harness/sanitized.hpp"
#include "tests/trainer/cuda/gpu_runs.hpp"

namespace rondo::trainer::graphs_test {
namespace {

using namespace trainer::testing;  // NOLINT: the trainer's

/// What a run has computed, without times.
json results_of(const json& document) {
  json results;
  for (const json& step : document["steps"]) {
    results["steps"].push_back(
        {step["loss"], step["lr"], step.value("gradient_norm", 0.0), step.value("skipped", false)});
  }
  for (const json& each : document.value("validation", json::array())) {
    results["validation"].push_back({each["step"], each["validation_loss"], each["accuracy"]});
  }
  results["parameters"] = document["summary"]["parameter_hash"];
  results["bytes"] = document["summary"]["bytes_sent_per_step_by_rank"];
  return results;
}

using MakeGpu = std::shared_ptr<device::test::FakeGpu> (*)();

/// A GPU whose ranks count as processes, and map each other's memory at other addresses.
std::shared_ptr<device::test::FakeGpu> make_processes() {
  auto gpu = cuda::testing::make_gpu();
  gpu->imports_elsewhere = true;
  gpu->ranks_of_a_process = 1;
  return gpu;
}
std::shared_ptr<device::test::FakeGpu> make_threads() { return cuda::testing::make_gpu(); }

/// Requires the same results with and without graphs; how many steps were replayed.
int replayed_alike(const Workplace& place, const Words& words, int ranks,
                   MakeGpu make_gpu = &make_threads) {
  const json replayed = on_gpus(make_gpu(), place, words, ranks);
  const json enqueued = on_gpus(make_gpu(), place, words + "--no-cuda-graph"_words, ranks);
  REQUIRE(results_of(replayed).dump(1) == results_of(enqueued).dump(1));
  CHECK(enqueued["summary"]["replayed_steps"] == 0);
  return replayed["summary"]["replayed_steps"];
}

/// Of five steps all but two are replayed, with ranks as processes or as threads.
void check_five_steps(const Words& words, const std::string& how, int ranks, MakeGpu make_gpu) {
  INFO(how << ", " << ranks << " ranks");
  CHECK(replayed_alike(Workplace(), words + words_of(how) + "--steps 5"_words, ranks, make_gpu) ==
        3);
}

/// Some buckets that 3 ranks do not divide.
const Words kShards =
    "--model mlp --width 16 --batch 4 --workers 0 --zero 1 --bucket-cap-mb 0.004"_words;

}  // namespace

TEST_CASE("steps on GPUs that are replayed have the bits of steps that are enqueued") {
  const Workplace place;
  const Words words = kGpt + "--steps 5 --dropout 0.1 --warmup 4 --bucket-cap-mb 0.02"_words;
  const std::pair<int, const char*> runs[] = {
      {2, "--dtype fp16"}, {1, "--dtype fp32"}, {3, "--dtype bf16"}};
  for (const auto& [ranks, type] : std::span(runs).first(rondo::testing::kSanitized ? 1 : 3)) {
    INFO(ranks << " ranks, " << type);
    CHECK(replayed_alike(place, words + words_of(type), ranks) == 3);
  }
}

TEST_CASE("steps are replayed between evaluations and checkpoints, and what ends an epoch is not",
          "[again]") {
  const Workplace place;
  const std::string folder = place.file("checkpoints");
  const auto run = [&](const Words& words) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
    return on_gpus(place, words, 2);
  };
  const Words words = kGpt +
                      "--epochs 2 --accum 2 --clip 0.3 --dropout 0.1 --validate-every 3 "_words
                      "--checkpoint-every 2" +
                      Words{"--data",          place.short_data(), "--validation",
                            place.tiny_data(), "--checkpoint-dir", folder};
  for (const char* zero : {"--zero 0", "--zero 1"}) {
    const json replayed = run(words + words_of(zero)),
               enqueued = run(words + words_of(zero) + "--no-cuda-graph"_words);
    CHECK(results_of(replayed).dump(1) == results_of(enqueued).dump(1));
    const int steps = static_cast<int>(replayed["steps"].size());
    const int replays = replayed["summary"]["replayed_steps"];
    INFO(zero << ": " << replays << " of " << steps);
    CHECK(replays >= 3);
    CHECK(replays < steps - 2);  // the epochs' last steps are smaller
  }
}

TEST_CASE("a checkpoint of replayed steps with shards is that of enqueued ones", "[again]") {
  const Workplace place;
  const auto run = [&](const std::string& name, const std::string& how, bool replays) {
    const Words words = kMlp + "--zero 1 --clip 0.3 --checkpoint-every 3 --resume"_words +
                        words_of(how) + Words{"--checkpoint-dir", folder_in(place, name)};
    const json first = on_gpus(place, words + "--steps 6"_words, 3);
    const json rest = on_gpus(place, words + "--steps 11"_words, 3);
    CHECK(first["summary"]["replayed_steps"] == (replays ? 4 : 0));
    CHECK(rest["summary"]["replayed_steps"] == (replays ? 3 : 0));
    return std::vector<json>{results_of(first), results_of(rest)};
  };
  CHECK(run("replayed", "", true) == run("enqueued", "--no-cuda-graph", false));
}

TEST_CASE("steps are replayed however gradients travel, and whatever ranks read") {
  const Words words = kMlp + "--bucket-cap-mb 0.1"_words;
  check_five_steps(words, "--compress bf16", 2, &make_processes);
  if (rondo::testing::kSanitized) return;
  check_five_steps(words, "", 3, &make_processes);
  check_five_steps(words, "--compress fp16", 2, &make_threads);
  check_five_steps(words, "--average-over ranks", 2, &make_threads);
  check_five_steps(words, "--break same-data", 2, &make_threads);
  check_five_steps(words, "--reproducible", 2, &make_processes);
}

TEST_CASE("steps are replayed where ranks own shards") {
  check_five_steps(kShards, "--clip 0.3 --accum 3", 3, &make_processes);
  if (rondo::testing::kSanitized) return;
  check_five_steps(kShards, "--dtype bf16 --accum 2", 2, &make_threads);
  check_five_steps(kShards, "--dtype fp16 --average-over ranks", 2, &make_processes);
  check_five_steps(kShards, "--compress fp16", 3, &make_processes);
  check_five_steps(kShards, "--reproducible", 3, &make_processes);
  check_five_steps(kShards, "--optimizer adamw --beta1 0.8 --beta2 0.95", 2, &make_threads);
}

TEST_CASE("steps are replayed where 1, 2 or 3 ranks own shards", "[again]") {
  for (const int ranks : {1, 2, 3}) {
    for (const MakeGpu make_gpu : {&make_threads, &make_processes}) {
      if (ranks == 1 && make_gpu == &make_processes) continue;
      for (const char* how : {"", "--clip 0.3 --accum 3", "--dtype bf16 --accum 2",
                              "--dtype fp16 --average-over ranks", "--compress bf16"}) {
        check_five_steps(kShards, how, ranks, make_gpu);
      }
    }
  }
}

TEST_CASE("replayed steps whose scaled gradients overflow are skipped, with shards too",
          "[again]") {
  const Workplace place;
  // A rate at which some steps' gradients are too large for float16.
  const Words words =
      with(kMlp, "--width", "96") +
      "--dtype fp16 --lr 0.1 --steps 12 --optimizer adamw --bucket-cap-mb 0.02"_words;
  for (const char* zero : {"--zero 0", "--zero 1"}) {
    CHECK(on_gpus(place, words + words_of(zero), 2)["summary"]["skipped_steps"] > 0);
    CHECK(replayed_alike(place, words + words_of(zero), 2) == 10);
  }
}

TEST_CASE("a step that is enqueued comes between replayed ones, with shards too", "[again]") {
  const Workplace place;
  for (const char* zero : {"--zero 0", "--zero 1"}) {
    CHECK(replayed_alike(place, with(kMlp, "--width", "16") + "--steps 66"_words + words_of(zero),
                         2) == 63);
  }
}

TEST_CASE("gradients that are compressed are not registered", "[again]") {
  const Workplace place;
  const auto imports_of = [&](const std::string& how) {
    const auto gpu = make_processes();
    (void)on_gpus(gpu, place, kMlp + "--steps 2"_words + words_of(how), 2);
    return gpu->imports.load();
  };
  CHECK(imports_of("--compress bf16") == imports_of("") - 2);  // each rank one
}

TEST_CASE("graphs are made of the passes that steps have", "[again]") {
  const Workplace place;
  for (const int micro_batches : {1, 2}) {
    const auto gpu = make_threads();
    const int before = gpu->instances_left;
    const Words words = kMlp + words_of("--steps 4 --accum " + std::to_string(micro_batches));
    CHECK(on_gpus(gpu, place, words, 1)["summary"]["replayed_steps"] == 2);
    CHECK(gpu->graph_launches == 2 * micro_batches);
    CHECK(before - gpu->instances_left == micro_batches);
  }
}

TEST_CASE("steps that cannot be captured are enqueued") {
  const Workplace place;
  for (const char* zero : {"--zero 0", "--zero 1"}) {
    const auto gpu = make_threads();
    gpu->can_capture_others = false;
    const Words words = kMlp + "--steps 4"_words + words_of(zero);
    const json enqueued = on_gpus(gpu, place, words, 2);
    CHECK(enqueued["summary"]["replayed_steps"] == 0);
    CHECK(results_of(enqueued) == results_of(on_gpus(place, words + "--no-cuda-graph"_words, 2)));
  }
}

TEST_CASE("steps of the other models are replayed, too", "[again]") {
  const Workplace place;
  const Words cnn = cnn_on(place, 40) + "--steps 5"_words;
  for (const char* how : {"", "--sync-batch-norm", "--sync-batch-norm --zero 1"}) {
    CHECK(replayed_alike(place, cnn + words_of(how), 2) >= 2);
  }
  CHECK(replayed_alike(place, kMlp + "--steps 6 --optimizer sgd"_words, 2) == 4);
}

TEST_CASE("steps that differ in what they do are not replayed", "[again]") {
  const Workplace place;
  for (const Words& how :
       {Words{"--layer-drop", "0.3"}, Words{"--trace", place.file("trace.json")}}) {
    INFO(how[0]);
    CHECK(on_gpus(place, kGpt + "--steps 5"_words + how, 2)["summary"]["replayed_steps"] == 0);
  }
}

TEST_CASE("a rank that cannot have a graph enqueues its steps, beside others that replay theirs",
          "[again]") {
  const Workplace place;
  for (const char* zero : {"--zero 0", "--zero 1"}) {
    const Words words = kMlp + "--steps 6 --accum 2"_words + words_of(zero);
    const json enqueued = on_gpus(place, words + "--no-cuda-graph"_words, 2);
    for (int graphs = 0; graphs < 4; ++graphs) {
      const auto gpu = make_threads();
      gpu->instances_left = graphs;
      INFO(zero << ", " << graphs << " graphs");
      CHECK(results_of(on_gpus(gpu, place, words, 2)) == results_of(enqueued));
      CHECK(gpu->graph_launches <= 8);  // of one rank
      if (graphs == 3) CHECK(gpu->graph_launches == 8);
    }
  }
}

TEST_CASE("a GPU that refuses a call while steps are replayed ends the run on all ranks") {
  const Workplace place;
  for (const char* zero : {"--zero 0", "--zero 1"}) {
    const auto gpu = make_threads();
    std::atomic<bool> ended{false};
    std::thread breaks([&] {
      while (gpu->graph_launches < 6 && !ended) std::this_thread::yield();
      gpu->fail_at = gpu->calls + 20;
    });
    const auto statuses =
        run_on_gpus(gpu, place, kMlp + "--steps 1000000"_words + words_of(zero), 2);
    ended = true;
    breaks.join();
    CHECK(gpu->graph_launches >= 6);
    for (const Status& status : statuses) {
      INFO(zero << ": " << status.to_string());
      CHECK_FALSE(status.ok());
    }
  }
}

}  // namespace rondo::trainer::graphs_test
