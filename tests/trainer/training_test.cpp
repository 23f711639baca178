// What rondo-train promises beyond one model and one kind of data, with ranks as processes: every
// model and precision, uneven inputs, skipped layers, validation, and what each flag does. Resuming
// is in resume_test.cpp.
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/harness/sanitized.hpp"
#include "tests/trainer/training_rig.hpp"
#include "trainer/base/random.hpp"
#include "trainer/files/tensor_file.hpp"

using rondo::testing::kSanitized;
using rondo::testing::ProgramResult;
using namespace rondo::trainer::testing;

TEST_CASE("gpt: N ranks follow one rank with N times the batch", "[again]") {
  const Workplace place;
  for (const int ranks : {2, 3, 4}) {
    const Words common = {"--model", "gpt", "--layers",  "2",  "--width", "32",
                          "--heads", "2",   "--context", "16", "--lr",    "0.001"};
    const auto with = [&](const Words& more) { return place.train(common + more); };
    const std::string whole = std::to_string(2 * ranks), n = std::to_string(ranks);
    check_same_losses(with({"--batch", whole, "--steps", "20"}),
                      with({"--batch", "2", "--ranks", n, "--steps", "20"}), 1e-5);
    // Which zeros a sample has does not depend on the rank that has the sample.
    const Words dropped = {"--steps", "20", "--dropout", "0.2"};
    const json zeros = with(Words{"--batch", whole} + dropped);
    check_same_losses(zeros, with(Words{"--batch", "2", "--ranks", n} + dropped), 1e-5);
    CHECK(losses_of(zeros)[0] != losses_of(with({"--batch", whole, "--steps", "1"}))[0]);
    const json one = with({"--batch", whole, "--steps", "200", "--dtype", "fp64"});
    check_same_losses(
        one, with({"--batch", "2", "--ranks", n, "--steps", "200", "--dtype", "fp64"}), 1e-9);
    CHECK(losses_of(one).back() < losses_of(one).front());
  }
}

TEST_CASE("gpt: the looked-up rows travel whole or as touched rows, and the policy is no matter") {
  const Workplace place;
  const Words common =
      kNano + Words{"--ranks", "3", "--steps", "8", "--dtype", "fp64", "--vocabulary", "2000"};
  const json touched = place.train(common + Words{"--tied-rows", "touched"});
  const json whole = place.train(common + Words{"--tied-rows", "whole"});
  check_same_losses(touched, whole, 1e-12);
  const auto bytes = [](const json& document) {
    return document["summary"]["bytes_sent_per_step"].get<double>();
  };
  CHECK(bytes(touched) < 0.8 * bytes(whole));
  CHECK(bytes(place.train(common)) == bytes(touched));  // what is fewer
  // Three ranks with most of 256 symbols each.
  std::ofstream noise(place.file("noise"));
  for (uint64_t i = 0; i < 20000; ++i) noise.put(static_cast<char>(rondo::trainer::mix(i)));
  noise.close();
  const auto noisy = [&](const Words& flags) {
    return bytes(
        place.train_on(with(kNano, "--batch", "32") + flags +
                       Words{"--data", place.file("noise"), "--ranks", "3", "--steps", "2"}));
  };
  CHECK(noisy({}) != noisy({"--tied-rows", "touched"}));
  // Without a share of its own the head's travels with the rows', at the end.
  const json one = place.train(common + Words{"--no-split-tied"});
  CHECK(one["summary"]["gradients"].back()["tensor"] == "wte.weight");
  CHECK(whole["summary"]["gradients"][0]["tensor"] == "wte.weight");
}

TEST_CASE("cnn: synchronized batch norm makes N ranks follow one; local statistics do not",
          "[again]") {
  const Workplace place;
  write_images(place.file("images"), 60);
  const Words common = {"--model", "cnn",  "--width", "4",   "--data",      place.file("images"),
                        "--dtype", "fp64", "--steps", "200", "--optimizer", "adamw",
                        "--lr",    "0.001"};
  for (const int ranks : {2, 3, 4}) {
    const json one = place.train_on(common + Words{"--batch", std::to_string(12)});
    const Words many =
        common + Words{"--batch", std::to_string(12 / ranks), "--ranks", std::to_string(ranks)};
    check_same_losses(one, place.train_on(many + Words{"--sync-batch-norm"}), 1e-9);
    const auto local = losses_of(place.train_on(many));
    CHECK(std::abs(local[5] - losses_of(one)[5]) > 1e-6);
  }
}

TEST_CASE("uneven inputs: every rank says so in that step, or ranks join") {
  const Workplace place;
  write_images(place.file("images0"), 8);
  write_images(place.file("images1"), 16);
  const Words common = {"--model", "cnn", "--width",  "2",
                        "--batch", "4",   "--data",   place.file("images{rank}"),
                        "--ranks", "2",   "--epochs", "2"};
  for (const Words& more : {Words{}, Words{"--sync-batch-norm"}, Words{"--accum", "3"},
                            Words{"--sync-batch-norm", "--accum", "3"}}) {
    if (kSanitized && more.size() == 1) continue;  // is part of the last
    const ProgramResult error = run(common + more);
    INFO(error.err);
    CHECK(!error.timed_out);
    CHECK(error.exit_code != 0);
    CHECK(error.err.find("uneven inputs") != std::string::npos);
    CHECK(error.err.find("rank 0 has no data left") != std::string::npos);
    const json joined = place.train_on(common + more + Words{"--join"});
    // Rank 1 has four batches in an epoch.
    const size_t steps = more.size() > 1 ? 4 : 8;
    CHECK(joined["steps"].size() == steps);
    CHECK(joined["steps"].back()["epoch"] == 1);
  }
}

TEST_CASE("join: unequal batches give the mean over all samples") {
  const Workplace place;
  // One rank with all pictures in file order equals two ranks whose files are its halves, when
  // every step takes all that there is.
  write_images(place.file("images0"), 5, 0);
  write_images(place.file("images1"), 3, 5);
  write_images(place.file("all"), 8, 0);
  const Words common = {"--model", "cnn",  "--width", "4",  "--batch",          "8",
                        "--dtype", "fp64", "--steps", "20", "--sync-batch-norm"};
  const json one = place.train_on(common + Words{"--data", place.file("all")});
  const json two = place.train_on(
      common + Words{"--data", place.file("images{rank}"), "--ranks", "2", "--join"});
  check_same_losses(one, two, 1e-9);
  const json as_ddp = place.train_on(common + Words{"--data", place.file("images{rank}"), "--ranks",
                                                    "2", "--join", "--average", "ranks"});
  CHECK(std::abs(losses_of(as_ddp)[10] - losses_of(one)[10]) > 1e-6);
}

TEST_CASE("validation: every sample once, whatever the number of ranks") {
  const Workplace place;
  write_images(place.file("images"), 20);
  write_images(place.file("others"), 13, 100);
  const Words common =
      kCnn + Words{"--data", place.file("images"), "--validation", place.file("others"), "--dtype",
                   "fp64"};
  // The same parameters: those of before the first step cannot be had, so those after one step.
  const json one = place.train_on({"--model", "cnn", "--width", "4", "--batch", "6", "--data",
                                   place.file("images"), "--validation", place.file("others"),
                                   "--dtype", "fp64", "--steps", "2", "--sync-batch-norm"});
  const json two = place.train_on(
      common + Words{"--steps", "2", "--ranks", "2", "--sync-batch-norm", "--validate-every", "1"});
  REQUIRE(two["validation"].size() == 2);
  CHECK(two["validation"][1]["samples"] == 13);
  CHECK(two["validation"][1]["validation_loss"].get<double>() ==
        Approx(one["validation"][0]["validation_loss"].get<double>()).epsilon(1e-9));
  const double hits = 13 * two["validation"][1]["accuracy"].get<double>();
  CHECK(hits == Approx(13 * one["validation"][0]["accuracy"].get<double>()));
  CHECK(hits == Approx(std::round(hits)));
}

TEST_CASE("validation: what has been learnt by heart is known") {
  const Workplace place;
  write_images(place.file("images"), 20);
  const json learnt =
      place.train_on({"--model", "cnn", "--width", "8", "--batch", "10", "--ranks", "2", "--data",
                      place.file("images"), "--validation", place.file("images"), "--steps", "150",
                      "--lr", "0.05", "--validate-every", "1"});
  CHECK(learnt["validation"].front()["accuracy"].get<double>() < 0.8);
  CHECK(learnt["validation"].back()["accuracy"].get<double>() == 1);
}

TEST_CASE("validation: all ranks use rank 0's running statistics") {
  const Workplace place;
  write_images(place.file("images"), 20);
  write_images(place.file("others"), 13, 100);
  // Each rank's own differ after a step; DataParallel has rank 0's only.
  const Words common = kCnn + Words{"--data",       place.file("images"),
                                    "--validation", place.file("others"),
                                    "--dtype",      "fp64",
                                    "--steps",      "3",
                                    "--ranks",      "2"};
  const auto loss = [](const json& document) {
    return document["validation"][0]["validation_loss"].get<double>();
  };
  const double dp = loss(place.train_on(common + Words{"--strategy", "dp"}));
  CHECK(loss(place.train_on(common)) == Approx(dp).epsilon(1e-9));
  CHECK(std::abs(loss(place.train_on(common + Words{"--no-broadcast-buffers"})) - dp) > 1e-7);
}

TEST_CASE("bytes per step are those of the steps, without validations and checkpoints") {
  const Workplace place;
  const Words common = {"--ranks", "2", "--steps", "3", "--width", "32", "--batch", "4"};
  for (const Words& model : {Words{}, Words{"--zero", "1"}, Words{"--strategy", "dp"}}) {
    const auto bytes = [&](const Words& flags) {
      return place.train(common + model + flags)["summary"]["bytes_sent_per_step_by_rank"];
    };
    const json plain = bytes({});
    CHECK(bytes({"--validation", place.data(), "--validate-every", "1"}) == plain);
    if (model == Words{"--strategy", "dp"}) continue;
    CHECK(bytes({"--checkpoint-dir", place.file("saved" + std::to_string(model.size())),
                 "--checkpoint-every", "1"}) == plain);
  }
}

TEST_CASE("bytes: ranks send what the formula says, with shards and looked-up rows in two bytes") {
  const Workplace place;
  for (const Words& flags :
       {Words{}, Words{"--zero", "1"}, Words{"--zero", "1", "--compress", "bf16"}}) {
    const json summary = place.train(
        Words{"--model", "gpt",       "--layers",    "1",       "--width",     "16",      "--heads",
              "2",       "--context", "8",           "--batch", "4",           "--steps", "2",
              "--ranks", "2",         "--tied-rows", "whole",   "--log-every", "0"} +
        flags)["summary"];
    const auto sent = summary["bytes_sent_per_step_by_rank"].get<std::vector<double>>();
    CHECK((sent[0] + sent[1]) / 2 == summary["bytes_formula_per_step"].get<double>());
  }
}

TEST_CASE("precision: bf16 and fp16 train, travel in half the bytes, and agree on skipped steps") {
  const Workplace place;
  const Words common = {"--width", "64", "--batch", "8", "--steps", "30", "--ranks", "3"};
  const json full = place.train(common);
  for (const std::string dtype : {"bf16", "fp16"}) {
    if (kSanitized && dtype == "bf16") continue;  // below, in fewer steps
    const json low = place.train(common + Words{"--dtype", dtype});
    CHECK(low["summary"]["bytes_sent_per_step"].get<double>() <
          0.6 * full["summary"]["bytes_sent_per_step"].get<double>());
    CHECK(low["summary"]["bytes_formula_per_step"].get<double>() <
          0.51 * full["summary"]["bytes_formula_per_step"].get<double>());
    const double last = losses_of(low).back();
    CHECK(last == Approx(losses_of(full).back()).epsilon(0.05));
    CHECK(low["summary"]["parameter_hash"] != full["summary"]["parameter_hash"]);
    // Before anything has travelled: the weights that compute are rounded.
    CHECK(losses_of(low)[0] != losses_of(full)[0]);
  }
  // And those that are updated are not: the checkpoint has what no 16 bits hold.
  const std::string folder = place.file("masters");
  (void)place.train(
      {"--width", "16", "--steps", "2", "--dtype", "bf16", "--checkpoint-dir", folder});
  const auto file = rondo::trainer::TensorFile::open(folder + "/step-00000002/model.safetensors");
  REQUIRE(file.ok());
  const auto* bits = static_cast<const uint32_t*>(file.value().find("output.weight")->data);
  CHECK(std::any_of(bits, bits + 16, [](uint32_t word) { return (word & 0xffff) != 0; }));
  // A loss scale of 65536 is too large for this: steps are skipped on all ranks alike, or the
  // ranks' parameters would differ at the end.
  const json skipping = place.train({"--width", "32", "--batch", "64", "--steps", "20", "--ranks",
                                     "3", "--dtype", "fp16", "--lr", "2"});
  CHECK(losses_of(skipping).size() == 20);
  const auto is_skipped = [](const json& step) { return step.value("skipped", false); };
  const auto& steps = skipping["steps"];
  CHECK(std::any_of(steps.begin(), steps.end(), is_skipped));
  CHECK(!std::all_of(steps.begin(), steps.end(), is_skipped));
  const auto skipped = std::count_if(steps.begin(), steps.end(), is_skipped);
  CHECK(skipping["summary"]["skipped_steps"] == skipped);
  CHECK(skipping["summary"]["loss_scale"] == 65536 / std::pow(2, skipped));
  CHECK(!full["summary"].contains("loss_scale"));
}

TEST_CASE("hooks: --compress halves the bytes and rounds gradients, nothing else") {
  const Workplace place;
  const Words common = {"--width", "64", "--batch", "8", "--steps", "20", "--ranks", "2"};
  const json full = place.train(common);
  for (const std::string type : {"bf16", "fp16"}) {
    if (kSanitized && type == "bf16") continue;
    const json low = place.train(common + Words{"--compress", type});
    CHECK(low["summary"]["bytes_sent_per_step"].get<double>() <
          0.6 * full["summary"]["bytes_sent_per_step"].get<double>());
    CHECK(losses_of(low)[0] == losses_of(full)[0]);
    CHECK(low["summary"]["parameter_hash"] != full["summary"]["parameter_hash"]);
    CHECK(losses_of(low).back() == Approx(losses_of(full).back()).epsilon(0.02));
  }
}

TEST_CASE("optimizers: each flag does what its formula says, on two ranks") {
  const Workplace place;
  const auto train = [&](const Words& flags) {
    return place.train(
        Words{"--width", "32", "--steps", "6", "--ranks", "2", "--batch", "4", "--dtype", "fp64"} +
        flags);
  };
  const auto hash = [](const json& document) { return document["summary"]["parameter_hash"]; };
  const auto rates = [](const json& document) {
    std::vector<double> all;
    for (const json& step : document["steps"]) all.push_back(step["lr"]);
    return all;
  };
  const json plain = train({});
  for (const Words& flags :
       {Words{"--momentum", "0.5"}, Words{"--weight-decay", "0.1"},
        Words{"--optimizer", "adamw", "--lr", "0.02", "--weight-decay", "0"}}) {
    INFO(json(flags).dump());
    CHECK(hash(train(flags)) != hash(plain));
  }
  const json adamw = train({"--optimizer", "adamw"});
  for (const Words& flags :
       {Words{"--weight-decay", "0.2"}, Words{"--beta1", "0.8"}, Words{"--beta2", "0.95"}}) {
    INFO(json(flags).dump());
    CHECK(hash(train(Words{"--optimizer", "adamw"} + flags)) != hash(adamw));
  }
  // A limit that nothing reaches changes no bit; one that all do changes the first update.
  const json loose = train({"--clip", "1e9"}), tight = train({"--clip", "0.01"});
  CHECK(hash(loose) == hash(plain));
  CHECK(loose["steps"][0]["gradient_norm"].get<double>() > 0.01);
  CHECK(tight["steps"][0]["gradient_norm"] == loose["steps"][0]["gradient_norm"]);
  CHECK(losses_of(tight)[0] == losses_of(plain)[0]);
  CHECK(losses_of(tight)[5] > losses_of(plain)[5]);

  const Words lr = {"--lr", "0.1"};
  const auto expect_rates = [&](const Words& flags, const std::vector<double>& expected) {
    const std::vector<double> is = rates(train(lr + flags));
    REQUIRE(is.size() == 6);
    for (size_t s = 0; s < 6; ++s) CHECK(is[s] == Approx(expected[s]));
  };
  expect_rates({"--warmup", "4"}, {0.025, 0.05, 0.075, 0.1, 0.1, 0.1});
  // Half a cosine from step 1 to step 6.
  expect_rates({"--lr-decay", "cosine", "--min-lr", "0.02"},
               {0.1, 0.0923607, 0.0723607, 0.0476393, 0.0276393, 0.02});
  expect_rates({"--lr-decay", "linear", "--min-lr", "0.02", "--warmup", "2"},
               {0.05, 0.1, 0.08, 0.06, 0.04, 0.02});
  if (kSanitized) return;
  expect_rates({"--lr-scale", "linear", "--base-batch", "2"}, std::vector<double>(6, 0.4));
  expect_rates({"--lr-scale", "sqrt", "--base-batch", "2"}, std::vector<double>(6, 0.2));
}

TEST_CASE("data: what --sampler-tail and --drop-last leave out") {
  const Workplace place;
  std::ofstream(place.file("odd")) << std::string(16 + 25, 'x');  // 25 samples
  const auto steps = [&](const Words& flags) {
    const Words common = {"--data", place.file("odd"), "--epochs", "1", "--ranks",
                          "2",      "--width",         "16"};
    return place.train_on(common + flags)["steps"].size();
  };
  // 13 samples for each rank with padding, 12 without.
  CHECK(steps({"--batch", "4"}) == 4);
  CHECK(steps({"--batch", "4", "--sampler-tail", "drop"}) == 3);
  CHECK(steps({"--batch", "5"}) == 3);
  CHECK(steps({"--batch", "5", "--drop-last"}) == 2);
  // As torch's DataLoader(drop_last=True): 13 of 7 and 6, of which padding fills none.
  CHECK(steps({"--batch", "13", "--drop-last"}) == 1);
  CHECK(steps({"--batch", "13", "--drop-last", "--strategy", "dp"}) == 1);
  CHECK(steps({"--batch", "12", "--drop-last", "--sampler-tail", "drop"}) == 1);
}

TEST_CASE("data: --workers are the threads that read ahead") {
  const Workplace place;
  const auto readers = [&](const Words& flags) {
    const Words common = {"--steps", "2", "--width", "16", "--ranks", "2"};
    return place.train(common + flags)["config"]["reading_threads"];
  };
  for (const int workers : {0, 1, 3}) {
    CHECK(readers({"--workers", std::to_string(workers)}) == workers);
  }
  CHECK(readers({}) == 4);
  // Rank 0 reads for both, with as many threads for each.
  CHECK(readers({"--workers", "3", "--strategy", "dp"}) == 4);
}

TEST_CASE("skipped layers: a block that no rank used keeps its parameters") {
  const Workplace place;
  const Words common = kNano + Words{"--data", place.data(), "--steps", "6", "--ranks", "2"};
  const json dropped = place.train_on(common + Words{"--layer-drop", "0.5"});
  const json again = place.train_on(common + Words{"--layer-drop", "0.5"});
  CHECK(losses_of(dropped) == losses_of(again));
  CHECK(losses_of(dropped) != losses_of(place.train_on(common)));
  // In none of three steps does a rank use a block, so neither decay nor moments move one; all else
  // moves. A rate of 0 leaves everything where it began.
  const auto weights = [&](const std::string& rate) {
    const std::string path = place.file("weights-" + rate);
    (void)place.train_on(kNano + Words{"--data", place.data(), "--steps", "3", "--ranks", "2",
                                       "--layer-drop", "0.999", "--weight-decay", "0.5", "--lr",
                                       rate, "--save-weights", path});
    return rondo::trainer::TensorFile::open(path).value();
  };
  const auto begin = weights("0"), end = weights("0.01");
  REQUIRE(begin.tensors().size() == end.tensors().size());
  for (const rondo::trainer::TensorView& tensor : begin.tensors()) {
    INFO(tensor.name);
    const bool in_block = tensor.name.find(".h.") != std::string::npos;
    const void* now = end.find(tensor.name)->data;
    CHECK((std::memcmp(tensor.data, now, tensor.bytes()) == 0) == in_block);
  }
  // Empty micro-batches use no block: they must not make a skipped one look used.
  const Words three =
      kNano + Words{"--data", place.tiny_data(), "--layer-drop", "0.9", "--steps", "4", "--accum",
                    "3",      "--dtype",         "fp64"};
  CHECK(place.train_on(three)["summary"]["parameter_hash"] ==
        place.train_on(three + Words{"--join"})["summary"]["parameter_hash"]);
}

TEST_CASE("reproducible: any bucket cap gives the same bits") {
  const Workplace place;
  // On links that make buckets go round a ring, which adds up each chunk in another order.
  auto environment = kNoLauncher;
  environment.push_back("RONDO_LINKS=" + links(place, "peer_us"));
  const auto summary = [&](const Words& flags) {
    const Words common = {RONDO_TRAIN, "--data", place.data(), "--steps",         "5",
                          "--ranks",   "3",      "--json",     place.file("json")};
    const ProgramResult result = rondo::testing::run_program(common + kNano + flags, environment);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return json::parse(read_text(place.file("json")))["summary"];
  };
  const Words reproducible = {"--reproducible"};
  const json first = summary(reproducible);
  for (const std::string cap : {"0", "0.01", "0.05"}) {
    if (kSanitized && cap == "0.01") continue;
    const json other = summary(reproducible + Words{"--bucket-cap-mb", cap});
    CHECK(other["parameter_hash"] == first["parameter_hash"]);
    CHECK(other["buckets"].size() > first["buckets"].size());
  }
  CHECK(summary({})["parameter_hash"] != summary({"--bucket-cap-mb", "0"})["parameter_hash"]);
}

// Every message takes 2 ms and nothing is hidden: whatever else was measured, one all-reduce is best.
TEST_CASE("auto buckets: laid out anew after step 5, reported, and with the same bits") {
  const Workplace place;
  const Words common = {"--width", "512",       "--batch",        "4",           "--steps",
                        "7",       "--data",    place.data(),     "--ranks",     "3",
                        "--pace",  "1GB/s,2ms", "--reproducible", "--no-overlap"};
  const ProgramResult result =
      run(common + Words{"--bucket-cap-mb", "auto", "--json", place.file("json"), "--trace",
                         place.file("trace"), "--control-steps", "1"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.find("buckets after step 5: 1 of 2.") != std::string::npos);
  const json document = json::parse(read_text(place.file("json")));
  const json& summary = document["summary"];
  CHECK(document["config"]["bucket_cap_mb"] == "auto");
  CHECK(summary["relayout"]["after_step"] == 5);
  CHECK(summary["relayout"]["buckets"] == 1);
  CHECK(summary["relayout"]["buckets_before"] > 1);
  CHECK(summary["relayout"]["predicted_exposed_ms"] <
        summary["relayout"]["predicted_exposed_before_ms"]);
  CHECK(summary["buckets"].size() == 1);
  const json fixed = place.train_on(common);
  CHECK(fixed["summary"]["relayout"].is_null());
  CHECK(fixed["summary"]["parameter_hash"] == summary["parameter_hash"]);
  CHECK(losses_of(fixed) == losses_of(document));
}

TEST_CASE("auto buckets: a layout that stays, and a run that ends before, are said to be that") {
  const Workplace place;
  const Words common = {"--width",         "16",         "--batch",         "4",
                        "--data",          place.data(), "--ranks",         "2",
                        "--pace",          "1GB/s,2ms",  "--bucket-cap-mb", "auto",
                        "--control-steps", "0"};
  const ProgramResult stays = run(common + Words{"--steps", "7"});
  INFO(stays.err);
  CHECK(stays.err.find("buckets after step 5: 1 of ") != std::string::npos);
  CHECK(stays.err.find(" KiB, as before: ") != std::string::npos);
  CHECK(stays.err.find(" instead of ") == std::string::npos);
  const json ended = place.train_on(common + Words{"--steps", "4"})["summary"];
  INFO(ended["suggestion"]);
  const std::string suggestion = ended["suggestion"];
  CHECK(suggestion.starts_with("--bucket-cap-mb auto has not laid buckets out: "));
}

TEST_CASE("what is to be written at the end is tried before the work") {
  const Workplace place;
  const auto refused = [&](const Words& flags, const std::string& part) {
    const ProgramResult result = run(kNano + Words{"--data", place.data(), "--steps", "1"} + flags);
    INFO(result.out << result.err);
    CHECK(result.exit_code != 0);
    CHECK(result.err.find(part) != std::string::npos);
    CHECK(result.out.find("\"step\"") == std::string::npos);
  };
  refused({"--checkpoint-dir", "/proc/none"}, "/proc/none");
  refused({"--save-weights", place.file("no/folder/x")}, "no/folder/x");
  std::filesystem::create_directory(place.file("taken"));
  refused({"--save-weights", place.file("taken")}, "taken' cannot be written: it is a folder");
  const std::string pipe = place.file("pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  refused({"--save-weights", pipe}, "pipe' cannot be written: it is no regular file");
  refused({"--weights", place.file("none")}, "none");
}
