// Synchronized batch normalisation: ranks against one rank that has all samples.
#include <numeric>

#include "tests/trainer/cnn_rig.hpp"
#include "tests/trainer/ddp_rig.hpp"

using namespace rondo;
using namespace rondo::trainer;
using namespace rondo::trainer::testing;

namespace {

struct Outcome {
  double loss = 0;
  std::vector<std::vector<double>> gradients;             // summed over ranks
  std::vector<std::vector<std::vector<double>>> buffers;  // by rank
  int exchanges = 0;                                      // of each rank
};

CnnShape three_blocks(size_t batch) {
  CnnShape shape = small(batch);
  shape.layers = 3;
  shape.height = 9;  // the third block sees 2 x 2: of single pixels it would undo the second's bias
  shape.width_pixels = 10;
  return shape;
}

/// Two training passes over the same samples on ranks with these shares, which add up what they bring
/// in rank order.
Outcome train_on(const std::vector<size_t>& shares, bool synchronized) {
  const size_t total = std::accumulate(shares.begin(), shares.end(), size_t{0});
  CnnShape shape = three_blocks(total);
  shape.synchronized = synchronized;
  const Samples samples(shape, total);
  std::vector<Outcome> of_ranks(shares.size());
  rondo::testing::with_ranks(
      static_cast<int>(shares.size()), rondo::testing::reproducible(), [&](Communicator& ranks) {
        const auto r = static_cast<size_t>(ranks.rank());
        Outcome& own = of_ranks[r];
        CnnRig<double> rig(shape, [&](double* values, size_t count) {
          ++own.exchanges;
          return ranks.all_reduce(values, values, count, DataType::kFloat64);
        });
        const size_t first = std::accumulate(&shares[0], &shares[r], size_t{0});
        const Batch batch = samples.share(first, shares[r]);
        rig.train(batch, 0.5);
        own.loss = rig.train(batch, 0.5);
        own.gradients = rig.gradients;
        own.buffers = {rig.buffers};
      });
  Outcome outcome = of_ranks[0];
  for (size_t r = 1; r < shares.size(); ++r) {
    outcome.loss += of_ranks[r].loss;
    outcome.buffers.push_back(of_ranks[r].buffers[0]);
    CHECK(of_ranks[r].exchanges == outcome.exchanges);
    for (size_t p = 0; p < outcome.gradients.size(); ++p) {
      for (size_t i = 0; i < outcome.gradients[p].size(); ++i) {
        outcome.gradients[p][i] += of_ranks[r].gradients[p][i];
      }
    }
  }
  return outcome;
}

}  // namespace

TEST_CASE(
    "cnn, synchronized: ranks do what one rank does with all samples, whatever their shares") {
  const Outcome alone = train_on({7}, false);
  CHECK(alone.exchanges == 0);
  for (const std::vector<size_t>& shares : std::vector<std::vector<size_t>>{
           {7}, {4, 3}, {6, 1}, {7, 0}, {0, 7}, {3, 2, 2}, {1, 6, 0}, {0, 0, 7}}) {
    INFO("shares " << Catch::StringMaker<std::vector<size_t>>::convert(shares));
    const Outcome together = train_on(shares, true);
    CHECK(together.exchanges == 2 * 3 * 3);
    CHECK(together.loss == Approx(alone.loss).epsilon(1e-12));
    for (size_t p = 0; p < alone.gradients.size(); ++p) {
      INFO("parameter " << p);
      CHECK(relative_difference(together.gradients[p], alone.gradients[p]) < 1e-12);
    }
    for (size_t b = 0; b < alone.buffers[0].size(); ++b) {
      CHECK(relative_difference(together.buffers[0][b], alone.buffers[0][b]) < 1e-12);
    }
    for (const auto& buffers : together.buffers) CHECK(buffers == together.buffers[0]);
  }
}

TEST_CASE("cnn, not synchronized: ranks normalise by themselves, which is not the same") {
  const Outcome alone = train_on({7}, false), apart = train_on({4, 3}, false);
  CHECK(apart.exchanges == 0);
  CHECK(std::abs(apart.loss - alone.loss) > 1e-3 * alone.loss);
  CHECK(relative_difference(apart.gradients.back(), alone.gradients.back()) > 1e-3);
  CHECK(apart.buffers[0] != apart.buffers[1]);
}

TEST_CASE("cnn, synchronized: no rank has a sample") {
  const Outcome nothing = train_on({0, 0}, true);
  CHECK(nothing.exchanges == 2 * 3 * 3);
  CHECK(nothing.loss == 0);
  for (const auto& gradient : nothing.gradients) CHECK(largest(gradient) == 0);
  CHECK(nothing.buffers[0] == CnnRig<double>(three_blocks(0)).buffers);
}

TEST_CASE("cnn, synchronized: an exchange that fails ends the pass with its error") {
  CnnShape shape = small(2);
  shape.synchronized = true;
  const Samples samples(shape, 2);
  int left = 0;
  CnnRig<double> rig(shape, [&left](double*, size_t) -> Status {
    return left-- > 0 ? Status{} : Status{Code::kPeerDied, "rank 1 left"};
  });
  double loss = 0;
  for (int good = 0; good < 4; ++good) {
    left = good;
    CHECK(rig.model->forward(samples.all(), kTraining, &loss).code() == Code::kPeerDied);
  }
  for (int good = 4; good < 6; ++good) {
    left = good;
    REQUIRE(rig.model->forward(samples.all(), kTraining, &loss).ok());
    CHECK(rig.model->backward(samples.all(), kTraining, 1, false, rig.listener).message() ==
          "rank 1 left");
  }
  left = 0;
  CHECK(
      rig.model->forward(samples.all(), kEvaluation, &loss).ok());  // evaluation exchanges nothing
}
