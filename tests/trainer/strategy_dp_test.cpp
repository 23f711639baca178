// --strategy dp as a program: the losses of ddp by another road, and the bytes of a star. What only
// ddp has is refused in options_test.cpp.
#include <cmath>

#include "tests/trainer/training_rig.hpp"

namespace rondo::trainer::strategy_dp_test {

using namespace testing;  // NOLINT: the trainer's

namespace {

const Words kDp = "--strategy dp"_words, kDdp = "--strategy ddp"_words;
const Words kSmall = "--ranks 4 --width 32 --batch 2 --steps 5"_words;

/// A path of 101 samples of 16 bytes: no number of ranks from 2 to 4 shares them equally.
std::string write_odd(const Workplace& place) {
  write_file(place.file("odd"), synthetic_text(117, 2));
  return place.file("odd");
}

/// Both strategies with these flags, step by step.
void check_same(const Workplace& place, const Words& flags, double tolerance) {
  const json ddp = place.train_on(flags + kDdp), dp = place.train_on(flags + kDp);
  INFO(json(flags).dump());
  check_same_losses(ddp, dp, tolerance);
  for (size_t s = 0; s < ddp["steps"].size(); ++s) {
    REQUIRE(ddp["steps"][s]["epoch"] == dp["steps"][s]["epoch"]);
    REQUIRE(ddp["steps"][s]["lr"] == dp["steps"][s]["lr"]);
  }
  const json none = json::array(), a = ddp.value("validation", none),
             b = dp.value("validation", none);
  REQUIRE(a.size() == b.size());
  for (size_t v = 0; v < a.size(); ++v) {
    const double one = a[v]["validation_loss"], other = b[v]["validation_loss"];
    CHECK(std::abs(one - other) <= tolerance * std::abs(one));
  }
}

}  // namespace

TEST_CASE("dp has ddp's losses: fp32 1e-6, fp64 1e-12, 1 to 4 ranks", "[again]") {
  const Workplace place;
  const std::string odd = write_odd(place);
  for (const int ranks : {1, 2, 3, 4}) {
    const Words common =
        "--width 32 --batch 3 --steps 20 --clip 1 --data"_words + place.data() + "--ranks" + ranks;
    check_same(place, common + "--validate-every 10 --validation"_words + odd, 1e-6);
    check_same(place, common + "--dtype fp64"_words, 1e-12);
  }
}

TEST_CASE("dp has ddp's losses over epochs that ranks cannot share equally") {
  const Workplace place;
  const Words common =
      "--ranks 3 --width 32 --batch 4 --epochs 3 --dtype fp64 --data"_words + write_odd(place);
  for (const Words& more : {Words{}, Words{"--drop-last"}, "--sampler-tail drop"_words}) {
    check_same(place, common + more, 1e-12);
  }
}

TEST_CASE("dp has ddp's losses with tied weights, dropout, buffers and pictures") {
  const Workplace place;
  write_pictures(place.file("pictures"), "t", 50, 8, 4, 3);
  const Words common = "--ranks 2 --steps 10 --dtype fp64 --data"_words;
  check_same(place,
             common + place.data() +
                 "--model gpt --layers 1 --width 16 --context 8 --batch 2 --dropout 0.1"_words,
             1e-12);
  check_same(place,
             common + place.file("pictures") + "--model cnn --classes 4 --width 4 --batch 4"_words,
             1e-12);
}

TEST_CASE("dp's bytes are a star's: everything leaves rank 0 once for each other rank") {
  const Workplace place;
  const json summary = place.train(kSmall + kDp)["summary"];
  const json& sent = summary["bytes_sent_per_step_by_rank"];
  const double gradients = summary["gradient_bytes_per_step"];
  REQUIRE(sent.size() == 4);
  CHECK(sent[0].get<double>() == summary["bytes_formula_per_step"].get<double>());
  CHECK(sent[0].get<double>() > 3 * gradients);  // the parameters, and the samples
  for (size_t r = 1; r < 4; ++r) CHECK(sent[r].get<double>() == gradients + sizeof(double));
  CHECK(summary["buckets"].size() == 1);
  CHECK(summary["buckets"][0]["algorithm"] == "star");
  // The same fields, so that one table can hold both.
  const json ddp = place.train(kSmall + kDdp)["summary"];
  for (const char* field :
       {"step_ms", "compute_ms", "comm_us", "exposed_comm_ms", "hidden_fraction", "samples_per_s",
        "gradient_bytes_per_step", "bytes_sent_per_step_by_rank", "final_loss", "parameter_hash"}) {
    INFO(field);
    CHECK(summary.contains(field));
    CHECK(ddp.contains(field));
  }
}

// Where a star is dear the tuner would add up round a ring: in another order, with other bits.
TEST_CASE("dp's gradients go by the star whatever the tuner would choose") {
  const Workplace place;
  const Words dear = on_links(place, "peer_us");
  const Words flags = with(kSmall, "--ranks", "3") + "--data" + place.data();
  const json free_choice = place.train_on(flags + kDdp, dear)["summary"];
  CHECK(free_choice["buckets"][0]["algorithm"] == "ring");
  CHECK(hash_of(place.train_on(flags + kDp, dear)) == hash_of(place.train_on(flags + kDp)));
}

TEST_CASE("a diverging loss ends every rank of dp") {
  const Workplace place;
  check_refused("--ranks 2 --width 32 --lr 1e5 --steps 200 --data"_words + place.data() + kDp,
                {"the loss became"});
}

}  // namespace rondo::trainer::strategy_dp_test
