// The optimizer's state in pieces: what ranks with shards write, anybody reads, and no element is
// taken from nowhere or from two places.
#include "trainer/optimizer_files.hpp"

#include <functional>

#include "rondo/rondo.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"

using namespace rondo;
using namespace rondo::trainer;
using rondo::testing::expect;
using rondo::testing::TempDirectory;

namespace {

const std::vector<DdpTensor> kTensors = {{.name = "table", .shape = {500, 30}},
                                         {.name = "small", .shape = {7}},
                                         {.name = "long", .shape = {9001}},
                                         {.name = "more", .shape = {500, 30}, .adds_to = 0}};
const std::vector<std::string> kArrays = {"mean", "square"};

float value_of(size_t array, size_t element) {
  return static_cast<float>(100000 * array + element) + 0.5f;
}

void with_ranks(int ranks, bool shard,
                const std::function<void(int rank, DistributedDataParallel&)>& body) {
  const TempDirectory meeting;
  rondo::testing::require_all_ok(
      rondo::testing::run_ranks(rondo::testing::How::kThreads, ranks, [&](int rank) {
        Config config;
        config.rank = rank;
        config.world_size = ranks;
        config.rendezvous = meeting.path();
        Result<Communicator> communicator = Communicator::create(config);
        expect(communicator.ok(), communicator.status().to_string());
        Result<DistributedDataParallel> ddp =
            DistributedDataParallel::create(communicator.value(), kTensors, {},
                                            {.bucket_cap_mb = 5000.0 / (1 << 20), .shard = shard});
        expect(ddp.ok(), ddp.status().to_string());
        body(rank, ddp.value());
      }));
}

/// Each rank's file in `folder`; elements that are not its own are wrong in its memory.
void write(const std::string& folder, int ranks, bool shard) {
  with_ranks(ranks, shard, [&](int rank, DistributedDataParallel& ddp) {
    std::vector<float> memory[2];
    std::vector<StateStorage> arrays;
    for (size_t a = 0; a < 2; ++a) {
      memory[a].assign(ddp.parameter_elements(), -1);
      for (const DdpRange& own : ddp.own_ranges()) {
        for (size_t i = own.begin; i < own.end; ++i) memory[a][i] = value_of(a, i);
      }
      arrays.push_back({kArrays[a], memory[a].data()});
    }
    const auto views = state_views(ddp, DataType::kFloat32, arrays);
    const Status status = write_tensor_file(folder + "/" + std::to_string(rank), views, {});
    expect(status.ok(), status.to_string());
  });
}

std::vector<TensorFile> open(const std::string& folder, const std::vector<int>& which) {
  std::vector<TensorFile> files;
  for (const int rank : which) {
    Result<TensorFile> file = TensorFile::open(folder + "/" + std::to_string(rank));
    REQUIRE(file.ok());
    files.push_back(std::move(file).value());
  }
  return files;
}

/// All elements, read in pieces of `piece`; why not, if not.
Status check(const std::vector<TensorFile>& files, size_t piece) {
  Status status;
  with_ranks(1, false, [&](int, DistributedDataParallel& ddp) {
    const Result<StateReader> reader = StateReader::open(ddp, DataType::kFloat32, kArrays, files);
    status = reader.status();
    if (!status.ok()) return;
    for (size_t a = 0; a < 2; ++a) {
      std::vector<float> all(ddp.parameter_elements(), -2);
      for (size_t begin = 0; begin < all.size(); begin += piece) {
        reader.value().read(a, begin, std::min(piece, all.size() - begin), &all[begin]);
      }
      for (size_t t = 0; t < 3; ++t) {
        for (size_t i = ddp.offset(t); i < ddp.offset(t) + kTensors[t].count(); ++i) {
          rondo::testing::expect_eq(all[i], value_of(a, i), "element " + std::to_string(i));
        }
      }
    }
  });
  return status;
}

}  // namespace

TEST_CASE("optimizer files: what any number of ranks wrote comes back, in any pieces") {
  for (const int ranks : {1, 2, 3, 5}) {
    const TempDirectory folder;
    write(folder.path(), ranks, true);
    std::vector<int> all;
    for (int r = ranks; r-- > 0;) all.push_back(r);
    for (const size_t piece : {size_t{997}, size_t{4096}, size_t{1} << 20}) {
      CHECK(check(open(folder.path(), all), piece).to_string() == Status().to_string());
    }
  }
  const TempDirectory folder;
  write(folder.path(), 1, false);
  CHECK(check(open(folder.path(), {0}), 1000).ok());
}

TEST_CASE("optimizer files: a gap, an overlap and a stranger are named") {
  const TempDirectory folder, whole;
  write(folder.path(), 3, true);
  write(whole.path(), 1, false);
  const auto refused = [](const std::vector<TensorFile>& files, const std::string& part) {
    const Status status = check(files, 4096);
    INFO(status.to_string());
    CHECK(status.code() == Code::kDataError);
    CHECK(status.message().find(part) != std::string::npos);
  };
  refused(open(folder.path(), {0, 1}), "lacks elements");
  refused(open(folder.path(), {0, 1, 2, 1}), "that another piece holds too");
  auto both = open(folder.path(), {0, 1, 2});
  both.push_back(std::move(open(whole.path(), {0})[0]));
  refused(both, "that another piece holds too");
  const auto with = [&](const std::string& name, size_t count) {
    const std::vector<float> values(count);
    const TensorView view = {
        .name = name, .type = DataType::kFloat32, .shape = {count}, .data = values.data()};
    REQUIRE(write_tensor_file(folder.path() + "/9", {&view, 1}, {}).ok());
    return open(folder.path(), {0, 1, 2, 9});
  };
  refused(with("mean.long@9000", 3), "'mean.long");
  refused(with("mean.long@9001", 1), "reaches beyond");
  refused(with("mean.long", 3), "another shape");
  CHECK(check(with("mean.longer@1", 3), 4096).ok());  // none of this model's
}
