// rondo-train --device cuda over the stand-in: whole runs, ranks as threads, beside the same runs on
// the host.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/trainer/cuda/gpu_runs.hpp"

namespace rondo::trainer::device_training_test {
namespace {

using namespace trainer::testing;  // NOLINT: the trainer's

/// A run in which an epoch's last batches are smaller.
Words ragged(const Workplace& place) {
  return with(with(kGpt, "--context", "8"), "--batch", "3") +
         Words{"--data", place.tiny_data(), "--epochs", "2", "--bucket-cap-mb", "0.01"};
}

}  // namespace

TEST_CASE("on GPUs models learn what they learn on the host", "[again]") {
  const Workplace place;
  const Words data = {"--data", place.data()};
  for (const int ranks : {1, 2, 3}) {
    INFO(ranks << " ranks");
    const Words gpt = kGpt + data + Words{"--steps", "4"};
    require_same_losses(on_gpus(place, gpt, ranks), on_host(place, gpt, ranks), 1e-4);
    const Words mlp = kMlp + data + Words{"--steps", "6", "--clip", "0.5"};
    require_same_losses(on_gpus(place, mlp, ranks, 2), on_host(place, mlp, ranks), 1e-4);
  }
}

// At a product's first launch a library loads code, and waits for all that runs on the GPU; no rank's
// call goes on meanwhile. So it is with copies from memory that is not pinned, and their stream.
TEST_CASE("on GPUs no collective waits for another rank before all have multiplied once") {
  const Workplace place;
  const auto gpu = cuda::testing::make_gpu();
  gpu->driver_lock.exists = true;
  const Words many = {"--data", place.data(), "--steps", "2", "--bucket-cap-mb", "0.01"};
  on_gpus(gpu, place, kGpt + many, 2);
  const auto again = cuda::testing::make_gpu();
  again->driver_lock.exists = true;
  on_gpus(again, place, ragged(place), 2);
}

// Synchronized batch norm has ranks wait for each other between products.
TEST_CASE("on GPUs no sum of batch norm waits for another rank before all have multiplied once") {
  const Workplace place;
  const std::string images = place.file("images");
  std::filesystem::create_directory(images);
  write_images(images, 10);
  const Words words =
      kCnn + Words{"--data", images, "--epochs", "2", "--workers", "0", "--sync-batch-norm"};
  for (const Words& how : {Words{}, Words{"--accum", "2"}, Words{"--control-steps", "1"}}) {
    const auto gpu = cuda::testing::make_gpu();
    gpu->driver_lock.exists = true;
    const Words all = words + how;
    require_same_losses(on_gpus(gpu, place, all, 2), on_host(place, all, 2), 1e-4);
  }
}

// Blocks that every rank leaves out in the first steps multiply later.
TEST_CASE("on GPUs no collective waits for a block that was left out in the steps before") {
  const Workplace place;
  const auto gpu = cuda::testing::make_gpu();
  gpu->driver_lock.exists = true;
  const Words words = with(kGpt, "--layers", "1") +
                      Words{"--data", place.data(), "--steps",         "4",   "--layer-drop", "0.6",
                            "--seed", "1",          "--bucket-cap-mb", "0.01"};
  on_gpus(gpu, place, words, 2);
}

TEST_CASE("on GPUs of two hosts models learn what they learn on the host") {
  const device::test::Pretended pretended({0, 1});
  const Workplace place;
  const std::string images = place.file("images");
  std::filesystem::create_directory(images);
  write_images(images, 10);
  const Words cnn =
      kCnn + Words{"--data", images, "--epochs", "2", "--workers", "0", "--sync-batch-norm"};
  for (const Words& words : {ragged(place), cnn}) {
    const auto gpu = cuda::testing::make_gpu(2);
    gpu->driver_lock.exists = true;
    require_same_losses(on_gpus(gpu, place, words, 2), on_host(place, words, 2), 1e-4);
  }
}

TEST_CASE("on GPUs: dropout, left out blocks, accumulation, unequal ends") {
  const Workplace place;
  const Words words = kGpt + Words{"--data", place.tiny_data(), "--epochs", "2",       "--dropout",
                                   "0.1",    "--layer-drop",    "0.3",      "--accum", "2"};
  require_same_losses(on_gpus(place, words, 2), on_host(place, words, 2), 1e-4);
  const Words join =
      kGpt + Words{"--data", place.tiny_data(), "--epochs", "2", "--join", "--sampler-tail",
                   "drop",   "--average",       "ranks"};
  require_same_losses(on_gpus(place, join, 3), on_host(place, join, 3), 1e-4);
}

TEST_CASE("on GPUs the optimizer's state may be cut into shards", "[again]") {
  const Workplace place;
  const Words words = kGpt + Words{"--data", place.data(), "--steps",         "4",   "--zero", "1",
                                   "--clip", "0.3",        "--bucket-cap-mb", "0.02"};
  const json got = on_gpus(place, words, 3), expected = on_host(place, words, 3);
  require_same_losses(got, expected, 1e-4);
  CHECK(got["summary"]["optimizer_bytes"] < got["summary"]["optimizer_bytes_without_zero"]);
}

TEST_CASE("on GPUs AdamW keeps as much of its means as on the host", "[again]") {
  const Workplace place;
  const Words words = kGpt + Words{"--data", place.data(), "--steps", "6", "--lr", "0.01"};
  const Words betas = {"--beta1", "0.7", "--beta2", "0.8"};
  for (const char* zero : {"0", "1"}) {
    const Words all = words + betas + Words{"--zero", zero};
    require_same_losses(on_gpus(place, all, 2), on_host(place, all, 2), 1e-4);
  }
  const double other = losses_of(on_host(place, words, 2)).back();
  const double last = losses_of(on_host(place, words + betas, 2)).back();
  CHECK(std::abs(last - other) > 1e-3 * other);
}

TEST_CASE("on GPUs products are of TF32 if asked for, and of floats if not", "[again]") {
  const Workplace place;
  const Words words = kGpt + Words{"--data", place.data(), "--steps", "3"};
  const json exact = on_gpus(place, words, 2), expected = on_host(place, words, 2);
  const json rounded = on_gpus(place, words + Words{"--tf32"}, 2);
  require_same_losses(exact, expected, 1e-5);
  require_same_losses(rounded, expected, 1e-3);
  CHECK(rounded["summary"]["parameter_hash"] != exact["summary"]["parameter_hash"]);
  CHECK(rounded["config"]["tf32"] == true);
  CHECK(exact["config"]["tf32"] == false);
}

TEST_CASE("on GPUs gradients may travel in two bytes", "[again]") {
  const Workplace place;
  const auto check = [&](const char* type, const char* zero, int ranks) {
    INFO(type << ", --zero " << zero);
    const Words all = kGpt + Words{"--data", place.data(), "--steps", "3", "--zero", zero};
    const Words low = all + Words{"--compress", type};
    const json full = on_gpus(place, all, ranks), got = on_gpus(place, low, ranks);
    require_same_losses(got, on_host(place, low, ranks), 1e-3);
    CHECK(losses_of(got)[0] == losses_of(full)[0]);
    CHECK(got["summary"]["parameter_hash"] != full["summary"]["parameter_hash"]);
    CHECK(got["summary"]["bytes_sent_per_step"].get<double>() <
          0.8 * full["summary"]["bytes_sent_per_step"].get<double>());
  };
  check("bf16", "0", 2);
  check("fp16", "1", 3);
}

TEST_CASE("on GPUs --reproducible has the same bits with any bucket cap, and every time",
          "[again]") {
  const Workplace place;
  const Words words = kGpt + Words{"--data", place.data(), "--steps", "2", "--reproducible"};
  const auto hash = [&](const char* cap, const char* zero) {
    const Words how = {"--zero", zero, "--bucket-cap-mb", cap};
    return on_gpus(place, words + how, 3)["summary"]["parameter_hash"].get<std::string>();
  };
  const std::string first = hash("0.02", "0");
  CHECK(hash("0.02", "0") == first);
  CHECK(hash("25", "0") == first);
  CHECK(hash("0.02", "1") == first);
}

TEST_CASE("on GPUs batch norm measures one rank's samples or all", "[again]") {
  const Workplace place;
  const std::string images = place.file("images");
  std::filesystem::create_directory(images);
  write_images(images, 40);
  const Words words = kCnn + Words{"--data", images, "--steps", "4", "--workers", "0"};
  for (const Words& how : {Words{}, Words{"--sync-batch-norm"}, Words{"--no-broadcast-buffers"}}) {
    const Words all = words + how + Words{"--validation", images};
    const json got = on_gpus(place, all, 2), expected = on_host(place, all, 2);
    require_same_losses(got, expected, 1e-4);
    CHECK(got["validation"][0]["validation_loss"].get<double>() ==
          Approx(expected["validation"][0]["validation_loss"].get<double>()).epsilon(1e-3));
  }
  for (const char* dtype : {"bf16", "fp16"}) {
    const Words low = words + Words{"--dtype", dtype, "--sync-batch-norm"};
    require_same_losses(on_gpus(place, low, 2), on_host(place, low, 2), 2e-2);
  }
}

TEST_CASE("on GPUs in bfloat16", "[again]") {
  const Workplace place;
  // Heads of 32, for which attention has kernels for tensor cores.
  const Words words = with(kGpt, "--width", "64") +
                      Words{"--data", place.data(), "--steps", "6", "--dtype", "bf16"};
  for (const char* zero : {"0", "1"}) {
    const Words all = words + Words{"--zero", zero};
    require_same_losses(on_gpus(place, all, 2), on_host(place, all, 2), 5e-3);
  }
}

TEST_CASE("on GPUs in float16", "[again]") {
  const Workplace place;
  const Words words = with(kGpt, "--width", "64") +
                      Words{"--data", place.data(), "--steps", "6", "--dtype", "fp16"};
  for (const Words& how :
       {Words{}, Words{"--zero", "1", "--clip", "0.5"}, Words{"--average", "ranks"}}) {
    const json got = on_gpus(place, words + how, 2), expected = on_host(place, words + how, 2);
    require_same_losses(got, expected, 2e-3);
    CHECK(got["summary"]["skipped_steps"] == 0);
    CHECK(got["summary"]["loss_scale"] == 65536);
    for (size_t s = 0; s < got["steps"].size(); ++s) {
      CHECK(got["steps"][s].value("gradient_norm", 0.0) ==
            Approx(expected["steps"][s].value("gradient_norm", 0.0)).epsilon(0.02));
    }
  }
}

TEST_CASE("on GPUs a step whose scaled gradients overflow is skipped by all ranks", "[again]") {
  const Workplace place;
  // A rate at which the second step's gradients are too large for float16.
  const Words words =
      with(kMlp, "--width", "96") + Words{"--data",          place.data(), "--dtype", "fp16",
                                          "--optimizer",     "adamw",      "--lr",    "0.1",
                                          "--bucket-cap-mb", "0.02"};
  const auto is_skipped = [](const json& step) { return step.value("skipped", false); };
  json plain;
  for (const char* zero : {"0", "1"}) {
    INFO("--zero " << zero);
    const auto train = [&](int steps, const Words& more = {}) {
      return on_gpus(place, words + Words{"--zero", zero, "--steps", std::to_string(steps)} + more,
                     2);
    };
    const json whole = train(12);
    const auto& steps = whole["steps"];
    const auto skipped_until = [&](int end) {
      return static_cast<int>(std::count_if(steps.begin(), steps.begin() + end, is_skipped));
    };
    REQUIRE(skipped_until(12) > 0);
    REQUIRE(skipped_until(12) < 12);
    CHECK(whole["summary"]["skipped_steps"] == skipped_until(12));
    CHECK(whole["summary"]["loss_scale"] == std::ldexp(65536, -skipped_until(12)));
    // The first one leaves parameters as they were.
    const auto first =
        static_cast<int>(std::find_if(steps.begin(), steps.end(), is_skipped) - steps.begin());
    REQUIRE(first > 0);
    CHECK(train(first + 1)["summary"]["parameter_hash"] ==
          train(first)["summary"]["parameter_hash"]);

    const std::string folder = place.file(std::string("checkpoints") + zero);
    std::filesystem::create_directory(folder);
    const Words keep = {"--checkpoint-dir", folder, "--resume"};
    train(6, keep);
    const json state = json::parse(read_text(folder + "/step-00000006/state.json"));
    CHECK(state["scaler"]["scale"] == std::ldexp(65536, -skipped_until(6)));
    CHECK(state["scaler"]["skipped_steps"] == skipped_until(6));
    CHECK(state["optimizer_steps"] == 6 - skipped_until(6));
    const json rest = train(12, keep);
    CHECK(rest["summary"]["parameter_hash"] == whole["summary"]["parameter_hash"]);
    CHECK(rest["summary"]["skipped_steps"] == skipped_until(12));
    // Goes on on the host, with the state of the scaler.
    const json back = on_host(place, words + keep + Words{"--steps", "13"}, 2);
    CHECK(back["summary"]["skipped_steps"] >= skipped_until(12));

    if (plain.is_null()) plain = whole;
    for (size_t s = 0; s < 12; ++s) {
      CHECK(is_skipped(steps[s]) == is_skipped(plain["steps"][s]));
    }
  }
}

/// Of the host's last run, which goes on where one on GPUs has ended.
void check_checkpoints(const Workplace& place, const Words& words) {
  const json whole = on_host(place, words + Words{"--steps", "6"}, 2);
  const std::string folder = place.file("checkpoints" + std::to_string(words.size()));
  std::filesystem::create_directory(folder);
  const Words keep = {"--checkpoint-dir", folder, "--resume"};
  on_host(place, words + keep + Words{"--steps", "2"}, 2);
  on_gpus(place, words + keep + Words{"--steps", "4", "--zero", "1"}, 2);
  const json rest = on_host(place, words + keep + Words{"--steps", "6"}, 2);
  std::vector<double> last = losses_of(whole);
  last.erase(last.begin(), last.begin() + 4);
  const std::vector<double> got = losses_of(rest);
  REQUIRE(got.size() == last.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(last[i]).epsilon(1e-4));
}

TEST_CASE("a checkpoint goes from the host to GPUs and back") {
  const Workplace place;
  const Words words = kGpt + Words{"--data", place.data(), "--clip", "0.5"};
  check_checkpoints(place, words);
  // On the host the token embedding then has two gradients: the parameters are the same.
  Words split = words;
  std::erase(split, "--no-split-tied");
  check_checkpoints(place, split);
}

TEST_CASE("a checkpoint of a run on GPUs names the buckets that travelled there") {
  const Workplace place;
  const std::string folder = place.file("checkpoints");
  std::filesystem::create_directory(folder);
  const json document =
      on_gpus(place,
              kGpt + Words{"--data", place.data(), "--steps", "1", "--dtype", "bf16",
                           "--bucket-cap-mb", "0.02", "--checkpoint-dir", folder},
              2);
  const json state = json::parse(read_text(folder + "/step-00000001/state.json"));
  const json& buckets = document["summary"]["buckets"];
  REQUIRE(state["buckets"].size() == buckets.size());
  for (size_t b = 0; b < buckets.size(); ++b) {
    CHECK(state["buckets"][b]["algorithm"] == buckets[b]["algorithm"]);
    CHECK(state["buckets"][b]["pieces"].size() == buckets[b]["parameters"]);
  }
}

TEST_CASE("a run on GPUs that is resumed has each rank's own buffers") {
  const Workplace place;
  const std::string images = place.file("images"), folder = place.file("checkpoints");
  std::filesystem::create_directory(images);
  std::filesystem::create_directory(folder);
  write_images(images, 40);
  const Words words = kCnn + Words{"--data",
                                   images,
                                   "--steps",
                                   "3",
                                   "--workers",
                                   "0",
                                   "--validation",
                                   images,
                                   "--no-broadcast-buffers",
                                   "--checkpoint-dir",
                                   folder,
                                   "--resume"};
  const json first = on_gpus(place, words, 2), again = on_gpus(place, words, 2);
  CHECK(again["validation"][0]["validation_loss"].get<double>() ==
        Approx(first["validation"][0]["validation_loss"].get<double>()).epsilon(1e-9));
}

TEST_CASE("on GPUs models are validated, and published weights written") {
  const Workplace place;
  const Words words = kGpt + Words{"--data",       place.data(),      "--steps",          "3",
                                   "--validation", place.tiny_data(), "--validate-every", "2"};
  const json got =
      on_gpus(place, words + Words{"--save-weights", place.file("gpu.safetensors")}, 2);
  const json expected = on_host(place, words, 2);
  REQUIRE(got["validation"].size() == expected["validation"].size());
  for (size_t i = 0; i < got["validation"].size(); ++i) {
    const json &a = got["validation"][i], &b = expected["validation"][i];
    CHECK(a["step"] == b["step"]);
    CHECK(a["samples"] == b["samples"]);
    CHECK(a["validation_loss"].get<double>() ==
          Approx(b["validation_loss"].get<double>()).epsilon(1e-4));
    CHECK(a["accuracy"].get<double>() == Approx(b["accuracy"].get<double>()).margin(0.02));
  }
  const json again = on_gpus(place,
                             kGpt + Words{"--data", place.data(), "--steps", "1", "--weights",
                                          place.file("gpu.safetensors")},
                             1);
  CHECK(again["steps"][0]["loss"] < got["steps"][0]["loss"]);
}

// With SGD that is twice the rate. AdamW does not notice, but its gradients' norm is twice as large.
TEST_CASE("on GPUs a sum of gradients is as many times their mean as there are ranks") {
  const Workplace place;
  const Words words = kMlp + Words{"--data", place.data(), "--steps", "5"};
  const json sums = on_gpus(place, words + Words{"--lr", "0.03125", "--break", "sum"}, 2);
  CHECK(losses_of(sums) == losses_of(on_gpus(place, words + Words{"--lr", "0.0625"}, 2)));
  const Words adamw = words + Words{"--optimizer", "adamw", "--clip", "1000000"};
  const json mean = on_gpus(place, adamw, 2);
  const json summed = on_gpus(place, adamw + Words{"--break", "sum"}, 2);
  CHECK(summed["steps"][0]["gradient_norm"].get<double>() ==
        2 * mean["steps"][0]["gradient_norm"].get<double>());
  require_same_losses(summed, mean, 1e-4);
}

TEST_CASE("on GPUs a straggler is 200 ms late in each step, after what it had to do") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  const Words words = kMlp + Words{"--data", place.data(), "--steps", "4"};
  const json late = on_gpus(place, words + Words{"--break", "straggler", "--trace", file}, 2);
  CHECK(losses_of(late) == losses_of(on_gpus(place, words, 2)));
  const json trace = json::parse(read_text(file));
  std::vector<double> begins_us;  // of the last rank's forward passes
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["pid"] != 1 || event["name"] != "forward") continue;
    begins_us.push_back(event["ts"]);
  }
  REQUIRE(begins_us.size() == 4);
  std::sort(begins_us.begin(), begins_us.end());
  for (size_t i = 1; i < begins_us.size(); ++i) CHECK(begins_us[i] - begins_us[i - 1] > 199e3);
}

TEST_CASE("on GPUs a rank that reads the loss alone is named with both calls") {
  const Workplace place;
  const auto statuses =
      run_on_gpus(cuda::testing::make_gpu(),
                  kMlp + Words{"--data", place.data(), "--steps", "20", "--break", "lone-read"}, 2);
  for (const Status& status : statuses) {
    INFO(status.to_string());
    CHECK(status.message().find("all_reduce(double, sum, count 1)") != std::string::npos);
    CHECK(status.message().find("all_reduce(double, sum, count 2)") != std::string::npos);
  }
}

TEST_CASE("a run on GPUs that one rank stops ends on all ranks after the same step") {
  const Workplace place;
  const std::string file = place.file("stopped.json");
  const auto statuses =
      run_on_gpus(cuda::testing::make_gpu(),
                  kMlp + Words{"--data", place.data(), "--steps", "1000", "--json", file}, 2,
                  [](int rank, std::atomic<bool>& stop) { stop = rank == 1; });
  for (const Status& status : statuses) REQUIRE(status.ok());
  const json document = json::parse(read_text(file));
  CHECK(document["steps"].size() < 5);
  CHECK(document["summary"]["interrupted"] == true);
}

TEST_CASE("a loss that becomes infinite on GPUs ends the run, and says in which step") {
  const Workplace place;
  const auto statuses =
      run_on_gpus(cuda::testing::make_gpu(),
                  kMlp + Words{"--data", place.data(), "--steps", "50", "--lr", "1e5"}, 2);
  for (const Status& status : statuses) {
    INFO(status.to_string());
    CHECK(status.message().find("the loss became") != std::string::npos);
  }
}

TEST_CASE("a GPU that refuses a call ends the run on all ranks") {
  const Workplace place;
  const Words words = kMlp + Words{"--data", place.data(), "--steps", "20", "--control-steps", "9"};
  int ended = 0, all = 0;  // calls from the first rank's beginning, if none fails
  {
    const auto gpu = cuda::testing::make_gpu();
    run_on_gpus(gpu, words, 2, [&](int rank, std::atomic<bool>&) {
      if (rank == 0) all = gpu->calls;
    });
    all = gpu->calls - all;
  }
  std::vector<int> places = {100};                            // while kernels are loaded
  for (int i = 0; i < 5; ++i) places.push_back(all / 3 + i);  // in the control run
  for (int i = 0; i < 9; ++i) places.push_back(all * 3 / 4 + i);
  for (const int late : places) {
    const auto gpu = cuda::testing::make_gpu();
    const auto statuses = run_on_gpus(gpu, words, 2, [&](int rank, std::atomic<bool>&) {
      if (rank == 0) gpu->fail_at = gpu->calls + late;
    });
    INFO(statuses[0].to_string() << "; " << statuses[1].to_string());
    // What only takes times down may fail.
    CHECK(statuses[0].ok() == statuses[1].ok());
    ended += statuses[0].ok() ? 0 : 1;
  }
  CHECK(ended >= 5);
}

}  // namespace rondo::trainer::device_training_test
