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

namespace rondo::trainer::training_test {

using rondo::testing::kSanitized;
using namespace testing;  // NOLINT: the trainer's

namespace {

double sent_bytes(const json& document) { return document["summary"]["bytes_sent_per_step"]; }

}  // namespace

TEST_CASE("gpt: N ranks follow one rank with N times the batch", "[again]") {
  const Workplace place;
  const Words common = "--model gpt --layers 2 --width 32 --heads 2 --context 16 --lr 0.001"_words;
  for (const int ranks : {2, 3, 4}) {
    const auto alone = [&](const Words& more) {
      return place.train(common + more + "--batch" + 2 * ranks);
    };
    const auto shared = [&](const Words& more) {
      return place.train(common + more + "--batch 2 --ranks"_words + ranks);
    };
    const Words steps = "--steps 20"_words, wide = "--steps 200 --dtype fp64"_words;
    check_same_losses(alone(steps), shared(steps), 1e-5);
    // Which zeros a sample has does not depend on the rank that has the sample.
    const Words dropped = steps + "--dropout 0.2"_words;
    const json zeros = alone(dropped);
    check_same_losses(zeros, shared(dropped), 1e-5);
    CHECK(losses_of(zeros)[0] != losses_of(alone("--steps 1"_words))[0]);
    const json one = alone(wide);
    check_same_losses(one, shared(wide), 1e-9);
    CHECK(losses_of(one).back() < losses_of(one).front());
  }
}

TEST_CASE("gpt: the looked-up rows travel whole or as touched rows, and the policy is no matter") {
  const Workplace place;
  const Words common = kNano + "--ranks 3 --steps 8 --dtype fp64 --vocabulary 2000"_words;
  const json touched = place.train(common + "--tied-rows touched"_words);
  const json whole = place.train(common + "--tied-rows whole"_words);
  check_same_losses(touched, whole, 1e-12);
  CHECK(sent_bytes(touched) < 0.8 * sent_bytes(whole));
  CHECK(sent_bytes(place.train(common)) == sent_bytes(touched));  // what is fewer
  // Three ranks with most of 256 symbols each.
  std::ofstream noise(place.file("noise"));
  for (uint64_t i = 0; i < 20000; ++i) noise.put(static_cast<char>(mix(i)));
  noise.close();
  const Words noisy =
      with(kNano, "--batch", "32") + "--ranks 3 --steps 2 --data"_words + place.file("noise");
  CHECK(sent_bytes(place.train_on(noisy)) !=
        sent_bytes(place.train_on(noisy + "--tied-rows touched"_words)));
  // Without a share of its own the head's travels with the rows', at the end.
  const json one = place.train(common + "--no-split-tied");
  CHECK(one["summary"]["gradients"].back()["tensor"] == "wte.weight");
  CHECK(whole["summary"]["gradients"][0]["tensor"] == "wte.weight");
}

TEST_CASE("cnn: synchronized batch norm makes N ranks follow one; local statistics do not",
          "[again]") {
  const Workplace place;
  write_images(place.file("images"), 60);
  const Words common =
      "--model cnn --width 4 --dtype fp64 --steps 200 --optimizer adamw --lr 0.001 --data"_words +
      place.file("images") + "--batch";
  const json one = place.train_on(common + 12);
  for (const int ranks : {2, 3, 4}) {
    const Words many = common + 12 / ranks + "--ranks" + ranks;
    check_same_losses(one, place.train_on(many + "--sync-batch-norm"), 1e-9);
    CHECK(std::abs(losses_of(place.train_on(many))[5] - losses_of(one)[5]) > 1e-6);
  }
}

TEST_CASE("uneven inputs: every rank says so in that step, or ranks join") {
  const Workplace place;
  write_images(place.file("images0"), 8);
  write_images(place.file("images1"), 16);
  const Words common = "--model cnn --width 2 --batch 4 --ranks 2 --epochs 2 --data"_words +
                       place.file("images{rank}");
  for (const Words& more : {Words{}, "--sync-batch-norm"_words, "--accum 3"_words,
                            "--sync-batch-norm --accum 3"_words}) {
    if (kSanitized && more.size() == 1) continue;  // is part of the last
    check_refused(common + more, {"uneven inputs", "rank 0 has no data left"});
    const json joined = place.train_on(common + more + "--join");
    // Rank 1 has four batches in an epoch.
    CHECK(joined["steps"].size() == (more.size() > 1 ? 4 : 8));
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
  const Words common =
      "--model cnn --width 4 --batch 8 --dtype fp64 --steps 20 --sync-batch-norm --data"_words;
  const json one = place.train_on(common + place.file("all"));
  const Words joined = common + place.file("images{rank}") + "--ranks 2 --join"_words;
  check_same_losses(one, place.train_on(joined), 1e-9);
  const json as_ddp = place.train_on(joined + "--average-over ranks"_words);
  CHECK(std::abs(losses_of(as_ddp)[10] - losses_of(one)[10]) > 1e-6);
}

TEST_CASE("validation: every sample once, whatever the number of ranks") {
  const Workplace place;
  write_images(place.file("images"), 20);
  write_images(place.file("others"), 13, 100);
  const Words common = kCnn + "--sync-batch-norm --dtype fp64 --steps 2 --data"_words +
                       place.file("images") + "--validation" + place.file("others");
  // The same parameters: those of before the first step cannot be had, so those after one step.
  const json one = place.train_on(with(common, "--batch", "6"))["validation"];
  const json two = place.train_on(common + "--ranks 2 --validate-every 1"_words)["validation"];
  REQUIRE(two.size() == 2);
  CHECK(two[1]["samples"] == 13);
  CHECK(two[1]["validation_loss"].get<double>() ==
        Approx(one[0]["validation_loss"].get<double>()).epsilon(1e-9));
  const double hits = 13 * two[1]["accuracy"].get<double>();
  CHECK(hits == Approx(13 * one[0]["accuracy"].get<double>()));
  CHECK(hits == Approx(std::round(hits)));
}

TEST_CASE("validation: what has been learnt by heart is known") {
  const Workplace place;
  write_images(place.file("images"), 20);
  const json learnt = place.train_on(
      "--model cnn --width 8 --batch 10 --ranks 2 --steps 150 --lr 0.05 --validate-every 1"_words +
      "--data" + place.file("images") + "--validation" + place.file("images"));
  CHECK(learnt["validation"].front()["accuracy"].get<double>() < 0.8);
  CHECK(learnt["validation"].back()["accuracy"].get<double>() == 1);
}

TEST_CASE("validation: all ranks use rank 0's running statistics") {
  const Workplace place;
  write_images(place.file("images"), 20);
  write_images(place.file("others"), 13, 100);
  // Each rank's own differ after a step; DataParallel has rank 0's only.
  const auto loss = [&](const Words& more) -> double {
    return place.train_on(kCnn + more + "--dtype fp64 --steps 3 --ranks 2 --data"_words +
                          place.file("images") + "--validation" +
                          place.file("others"))["validation"][0]["validation_loss"];
  };
  const double dp = loss("--strategy dp"_words);
  CHECK(loss({}) == Approx(dp).epsilon(1e-9));
  CHECK(std::abs(loss({"--no-broadcast-buffers"}) - dp) > 1e-7);
}

TEST_CASE("bytes per step are those of the steps, without validations and checkpoints") {
  const Workplace place;
  const Words dp = "--strategy dp"_words;
  for (const Words& model : {Words{}, "--zero 1"_words, dp}) {
    const auto bytes = [&](const Words& flags) {
      return place.train("--ranks 2 --steps 3 --width 32 --batch 4"_words + model +
                         flags)["summary"]["bytes_sent_per_step_by_rank"];
    };
    const json plain = bytes({});
    CHECK(bytes("--validate-every 1 --validation"_words + place.data()) == plain);
    if (model == dp) continue;
    CHECK(bytes("--checkpoint-every 1 --checkpoint-dir"_words +
                place.file("saved" + std::to_string(model.size()))) == plain);
  }
}

TEST_CASE("bytes: ranks send what the formula says, with shards and looked-up rows in two bytes") {
  const Workplace place;
  for (const Words& flags : {Words{}, "--zero 1"_words, "--zero 1 --compress bf16"_words}) {
    const json summary = place.train(
        "--model gpt --layers 1 --width 16 --heads 2 --context 8 --batch 4 --steps 2"_words +
        "--ranks 2 --tied-rows whole"_words + flags)["summary"];
    const auto sent = summary["bytes_sent_per_step_by_rank"].get<std::vector<double>>();
    CHECK((sent[0] + sent[1]) / 2 == summary["bytes_formula_per_step"].get<double>());
  }
}

TEST_CASE("precision: bf16 and fp16 train, travel in half the bytes, and agree on skipped steps") {
  const Workplace place;
  const Words common = "--width 64 --batch 8 --steps 30 --ranks 3"_words;
  const json full = place.train(common);
  for (const std::string dtype : {"bf16", "fp16"}) {
    if (kSanitized && dtype == "bf16") continue;  // below, in fewer steps
    const json low = place.train(common + "--dtype" + dtype);
    CHECK(sent_bytes(low) < 0.6 * sent_bytes(full));
    CHECK(low["summary"]["bytes_formula_per_step"].get<double>() <
          0.51 * full["summary"]["bytes_formula_per_step"].get<double>());
    CHECK(losses_of(low).back() == Approx(losses_of(full).back()).epsilon(0.05));
    CHECK(hash_of(low) != hash_of(full));
    // Before anything has travelled: the weights that compute are rounded.
    CHECK(losses_of(low)[0] != losses_of(full)[0]);
  }
  // And those that are updated are not: the checkpoint has what no 16 bits hold.
  const std::string folder = place.file("masters");
  place.train("--width 16 --steps 2 --dtype bf16 --checkpoint-dir"_words + folder);
  const auto file = TensorFile::open(folder + "/step-00000002/model.safetensors");
  REQUIRE(file.ok());
  const auto* bits = static_cast<const uint32_t*>(file.value().find("output.weight")->data);
  CHECK(std::any_of(bits, bits + 16, [](uint32_t word) { return (word & 0xffff) != 0; }));
  // A loss scale of 65536 is too large for this: steps are skipped on all ranks alike, or the
  // ranks' parameters would differ at the end.
  const json skipping =
      place.train("--width 32 --batch 64 --steps 20 --ranks 3 --dtype fp16 --lr 2"_words);
  const auto& steps = skipping["steps"];
  const auto skipped = std::count_if(steps.begin(), steps.end(),
                                     [](const json& step) { return step.value("skipped", false); });
  CHECK(steps.size() == 20);
  CHECK((skipped > 0 && skipped < 20));
  CHECK(skipping["summary"]["skipped_steps"] == skipped);
  CHECK(skipping["summary"]["loss_scale"] == 65536 / std::pow(2, skipped));
  CHECK(!full["summary"].contains("loss_scale"));
}

TEST_CASE("hooks: --compress halves the bytes and rounds gradients, nothing else") {
  const Workplace place;
  const Words common = "--width 64 --batch 8 --steps 20 --ranks 2"_words;
  const json full = place.train(common);
  for (const std::string type : {"bf16", "fp16"}) {
    if (kSanitized && type == "bf16") continue;
    const json low = place.train(common + "--compress" + type);
    CHECK(sent_bytes(low) < 0.6 * sent_bytes(full));
    CHECK(losses_of(low)[0] == losses_of(full)[0]);
    CHECK(hash_of(low) != hash_of(full));
    CHECK(losses_of(low).back() == Approx(losses_of(full).back()).epsilon(0.02));
  }
}

TEST_CASE("optimizers: each flag does what its formula says, on two ranks") {
  const Workplace place;
  const auto train = [&](const Words& flags) {
    return place.train("--width 32 --steps 6 --ranks 2 --batch 4 --dtype fp64"_words + flags);
  };
  const json plain = train({});
  for (const Words& flags : {"--momentum 0.5"_words, "--weight-decay 0.1"_words,
                             "--optimizer adamw --lr 0.02 --weight-decay 0"_words}) {
    INFO(json(flags).dump());
    CHECK(hash_of(train(flags)) != hash_of(plain));
  }
  const Words with_adamw = "--optimizer adamw"_words;
  const json adamw = train(with_adamw);
  for (const Words& flags :
       {"--weight-decay 0.2"_words, "--beta1 0.8"_words, "--beta2 0.95"_words}) {
    INFO(json(flags).dump());
    CHECK(hash_of(train(with_adamw + flags)) != hash_of(adamw));
  }
  // A limit that nothing reaches changes no bit; one that all do changes the first update.
  const json loose = train("--clip 1e9"_words), tight = train("--clip 0.01"_words);
  CHECK(hash_of(loose) == hash_of(plain));
  CHECK(loose["steps"][0]["gradient_norm"].get<double>() > 0.01);
  CHECK(tight["steps"][0]["gradient_norm"] == loose["steps"][0]["gradient_norm"]);
  CHECK(losses_of(tight)[0] == losses_of(plain)[0]);
  CHECK(losses_of(tight)[5] > losses_of(plain)[5]);

  const auto expect_rates = [&](const Words& flags, const std::vector<double>& expected) {
    const json steps = train("--lr 0.1"_words + flags)["steps"];
    REQUIRE(steps.size() == 6);
    for (size_t s = 0; s < 6; ++s) CHECK(steps[s]["lr"].get<double>() == Approx(expected[s]));
  };
  expect_rates("--warmup 4"_words, {0.025, 0.05, 0.075, 0.1, 0.1, 0.1});
  // Half a cosine from step 1 to step 6.
  expect_rates("--lr-decay cosine --min-lr 0.02"_words,
               {0.1, 0.0923607, 0.0723607, 0.0476393, 0.0276393, 0.02});
  expect_rates("--lr-decay linear --min-lr 0.02 --warmup 2"_words,
               {0.05, 0.1, 0.08, 0.06, 0.04, 0.02});
  if (kSanitized) return;
  expect_rates("--lr-scale linear --base-batch 2"_words, std::vector<double>(6, 0.4));
  expect_rates("--lr-scale sqrt --base-batch 2"_words, std::vector<double>(6, 0.2));
}

TEST_CASE("data: what --sampler-tail and --drop-last leave out") {
  const Workplace place;
  write_file(place.file("odd"), std::string(16 + 25, 'x'));  // 25 samples
  const auto steps = [&](const Words& flags) {
    return place
        .train_on("--epochs 1 --ranks 2 --width 16 --data"_words + place.file("odd") +
                  flags)["steps"]
        .size();
  };
  // 13 samples for each rank with padding, 12 without.
  CHECK(steps("--batch 4"_words) == 4);
  CHECK(steps("--batch 4 --sampler-tail drop"_words) == 3);
  CHECK(steps("--batch 5"_words) == 3);
  CHECK(steps("--batch 5 --drop-last"_words) == 2);
  // As torch's DataLoader(drop_last=True): 13 of 7 and 6, of which padding fills none.
  CHECK(steps("--batch 13 --drop-last"_words) == 1);
  CHECK(steps("--batch 13 --drop-last --strategy dp"_words) == 1);
  CHECK(steps("--batch 12 --drop-last --sampler-tail drop"_words) == 1);
}

TEST_CASE("data: --workers are the threads that read ahead") {
  const Workplace place;
  const auto readers = [&](const Words& flags) {
    return place.train("--steps 2 --width 16 --ranks 2"_words + flags)["config"]["reading_threads"];
  };
  for (const int workers : {0, 1, 3}) CHECK(readers("--workers"_words + workers) == workers);
  CHECK(readers({}) == 4);
  // Rank 0 reads for both, with as many threads for each.
  CHECK(readers("--workers 3 --strategy dp"_words) == 4);
}

TEST_CASE("skipped layers: a block that no rank used keeps its parameters") {
  const Workplace place;
  const Words common = kNano + "--steps 6 --ranks 2"_words;
  const Words half = common + "--layer-drop 0.5"_words;
  const auto dropped = losses_of(place.train(half));
  CHECK(dropped == losses_of(place.train(half)));
  CHECK(dropped != losses_of(place.train(common)));
  // In none of three steps does a rank use a block, so neither decay nor moments move one; all else
  // moves. A rate of 0 leaves everything where it began.
  const auto weights = [&](const std::string& rate) {
    const std::string path = place.file("weights-" + rate);
    place.train(kNano + "--steps 3 --ranks 2 --layer-drop 0.999 --weight-decay 0.5 --lr"_words +
                rate + "--save-weights" + path);
    return TensorFile::open(path).value();
  };
  const auto begin = weights("0"), end = weights("0.01");
  REQUIRE(begin.tensors().size() == end.tensors().size());
  for (const TensorView& tensor : begin.tensors()) {
    INFO(tensor.name);
    const bool in_block = tensor.name.find(".h.") != std::string::npos;
    const void* now = end.find(tensor.name)->data;
    CHECK((std::memcmp(tensor.data, now, tensor.bytes()) == 0) == in_block);
  }
  // Empty micro-batches use no block: they must not make a skipped one look used.
  const Words three =
      kNano + "--layer-drop 0.9 --steps 4 --accum 3 --dtype fp64 --data"_words + place.tiny_data();
  CHECK(hash_of(place.train_on(three)) == hash_of(place.train_on(three + "--join")));
}

TEST_CASE("reproducible: any bucket cap gives the same bits") {
  const Workplace place;
  // On links that make buckets go round a ring, which adds up each chunk in another order.
  const Words environment = on_links(place, "peer_us");
  const auto train = [&](const Words& flags) {
    return place.train_on(kNano + "--steps 5 --ranks 3 --data"_words + place.data() + flags,
                          environment);
  };
  const json first = train({"--reproducible"});
  for (const std::string cap : {"0", "0.01", "0.05"}) {
    if (kSanitized && cap == "0.01") continue;
    const json other = train("--reproducible --bucket-cap-mb"_words + cap);
    CHECK(hash_of(other) == hash_of(first));
    CHECK(other["summary"]["buckets"].size() > first["summary"]["buckets"].size());
  }
  CHECK(hash_of(train({})) != hash_of(train("--bucket-cap-mb 0"_words)));
}

// Every message takes 2 ms and nothing is hidden: whatever else was measured, one all-reduce is best.
TEST_CASE("auto buckets: laid out anew after step 5, reported, and with the same bits") {
  const Workplace place;
  const Words common =
      "--width 512 --batch 4 --steps 7 --ranks 3 --pace 1GB/s,2ms --reproducible"_words +
      "--no-overlap --data"_words + place.data();
  const ProgramResult result =
      run_ok(common + "--bucket-cap-mb auto --control-steps 1 --json"_words + place.file("json") +
             "--trace" + place.file("trace"));
  CHECK_THAT(result.err, contains("buckets after step 5: 1 of 2."));
  const json document = read_json(place.file("json"));
  const json& relayout = document["summary"]["relayout"];
  CHECK(document["config"]["bucket_cap_mb"] == "auto");
  CHECK(relayout["after_step"] == 5);
  CHECK(relayout["buckets"] == 1);
  CHECK(relayout["buckets_before"] > 1);
  CHECK(relayout["predicted_exposed_ms"] < relayout["predicted_exposed_before_ms"]);
  CHECK(document["summary"]["buckets"].size() == 1);
  const json fixed = place.train_on(common);
  CHECK(fixed["summary"]["relayout"].is_null());
  CHECK(hash_of(fixed) == hash_of(document));
  CHECK(losses_of(fixed) == losses_of(document));
}

TEST_CASE("auto buckets: a layout that stays, and a run that ends before, are said to be that") {
  const Workplace place;
  const Words common =
      "--width 16 --batch 4 --ranks 2 --pace 1GB/s,2ms --bucket-cap-mb auto"_words +
      "--control-steps 0 --data"_words + place.data();
  const ProgramResult stays = run_ok(common + "--steps 7"_words);
  CHECK_THAT(stays.err, contains("buckets after step 5: 1 of "));
  CHECK_THAT(stays.err, contains(" KiB, as before: "));
  CHECK_THAT(stays.err, !contains(" instead of "));
  const std::string suggestion =
      place.train_on(common + "--steps 4"_words)["summary"]["suggestion"];
  INFO(suggestion);
  CHECK(suggestion.starts_with("--bucket-cap-mb auto has not laid buckets out: "));
}

TEST_CASE("what is to be written at the end is tried before the work") {
  const Workplace place;
  const auto refused = [&](const Words& flags, const std::string& part) {
    const ProgramResult result = run(kNano + "--steps 1 --data"_words + place.data() + flags);
    check_failed(result, {part});
    CHECK_THAT(result.out, !contains("\"step\""));
  };
  refused("--checkpoint-dir /proc/none"_words, "/proc/none");
  refused({"--save-weights", place.file("no/folder/x")}, "no/folder/x");
  std::filesystem::create_directory(place.file("taken"));
  refused({"--save-weights", place.file("taken")}, "taken' cannot be written: it is a folder");
  const std::string pipe = place.file("pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  refused({"--save-weights", pipe}, "pipe' cannot be written: it is no regular file");
  refused({"--weights", place.file("none")}, "none");
}

}  // namespace rondo::trainer::training_test
