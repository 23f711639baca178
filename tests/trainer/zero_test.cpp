// rondo-train --zero 1 as a program, with ranks as processes: the same losses as without, less
// memory per rank, the same bytes; checkpoints of which every rank writes its shard, and which any
// number of ranks, with or without shards, goes on from.
#include <filesystem>
#include <set>

#include "tests/harness/sanitized.hpp"
#include "tests/trainer/training_rig.hpp"

namespace rondo::trainer::zero_test {

using rondo::testing::kSanitized;
using namespace testing;  // NOLINT: the trainer's
using Names = std::set<std::string>;

namespace {

const Words kPlain = "--zero 0"_words, kZero = "--zero 1"_words;
// Several buckets, tensors of more than one unit, and rows that do not divide a unit.
const Words kMlp = "--width 96 --batch 4 --optimizer adamw --bucket-cap-mb 0.05"_words;
const Words kGpt =
    "--model gpt --layers 2 --heads 2 --width 48 --batch 2 --context 16 --bucket-cap-mb 0.05"_words;

/// The same bits: losses, norms, skipped steps, parameters. Returns the document with shards.
json check_same_bits(const Workplace& place, const Words& flags) {
  INFO(json(flags).dump());
  const json plain = place.train(flags + kPlain), zero = place.train(flags + kZero);
  const std::vector<double> losses = losses_of(plain);
  CHECK(losses == losses_of(zero));
  CHECK(hash_of(plain) == hash_of(zero));
  for (size_t s = 0; s < losses.size(); ++s) {
    const json &a = plain["steps"][s], &b = zero["steps"][s];
    CHECK(a.value("gradient_norm", 0.0) == b.value("gradient_norm", 0.0));
    CHECK(a.value("skipped", false) == b.value("skipped", false));
  }
  return zero;
}
void check_learns_same_bits(const Workplace& place, const Words& flags) {
  const std::vector<double> losses = losses_of(check_same_bits(place, flags));
  CHECK(losses.back() < losses.front());
}

}  // namespace

TEST_CASE("zero: reproducible, the bits of plain data parallelism, for N = 1, 2, 3, 5") {
  const Workplace place;
  const Words common = "--steps 12 --reproducible --ranks"_words;
  for (const int ranks : {1, 2, 3, 5}) {
    if (kSanitized && ranks != 3) continue;
    check_learns_same_bits(place, kMlp + common + ranks);
    check_learns_same_bits(place, kMlp + common + ranks + "--clip 0.2"_words);
  }
  check_learns_same_bits(place, kMlp + common + "3 --dtype fp64 --accum 2 --clip 0.2"_words);
  check_learns_same_bits(
      place, common + "3 --width 96 --batch 4 --lr 0.1 --optimizer sgd --no-overlap"_words);
}

TEST_CASE("zero: tied weights, dropped layers, low precision, compression: the same bits") {
  const Workplace place;
  const Words common = kGpt + "--steps 12 --reproducible --ranks 3"_words;
  check_learns_same_bits(place, common + "--clip 0.5 --tied-rows touched"_words);
  check_learns_same_bits(place, common + "--dtype fp16 --clip 0.5"_words);
  check_learns_same_bits(place, common + "--compress bf16 --no-split-tied"_words);
  if (kSanitized) return;  // the same code, in other orders or widths
  check_learns_same_bits(place, common + "--clip 0.5 --tied-rows whole"_words);
  check_learns_same_bits(place, common + "--layer-drop 0.4 --clip 0.5"_words);
  check_learns_same_bits(place, common + "--dtype bf16 --clip 0.5"_words);
}

TEST_CASE("zero: losses follow plain's within 1e-6 where sums have no fixed order") {
  const Workplace place;
  for (const int ranks : {3, 4}) {
    if (kSanitized && ranks != 3) continue;
    const Words flags = kMlp + "--steps 20 --ranks"_words + ranks;
    check_same_losses(place.train(flags + kPlain), place.train(flags + kZero), 1e-6);
  }
}

TEST_CASE("zero: a step that overflows is skipped by all ranks, as in plain") {
  const Workplace place;
  // A rate at which the second step's gradients are too large for float16.
  const json zero = check_same_bits(
      place,
      "--width 96 --batch 4 --optimizer adamw --lr 0.1 --ranks 2 --dtype fp16 --steps 12"_words);
  CHECK(std::any_of(zero["steps"].begin(), zero["steps"].end(),
                    [](const json& step) { return step.value("skipped", false); }));
}

TEST_CASE("zero: ranks that run out of data join") {
  const Workplace place;
  for (const int rank : {0, 1, 2}) {  // 25, 15 and 5 samples
    write_file(place.file("own" + std::to_string(rank)),
               std::string(static_cast<size_t>(41 - 10 * rank), static_cast<char>('x' + rank)));
  }
  const auto losses = [&](const Words& zero) {
    return losses_of(place.train_on(
        "--epochs 2 --batch 2 --width 96 --ranks 3 --join --reproducible --data"_words +
        place.file("own{rank}") + zero));
  };
  const std::vector<double> plain = losses(kPlain);
  CHECK(plain.size() == 26);
  CHECK(plain == losses(kZero));
}

TEST_CASE("zero: the optimizer's state is cut, the bytes that travel are not more") {
  const Workplace place;
  for (const int ranks : {2, 3}) {
    if (kSanitized && ranks != 3) continue;
    const Words flags =
        "--steps 3 --batch 2 --optimizer adamw --bucket-cap-mb 1 --ranks"_words + ranks;
    const json plain = place.train(flags + kPlain)["summary"];
    const ProgramResult run =
        run_ok(flags + kZero + "--data" + place.data() + "--json" + place.file("json"));
    const json zero = read_json(place.file("json"))["summary"];
    const size_t whole = 2 * 4 * 664832;
    CHECK(plain["optimizer_bytes"] == whole);
    CHECK(zero["optimizer_bytes_without_zero"] == whole);
    CHECK(zero["optimizer_bytes"].get<double>() ==
          Approx(static_cast<double>(whole) / ranks).epsilon(0.05));
    CHECK_THAT(run.err, contains("with --zero 0: 5.07"));
    CHECK_THAT(run.err, contains("reduce-scatters during backward"));
    double sum = 0;
    for (const json& bytes : zero["bytes_sent_per_step_by_rank"]) sum += bytes.get<double>();
    CHECK(sum == Approx(ranks * zero["bytes_formula_per_step"].get<double>()).epsilon(0.01));
    CHECK(zero["bytes_formula_per_step"] == plain["bytes_formula_per_step"]);
    double costs_ms = 0;
    for (const json& bucket : zero["buckets"]) {
      CHECK(bucket["gather_cost_ms"].get<double>() > 0);
      costs_ms += bucket["cost_ms"].get<double>() + bucket["gather_cost_ms"].get<double>();
    }
    CHECK(zero["accounting"]["cost_ms"].get<double>() == Approx(costs_ms));
    CHECK(!plain["buckets"][0].contains("gather_cost_ms"));
  }
}

TEST_CASE("zero: the trace shows reduce-scatters in backward, and gathers behind the update") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  place.train(kMlp + kZero + "--ranks 2 --steps 3 --trace"_words + file);
  const json trace = read_json(file);
  for (int step = 1; step <= 3; ++step) {
    const Span reduced = span_of(trace, "reduce-scatter bucket 0", step);
    CHECK(reduced.begin <= span_of(trace, "wait for communication", step).end);
    const Span first = span_of(trace, "all-gather bucket 1", step);
    const Span last = span_of(trace, "all-gather bucket 0", step);
    const Span update = span_of(trace, "optimizer", step);
    const Span wait = span_of(trace, "wait for parameters", step);
    CHECK(reduced.end <= update.begin);
    CHECK(first.begin >= update.begin);
    CHECK(first.end <= last.end);  // the last bucket goes first
    CHECK(last.end <= wait.end);
    if (step == 3) continue;
    // The next samples are fetched before anybody waits for parameters; forward begins behind.
    CHECK(span_of(trace, "data", step + 1).end <= wait.begin + 1);
    CHECK(span_of(trace, "forward", step + 1).begin >= wait.end - 1);
  }
}

// On links so slow that headers are still on their way, after the gathers, when samples are there.
TEST_CASE("zero: samples are read before a step waits for parameters or headers, by every model") {
  const Workplace place;
  write_images(place.file("images"), 40);
  const std::string file = place.file("trace.json");
  for (const Words& more : {Words{}, Words{"--sync-batch-norm"}, Words{"--join"}}) {
    INFO(json(more).dump());
    place.train_on(kCnn + kZero + "--ranks 2 --steps 6 --pace 1GB/s,50ms --trace"_words + file +
                   "--data" + place.file("images") + more);
    const json trace = read_json(file);
    int before_headers = 0;
    for (int step = 2; step <= 6; ++step) {
      const Span data = span_of(trace, "data", step);
      CHECK(data.end <= span_of(trace, "wait for parameters", step - 1).begin + 1);
      if (data.begin < span_of(trace, "all-gather of headers", step).end) ++before_headers;
    }
    CHECK(before_headers > 0);
  }
}

TEST_CASE("zero: every rank writes its shard of a checkpoint") {
  const Workplace place;
  const std::string folder = place.file("checkpoints"), newest = folder + "/step-00000004/";
  place.train(kMlp + kZero + "--ranks 3 --steps 4 --checkpoint-every 1 --checkpoint-dir"_words +
              folder);
  CHECK(names_in(folder) == Names{".lock", "latest", "step-00000003", "step-00000004"});
  CHECK(names_in(newest) == Names{"model.safetensors", "optimizer-0.safetensors",
                                  "optimizer-1.safetensors", "optimizer-2.safetensors",
                                  "state.json"});
  const uintmax_t model = std::filesystem::file_size(newest + "model.safetensors");
  uintmax_t shards = 0;
  for (const std::string rank : {"0", "1", "2"}) {
    const uintmax_t shard =
        std::filesystem::file_size(newest + "optimizer-" + rank + ".safetensors");
    CHECK(shard < model);  // a third of twice as much
    shards += shard;
  }
  CHECK(static_cast<double>(shards) == Approx(2.0 * static_cast<double>(model)).epsilon(0.1));
}

namespace {

/// Six steps at once, against three, and three more by another run of the program.
void check_resume(const Words& flags, const Words& first, const Words& then, bool same_bits) {
  INFO(json(first).dump() << " then " << json(then).dump());
  const Workplace place;
  const Words six = "--steps 6"_words;
  const std::vector<double> whole = losses_of(place.train(flags + first + six));
  const Words folder = {"--checkpoint-dir", place.file("checkpoints")};
  place.train(flags + first + folder + "--steps 3"_words);
  const std::vector<double> rest = losses_of(place.train(flags + then + folder + six + "--resume"));
  REQUIRE(rest.size() == 3);
  for (size_t s = 0; s < 3; ++s) {
    INFO("step " << s + 4);
    CHECK((same_bits ? rest[s] == whole[s + 3] : rest[s] == Approx(whole[s + 3]).epsilon(1e-5)));
  }
}

/// The same global batch for every number of ranks.
Words ranks(int n, const Words& zero) { return zero + "--ranks"_words + n + "--batch" + 12 / n; }

}  // namespace

TEST_CASE("zero: resuming gives the same bits, with shards, without, and with them again") {
  const Words mlp = "--width 96 --optimizer adamw --bucket-cap-mb 0.05 --reproducible"_words;
  check_resume(mlp, ranks(3, kZero), ranks(3, kPlain), true);
  check_resume(mlp, ranks(3, kPlain), ranks(3, kZero), true);
  if (!kSanitized) check_resume(mlp, ranks(3, kZero), ranks(3, kZero), true);
  const Words sgd = "--width 96 --reproducible --momentum 0"_words;  // no state at all
  check_resume(sgd, ranks(2, kZero), ranks(2, kZero), true);
  const Words gpt = kGpt + "--reproducible --dtype fp16 --clip 0.5 --ranks 2"_words;
  check_resume(gpt, kZero, kZero, true);
}

TEST_CASE("zero: resuming on another number of ranks, with or without shards") {
  const Words mlp = "--width 96 --optimizer adamw --bucket-cap-mb 0.05"_words;
  check_resume(mlp, ranks(3, kZero), ranks(2, kZero), false);
  check_resume(mlp, ranks(1, kPlain), ranks(3, kZero), false);
  if (kSanitized) return;  // the same code: shards that are cut anew, and whole states that are
  check_resume(mlp, ranks(2, kZero), ranks(4, kZero), false);
  check_resume(mlp, ranks(4, kZero), ranks(1, kPlain), false);
}

TEST_CASE("zero: validation and saved weights see what all ranks have updated") {
  const Workplace place;
  const auto validated = [&](const Words& zero, const std::string& name) {
    const json document = place.train(
        kGpt + zero + "--ranks 3 --steps 4 --reproducible --validate-every 2 --validation"_words +
        place.data() + "--save-weights" + place.file(name));
    REQUIRE(document["validation"].size() == 2);
    return document["validation"];
  };
  // Paced: who does not wait for parameters finds old ones.
  CHECK(validated(kPlain, "plain") == validated(kZero + "--pace 1GB/s,5ms"_words, "zero"));
  CHECK(read_text(place.file("plain")) == read_text(place.file("zero")));
}

TEST_CASE("zero: a rank that does not see the checkpoints' folder fails all, and the save") {
  const Workplace place;
  const std::string own = "'" + place.file("") + "'$RANK";
  const std::string command = "mkdir -p " + own + " && cd " + own +
                              " && exec '" RONDO_TRAIN "' --data '" + place.data() +
                              "' --width 32 --steps 2 --zero 1 --checkpoint-dir here";
  // Whoever speaks first says all of it.
  check_failed(
      rondo::testing::run_program(Words{RONDO_RUN} + "-n 2 -- sh -c"_words + command, kNoLauncher),
      {"rank 1: ", "all must see it"});
  CHECK(names_in(place.file("0/here")) == Names{".lock"});
}

TEST_CASE("zero: a shard that is missing or another checkpoint's is named") {
  const Workplace place;
  const std::string folder = place.file("checkpoints"), shard = "/optimizer-1.safetensors";
  const Words flags = kMlp + kZero + "--ranks 2 --checkpoint-dir"_words + folder;
  place.train(flags + "--steps 2 --checkpoint-every 1"_words);
  std::filesystem::copy_file(folder + "/step-00000001" + shard, folder + "/step-00000002" + shard,
                             std::filesystem::copy_options::overwrite_existing);
  const Words resumes = flags + "--steps 4 --resume --data"_words + place.data();
  check_refused(resumes, {shard, "does not belong", "step-00000001"});
  std::filesystem::remove(folder + "/step-00000002" + shard);
  check_refused(resumes, {shard, "cannot be opened"});
}

}  // namespace rondo::trainer::zero_test
