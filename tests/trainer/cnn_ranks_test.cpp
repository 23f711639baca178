// Synchronized batch normalisation: ranks against one rank that has all samples.
#include <barrier>
#include <numeric>
#include <thread>

#include "tests/trainer/cnn_rig.hpp"

using namespace rondo;
using namespace rondo::trainer;
using namespace rondo::trainer::testing;

namespace {

/// Ranks in threads that add up what they bring, in rank order: the same bits on each. A rank that
/// exchanges less often than others leaves them with its last values, and a wrong result.
class Exchange {
 public:
  explicit Exchange(size_t ranks) : barrier_(static_cast<ptrdiff_t>(ranks)), brought_(ranks) {}

  SumOverRanks of(size_t rank) {
    return [this, rank](double* values, size_t count) -> Status {
      brought_[rank].assign(values, values + count);
      if (rank == 0) ++calls_;
      barrier_.arrive_and_wait();
      std::vector<double> total(count);
      for (const std::vector<double>& one : brought_) {
        RONDO_CHECK(one.size() == count);
        for (size_t i = 0; i < count; ++i) total[i] += one[i];
      }
      barrier_.arrive_and_wait();
      std::copy(total.begin(), total.end(), values);
      return {};
    };
  }
  void leave() { barrier_.arrive_and_drop(); }
  int calls() const { return calls_; }

 private:
  std::barrier<> barrier_;
  std::vector<std::vector<double>> brought_;
  int calls_ = 0;  // rank 0's
};

struct Outcome {
  double loss = 0;
  std::vector<std::vector<double>> gradients;             // summed over ranks
  std::vector<std::vector<std::vector<double>>> buffers;  // by rank
  int exchanges = 0;
};

CnnShape three_blocks(size_t batch) {
  CnnShape shape = small(batch);
  shape.layers = 3;
  shape.height = 9;  // the third block sees 2 x 2: of single pixels it would undo the second's bias
  shape.width_pixels = 10;
  return shape;
}

/// Two training passes over the same samples on ranks with these shares.
Outcome train_on(const std::vector<size_t>& shares, bool synchronized) {
  const size_t total = std::accumulate(shares.begin(), shares.end(), size_t{0});
  CnnShape shape = three_blocks(total);
  shape.synchronized = synchronized;
  const Samples samples(shape, total);
  Exchange exchange(shares.size());
  std::vector<std::unique_ptr<Rig<double>>> rigs;
  std::vector<double> losses(shares.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < shares.size(); ++r) {
    rigs.push_back(std::make_unique<Rig<double>>(shape, exchange.of(r)));
  }
  for (size_t r = 0, first = 0; r < shares.size(); first += shares[r++]) {
    ranks.emplace_back([&, r, first] {
      const Batch batch = samples.share(first, shares[r]);
      rigs[r]->train(batch, 0.5);
      losses[r] = rigs[r]->train(batch, 0.5);
      exchange.leave();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  Outcome outcome;
  outcome.gradients = rigs[0]->gradients;
  for (size_t r = 0; r < shares.size(); ++r) {
    outcome.loss += losses[r];
    outcome.buffers.push_back(rigs[r]->buffers);
    for (size_t p = 0; r > 0 && p < outcome.gradients.size(); ++p) {
      for (size_t i = 0; i < outcome.gradients[p].size(); ++i) {
        outcome.gradients[p][i] += rigs[r]->gradients[p][i];
      }
    }
  }
  outcome.exchanges = exchange.calls();
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
  CHECK(nothing.buffers[0] == Rig<double>(three_blocks(0)).buffers);
}

TEST_CASE("cnn, synchronized: an exchange that fails ends the pass with its error") {
  CnnShape shape = small(2);
  shape.synchronized = true;
  const Samples samples(shape, 2);
  int left = 0;
  Rig<double> rig(shape, [&left](double*, size_t) -> Status {
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
