// rondo-train --device cuda over the fake CUDA runtime: whole runs, ranks as threads, beside the
// same runs on the host.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "tests/trainer/cuda/gpu_runs.hpp"

namespace rondo::trainer::device_training_test {
namespace {

using namespace trainer::testing;  // NOLINT: the trainer's

}  // namespace

TEST_CASE("on GPUs models learn what they learn on the host", "[again]") {
  const Workplace place;
  for (const int ranks : {1, 2, 3}) {
    INFO(ranks << " ranks");
    check_as_on_host(place, kGpt + "--steps 4"_words, ranks);
    const Words mlp = kMlp + "--steps 6 --clip 0.5"_words;
    check_same_losses(on_host(place, mlp, ranks), on_gpus(place, mlp, ranks, 2), 1e-4);
  }
}

// At a product's first launch a library loads code, and waits for all that runs on the GPU; no rank's
// call goes on meanwhile. So it is with copies from memory that is not pinned, and their stream.
TEST_CASE("on GPUs no collective waits for another rank before all have multiplied once") {
  const Workplace place;
  on_gpus(locking_gpu(), place, kGpt + "--steps 2 --bucket-cap-mb 0.01"_words, 2);
  on_gpus(locking_gpu(), place, ragged(place) + "--bucket-cap-mb 0.01"_words, 2);
}

// Synchronized batch norm has ranks wait for each other between products.
TEST_CASE("on GPUs no sum of batch norm waits for another rank before all have multiplied once") {
  const Workplace place;
  const Words words = cnn_on(place, 10) + "--epochs 2 --sync-batch-norm"_words;
  for (const char* how : {"", "--accum 2", "--control-steps 1"}) {
    INFO(how);
    check_same_losses(on_host(place, words + words_of(how), 2),
                      on_gpus(locking_gpu(), place, words + words_of(how), 2), 1e-4);
  }
}

// Blocks that every rank leaves out in the first steps multiply later.
TEST_CASE("on GPUs no collective waits for a block that was left out in the steps before") {
  const Workplace place;
  const Words words = with(kGpt, "--layers", "1");
  on_gpus(locking_gpu(), place,
          words + "--steps 4 --layer-drop 0.6 --seed 1 --bucket-cap-mb 0.01"_words, 2);
}

TEST_CASE("on GPUs of two hosts models learn what they learn on the host") {
  const device::test::Pretended pretended({0, 1});
  const Workplace place;
  const Words cnn = cnn_on(place, 10) + "--epochs 2 --sync-batch-norm"_words;
  for (const Words& words : {ragged(place) + "--bucket-cap-mb 0.01"_words, cnn}) {
    check_same_losses(on_host(place, words, 2), on_gpus(locking_gpu(2), place, words, 2), 1e-4);
  }
}

TEST_CASE("on GPUs: dropout, left out blocks, accumulation, unequal ends") {
  const Workplace place;
  const Words words = kGpt + Words{"--data", place.tiny_data()} + "--epochs 2"_words;
  check_as_on_host(place, words + "--dropout 0.1 --layer-drop 0.3 --accum 2"_words, 2);
  check_as_on_host(place, words + "--join --sampler-tail drop --average-over ranks"_words, 3);
}

TEST_CASE("on GPUs the optimizer's state may be cut into shards", "[again]") {
  const Workplace place;
  const Words words = kGpt + "--steps 4 --zero 1 --clip 0.3 --bucket-cap-mb 0.02"_words;
  const json got = on_gpus(place, words, 3);
  check_same_losses(on_host(place, words, 3), got, 1e-4);
  CHECK(got["summary"]["optimizer_bytes"] < got["summary"]["optimizer_bytes_without_zero"]);
}

TEST_CASE("on GPUs AdamW keeps as much of its means as on the host", "[again]") {
  const Workplace place;
  const Words words = kGpt + "--steps 6 --lr 0.01"_words,
              betas = words + "--beta1 0.7 --beta2 0.8"_words;
  for (const char* zero : {"--zero 0", "--zero 1"})
    check_as_on_host(place, betas + words_of(zero), 2);
  const double other = losses_of(on_host(place, words, 2)).back();
  CHECK(std::abs(losses_of(on_host(place, betas, 2)).back() - other) > 1e-3 * other);
}

TEST_CASE("on GPUs products are of TF32 if asked for, and of floats if not", "[again]") {
  const Workplace place;
  const Words words = kGpt + "--steps 3"_words;
  const json exact = on_gpus(place, words, 2), expected = on_host(place, words, 2);
  const json rounded = on_gpus(place, words + "--tf32"_words, 2);
  check_same_losses(expected, exact, 1e-5);
  check_same_losses(expected, rounded, 1e-3);
  CHECK(rounded["summary"]["parameter_hash"] != exact["summary"]["parameter_hash"]);
  CHECK(rounded["config"]["tf32"] == true);
  CHECK(exact["config"]["tf32"] == false);
}

TEST_CASE("on GPUs gradients may travel in two bytes", "[again]") {
  const Workplace place;
  for (const auto& [how, ranks] :
       {std::pair("--compress bf16", 2), std::pair("--zero 1 --compress fp16", 3)}) {
    INFO(how);
    const Words all = kGpt + "--steps 3"_words, low = all + words_of(how);
    const json full = on_gpus(place, all, ranks), got = on_gpus(place, low, ranks);
    check_same_losses(on_host(place, low, ranks), got, 1e-3);
    CHECK(losses_of(got)[0] == losses_of(full)[0]);
    CHECK(got["summary"]["parameter_hash"] != full["summary"]["parameter_hash"]);
    CHECK(number(got["summary"], "bytes_sent_per_step") <
          0.8 * number(full["summary"], "bytes_sent_per_step"));
  }
}

TEST_CASE("on GPUs --reproducible has the same bits with any bucket cap, and every time",
          "[again]") {
  const Workplace place;
  const auto hash = [&](const char* how) {
    const Words words = kGpt + "--steps 2 --reproducible"_words + words_of(how);
    return on_gpus(place, words, 3)["summary"]["parameter_hash"].get<std::string>();
  };
  const std::string first = hash("--bucket-cap-mb 0.02");
  CHECK(hash("--bucket-cap-mb 0.02") == first);
  CHECK(hash("--bucket-cap-mb 25") == first);
  CHECK(hash("--bucket-cap-mb 0.02 --zero 1") == first);
}

TEST_CASE("on GPUs batch norm measures one rank's samples or all", "[again]") {
  const Workplace place;
  const Words words = cnn_on(place, 40) + "--steps 4"_words;
  for (const char* how : {"", "--sync-batch-norm", "--no-broadcast-buffers"}) {
    const Words all = words + words_of(how) + Words{"--validation", place.file("images")};
    const json got = on_gpus(place, all, 2), expected = on_host(place, all, 2);
    check_same_losses(expected, got, 1e-4);
    CHECK(number(got["validation"][0], "validation_loss") ==
          Approx(number(expected["validation"][0], "validation_loss")).epsilon(1e-3));
  }
  for (const char* dtype : {"--dtype bf16", "--dtype fp16"}) {
    check_as_on_host(place, words + "--sync-batch-norm"_words + words_of(dtype), 2, 2e-2);
  }
}

TEST_CASE("on GPUs in bfloat16", "[again]") {
  const Workplace place;
  // Heads of 32, for which attention has kernels for tensor cores.
  const Words words = with(kGpt, "--width", "64") + "--steps 6 --dtype bf16"_words;
  for (const char* zero : {"--zero 0", "--zero 1"})
    check_as_on_host(place, words + words_of(zero), 2, 5e-3);
}

TEST_CASE("on GPUs in float16", "[again]") {
  const Workplace place;
  const Words words = with(kGpt, "--width", "64") + "--steps 6 --dtype fp16"_words;
  for (const char* how : {"", "--zero 1 --clip 0.5", "--average-over ranks"}) {
    const json got = on_gpus(place, words + words_of(how), 2),
               expected = on_host(place, words + words_of(how), 2);
    check_same_losses(expected, got, 2e-3);
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
  const Words words = with(kMlp, "--width", "96") +
                      "--dtype fp16 --optimizer adamw --lr 0.1 --bucket-cap-mb 0.02"_words;
  const auto is_skipped = [](const json& step) { return step.value("skipped", false); };
  json plain;
  for (const std::string zero : {"--zero 0", "--zero 1"}) {
    INFO(zero);
    const auto train = [&](int steps, const Words& more = {}) {
      return on_gpus(
          place, words + words_of(zero) + words_of("--steps " + std::to_string(steps)) + more, 2);
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

    const std::string folder = folder_in(place, "checkpoints" + zero);
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
    const json back = on_host(place, words + keep + "--steps 13"_words, 2);
    CHECK(back["summary"]["skipped_steps"] >= skipped_until(12));

    if (plain.is_null()) plain = whole;
    for (size_t s = 0; s < 12; ++s) {
      CHECK(is_skipped(steps[s]) == is_skipped(plain["steps"][s]));
    }
  }
}

TEST_CASE("a checkpoint goes from the host to GPUs and back") {
  const Workplace place;
  // On the host the token embedding may have two gradients: the parameters are the same.
  for (const std::string split : {"--no-split-tied", ""}) {
    INFO(split);
    const Words words = kNano + "--workers 0 --clip 0.5"_words + words_of(split);
    const Words keep = {"--checkpoint-dir", folder_in(place, "checkpoints" + split), "--resume"};
    on_host(place, words + keep + "--steps 2"_words, 2);
    on_gpus(place, words + keep + "--steps 4 --zero 1"_words, 2);
    json whole = on_host(place, words + "--steps 6"_words, 2);
    whole["steps"].erase(whole["steps"].begin(), whole["steps"].begin() + 4);
    check_same_losses(whole, on_host(place, words + keep + "--steps 6"_words, 2), 1e-4);
  }
}

TEST_CASE("a checkpoint of a run on GPUs names the buckets that travelled there") {
  const Workplace place;
  const std::string folder = folder_in(place, "checkpoints");
  const Words words = kGpt + "--steps 1 --dtype bf16 --bucket-cap-mb 0.02"_words;
  const json document = on_gpus(place, words + Words{"--checkpoint-dir", folder}, 2);
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
  const Words words = cnn_on(place, 40) + "--steps 3 --no-broadcast-buffers --resume"_words +
                      Words{"--validation", place.file("images"), "--checkpoint-dir",
                            folder_in(place, "checkpoints")};
  const json first = on_gpus(place, words, 2), again = on_gpus(place, words, 2);
  CHECK(number(again["validation"][0], "validation_loss") ==
        Approx(number(first["validation"][0], "validation_loss")).epsilon(1e-9));
}

TEST_CASE("on GPUs models are validated, and published weights written") {
  const Workplace place;
  const std::string weights = place.file("gpu.safetensors");
  const Words words =
      kGpt + "--steps 3 --validate-every 2"_words + Words{"--validation", place.tiny_data()};
  const json got = on_gpus(place, words + Words{"--save-weights", weights}, 2);
  const json expected = on_host(place, words, 2);
  REQUIRE(got["validation"].size() == expected["validation"].size());
  for (size_t i = 0; i < got["validation"].size(); ++i) {
    const json &a = got["validation"][i], &b = expected["validation"][i];
    CHECK(a["step"] == b["step"]);
    CHECK(a["samples"] == b["samples"]);
    CHECK(number(a, "validation_loss") == Approx(number(b, "validation_loss")).epsilon(1e-4));
    CHECK(number(a, "accuracy") == Approx(number(b, "accuracy")).margin(0.02));
  }
  const json again = on_gpus(place, kGpt + "--steps 1"_words + Words{"--weights", weights}, 1);
  CHECK(again["steps"][0]["loss"] < got["steps"][0]["loss"]);
}

// With SGD that is twice the rate. AdamW does not notice, but its gradients' norm is twice as large.
TEST_CASE("on GPUs a sum of gradients is as many times their mean as there are ranks") {
  const Workplace place;
  const Words words = kMlp + "--steps 5"_words;
  const json sums = on_gpus(place, words + "--lr 0.03125 --break sum"_words, 2);
  CHECK(losses_of(sums) == losses_of(on_gpus(place, words + "--lr 0.0625"_words, 2)));
  const Words adamw = words + "--optimizer adamw --clip 1000000"_words;
  const json mean = on_gpus(place, adamw, 2),
             summed = on_gpus(place, adamw + "--break sum"_words, 2);
  CHECK(number(summed["steps"][0], "gradient_norm") ==
        2 * number(mean["steps"][0], "gradient_norm"));
  check_same_losses(mean, summed, 1e-4);
}

TEST_CASE("on GPUs a straggler is 200 ms late in each step, after what it had to do") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  const Words words = kMlp + "--steps 4"_words;
  const json late = on_gpus(place, words + "--break straggler"_words + Words{"--trace", file}, 2);
  CHECK(losses_of(late) == losses_of(on_gpus(place, words, 2)));
  std::vector<double> begins_us;  // of the last rank's forward passes
  for (const json& span : spans_of(file, 1)) {
    if (span["name"] == "forward") begins_us.push_back(span["ts"]);
  }
  REQUIRE(begins_us.size() == 4);
  std::sort(begins_us.begin(), begins_us.end());
  for (size_t i = 1; i < begins_us.size(); ++i) CHECK(begins_us[i] - begins_us[i - 1] > 199e3);
}

TEST_CASE("on GPUs every rank says why a run cannot go on") {
  const Workplace place;
  const auto check = [&](const char* how, const std::vector<const char*>& reasons) {
    for (const Status& status :
         run_on_gpus(cuda::testing::make_gpu(), place, kMlp + words_of(how), 2)) {
      for (const char* reason : reasons) CHECK(device::test::says(status, reason));
    }
  };
  check("--steps 50 --lr 1e5", {"the loss became"});
  // Both calls are named where a rank reads the loss alone.
  check("--steps 20 --break lone-read",
        {"all_reduce(double, sum, count 1)", "all_reduce(double, sum, count 2)"});
}

TEST_CASE("a run on GPUs that one rank stops ends on all ranks after the same step") {
  const Workplace place;
  const json document = on_gpus(cuda::testing::make_gpu(), place, kMlp + "--steps 1000"_words, 2,
                                [](int rank, std::atomic<bool>& stop) { stop = rank == 1; });
  CHECK(document["steps"].size() < 5);
  CHECK(document["summary"]["interrupted"] == true);
}

TEST_CASE("a GPU that refuses a call ends the run on all ranks") {
  const Workplace place;
  const Words words = kMlp + "--steps 8 --control-steps 4"_words;
  int all = 0;  // calls from the first rank's beginning, if none fails
  {
    const auto gpu = cuda::testing::make_gpu();
    on_gpus(gpu, place, words, 2, [&](int rank, std::atomic<bool>&) {
      if (rank == 0) all = gpu->calls;
    });
    all = gpu->calls - all;
  }
  std::vector<int> places = {100};                            // while kernels are loaded
  for (int i = 0; i < 5; ++i) places.push_back(all / 3 + i);  // in the control run
  for (int i = 0; i < 9; ++i) places.push_back(all * 3 / 4 + i);
  CHECK(runs_that_a_refused_call_ends(place, words, places) >= 5);
}

}  // namespace rondo::trainer::device_training_test
