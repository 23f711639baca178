// See lessons.hpp.
#include "trainer/lessons.hpp"

#include <fmt/format.h>

#include <cmath>

namespace rondo::trainer {
namespace {

using Runs = std::vector<LessonRun>;

constexpr size_t kLastSteps = 10;  // whose losses are averaged

std::string digits(double value) { return std::isnan(value) ? "-" : fmt::format("{:.5g}", value); }
std::string milliseconds(double value) { return fmt::format("{:.1f} ms", value); }

bool says(const std::string& text, const char* what) {
  return text.find(what) != std::string::npos;
}

const Lesson::Figure kShowWarnings = {"warnings", [](const LessonRun& r) { return r.warnings(); }};
const Lesson::Figure kShowError = {"error", [](const LessonRun& r) { return r.error(); }};
const Lesson::Figure kShowLoss = {"loss, mean of the last 10 steps", [](const LessonRun& r) {
                                    return digits(r.mean_loss(kLastSteps));
                                  }};
const Lesson::Figure kShowFirstLoss = {
    "loss of step 1", [](const LessonRun& r) { return digits(r.loss_of_step(1)); }};
const Lesson::Figure kShowValidation = {
    "validation loss", [](const LessonRun& r) { return digits(r.validation_loss()); }};
const Lesson::Figure kShowSteps = {
    "steps made", [](const LessonRun& r) { return r.succeeded ? std::to_string(r.steps()) : "-"; }};
const Lesson::Figure kShowExposed = {"exposed_comm_ms (measured)", [](const LessonRun& r) {
                                       return digits(r.number("/summary/exposed_comm_ms"));
                                     }};
const Lesson::Figure kShowPredicted = {"predicted_comm_us", [](const LessonRun& r) {
                                         return digits(r.number("/summary/predicted_comm_us"));
                                       }};
const Lesson::Figure kShowReductions = {
    "all-reduces per step", [](const LessonRun& r) { return std::to_string(r.buckets()); }};

Lesson same_data() {
  return {
      .name = "same-data",
      .broken = "every rank reads rank 0's samples, as with a sampler that was not told its rank",
      .common = {"--ranks", "2", "--data", "{folder}/text", "--width", "64", "--batch", "8",
                 "--steps", "40"},
      .variants = {{"healthy", {}}, {"same data", {"--break", "same-data"}}},
      .figures = {kShowWarnings, kShowLoss},
      .shows =
          [](const Runs& runs) {
            return runs[0].warnings() == "none" &&
                   says(runs[1].warnings(), "ranks 0 and 1 read the same data");
          },
      .look_first =
          "the rank and the number of ranks that the sampler was made with. The loss falls, "
          "only more slowly than it should: N ranks learn what one would have learned, and nothing "
          "but the warning tells."};
}

Lesson no_set_epoch() {
  return {.name = "no-set-epoch",
          .broken =
              "the sampler is not told that an epoch has begun: every one has the first one's "
              "order",
          .common = {"--ranks", "2", "--data", "{folder}/short", "--width", "64", "--batch", "16",
                     "--epochs", "4"},
          .variants = {{"healthy", {}}, {"no set_epoch", {"--break", "no-set-epoch"}}},
          .figures = {kShowWarnings, kShowLoss},
          .shows =
              [](const Runs& runs) {
                return runs[0].warnings() == "none" &&
                       says(runs[1].warnings(), "begins epoch 0 again") &&
                       runs[0].loss_of_step(1) == runs[1].loss_of_step(1);
              },
          .look_first =
              "whether set_epoch(epoch) is called before each epoch, on every rank. The "
              "same batches then come in the same order for ever."};
}

Lesson uneven_inputs() {
  return {.name = "uneven-inputs",
          .broken = "rank 1 has fewer samples than rank 0, and nobody said what then",
          .common = {"--ranks", "2", "--data", "{folder}/share-{rank}", "--width", "64", "--batch",
                     "16", "--epochs", "1"},
          .variants = {{"healthy: --join", {"--join"}}, {"without --join", {}}},
          .figures = {kShowSteps, kShowError},
          .shows =
              [](const Runs& runs) {
                return runs[0].succeeded && !runs[1].succeeded &&
                       says(runs[1].error(), "uneven inputs") && says(runs[1].error(), "rank 1");
              },
          .look_first =
              "how many samples each rank has. Give all the same (files of equal length, or one "
              "--data for all), or let who has ended go on with empty batches (--join)."};
}

Lesson no_buckets() {
  return {.name = "no-buckets",
          .broken = "a bucket cap of 0: an all-reduce for every tensor, each with its own latency",
          .common = {"--ranks", "2", "--model", "gpt", "--data", "{folder}/text", "--width", "64",
                     "--context", "16", "--batch", "2", "--steps", "6", "--pace", "1GB/s,2ms"},
          .variants = {{"25 MiB buckets", {}}, {"cap 0", {"--bucket-cap-mb", "0"}}},
          .figures = {kShowReductions, kShowPredicted, kShowExposed},
          .shows =
              [](const Runs& runs) {
                // 2 ms of latency in each one of 50, of which at most a few fit into backward.
                return runs[1].buckets() > 5 * runs[0].buckets() &&
                       runs[1].number("/summary/predicted_comm_us") >
                           5 * runs[0].number("/summary/predicted_comm_us");
              },
          .look_first =
              "--bucket-cap-mb, and 'all-reduces per step' times the latency of one (--pace "
              "here, the network elsewhere).",
          .exposes_more = true};
}

Lesson no_overlap() {
  return {.name = "no-overlap",
          .broken =
              "all-reduces only start when backward has ended, though most gradients have long "
              "been final",
          .common = {"--ranks", "2", "--data", "{folder}/text", "--layers", "4", "--width", "256",
                     "--batch", "32", "--steps", "10", "--bucket-cap-mb", "0.25", "--pace",
                     "1GB/s,20us", "--trace", "{folder}/{run}.trace"},
          .variants = {{"overlap", {}}, {"--no-overlap", {"--no-overlap"}}},
          .figures = {{"bucket all-reduces begun",
                       [](const LessonRun& r) { return std::to_string(r.bucket_starts().all); }},
                      {"of these before backward ended",
                       [](const LessonRun& r) {
                         return std::to_string(r.bucket_starts().during_backward);
                       }},
                      kShowExposed},
          .shows =
              [](const Runs& runs) {
                const LessonRun::Starts with = runs[0].bucket_starts(),
                                        without = runs[1].bucket_starts();
                return with.all > 0 && with.during_backward == with.all &&
                       without.all == with.all && without.during_backward == 0;
              },
          .look_first =
              "the trace: do the buckets' rows begin under backward, or under the wait behind "
              "it? Then --no-overlap, a cap so large that there is one bucket, or a layer "
              "that says too late that its gradient is final.",
          .exposes_more = true};
}

Lesson local_batch_norm() {
  return {
      .name = "local-batch-norm",
      .broken =
          "each rank normalises by the statistics of its own two pictures instead of all "
          "eight",
      .common = {"--model", "cnn", "--classes", "4", "--width", "8", "--data", "{folder}/pictures",
                 "--validation", "{folder}/validation", "--steps", "60", "--lr", "0.02"},
      .variants = {{"--sync-batch-norm", {"--ranks", "4", "--batch", "2", "--sync-batch-norm"}},
                   {"local", {"--ranks", "4", "--batch", "2"}},
                   {"one rank", {"--ranks", "1", "--batch", "8"}}},
      .figures = {kShowFirstLoss, kShowLoss, kShowValidation},
      .shows =
          [](const Runs& runs) {
            const double one = runs[2].loss_of_step(1);
            const double kept = std::abs(runs[0].loss_of_step(1) - one);
            const double lost = std::abs(runs[1].loss_of_step(1) - one);
            return kept < 1e-4 * one && lost > 1e-2 * one &&
                   runs[1].validation_loss() > 1.5 * runs[0].validation_loss();
          },
      .look_first =
          "samples per rank (--batch): below about 16, batch norm should see all ranks' "
          "(--sync-batch-norm). Before that, whether N ranks have the loss of one rank "
          "with N times the batch in step 1: without batch norm they do."};
}

Lesson wrong_learning_rate() {
  return {.name = "wrong-learning-rate",
          .broken =
              "four ranks made the batch four times as large, and the rate was not adapted, or "
              "far too much",
          .common = {"--ranks", "4", "--data", "{folder}/text", "--width", "64", "--batch", "8",
                     "--steps", "80"},
          .variants = {{"4 times the rate",
                        {"--lr", "0.02", "--lr-scale", "linear", "--base-batch", "8"}},
                       {"the old rate", {"--lr", "0.02"}},
                       {"256 times", {"--lr", "5.12"}}},
          .figures = {kShowLoss,
                      kShowError,
                      {"lr of step 1",
                       [](const LessonRun& r) { return digits(r.number("/steps/0/lr")); }}},
          .shows =
              [](const Runs& runs) {
                const double good = runs[0].mean_loss(kLastSteps);
                const bool slow = runs[1].mean_loss(kLastSteps) > 1.1 * good;
                const bool lost = says(runs[2].error(), "the loss became") ||
                                  runs[2].mean_loss(kLastSteps) > 2 * good;
                return slow && lost;
              },
          .look_first =
              "the line 'global batch' at the start, and which batch --lr was found for: "
              "--lr-scale linear --base-batch B follows it; --warmup if the first steps blow "
              "up."};
}

Lesson straggler() {
  return {.name = "straggler",
          .broken = "the last rank takes 200 ms longer in every step",
          .common = {"--ranks", "2", "--data", "{folder}/text", "--width", "64", "--batch", "8",
                     "--steps", "8", "--trace", "{folder}/{run}.trace"},
          .variants = {{"healthy", {}}, {"slow rank 1", {"--break", "straggler"}}},
          .figures = {kShowExposed,
                      {"rank 0 waits (median)",
                       [](const LessonRun& r) {
                         return milliseconds(r.ms_per_step(0, "wait for all-reduces"));
                       }},
                      {"rank 1 waits (median)",
                       [](const LessonRun& r) {
                         return milliseconds(r.ms_per_step(1, "wait for all-reduces"));
                       }}},
          .shows =
              [](const Runs& runs) {
                // What was put in is 200 ms; half of it separates who waits from who is waited for.
                return runs[1].ms_per_step(0, "wait for all-reduces") > 100 &&
                       runs[1].ms_per_step(1, "wait for all-reduces") < 100;
              },
          .look_first =
              "the trace of all ranks: everybody waits for the rank that itself waits least. "
              "A large exposed_comm_ms is then no matter of the network: no bucket cap will "
              "help."};
}

Lesson star() {
  return {
      .name = "star",
      .broken =
          "everything goes through rank 0, as in DataParallel: samples and parameters out, "
          "gradients back",
      .common = {"--ranks", "4", "--data", "{folder}/text", "--width", "128", "--batch", "8",
                 "--steps", "10", "--pace", "1GB/s,20us"},
      .variants = {{"ddp", {}}, {"dp", {"--strategy", "dp"}}},
      .figures = {{"rank 0 sends, bytes per step",
                   [](const LessonRun& r) { return fmt::format("{:.0f}", r.bytes_of_root()); }},
                  {"others send at most",
                   [](const LessonRun& r) { return fmt::format("{:.0f}", r.bytes_of_others()); }},
                  {"loss of the last step",
                   [](const LessonRun& r) { return digits(r.number("/summary/final_loss")); }},
                  kShowExposed},
      .shows =
          [](const Runs& runs) {
            const double same = runs[0].number("/summary/final_loss");
            return runs[1].bytes_of_root() > 2.5 * runs[1].bytes_of_others() &&
                   runs[0].bytes_of_root() < 1.5 * runs[0].bytes_of_others() &&
                   std::abs(runs[1].number("/summary/final_loss") - same) < 1e-4 * same;
          },
      .look_first =
          "bytes_sent_per_step_by_rank: one rank with N times the others' is a star, "
          "whose time grows with every rank that is added. The losses are the same.",
      .exposes_more = true};
}

}  // namespace

std::string not_judged(const Lesson& lesson, const std::vector<LessonRun>& runs) {
  const double healthy = runs[0].number("/summary/exposed_comm_ms");
  const double broken = runs[1].number("/summary/exposed_comm_ms");
  if (!lesson.exposes_more || !(healthy > broken)) return {};
  return "Not judged: exposed_comm_ms, which is less in the broken run: the machine was busy with "
         "something else. Repeat it when it is not";
}

const std::vector<Lesson>& lessons() {
  static const std::vector<Lesson> kAll = {
      same_data(), no_set_epoch(),     uneven_inputs(),       no_buckets(), no_overlap(),
      straggler(), local_batch_norm(), wrong_learning_rate(), star()};
  return kAll;
}

}  // namespace rondo::trainer
