// What rank 0 shows on a terminal, as text: every line fits 80 columns, whatever the numbers.
#include "trainer/report/screen.hpp"

#include <sstream>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"

using namespace rondo::trainer;
using nlohmann::ordered_json;
using rondo::testing::contains;

namespace {

size_t lines_within_80_columns(const std::string& text) {
  std::istringstream lines(text);
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    INFO(line);
    CHECK(line.size() < 80);
  }
  return count;
}

/// Of a run whose every time, in milliseconds, is `ms`.
ordered_json summary_of(size_t buckets, double ms) {
  ordered_json rows = ordered_json::array();
  for (size_t b = 0; b < buckets; ++b) {
    rows.push_back({{"bytes", 100 + b},
                    {"algorithm", "two-shot-direct"},
                    {"ready_ms", ms},
                    {"transfer_ms", ms},
                    {"exposed_ms", ms},
                    {"cost_ms", ms},
                    {"predicted_us", 2500}});
  }
  const ordered_json accounting = {
      {"sum_ms", ms}, {"max_ms", ms}, {"compute_ms", ms}, {"cost_ms", ms}, {"slowed_ms", -0.25}};
  return {{"ranks", 4},
          {"cores", 2},
          {"steps", 200},
          {"global_batch", 128},
          {"bytes_sent_per_step_by_rank", {3000000, 3000008}},
          {"bytes_formula_per_step", 3000004.0},
          {"predicted_comm_us", 2500},
          {"comm_us", 1e3 * ms},
          {"hidden_comm_ms", ms},
          {"exposed_comm_ms", ms},
          {"other_wait_ms", ms},
          {"hidden_fraction", 0.5},
          {"step_ms", ms},
          {"compute_ms", ms},
          {"data_wait_ms", ms},
          {"samples_per_s", 1234.5},
          {"final_loss", 2.5},
          {"warnings", {"ranks 0 and 1 read the same data: give each its share of the samples"}},
          {"buckets", rows},
          {"accounting", accounting},
          {"diagnosis", "communication-bound, " + std::string(60, 'x') + " and so on"},
          {"suggestion", "none"}};
}

}  // namespace

TEST_CASE("screen: a step is a line that a person reads") {
  StepRecord record{.step = 7,
                    .epoch = 0,
                    .loss = 2.34567,
                    .lr = 0.02,
                    .samples_per_s = 1234.5,
                    .times = {.step_ms = 3.456, .exposed_comm_ms = 0.123},
                    .gradient_norm = 0,
                    .skipped = false};
  CHECK(step_line(record, 200) ==
        "step   7  loss 2.3457      1234 samples/s   3.46 ms, exposed 0.12");
  record.tokens_per_s = 79008;
  CHECK(step_line(record, 200) ==
        "step   7  loss 2.3457     79008 tokens/s   3.46 ms, exposed 0.12");
  record.epoch = 2;
  record.skipped = true;
  CHECK(step_line(record, 9).ends_with("exposed 0.12  epoch 2  skipped"));
  CHECK(validation_line({.step = 7, .loss = 2.5, .accuracy = 0.256, .samples = 10}) ==
        "step 7  validation: loss 2.5000, accuracy 25.6 % of 10 samples");
}

TEST_CASE("screen: the bar has the rate and the time left, of the steps that this run made") {
  const BarState half{.first_step = 0, .step = 50, .last_step = 100, .loss = 2.5, .elapsed_s = 25};
  CHECK(bar_line(half) == "[" + std::string(13, '#') + std::string(14, '.') +
                              "] step 50 of 100, loss 2.5000, 2 steps/s, 25 s left");
  BarState resumed = half;
  resumed.first_step = 40;
  resumed.last_step = 1000;
  CHECK(bar_line(resumed).ends_with("0.4 steps/s, 39:35 left"));
  BarState ended = half;
  ended.last_step = 50;
  CHECK(
      bar_line(ended).ends_with("[##############################] step 50 of 50, loss 2.5000, "
                                "2 steps/s"));
  // By epochs the last step is only expected.
  ended.last_step = 40;
  CHECK_THAT(bar_line(ended), contains("step 50 of 50"));
  lines_within_80_columns(bar_line(
      {.first_step = 0, .step = 1, .last_step = 100'000'000, .loss = 1234, .elapsed_s = 99}));
}

TEST_CASE("screen: durations") {
  CHECK(duration_in_words(0) == "0 s");
  CHECK(duration_in_words(59.4) == "59 s");
  CHECK(duration_in_words(59.6) == "1:00");
  CHECK(duration_in_words(7384) == "2:03:04");
}

TEST_CASE("screen: the summary is one screen, with a table of the first and the last buckets") {
  const std::string few = summary_screen(summary_of(3, 12.345));
  CHECK(few.find("\n4 ranks on 2 cores, to step 200: loss 2.5000, 1234 samples/s\n") == 0);
  ordered_json of_tokens = summary_of(3, 12.345);
  of_tokens["tokens_per_s"] = 79008;
  CHECK(summary_screen(of_tokens).find(
            "\n4 ranks on 2 cores, to step 200: loss 2.5000, 1234 samples/s, 79008 tokens/s\n") ==
        0);
  of_tokens["interrupted"] = true;
  CHECK(lines_within_80_columns(summary_screen(of_tokens)) > 0);
  CHECK_THAT(few, contains("step      12.35 ms: compute 12.35, exposed 12.35"));
  CHECK_THAT(few, contains("slowed -0.25"));
  CHECK_THAT(few, contains("3000000 to 3000008 bytes by a rank; by the formula 3000004"));
  CHECK_THAT(
      few,
      contains("     2         102  two-shot-direct   12.35    12.35   12.35   12.35     2.500\n"));
  CHECK_THAT(few, contains("\nwarning: ranks 0 and 1"));
  for (const double ms : {0.0, 99.999, 12345.678}) {
    for (const size_t buckets : {1, 8, 9, 100}) {
      INFO(ms << " ms, " << buckets << " buckets");
      CHECK(lines_within_80_columns(summary_screen(summary_of(buckets, ms))) <= 24);
    }
  }
  const std::string many = summary_screen(summary_of(100, 1));
  CHECK_THAT(many, contains("   ... 93 more\n"));
  CHECK_THAT(many, contains("\n     4         104  "));
  CHECK_THAT(many, !contains("\n     5         105  "));
  CHECK_THAT(many, contains("\n    98         198  "));
}

TEST_CASE("screen: a summary of an interrupted run, of one without buckets' times, of no step") {
  ordered_json summary = summary_of(1, 1);
  summary["interrupted"] = true;
  summary["ranks"] = 1;
  CHECK(summary_screen(summary).find("\n1 rank on 2 cores, interrupted at step 200:") == 0);
  summary.erase("accounting");
  summary.erase("diagnosis");
  summary["final_loss"] = nullptr;
  summary["buckets"][0].erase("ready_ms");
  summary["deaths"] = {{{"ranks", {0, 3}}, {"after_step", 57}, {"ranks_left", 2}},
                       {{"ranks", {1}}, {"after_step", 99}, {"ranks_left", 1}}};
  const std::string text = summary_screen(summary);
  CHECK_THAT(text, contains("\nranks 0, 3 died: 2 ranks went on after step 57\n"
                            "rank 1 died: 1 rank went on after step 99\nstep "));
  CHECK_THAT(text, contains("loss -,"));
  CHECK_THAT(text, contains("two-shot-direct       -     1.00"));
}
