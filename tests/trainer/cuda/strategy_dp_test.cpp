// --strategy dp --device cuda over the fake CUDA runtime: ddp's losses, and the host's, by a star
// through rank 0.
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "tests/trainer/cuda/gpu_runs.hpp"

namespace rondo::trainer::device_dp_test {
namespace {

using namespace trainer::testing;  // NOLINT: the trainer's

/// dp beside ddp there, and beside dp on the host.
void check_losses(const Workplace& place, const Words& words, int ranks) {
  INFO(words[1] << " on " << ranks << " ranks");
  const Words with_dp = words + "--strategy dp"_words;
  const json dp = on_gpus(locking_gpu(), place, with_dp, ranks);
  const json host = on_host(place, with_dp, ranks);
  check_same_losses(on_gpus(place, words, ranks), dp, 1e-5);
  check_same_losses(host, dp, 1e-4);
  for (size_t s = 0; s < dp["steps"].size(); ++s) {
    const json &got = dp["steps"][s], &expected = host["steps"][s];
    CHECK(got["epoch"] == expected["epoch"]);
    CHECK(got["lr"] == expected["lr"]);
    CHECK(got.value("gradient_norm", 0.0) ==
          Approx(expected.value("gradient_norm", 0.0)).epsilon(1e-3));
  }
  const json got = dp.value("validation", json::array());
  const json expected = host.value("validation", json::array());
  REQUIRE(got.size() == expected.size());
  for (size_t v = 0; v < got.size(); ++v) {
    CHECK(number(got[v], "validation_loss") ==
          Approx(number(expected[v], "validation_loss")).epsilon(1e-4));
  }
}

}  // namespace

TEST_CASE("on GPUs dp has ddp's losses, and the host's", "[again]") {
  const Workplace place;
  for (const int ranks : {1, 2, 3, 4})
    check_losses(place, kMlp + "--steps 5 --clip 0.5"_words, ranks);
  const Words validated = {"--validation", place.tiny_data(), "--validate-every", "2"};
  check_losses(place, kGpt + "--steps 4 --dropout 0.1"_words + validated, 3);
  check_losses(place, ragged(place), 2);
  // Running statistics are rank 0's.
  const Words cnn = cnn_on(place, 10);
  check_losses(place, cnn + "--epochs 2"_words + Words{"--validation", place.file("images")}, 2);
}

TEST_CASE("on GPUs of two hosts dp has the host's losses") {
  const device::test::Pretended pretended({0, 1});
  const Workplace place;
  const Words words = ragged(place) + "--strategy dp"_words;
  check_same_losses(on_host(place, words, 2), on_gpus(locking_gpu(2), place, words, 2), 1e-4);
}

TEST_CASE("on GPUs dp sends what it sends on the host, and reports the same fields") {
  const Workplace place;
  const Words words = kMlp + "--strategy dp --steps 4"_words;
  const json got = on_gpus(place, words, 4)["summary"],
             expected = on_host(place, words, 4)["summary"];
  for (const char* field : {"bytes_sent_per_step_by_rank", "bytes_formula_per_step",
                            "gradient_bytes_per_step", "optimizer_bytes"}) {
    INFO(field);
    CHECK(got[field] == expected[field]);
  }
  CHECK(got["buckets"].size() == 1);
  CHECK(got["buckets"][0]["algorithm"] == "star");
  CHECK(got["device"] == "stand-in on a CPU");
  for (const auto& [field, value] : expected.items()) {
    INFO(field);
    CHECK(got.contains(field));
  }
  CHECK(got["hidden_fraction"] == 0);
  CHECK(got["exposed_comm_ms"] > 0);
}

TEST_CASE("on GPUs dp's trace has the phases of each step, one after the other, on every rank") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  on_gpus(place, kMlp + "--strategy dp --steps 3"_words + Words{"--trace", file}, 2);
  const std::vector<std::string> phases = {"data", "scatter samples and parameters",
                                           "forward and backward", "gather loss and gradients",
                                           "optimizer"};
  for (const int rank : {0, 1}) {
    std::vector<json> spans = spans_of(file, rank);
    REQUIRE(spans.size() == 3 * phases.size());
    std::stable_sort(spans.begin(), spans.end(),
                     [](const json& a, const json& b) { return a["ts"] < b["ts"]; });
    double end_us = 0;  // of the span before
    for (size_t i = 0; i < spans.size(); ++i) {
      INFO("rank " << rank << ": " << spans[i].dump());
      CHECK(spans[i]["name"] == phases[i % phases.size()]);
      CHECK(number(spans[i], "ts") >= end_us - 0.002);  // rounded
      CHECK(spans[i]["dur"] >= 0);
      end_us = number(spans[i], "ts") + number(spans[i], "dur");
    }
  }
}

TEST_CASE("on GPUs dp writes the weights of its last update") {
  const Workplace place;
  const Words words = kGpt + "--strategy dp"_words;
  const std::string file = place.file("dp.safetensors");
  const json got = on_gpus(place, words + "--steps 3"_words + Words{"--save-weights", file}, 2);
  // The loss of a fourth step is that of the first one from there.
  const json four = on_gpus(place, words + "--steps 4"_words, 2);
  CHECK(got["summary"]["parameter_hash"] != four["summary"]["parameter_hash"]);
  const json again = on_gpus(place, words + "--steps 1"_words + Words{"--weights", file}, 2);
  CHECK(losses_of(again)[0] < losses_of(four)[0]);
}

TEST_CASE("on GPUs dp ends on all ranks when rank 0 stops it, or a loss is infinite") {
  const Workplace place;
  const Words words = kMlp + "--strategy dp --steps 1000"_words;
  const json document = on_gpus(cuda::testing::make_gpu(), place, words, 2,
                                [](int rank, std::atomic<bool>& stop) { stop = rank == 0; });
  CHECK(document["steps"].size() == 1);
  CHECK(document["summary"]["interrupted"] == true);
  for (const Status& status :
       run_on_gpus(cuda::testing::make_gpu(), place, words + "--lr 1e5"_words, 2)) {
    CHECK(device::test::says(status, "the loss became"));
  }
}

TEST_CASE("a GPU that refuses a call ends dp on all ranks") {
  // Over 5,000 calls, more where the host looks often whether a step has ended.
  const Words words = kMlp + "--strategy dp --steps 20"_words;
  const std::vector<int> places = {100, 300, 600, 900, 1200, 1500, 1800, 2100, 2400, 2700};
  CHECK(runs_that_a_refused_call_ends(Workplace(), words, places) >= 5);
}

}  // namespace rondo::trainer::device_dp_test
