// What ranks compare before the first step, however long it is. rondo-train's own options are in
// program_test.
#include "tests/harness/contains.hpp"
#include "tests/trainer/ddp_rig.hpp"
#include "trainer/step/ranks.hpp"

using namespace rondo;
using namespace rondo::trainer;
using namespace rondo::testing;

namespace {

/// Data of which only the hash is ever asked for.
class Hashed : public Dataset {
 public:
  explicit Hashed(uint64_t hash)
      : Dataset(Facts{
            .path = "here", .bytes = 100, .files = 1, .samples = 1, .hash = hash, .shape = {}}) {}
  Status read(uint64_t, const trainer::Slot&) const override { return {}; }
};

/// What each of three ranks is told.
std::vector<Status> compare(const std::function<TrainOptions(int rank)>& options,
                            const std::function<uint64_t(int rank)>& hash) {
  std::vector<Status> said(3);
  with_ranks(3, [&](Communicator& world) {
    const int rank = world.rank();
    said[static_cast<size_t>(rank)] =
        require_agreement(world, options(rank), Hashed(hash(rank)), nullptr);
  });
  return said;
}

TrainOptions with_optimizer(const std::string& optimizer) {
  TrainOptions options;
  options.optimizer = optimizer;
  return options;
}

void check_named(const std::vector<Status>& said, const std::string& what) {
  for (const Status& status : said) {
    INFO(status.to_string());
    CHECK(status.code() == Code::kMismatch);
    CHECK_THAT(status.message(), contains("rank 2 runs with " + what));
    CHECK_THAT(status.message(), !contains("rank 1 runs"));
  }
}

}  // namespace

TEST_CASE("agreement: the same options and data are the same, in one word or in many") {
  for (const size_t length : {size_t{1}, size_t{100'000}}) {
    const std::vector<Status> said =
        compare([&](int) { return with_optimizer(std::string(length, 'o')); },
                [](int) { return uint64_t{7}; });
    for (const Status& status : said) CHECK(status.ok());
  }
}

TEST_CASE("agreement: other data are named, however much is compared before them") {
  for (const size_t length : {size_t{1}, size_t{5000}, size_t{100'000}}) {
    check_named(compare([&](int) { return with_optimizer(std::string(length, 'o')); },
                        [](int rank) { return rank == 2 ? uint64_t{8} : uint64_t{7}; }),
                "data=100-bytes,hash-8 (rank 0: data=100-bytes,hash-7)");
  }
}

TEST_CASE("agreement: a value that one rank alone has long is named") {
  const std::string end(5000, 'o');
  check_named(compare([&](int rank) { return with_optimizer(rank == 2 ? "s" + end : "s"); },
                      [](int) { return uint64_t{7}; }),
              "optimizer=\"s" + end + "\" (rank 0: optimizer=\"s\")");
}
