// The optimizer's state in pieces: what ranks with shards write, anybody reads, and no element is
// taken from nowhere or from two places.
#include "trainer/checkpoint/optimizer_files.hpp"

#include "tests/harness/contains.hpp"
#include "tests/trainer/ddp_rig.hpp"

using namespace rondo;
using namespace rondo::trainer;
using namespace rondo::testing;

namespace {

const std::vector<std::string> kArrays = {"mean", "square"};

float value_of(size_t array, size_t element) {
  return static_cast<float>(100000 * array + element) + 0.5f;
}

/// Each rank's file in `folder`; elements that are not its own are wrong in its memory.
void write(const std::string& folder, int ranks, bool shard) {
  with_unequal(ranks, shard, [&](Ddp& ddp) {
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
    const std::string name = std::to_string(ddp.communicator().rank());
    ok(write_tensor_file(folder + "/" + name, views, {}));
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
  with_unequal(1, false, [&](Ddp& ddp) {
    const Result<StateReader> reader = StateReader::open(ddp, DataType::kFloat32, kArrays, files);
    status = reader.status();
    if (!status.ok()) return;
    for (size_t a = 0; a < 2; ++a) {
      std::vector<float> all(ddp.parameter_elements(), -2);
      for (size_t begin = 0; begin < all.size(); begin += piece) {
        reader.value().read(a, begin, std::min(piece, all.size() - begin), &all[begin]);
      }
      for (size_t t = 0; t < 3; ++t) {
        for (size_t i = ddp.offset(t); i < ddp.offset(t) + kUnequal[t].count(); ++i) {
          expect_eq(all[i], value_of(a, i), "element " + std::to_string(i));
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
    CHECK_THAT(status.message(), contains(part));
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
