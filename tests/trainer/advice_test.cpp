// What is concluded from measured times, on made-up ones: the step recurrence, the cap it suggests,
// who comes last, the sentence of diagnosis, and the rows of a scaling table.
#include "trainer/report/advice.hpp"

#include <functional>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "trainer/cli/scaling.hpp"
#include "trainer/report/accounting.hpp"
#include "trainer/report/measurements.hpp"
#include "trainer/report/prediction.hpp"
#include "trainer/step/control.hpp"

using namespace rondo;
using namespace rondo::trainer;
using rondo::testing::contains;

namespace {

/// Ten layers of 1 MiB whose gradients become final every 10 ms.
StepModel ten_layers(double latency_ms, double ms_per_mib) {
  StepModel model{.tensors = {},
                  .element_bytes = 4,
                  .ready = {},
                  .backward_ms = 100,
                  .cost_ms = [=](const DdpBucket& bucket) {
                    return latency_ms + ms_per_mib * static_cast<double>(bucket.count) / (1 << 18);
                  }};
  for (size_t t = 0; t < 10; ++t) {
    model.tensors.push_back({.name = "layer" + std::to_string(t), .shape = {512, 512}});
    model.ready.push_back({.tensor = t, .count = 512 * 512, .ms = 10.0 * double(t + 1)});
  }
  return model;
}

/// Communication costs 30 of a step of 130 ms, 20 of them exposed.
Observed step() {
  return {.ranks = 4,
          .step_ms = 130,
          .data_wait_ms = 1,
          .backward_ms = 60,
          .hidden_fraction = 1 / 3.0,
          .exposed_ms = 20,
          .latency_ms = 0.1,
          .buckets = {{1'000'000, 10, 5, "a"}, {8'000'000, 30, 15, "b"}, {8'000'000, 50, 10, "c"}},
          .lateness = {}};
}

TEST_CASE(
    "hidden is the time that overlap saves, at most all communication, unless noise is larger") {
  // Passes of 20 ms and 5 ms of communication, in steps of `step_ms` that compute for `compute_ms`.
  const auto hidden = [](double step_ms, double compute_ms, double cost_ms = 5) {
    nlohmann::ordered_json summary = {{"step_ms", step_ms},
                                      {"data_wait_ms", 0.0},
                                      {"compute_ms", compute_ms},
                                      {"hidden_comm_ms", nullptr},
                                      {"hidden_fraction", nullptr}};
    account_on_device({.steps = 4, .pass_ms = 20, .cost_ms = cost_ms}, 0, summary);
    return summary["hidden_comm_ms"];
  };
  CHECK(hidden(22, 21) == 3);
  CHECK(hidden(19.5, 19.5) == 5);        // no more than all of it
  CHECK(hidden(27, 26) == -2);           // overlap makes the step longer
  CHECK(hidden(15, 14).is_null());       // the control steps were disturbed
  CHECK(hidden(20, 20, 0.9).is_null());  // communication takes too little
}

TEST_CASE("a tenth of the steps are control steps, if there are enough") {
  const auto count = [](auto change, uint64_t samples = 1000, int ranks = 2) {
    TrainOptions options;
    options.batch = 10;
    change(options);
    return control_steps_of(options, samples, ranks);
  };
  CHECK(count([](auto& o) { o.steps = 29; }) == 0);
  CHECK(count([](auto& o) { o.steps = 30; }) == 3);
  CHECK(count([](auto& o) { o.steps = 1000; }) == 10);
  CHECK(count([](auto& o) { o.epochs = 1; }) == 5);  // 50 steps
  CHECK(count([](auto& o) { o.epochs = 1; }, 500) == 0);
  CHECK(count([](auto& o) { o.epochs = 1, o.data = "part-{rank}"; }, 500) == 3);
  CHECK(count([](auto& o) { o.steps = 1000, o.layer_drop = 0.1; }) == 0);
  CHECK(count([](auto& o) { o.steps = 1000, o.strategy = "dp"; }) == 0);
  CHECK(count([](auto& o) { o.steps = 1000; }, 1000, 1) == 0);
  CHECK(count([](auto& o) { o.steps = 10, o.control_steps = 7; }) == 7);
}

}  // namespace

TEST_CASE("prediction: a bucket waits for its gradients and for the bucket before it") {
  // 0: 10..30. 1: ready at 20, waits until 30, ends at 50. 2: 90..110, 10 past the end.
  CHECK(exposed_ms({{10, 20}, {20, 20}, {90, 20}}, 100) == Approx(10));
  CHECK(exposed_ms({{10, 20}, {20, 20}, {40, 20}}, 100) == 0);
  CHECK(exposed_ms({}, 100) == 0);
  const auto replayed = replay({{10, 20}, {20, 20}, {90, 20}}, 100);
  REQUIRE(replayed.size() == 3);
  CHECK(replayed[1].launch_ms == 30);
  CHECK(replayed[1].finish_ms == 50);
  CHECK(replayed[1].exposed_ms == 0);
  CHECK(replayed[2].exposed_ms == Approx(10));
}

TEST_CASE("prediction: a bucket's update hides what travels behind it") {
  // 0 is updated until 100, when 1 has ended; that is updated until 103, and 2 ends at 110.
  CHECK(exposed_ms({{10, 20, 5}, {90, 10, 3}, {100, 10, 3}}, 95) == Approx(7));
  CHECK(exposed_ms({{10, 20, 50}, {90, 20, 3}}, 100) == 0);
  StepModel model = ten_layers(0.5, 2);
  model.update_ms = 20;  // 2 of each layer: 18 of them before the last one's 2.5 have ended
  CHECK(predict_cap(model, 0).exposed_ms == 0);
  model.update_ms = 1;
  CHECK(predict_cap(model, 0).exposed_ms == Approx(2.5 - 0.9));
  // A second gradient of the first layer, 0.5 + 2 ms behind the last: what it is added to is
  // updated behind it, and itself never.
  model.tensors.push_back({.name = "rows", .shape = model.tensors[0].shape, .adds_to = 0});
  model.ready.push_back({.tensor = 10, .count = model.tensors[0].count(), .ms = 100});
  CHECK(predict_cap(model, 0).exposed_ms == Approx(5 - 0.8 - 0.1));
}

TEST_CASE("prediction: a cap of 0 pays every tensor's latency, a cap of all waits for the last") {
  // One per tensor: all but the last hide behind the next; 0.5 + 2 ms are left.
  const StepModel cheap = ten_layers(0.5, 2);
  CHECK(predict_cap(cheap, 0).buckets == 10);
  CHECK(predict_cap(cheap, 0).exposed_ms == Approx(2.5));
  // Each takes 14 ms: a backlog of 4 per layer grows to 10 + 10 x 14 - 100.
  CHECK(predict_cap(ten_layers(12, 2), 0).exposed_ms == Approx(50));
  // First and last are small: 1, 8 and 1 MiB; the middle's 16 ms begin at 90, the last waits.
  const CapPrediction whole = predict_cap(cheap, 100);
  CHECK(whole.buckets == 3);
  CHECK(whole.exposed_ms == Approx(90 + 16.5 + 2.5 - 100));
}

TEST_CASE("prediction: a panel is ready with the first report that covers it") {
  StepModel model{.tensors = {{.name = "w", .shape = {4096, 512}}},  // 8 MiB
                  .element_bytes = 4,
                  .ready = {{.tensor = 0, .count = 2048 * 512, .ms = 10},
                            {.tensor = 0, .count = 4096 * 512, .ms = 20}},
                  .backward_ms = 20,
                  .cost_ms = [](const DdpBucket&) { return 1.0; }};
  const CapPrediction halves = predict_cap(model, 1);
  CHECK(halves.buckets == 8);
  // Four end at 14, four begin at 20.
  CHECK(halves.exposed_ms == Approx(4));
  model.ready.clear();  // nothing known: ready at the end
  CHECK(predict_cap(model, 1).exposed_ms == Approx(8));
}

// Ten layers of 1 MiB are updated in 20 ms, 2 ms each, the last first; samples take 1 ms more.
TEST_CASE("prediction: with ZeRO-1 parameters are gathered behind their update") {
  StepModel model = ten_layers(0.5, 2);
  model.update_ms = 20;
  model.fetch_ms = 1;
  model.gather_cost_ms = [](const DdpBucket& bucket) {
    return 0.5 * static_cast<double>(bucket.count) / (1 << 18);
  };
  constexpr double alone = 2.5;  // the last layer's all-reduce
  // Each is gathered before the next is updated; the last ends at 20.5.
  CHECK(predict_cap(model, 0).exposed_ms == Approx(alone));
  // Each takes 6 ms: 2 + 10 x 6, of which 21 are hidden.
  model.gather_cost_ms = [](const DdpBucket&) { return 6.0; };
  CHECK(predict_cap(model, 0).exposed_ms == Approx(alone + 62 - 21));
  // 1, 8 and 1 MiB: updated at 2, 18 and 20, gathered until 8, 24 and 30.
  CHECK(predict_cap(model, 100).exposed_ms ==
        Approx(predict_cap(ten_layers(0.5, 2), 100).exposed_ms + 30 - 21));
  // Looked-up rows hold no parameters.
  model.gather_cost_ms = [](const DdpBucket& bucket) {
    return bucket.pieces.front().tensor == 9 ? 0.0 : 6.0;
  };
  CHECK(predict_cap(model, 0).exposed_ms == Approx(alone + 20.0 / 9 + 9 * 6 - 21));
}

TEST_CASE("prediction: latency wants large buckets, bandwidth small ones, a tie the larger") {
  const auto caps_of = [](const std::vector<CapPrediction>& predictions) {
    std::vector<double> caps;
    for (const CapPrediction& p : predictions) caps.push_back(p.cap_mb);
    return caps;
  };
  const std::vector<CapPrediction> slow_start = predict_caps(ten_layers(20, 0.1));
  CHECK(caps_of(slow_start) == std::vector<double>{0, 0.25, 0.5, 1, 2, 5, 11});
  CHECK(suggested(slow_start, 100).cap_mb >= 2);
  CHECK(suggested(slow_start, 100).exposed_ms < slow_start[0].exposed_ms);

  const std::vector<CapPrediction> slow_wire = predict_caps(ten_layers(0.01, 9));
  CHECK(suggested(slow_wire, 100).cap_mb <= 1);
  CHECK(suggested(slow_wire, 100).exposed_ms < slow_wire.back().exposed_ms);

  const std::vector<CapPrediction> tie = {{0, 9, 5}, {1, 4, 2}, {2, 3, 2.001}, {5, 2, 3}};
  CHECK(suggested(tie, 0).cap_mb == 2);
  CHECK(suggested(tie, 100).cap_mb == 2);
  CHECK(suggested(tie, 200).cap_mb == 5);  // 1 ms more is 0.5 % of backward
  CHECK(is_better(tie[1], tie[0], 100));
  CHECK_FALSE(is_better(tie[1], tie[2], 0));  // the same as the one in use: that is right
  CHECK_FALSE(is_better(tie[1], tie[3], 200));
  CHECK_FALSE(is_better(tie[0], tie[1], 0));
}

TEST_CASE("measurements: what is under way is hidden, but for where the thread waited") {
  const auto work = [](int64_t issued, int64_t ended) {
    return Work::Times{.issued_ns = issued, .started_ns = issued, .ended_ns = ended};
  };
  UnderWay under_way({{100, 200}});
  under_way.add(work(10, 20));    // hidden
  under_way.add(work(30, 60));    // hidden
  under_way.add(work(40, 50));    // ended with the one before: no time of its own
  under_way.add(work(80, 120));   // 20 of it before the wait
  under_way.add(work(90, 150));   // 30 behind the one before
  under_way.add(work(180, 230));  // 30 of it behind the wait
  CHECK(under_way.ns() == 10 + 30 + 40 + 30 + 50);
  CHECK(under_way.exposed_ns() == 20 + 30 + 20);
  CHECK(UnderWay({{1, 2}}).ns() == 0);

  UnderWay between_updates({{100, 110}, {140, 200}});
  between_updates.add(work(90, 150));
  CHECK(between_updates.exposed_ns() == 10 + 10);
  CHECK(without({100, 200}, {{110, 140}, {20, 30}}) ==
        std::vector<Interval>{{100, 110}, {140, 200}});
  CHECK(without({100, 200}, {{150, 200}, {90, 120}}) == std::vector<Interval>{{120, 150}});
  CHECK(without({100, 200}, {{100, 200}}).empty());
  CHECK(without({100, 200}, {{200, 300}}) == std::vector<Interval>{{100, 200}});
}

TEST_CASE("measurements: medians of the last steps, each all-reduce from its turn on") {
  constexpr int64_t kMs = 1'000'000;
  Measurements measured(2);
  CHECK(measured.empty());
  for (const int64_t begin : {1000 * kMs, 2000 * kMs, 3000 * kMs}) {
    measured.backward_begins(begin);  // of a micro-batch that is only accumulated
    measured.gradient_ready(0, 5, begin + 1 * kMs);
    measured.backward_begins(begin + 10 * kMs);
    measured.gradient_ready(0, 5, begin + 20 * kMs);
    measured.gradient_ready(1, 3, begin + 40 * kMs);
    measured.step_ends(
        {.begin_ns = begin,
         .end_ns = begin + 100 * kMs,
         .data_wait_ns = 5 * kMs,
         .begin_wait_ns = 1 * kMs,
         .parameter_wait_ns = 4 * kMs,
         .header_wait_ns = 2 * kMs,
         .backward_end_ns = begin + 50 * kMs,
         // Updates the first bucket until 54, waits, updates the second from 75 on.
         .waits = {{begin + 54 * kMs, begin + 75 * kMs}},
         .exposed_ns = 25 * kMs},
        {{begin + 20 * kMs, {begin + 22 * kMs, begin + 23 * kMs, begin + 43 * kMs}},
         // Issued while the first is under way: its turn comes at 43.
         {begin + 40 * kMs, {begin + 40 * kMs, begin + 41 * kMs, begin + 75 * kMs}}});
  }
  const std::vector<GradientTime> gradients = measured.gradients();
  REQUIRE(gradients.size() == 2);
  CHECK(gradients[0].ms == Approx(10));
  CHECK(gradients[1].ms == Approx(30));
  const std::vector<BucketMedians> b = measured.buckets();
  REQUIRE(b.size() == 2);
  CHECK(b[0].ready_ms == Approx(10));
  CHECK(b[0].waited_ms == Approx(2));
  CHECK(b[0].queued_ms == Approx(1));
  CHECK(b[0].transfer_ms == Approx(20));
  CHECK(b[0].exposed_ms == Approx(0));
  CHECK(b[1].queued_ms == Approx(3));
  CHECK(b[1].transfer_ms == Approx(32));
  CHECK(b[1].hidden_ms == Approx(7 + 4));
  CHECK(b[1].exposed_ms == Approx(21));
  CHECK(measured.backward_ms() == Approx(40));
  CHECK(measured.optimizer_ms() == Approx(4 + 25));
  CHECK(measured.parameter_wait_ms() == Approx(4));
  CHECK(measured.step_ms() == Approx(95));
  CHECK(measured.compute_ms() == Approx(100 - 5 - 1 - 4 - 2 - 21));  // 2: headers
  // The first since its begin, the others since the all-reduces before ended.
  CHECK(measured.arrivals_ms() == std::vector<double>{50, 975, 975});
  CHECK(measured.exposed_ms() == std::vector<double>{25, 25, 25});
  CHECK(measured.transfers_ms().size() == 6);
  CHECK(measured.gathers_ms().empty());

  // The last bucket's parameters are issued first; the other's turn comes when they have arrived.
  measured.gathered({{2 * kMs, 3 * kMs, 19 * kMs}, {1 * kMs, 1 * kMs, 9 * kMs}});
  CHECK(measured.gathers_ms() == std::vector<double>{10, 8});
  CHECK(measured.buckets()[1].gather_ms == Approx(8));

  Series series;
  for (size_t i = 0; i < 10 * Series::kLast; ++i) series.add(double(i));
  CHECK(series.values().size() == Series::kLast);
  CHECK(series.median() == Approx(9.5 * Series::kLast - 0.5));
}

TEST_CASE("advice: who is last, how often, and by how much") {
  const Lateness late = lateness({{10, 10, 10, 10}, {10, 30, 30, 9}, {12, 12, 12, 12}});
  CHECK(late.rank == 1);  // 2 of 4 steps; rank 2 as often, but it is the first that counts
  CHECK(late.share == 0.5);
  CHECK(lateness({{1, 1, 1}, {5, 6, 7}}).rank == 1);
  CHECK(lateness({{1, 1, 1}, {5, 6, 7}}).share == 1);
  CHECK(lateness({{1, 1, 1}, {5, 6, 7}}).late_ms == Approx(5));
  CHECK(late.spread_ms == Approx(11.5));  // of 2, 20, 20 and 3
  CHECK(lateness({{1, 2, 3}}).share == 0);
  CHECK(lateness({}).share == 0);
}

TEST_CASE("advice: an all-reduce costs what it costs the rank that waits for nobody") {
  // Two buckets, three steps. Rank 0 waits for rank 1 in the first bucket of two of the steps.
  CHECK(costs_ms({{9, 9, 2, 4, 4, 4}, {2, 3, 8, 4, 5, 4}}, 2) == std::vector<double>{2, 4});
  CHECK(costs_ms({}, 0).empty());
  CHECK(costs_ms({{}, {}}, 2) == std::vector<double>{0, 0});
}

TEST_CASE("advice: every diagnosis has its numbers") {
  const auto diagnosis = [](const std::function<void(Observed&)>& change) {
    Observed o = step();
    change(o);
    return diagnose(o);
  };
  const auto check_begins = [](const std::string& text, const char* with) {
    INFO(text);
    CHECK(text.starts_with(with));
  };
  check_begins(diagnose(step()), "mixed: 33 % of 30 ms");
  check_begins(diagnosis([](auto& o) { o.ranks = 1; }), "one rank");
  CHECK(diagnosis([](auto& o) { o.data_wait_ms = 40; }) ==
        "data-bound: 40 ms of a step of 130 ms wait for samples");
  CHECK(diagnosis([](auto& o) { o.exposed_ms = 1, o.hidden_fraction = 0.97; }) ==
        "compute-bound: communication delays a step of 130 ms by 1 ms, everything is hidden");
  CHECK(diagnosis([](auto& o) { o.exposed_ms = 6, o.hidden_fraction = 0.8; }) ==
        "compute-bound: communication delays a step of 130 ms by 6 ms, too little to matter");

  const auto slowed = [&](double slowed_ms, double exposed_ms) {
    return diagnosis(
        [&](auto& o) { o.compute_ms = 90, o.slowed_ms = slowed_ms, o.exposed_ms = exposed_ms; });
  };
  CHECK(
      slowed(12, 4) ==
      "contention: communication slows computing by 12 ms a step, from 90 ms to 102 ms: they share "
      "cores or memory bandwidth");
  check_begins(slowed(40, 4), "contention: computing is slower while communication runs by 40 ms");
  CHECK_THAT(slowed(6, 4), !contains("contention"));    // less than 5 % of the step
  CHECK_THAT(slowed(12, 14), !contains("contention"));  // waiting costs more
  CHECK_THAT(diagnosis([](auto& o) { o.slowed_ms = 12, o.exposed_ms = 4, o.overlap = false; }),
             !contains("contention"));
  check_begins(diagnosis([](auto& o) { o.exposed_ms = 1, o.hidden_fraction.reset(); }),
               "compute-bound: communication delays a step of 130 ms by 1 ms, the step hardly");
  check_begins(diagnosis([](auto& o) { o.hidden_fraction.reset(); }),
               "mixed: communication takes 30 ms");

  const auto late = [&](const Lateness& lateness) {
    return diagnosis([&](auto& o) { o.lateness = lateness; });
  };
  CHECK(late({.rank = 2, .share = 0.87, .late_ms = 15}) ==
        "straggler: rank 2 is last in 87 % of the steps, by 15 ms");
  CHECK_THAT(late({.rank = 2, .share = 0.6, .late_ms = 15}), !contains("straggler"));
  CHECK_THAT(late({.rank = 2, .share = 0.87, .late_ms = 3}), !contains("straggler"));
  check_begins(late({.rank = 1, .share = 0.5, .late_ms = 0, .spread_ms = 12}),
               "uneven: ranks reach the end of backward 12 ms apart");
  check_begins(diagnosis([](auto& o) { o.overlap = false; }),
               "not overlapped: --no-overlap leaves all 30 ms");

  CHECK(diagnosis([](auto& o) { o.gather_wait_ms = 12; }) ==
        "gathers: 12 ms of the 20 ms that a step waits are for ZeRO-1's parameters, which only the "
        "update and the next samples hide");
  CHECK_THAT(diagnosis([](auto& o) { o.gather_wait_ms = 6; }), !contains("gathers"));
  // What is waited for gathers is no bucket's.
  check_begins(diagnosis([](auto& o) {
                 o.gather_wait_ms = 6;
                 o.buckets.back() = {7'650'000, 59, 8, "wte.weight rows"};
               }),
               "tail");
  CHECK(diagnosis([](auto& o) {
          o.latency_ms = 2;
          o.buckets.assign(34, {12'000, 10, 0.9, "many"});
        }) == "latency: 34 buckets of 12 KB on average cost 34 x 2 ms, however little they hold");
  CHECK(diagnosis([](auto& o) {
          o.buckets.back() = {7'650'000, 59, 12, "wte.weight rows"};
        }) ==
        "tail: bucket 2 (wte.weight rows, 7.65 MB) is ready only when backward ends: 46 % of the "
        "bytes cannot be hidden");
  const auto slow = [&](double cap_gain_ms) {
    return diagnosis([&](auto& o) { o.buckets[1].cost_ms = 45, o.cap_gain_ms = cap_gain_ms; });
  };
  CHECK(slow(8) ==
        "tail: bucket 1 (b, 8 MB) takes 45 ms, but is ready only 30 ms before backward ends: a "
        "smaller --bucket-cap-mb starts earlier");
  check_begins(slow(0), "communication-bound");  // no cap helps

  // 23 times as long as computing: to begin earlier would hide next to nothing.
  const auto slowest = [&](double later_ms) {
    return diagnosis([&](auto& o) {
      o.exposed_ms = o.step_ms = 1380;
      o.cap_gain_ms = 200;
      for (ObservedBucket& bucket : o.buckets) {
        bucket.cost_ms = 460;
        if (later_ms > 0) bucket.ready_ms = later_ms;
      }
    });
  };
  check_begins(slowest(0), "communication-bound: the all-reduces take 1.38e+03 ms");
  check_begins(slowest(59), "communication-bound");
  CHECK(diagnosis([](auto& o) { o.buckets[0].cost_ms = 50; }) ==
        "communication-bound: the all-reduces take 75 ms, backward after the first bucket only 50 "
        "ms");
}

TEST_CASE("scaling: one rank is added, doubles go, order is ascending") {
  CHECK(scaling_ranks({4, 2, 2}) == std::vector<uint64_t>{1, 2, 4});
  CHECK(scaling_ranks({1}) == std::vector<uint64_t>{1});
}

TEST_CASE("scaling: a strong one needs a batch that every number of ranks can share") {
  TrainOptions o;
  o.batch = 6;
  CHECK(check_scaling(o, {1, 4}).ok());  // weak
  o.strong = true;
  CHECK(check_scaling(o, {1, 2, 3}).ok());
  const Status refused = check_scaling(o, {1, 2, 4});
  REQUIRE(!refused.ok());
  CHECK_THAT(refused.message(), contains("4 ranks cannot share --batch 6"));
}

TEST_CASE("scaling: a run's command line has its own ranks, batch and report") {
  const ScalingPoint point{
      .ranks = 2, .batch = 3, .samples_per_s = 0, .oversubscribed = false, .summary = {}};
  CHECK(scaling_words({"rondo-train", "--scaling", "1,2", "--lr", "1", "--batch=6", "--strong",
                       "--json", "out", "--log-every=5", "--width", "32"},
                      point, "J") == std::vector<std::string>{"rondo-train", "--lr", "1", "--width",
                                                              "32", "--ranks", "2", "--batch", "3",
                                                              "--json", "J", "--log-every", "0"});
}

TEST_CASE("scaling: efficiency is against one rank, and never blamed on shared cores") {
  const std::vector<ScalingPoint> points = {
      {.ranks = 1, .batch = 8, .samples_per_s = 100, .oversubscribed = false, .summary = {}},
      {.ranks = 2,
       .batch = 8,
       .samples_per_s = 180,
       .oversubscribed = false,
       .summary = {{"step_ms", 4}}},
      {.ranks = 4, .batch = 8, .samples_per_s = 200, .oversubscribed = true, .summary = {}}};
  const nlohmann::ordered_json rows = scaling_rows(points, 2, 1);
  REQUIRE(rows.size() == 3);
  CHECK(rows[0]["efficiency"] == 1.0);
  CHECK(rows[1]["efficiency"] == Approx(0.9));
  CHECK(rows[1]["step_ms"] == 4);
  CHECK(rows[1]["oversubscribed"] == false);
  CHECK(!rows[1].contains("note"));
  CHECK(rows[2]["oversubscribed"] == true);
  CHECK(rows[2]["efficiency"] == Approx(0.5));
  CHECK(rows[2]["efficiency_of_cores"] == Approx(1.0));
  CHECK(rows[2]["note"].get<std::string>().find("more ranks than cores") == 0);
}
