// One rank's model and what is as large as it: with shards the optimizer keeps the own share only,
// which is what ZeRO-1 is for.
#include "trainer/optim/weights.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <latch>
#include <thread>

#include "tests/trainer/ddp_rig.hpp"
#include "trainer/models/gpt.hpp"
#include "trainer/models/mlp.hpp"
#include "trainer/step/step.hpp"

using namespace rondo;
using namespace rondo::testing;
using trainer::TrainOptions;
using trainer::Weights;

namespace {

TrainOptions adamw(int zero, double bucket_cap_mb) {
  TrainOptions options;
  options.optimizer = "adamw";
  options.weight_decay = 0;
  options.zero = zero;
  options.bucket_cap_mb = bucket_cap_mb;
  return options;
}

Weights<float> make(Communicator& communicator, trainer::Model<float>& model,
                    const TrainOptions& options) {
  auto weights = Weights<float>::create(model, communicator, options);
  ok(weights.status());
  ok(weights->replicate());
  return std::move(weights).value();
}

/// Its last tensor is a second gradient, which no optimizer sees.
std::unique_ptr<trainer::Model<float>> small_gpt() {
  return trainer::make_gpt<float>({.layers = 1, .width = 16, .heads = 2, .context = 8, .batch = 1});
}

/// Runs `body` on ranks that have begun a step.
void with_step(int ranks, int zero, const std::function<void(int, Weights<float>&)>& body) {
  with_ranks(ranks, [&](Communicator& communicator) {
    const auto model = trainer::make_mlp<float>({.layers = 1, .width = 128, .batch = 1});
    Weights<float> weights = make(communicator, *model, adamw(zero, 0.05));
    ok(weights.ddp().begin({.loss_terms = 1}));
    body(communicator.rank(), weights);
  });
}

/// Runs `body` on ranks whose gradients are averaged and all one, before the update.
void with_gradients(int ranks, int zero, const std::function<void(int, Weights<float>&)>& body) {
  with_step(ranks, zero, [&](int rank, Weights<float>& weights) {
    Ddp& ddp = weights.ddp();
    set_gradients(ddp, 1);
    all_ready(ddp);
    ok(ddp.finish());
    body(rank, weights);
  });
}

}  // namespace

// The first update does not depend on the betas: it corrects for them.
TEST_CASE("weights: AdamW keeps as much of its means as the run says") {
  with_ranks(1, [&](Communicator& communicator) {
    TrainOptions options = adamw(0, 25);
    options.beta1 = 0.5;
    options.beta2 = 0.25;
    const auto model = trainer::make_mlp<float>({.layers = 1, .width = 16, .batch = 1});
    Weights<float> weights = make(communicator, *model, options);
    Ddp& ddp = weights.ddp();
    double before = 0;
    for (const float gradient : {1.0f, 3.0f}) {
      before = parameters_of(ddp)[0];
      ok(ddp.begin({.loss_terms = 1}));
      set_gradients(ddp, gradient);
      all_ready(ddp);
      ok(ddp.finish());
      ok(weights.update(0.1, 0).status());
    }
    const auto state = weights.optimizer().state();
    expect(state[0].second[0] == 0.5f * 0.5f + 0.5f * 3, "the mean");
    expect(state[1].second[0] == 0.25f * 0.75f + 0.75f * 9, "the mean of squares");
    const double mean = 1.75 / (1 - 0.25), square = 6.9375 / (1 - 0.0625);
    const double moved = parameters_of(ddp)[0] - before;
    expect_near(moved, -0.1 * mean / std::sqrt(square), 1e-6, "the parameter's move");
  });
}

TEST_CASE("weights: an update touches the optimizer's state where the rank owns it, nowhere else") {
  for (const int zero : {0, 1}) {
    with_gradients(3, zero, [&](int, Weights<float>& weights) {
      Ddp& ddp = weights.ddp();
      expect(weights.update(0.1, 0).ok(), "update");
      expect(weights.await_parameters().ok(), "parameters");
      std::vector<bool> own(ddp.parameter_elements());
      for (const DdpRange& range : ddp.own_ranges()) {
        for (size_t i = range.begin; i < range.end; ++i) own[i] = true;
      }
      size_t touched = 0;
      for (size_t t = 0; t < ddp.tensors().size(); ++t) {
        for (size_t i = ddp.offset(t); i < ddp.offset(t) + ddp.tensors()[t].count(); ++i) {
          for (const auto& [name, values] : weights.optimizer().state()) {
            expect(own[i] == (values[i] != 0), name + " of element " + std::to_string(i));
          }
          touched += own[i] ? 1 : 0;
          expect(ddp.parameter<float>(0)[i] != 0, "a parameter that nobody updated");
        }
      }
      const size_t all = ddp.parameter_elements();
      expect(zero == 0 ? touched > all * 9 / 10 : touched < all / 2, "the share's size");
    });
  }
}

// Rank 1 does not take part before rank 0's update has returned: what rank 0 gathers is on its way
// while it goes on.
TEST_CASE("weights: with shards a bucket's parameters travel while the next bucket is updated") {
  std::latch updated(1);
  with_gradients(2, 1, [&](int rank, Weights<float>& weights) {
    Ddp& ddp = weights.ddp();
    if (rank == 1) updated.wait();
    expect(weights.update(0.1, 0).ok(), "update");
    if (rank == 0) updated.count_down();
    expect(weights.await_parameters().ok(), "parameters");
    const size_t buckets = ddp.layout().size();
    expect(buckets > 2, "buckets");
    for (size_t b = buckets; b-- > 1;) {
      const int64_t issued_ns = ddp.gather_times()[b].issued_ns;
      expect(issued_ns >= weights.bucket_updates()[b].end_ns, "a gather before its update");
      expect(issued_ns <= weights.bucket_updates()[b - 1].begin_ns,
             "a gather behind others' updates");
    }
  });
}

// Rank 1 comes late with its last gradient, by a time that may be too short for rank 0 on a busy
// machine: then it tries again.
TEST_CASE("weights: a rank that waits for another one updates what is reduced meanwhile") {
  std::atomic<int64_t> updated_ns = 0, ready_ns = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    with_step(2, 0, [&](int rank, Weights<float>& weights) {
      Ddp& ddp = weights.ddp();
      const size_t last = ddp.tensors().size() - 1;
      for (size_t t = 0; t < last; ++t) ddp.gradient_ready(t);
      ok(ddp.communicator().barrier());
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50 << std::min(attempt, 5)));
        ready_ns = rondo::testing::now_ns();
      }
      ddp.gradient_ready(last);
      trainer::StepClock clock(ddp);
      ok(wait_and_update(weights, 0.1, 0, clock).status());
      if (rank == 0) updated_ns = weights.bucket_updates().front().end_ns;
    });
    if (updated_ns < ready_ns) return;
  }
  FAIL("no bucket was updated before the last gradient was there");
}

TEST_CASE(
    "weights: wait_and_update() moves parameters as finish() and update() do, clipped or not") {
  for (const int zero : {0, 1}) {
    for (const double max_norm : {0.0, 0.5}) {
      with_ranks(2, [&](Communicator& communicator) {
        std::vector<std::vector<float>> parameters;
        for (const bool apart : {false, true}) {
          const auto model = small_gpt();
          Weights<float> weights = make(communicator, *model, adamw(zero, 0.001));
          weights.initialise_parameters(1);
          Ddp& ddp = weights.ddp();
          for (int step = 0; step < 2; ++step) {
            ok(ddp.begin({.loss_terms = 1}));
            for (size_t i = 0; i < ddp.gradient_elements(); ++i) {
              gradients_of(ddp)[i] = static_cast<float>(communicator.rank() + i % 7 + 1);
            }
            all_ready(ddp);
            if (apart) {
              ok(ddp.finish());
              ok(weights.update(0.1, max_norm).status());
            } else {
              trainer::StepClock clock(ddp);
              ok(wait_and_update(weights, 0.1, max_norm, clock).status());
            }
            ok(weights.await_parameters().status());
            expect(weights.gradients_cleared() == (zero == 0), "cleared");
          }
          parameters.emplace_back(parameters_of(ddp),
                                  parameters_of(ddp) + ddp.parameter_elements());
        }
        expect(parameters[0] == parameters[1], "other parameters");
      });
    }
  }
}

// What the next step's backward adds to.
TEST_CASE("weights: gradients are cleared by an update without shards, and are said to be") {
  for (const int zero : {0, 1}) {
    with_ranks(2, [&](Communicator& communicator) {
      const auto model = small_gpt();
      Weights<float> weights = make(communicator, *model, adamw(zero, 25));
      Ddp& ddp = weights.ddp();
      const auto are_zeros = [&] {
        return std::all_of(gradients_of(ddp), gradients_of(ddp) + ddp.gradient_elements(),
                           [](float g) { return g == 0; });
      };
      expect(ddp.tensors().back().adds_to >= 0, "a second gradient");
      expect(weights.gradients_cleared(), "at the start");
      ok(ddp.begin({.loss_terms = 1}));
      for (size_t t = 0; t < ddp.tensors().size(); ++t) {
        std::fill_n(ddp.gradient<float>(t), ddp.tensors()[t].count(), 1.0f);
      }
      all_ready(ddp);
      ok(ddp.finish());
      ok(weights.update(0.1, 0).status());
      ok(weights.await_parameters().status());
      expect(weights.gradients_cleared() == (zero == 0), "what is said");
      expect(are_zeros() == (zero == 0), "what is");
      weights.clear_gradients();
      expect(weights.gradients_cleared() && are_zeros(), "after clearing");
    });
  }
}
