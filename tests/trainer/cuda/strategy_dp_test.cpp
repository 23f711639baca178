// --strategy dp --device cuda over the stand-in: ddp's losses, and the host's, by a star through rank 0.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/trainer/cuda/gpu_runs.hpp"

namespace rondo::trainer::device_dp_test {
namespace {

using namespace trainer::testing;  // NOLINT: the trainer's

const Words kDp = {"--strategy", "dp"};

/// A GPU on which a product's first launch waits for all that runs there.
std::shared_ptr<device::test::FakeGpu> locking_gpu(int gpus = 1) {
  auto gpu = cuda::testing::make_gpu(gpus);
  gpu->driver_lock.exists = true;
  return gpu;
}

std::string make_images(const Workplace& place) {
  const std::string images = place.file("images");
  std::filesystem::create_directory(images);
  write_images(images, 10);
  return images;
}

/// An epoch's last batches are smaller: other products.
Words ragged(const Workplace& place) {
  return with(with(kGpt, "--context", "8"), "--batch", "3") +
         Words{"--data", place.tiny_data(), "--epochs", "2"};
}

/// dp beside ddp there, and beside dp on the host.
void check_losses(const Workplace& place, const Words& words, int ranks) {
  INFO(words[1] << " on " << ranks << " ranks");
  const json dp = on_gpus(locking_gpu(), place, words + kDp, ranks);
  const json host = on_host(place, words + kDp, ranks);
  const json ddp = on_gpus(place, words, ranks);
  require_same_losses(dp, ddp, 1e-5);
  require_same_losses(dp, host, 1e-4);
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
    CHECK(got[v]["validation_loss"].get<double>() ==
          Approx(expected[v]["validation_loss"].get<double>()).epsilon(1e-4));
  }
}

}  // namespace

TEST_CASE("on GPUs dp has ddp's losses, and the host's", "[again]") {
  const Workplace place;
  const Words mlp = kMlp + Words{"--data", place.data(), "--steps", "5", "--clip", "0.5"};
  for (const int ranks : {1, 2, 3, 4}) check_losses(place, mlp, ranks);
  const Words gpt = kGpt + Words{"--data",    place.data(), "--steps",      "4",
                                 "--dropout", "0.1",        "--validation", place.tiny_data()};
  check_losses(place, gpt + Words{"--validate-every", "2"}, 3);
  check_losses(place, ragged(place), 2);
  // Running statistics are rank 0's.
  const std::string images = make_images(place);
  check_losses(place, kCnn + Words{"--data", images, "--epochs", "2", "--validation", images}, 2);
}

TEST_CASE("on GPUs of two hosts dp has the host's losses") {
  const device::test::Pretended pretended({0, 1});
  const Workplace place;
  const Words words = ragged(place) + kDp;
  require_same_losses(on_gpus(locking_gpu(2), place, words, 2), on_host(place, words, 2), 1e-4);
}

TEST_CASE("on GPUs dp sends what it sends on the host, and reports the same fields") {
  const Workplace place;
  const Words words = kMlp + Words{"--data", place.data(), "--steps", "4"} + kDp;
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
  on_gpus(place, kMlp + Words{"--data", place.data(), "--steps", "3", "--trace", file} + kDp, 2);
  const json trace = json::parse(read_text(file));
  const std::vector<std::string> phases = {"data", "scatter samples and parameters",
                                           "forward and backward", "gather loss and gradients",
                                           "optimizer"};
  for (const int rank : {0, 1}) {
    std::vector<std::pair<double, json>> spans;  // by their begin
    for (const json& event : trace["traceEvents"]) {
      if (event["ph"] == "X" && event["pid"] == rank) spans.emplace_back(event["ts"], event);
    }
    REQUIRE(spans.size() == 3 * phases.size());
    std::stable_sort(spans.begin(), spans.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    double end_us = 0;  // of the span before
    for (size_t i = 0; i < spans.size(); ++i) {
      const auto& [begin_us, span] = spans[i];
      INFO("rank " << rank << ": " << span.dump());
      CHECK(span["name"] == phases[i % phases.size()]);
      CHECK(begin_us >= end_us - 0.002);  // rounded
      CHECK(span["dur"] >= 0);
      end_us = begin_us + span["dur"].get<double>();
    }
  }
}

TEST_CASE("on GPUs dp writes the weights of its last update") {
  const Workplace place;
  const Words words = kGpt + Words{"--data", place.data()};
  const std::string file = place.file("dp.safetensors");
  const json got = on_gpus(place, words + kDp + Words{"--steps", "3", "--save-weights", file}, 2);
  // The loss of a fourth step is that of the first one from there.
  const json four = on_gpus(place, words + kDp + Words{"--steps", "4"}, 2);
  CHECK(got["summary"]["parameter_hash"] != four["summary"]["parameter_hash"]);
  const json again = on_gpus(place, words + kDp + Words{"--steps", "1", "--weights", file}, 2);
  CHECK(losses_of(again)[0] < losses_of(four)[0]);
}

TEST_CASE("on GPUs dp ends on all ranks when rank 0 stops it, or a loss is infinite") {
  const Workplace place;
  const std::string file = place.file("stopped.json");
  const Words words = kMlp + Words{"--data", place.data(), "--steps", "1000"} + kDp;
  const auto stopped = run_on_gpus(cuda::testing::make_gpu(), words + Words{"--json", file}, 2,
                                   [](int rank, std::atomic<bool>& stop) { stop = rank == 0; });
  for (const Status& status : stopped) REQUIRE(status.ok());
  const json document = json::parse(read_text(file));
  CHECK(document["steps"].size() == 1);
  CHECK(document["summary"]["interrupted"] == true);
  for (const Status& status :
       run_on_gpus(cuda::testing::make_gpu(), words + Words{"--lr", "1e5"}, 2)) {
    INFO(status.to_string());
    CHECK(status.message().find("the loss became") != std::string::npos);
  }
}

TEST_CASE("a GPU that refuses a call ends dp on all ranks") {
  const Workplace place;
  // Over 5,000 calls, more where the host looks often whether a step has ended.
  const Words words = kMlp + Words{"--data", place.data(), "--steps", "20"} + kDp;
  int ended = 0;
  for (const int late : {100, 300, 600, 900, 1200, 1500, 1800, 2100, 2400, 2700}) {
    const auto gpu = cuda::testing::make_gpu();
    const auto statuses = run_on_gpus(gpu, words, 2, [&](int rank, std::atomic<bool>&) {
      if (rank == 0) gpu->fail_at = gpu->calls + late;
    });
    INFO(statuses[0].to_string() << "; " << statuses[1].to_string());
    CHECK(statuses[0].ok() == statuses[1].ok());
    ended += statuses[0].ok() ? 0 : 1;
  }
  CHECK(ended >= 5);
}

}  // namespace rondo::trainer::device_dp_test
