// What becomes a sample of each kind of data, and that everything else is refused by name.
#include "trainer/data/dataset.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/trainer/synthetic_data.hpp"

using namespace rondo;
using namespace rondo::trainer;
using namespace rondo::trainer::testing;
using rondo::testing::contains;
namespace fs = std::filesystem;
using Ints = std::vector<int32_t>;

namespace {

/// A folder, and in it files of one kind.
struct Place {
  const rondo::testing::TempDirectory folder;
  const fs::path root = folder.path();
  const std::string text = root / "text", token_path = root / "tokens.bin";
};

constexpr SampleShape kBytes{.context = 4, .classes = 256};
constexpr SampleShape kTokens{.context = 4, .classes = 1000};
constexpr SampleShape kPictures{.classes = 10};

struct Sample {
  std::vector<int32_t> tokens, targets;
  std::vector<float> image;
};

Sample read(const Dataset& data, uint64_t index) {
  Sample sample;
  sample.tokens.resize(data.shape().context);
  sample.targets.resize(data.shape().targets);
  sample.image.resize(data.shape().pixels());
  const Status status = data.read(index, {.tokens = sample.tokens.data(),
                                          .images = sample.image.data(),
                                          .targets = sample.targets.data()});
  REQUIRE(status.to_string() == "ok");
  CHECK(data.read(index, {nullptr, nullptr, nullptr}).ok());  // nothing wanted, nothing written
  return sample;
}

std::unique_ptr<Dataset> open(DataKind kind, const std::string& path, const SampleShape& shape) {
  Result<std::unique_ptr<Dataset>> data = open_dataset(kind, path, shape);
  REQUIRE(data.status().to_string() == "ok");
  return std::move(data).value();
}

/// That opening fails and says these words, the path among them.
void check_refused(DataKind kind, const fs::path& path, const SampleShape& shape,
                   const std::vector<std::string>& words) {
  const Status status = open_dataset(kind, path, shape).status();
  CHECK(status.code() == Code::kDataError);
  INFO(status.message());
  CHECK_THAT(status.message(), contains(path.native()));
  for (const std::string& word : words) {
    INFO(word);
    CHECK_THAT(status.message(), contains(word));
  }
}

std::vector<uint16_t> counting(size_t count, uint16_t first = 0) {
  std::vector<uint16_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<uint16_t>(first + i);
  return tokens;
}

}  // namespace

TEST_CASE_METHOD(Place, "dataset: every position of the bytes predicts the next byte") {
  write_file(text, "abcdefgh\xff");
  const auto data = open(DataKind::kNextByte, text, kBytes);
  CHECK(data->samples() == 5);
  CHECK(data->shape().targets == 1);
  CHECK(read(*data, 0).tokens == Ints{'a', 'b', 'c', 'd'});
  CHECK(read(*data, 0).targets == Ints{'e'});
  CHECK(read(*data, 4).tokens == Ints{'e', 'f', 'g', 'h'});
  CHECK(read(*data, 4).targets == Ints{255});
  CHECK(data->facts().bytes == 9);
  CHECK(data->facts().files == 1);
  CHECK(data->facts().path == text);
}

TEST_CASE_METHOD(Place, "dataset: windows of bytes lie side by side, targets shifted by one") {
  write_file(text, "abcdefghi");
  const auto data = open(DataKind::kByteWindows, text, kBytes);
  CHECK(data->samples() == 2);
  CHECK(read(*data, 0).tokens == Ints{'a', 'b', 'c', 'd'});
  CHECK(read(*data, 0).targets == Ints{'b', 'c', 'd', 'e'});
  CHECK(read(*data, 1).tokens == Ints{'e', 'f', 'g', 'h'});
  CHECK(read(*data, 1).targets == Ints{'f', 'g', 'h', 'i'});
  for (size_t bytes = 5; bytes <= 14; ++bytes) {
    write_file(text, synthetic_text(bytes, 1));
    CHECK(open(DataKind::kByteWindows, text, kBytes)->samples() == (bytes - 1) / 4);
    CHECK(open(DataKind::kNextByte, text, kBytes)->samples() == bytes - 4);
  }
}

TEST_CASE_METHOD(Place, "dataset: bytes that are too few or too large for the model") {
  write_file(text, "abcd");
  check_refused(DataKind::kNextByte, text, kBytes, {"holds 4 bytes", "at least 5"});
  check_refused(DataKind::kByteWindows, text, kBytes, {"holds 4 bytes"});
  write_file(text, "abcd\x80xyz");
  check_refused(DataKind::kByteWindows, text, {.context = 4, .classes = 128},
                {"byte 4 is 128", "128 classes"});
  CHECK(open(DataKind::kByteWindows, text, {.context = 4, .classes = 129})->samples() == 1);
}

TEST_CASE_METHOD(Place, "dataset: token windows") {
  write_file(token_path, token_file(counting(10, 989)));
  const auto data = open(DataKind::kTokenWindows, token_path, kTokens);
  CHECK(data->samples() == 2);
  CHECK(data->shape().targets == 4);
  CHECK(read(*data, 0).tokens == Ints{989, 990, 991, 992});
  CHECK(read(*data, 0).targets == Ints{990, 991, 992, 993});
  CHECK(read(*data, 1).tokens == Ints{993, 994, 995, 996});
  CHECK(read(*data, 1).targets == Ints{994, 995, 996, 997});
  CHECK(data->facts().bytes == 1024 + 20);

  write_file(token_path, token_file({0, 65535, 258, 1, 2}));
  const auto large = open(DataKind::kTokenWindows, token_path, {.context = 4, .classes = 65536});
  CHECK(read(*large, 0).tokens == Ints{0, 65535, 258, 1});
}

TEST_CASE_METHOD(Place,
                 "dataset: a folder of token files in bytewise order, no window across files") {
  write_file(root / "a.bin", token_file(counting(12, 0)));
  write_file(root / "Z.bin", token_file(counting(9, 200)));
  write_file(root / "aa.bin", token_file(counting(4, 50)));  // too short for a window
  write_file(root / "b.bin", token_file(counting(5, 100)));
  write_file(root / "empty.bin", token_file({}));
  write_file(root / "notes.txt", "no tokens");
  write_file(root / ".hidden.bin", "no tokens");
  const auto data = open(DataKind::kTokenWindows, folder.path(), kTokens);
  std::vector<int32_t> first;
  for (uint64_t i = 0; i < data->samples(); ++i) first.push_back(read(*data, i).tokens[0]);
  CHECK(first == Ints{200, 204, 0, 4, 100});
  CHECK(data->facts().files == 5);

  const uint64_t hash = data->hash();
  CHECK(open(DataKind::kTokenWindows, folder.path(), kTokens)->hash() == hash);
  write_file(root / "b.bin", token_file(counting(5, 101)));
  CHECK(open(DataKind::kTokenWindows, folder.path(), kTokens)->hash() != hash);
}

TEST_CASE("dataset: the same tokens in other files are other data") {
  const rondo::testing::TempDirectory one, two;
  write_file(one.path() + "/a.bin", token_file(counting(10)));
  write_file(one.path() + "/b.bin", token_file(counting(10, 10)));
  write_file(two.path() + "/a.bin", token_file(counting(15)));
  write_file(two.path() + "/b.bin", token_file(counting(5, 15)));
  CHECK(open(DataKind::kTokenWindows, one.path(), kTokens)->hash() !=
        open(DataKind::kTokenWindows, two.path(), kTokens)->hash());

  // Also where a file ends exactly where a piece of the check does.
  const std::vector<uint16_t> half(1 << 19, 1), whole(1 << 20, 1);
  write_file(one.path() + "/a.bin", token_file(whole));
  fs::remove(one.path() + "/b.bin");
  write_file(two.path() + "/a.bin", token_file(half));
  write_file(two.path() + "/b.bin", token_file(half));
  CHECK(open(DataKind::kTokenWindows, one.path(), kTokens)->hash() !=
        open(DataKind::kTokenWindows, two.path(), kTokens)->hash());
}

// Large files: what differs in the first or last tokens, in length, or in a 255th of a file
// in one place is other data. Elsewhere the window that reads a wrong token fails.
TEST_CASE_METHOD(Place,
                 "dataset: of a large token file a sample is read, the rest window by window") {
  constexpr size_t kCount = size_t{1} << 20;
  constexpr SampleShape kLong{.context = 1024, .classes = 1000};
  const std::vector<uint16_t> tokens(kCount, 7);
  const auto hash_of = [&](const std::vector<uint16_t>& content) {
    write_file(token_path, token_file(content));
    return open(DataKind::kTokenWindows, token_path, kLong)->hash();
  };
  const uint64_t hash = hash_of(tokens);
  CHECK(hash_of(tokens) == hash);
  CHECK(hash_of(std::vector<uint16_t>(kCount + 1, 7)) != hash);
  for (const size_t place : {size_t{0}, kCount - 1}) {
    std::vector<uint16_t> other = tokens;
    other[place] = 8;
    CHECK(hash_of(other) != hash);
  }
  for (size_t first = 0; first < kCount; first += kCount / 16) {
    std::vector<uint16_t> other = tokens;
    std::fill_n(other.begin() + static_cast<ptrdiff_t>(first + 777), kCount / 256, uint16_t{0});
    CHECK(hash_of(other) != hash);
  }

  std::vector<uint16_t> spoilt = tokens;
  constexpr size_t kBetween = 3000;  // the first two pieces begin at 0 and 4,104
  spoilt[kBetween] = 1000;
  CHECK(hash_of(spoilt) == hash);
  const auto data = open(DataKind::kTokenWindows, token_path, kLong);
  CHECK(read(*data, 8).tokens.back() == 7);
  const Status status = data->read(kBetween / 1024, {nullptr, nullptr, nullptr});
  CHECK(status.code() == Code::kDataError);
  CHECK_THAT(status.message(), contains("token 3000 is 1000, not below the 1000 classes"));
}

TEST_CASE_METHOD(Place, "dataset: spoilt token files") {
  const std::string good = token_file(counting(10));
  const auto refused = [&](const std::string& content, const std::vector<std::string>& words) {
    write_file(token_path, content);
    check_refused(DataKind::kTokenWindows, token_path, kTokens, words);
  };
  refused("", {"has 0 bytes", "1024"});
  refused(good.substr(0, 1023), {"has 1023 bytes"});
  refused(good.substr(0, good.size() - 1), {"10 tokens", "19 bytes", "truncated"});
  refused(good + "xx", {"10 tokens", "22 bytes"});
  refused(token_file(counting(10), 20240801, 7), {"magic 20240801, version 7"});
  refused(token_file(counting(10), 20240520, 2), {"version 2"});
  refused(token_file(counting(10), 20240520, 1, int64_t{1} << 31), {"-2147483648 tokens"});
  refused(token_file(counting(4)), {"holds 4 tokens", "needs 5"});
  refused(token_file({}), {"holds 0 tokens"});
  refused(token_file({1, 2, 3, 1000, 5, 6}), {"token 3 is 1000", "1000 classes"});

  std::vector<uint16_t> many(1 << 20, 7);  // more than one piece of the check
  many.back() = 5000;
  refused(token_file(many), {"token 1048575 is 5000"});
  write_file(root / "a.bin", good);
  check_refused(DataKind::kTokenWindows, folder.path(), kTokens, {"tokens.bin", "token 1048575"});

  const rondo::testing::TempDirectory empty;
  check_refused(DataKind::kTokenWindows, empty.path(), kTokens, {"holds no token file"});
  check_refused(DataKind::kTokenWindows, empty.path() + "/no", kTokens, {"No such file"});
  check_refused(DataKind::kTokenWindows, "/dev/null", kTokens, {"not a regular file"});
  const std::string pipe = empty.path() + "/pipe";  // does not wait for a writer
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  check_refused(DataKind::kTokenWindows, pipe, kTokens, {"not a regular file"});
}

TEST_CASE_METHOD(Place,
                 "dataset: a token file that changes under the reader is an error, not nonsense") {
  write_file(token_path, token_file(counting(10)));
  const auto data = open(DataKind::kTokenWindows, token_path, kTokens);
  std::vector<int32_t> tokens(4), targets(4);
  const auto message = [&](uint64_t index) {
    return data->read(index, {tokens.data(), nullptr, targets.data()}).message();
  };
  write_file(token_path, token_file({1, 2, 3, 4, 5, 6, 7, 60000, 9, 10}));
  CHECK(message(0).empty());
  CHECK_THAT(message(1), contains(token_path + "': token 7 is 60000, not below the 1000 classes"));
  fs::resize_file(token_path, 1024 + 10);
  CHECK(message(0).empty());
  CHECK_THAT(message(1), contains("too early"));
  CHECK_THAT(message(1), contains(token_path));
}

TEST_CASE_METHOD(Place, "dataset: pictures and labels") {
  write_file(root / "train-images-idx3-ubyte", idx_file(0x803, {2, 2, 3},
                                                        std::string("\x00\x01\x02\x03\x04\x05"
                                                                    "\xff\x80\x33\x00\x00\xfe",
                                                                    12)));
  write_file(root / "train-labels-idx1-ubyte", idx_file(0x801, {2}, "\x07\x09"));
  for (const fs::path& path : {root, root / "train-images-idx3-ubyte"}) {
    const auto data = open(DataKind::kImages, path, kPictures);
    CHECK(data->samples() == 2);
    CHECK(data->facts().bytes == 16 + 12 + 8 + 2);
    CHECK(data->facts().files == 2);
    CHECK(data->shape().channels == 1);
    CHECK(data->shape().height == 2);
    CHECK(data->shape().width == 3);
    CHECK(data->shape().context == 0);
    CHECK(read(*data, 0).targets == Ints{7});
    CHECK(read(*data, 1).targets == Ints{9});
    CHECK(read(*data, 1).image ==
          std::vector<float>{1.0f, 128 / 255.0f, 0.2f, 0.0f, 0.0f, 254 / 255.0f});
  }
  CHECK(open(DataKind::kImages, root, {.channels = 1, .height = 2, .width = 3, .classes = 10})
            ->samples() == 2);
  check_refused(DataKind::kImages, root, {.channels = 1, .height = 3, .width = 2, .classes = 10},
                {"1 x 2 x 3", "1 x 3 x 2"});
  check_refused(DataKind::kImages, root, {.channels = 3, .classes = 10}, {"3 x 0 x 0"});
}

TEST_CASE_METHOD(Place, "dataset: other spellings of the pictures' names") {
  write_pictures(root / "1", "t10k", 5, 4, 3, 1);
  const auto data = open(DataKind::kImages, root / "1", kPictures);
  fs::create_directory(root / "2");
  fs::rename(root / "1/t10k-images-idx3-ubyte", root / "2/t10k-images.idx3-ubyte");
  fs::rename(root / "1/t10k-labels-idx1-ubyte", root / "2/t10k-labels.idx1-ubyte");
  CHECK(open(DataKind::kImages, root / "2", kPictures)->hash() == data->hash());
  fs::rename(root / "2/t10k-labels.idx1-ubyte", root / "2/t10k-labels-idx1-ubyte");
  CHECK(open(DataKind::kImages, root / "2", kPictures)->hash() == data->hash());
  write_pictures(root / "3", "t10k", 5, 4, 3, 2);
  CHECK(open(DataKind::kImages, root / "3", kPictures)->hash() != data->hash());
}

TEST_CASE_METHOD(Place, "dataset: which pictures are meant is not guessed") {
  check_refused(DataKind::kImages, root, kPictures, {"holds no pictures"});
  check_refused(DataKind::kImages, root / "missing", kPictures, {"No such file"});
  write_pictures(root, "train", 5, 4, 3, 1);
  write_pictures(root, "t10k", 5, 4, 3, 1);
  check_refused(DataKind::kImages, root, kPictures, {"2 files of pictures", "t10k-images"});
  CHECK(open(DataKind::kImages, root / "train-images-idx3-ubyte", kPictures)->samples() == 5);

  fs::remove(root / "train-labels-idx1-ubyte");
  check_refused(DataKind::kImages, root / "train-images-idx3-ubyte", kPictures,
                {"no labels beside it", "train-labels-idx1-ubyte", "train-labels.idx1-ubyte"});
  write_file(root / "train-labels-idx1-ubyte.gz", "\x1f\x8b...");
  check_refused(DataKind::kImages, root / "train-labels-idx1-ubyte.gz", kPictures, {"gunzip"});
  const Status packed_labels =
      open_dataset(DataKind::kImages, root / "train-images-idx3-ubyte", kPictures).status();
  CHECK_THAT(packed_labels.message(), contains("train-labels-idx1-ubyte.gz"));

  write_file(root / "packed/train-images-idx3-ubyte.gz", "\x1f\x8b...");
  check_refused(DataKind::kImages, root / "packed", kPictures,
                {"train-images-idx3-ubyte.gz", "gunzip"});
  write_file(root / "renamed/train-images-idx3-ubyte", "\x1f\x8b...");
  check_refused(DataKind::kImages, root / "renamed", kPictures, {"gunzip"});
  fs::copy_file(root / "t10k-images-idx3-ubyte", root / "pictures");
  check_refused(DataKind::kImages, root / "pictures", kPictures, {"labels", "cannot be found"});
}

TEST_CASE_METHOD(Place, "dataset: spoilt pictures") {
  const auto refused = [&](const std::string& images, const std::string& labels,
                           const std::vector<std::string>& words) {
    write_file(root / "images-idx3-ubyte", images);
    write_file(root / "labels-idx1-ubyte", labels);
    check_refused(DataKind::kImages, root, kPictures, words);
  };
  const std::string pixels(12, 'x'), three("\0\1\2", 3);
  const std::string images = idx_file(0x803, {3, 2, 2}, pixels);
  const std::string labels = idx_file(0x801, {3}, three);
  refused("", labels, {"images-idx3", "has 0 bytes", "16"});
  refused(images.substr(0, 15), labels, {"has 15 bytes"});
  refused(images.substr(0, 27), labels, {"3 x 2 x 2", "has 11"});
  refused(images + "x", labels, {"has 13"});
  refused(idx_file(0x801, {3, 2, 2}, pixels), labels, {"magic 2049", "2051"});
  refused(idx_file(0xd03, {3, 2, 2}, pixels), labels, {"magic 3331"});  // floats
  refused(idx_file(0x803, {0, 2, 2}, ""), labels, {"0 x 2 x 2", "no pictures"});
  refused(idx_file(0x803, {3, 0, 2}, ""), labels, {"no pictures"});
  refused(idx_file(0x803, {0xffffffff, 0xffffffff, 0xffffffff}, pixels), labels, {"truncated"});
  refused(idx_file(0x803, {0x80000000, 0x80000000, 4}, ""), labels, {"truncated"});  // 2^64
  refused(images, "", {"labels-idx1", "has 0 bytes", "8"});
  refused(images, labels.substr(0, 10), {"labels-idx1", "has 2"});
  refused(images, idx_file(0x803, {3}, three), {"labels-idx1", "magic 2051", "2049"});
  refused(images, idx_file(0x801, {2}, "\1\2"), {"holds 2 labels", "3 pictures"});
  refused(images, idx_file(0x801, {3}, "\1\2\n"), {"label 2 is 10", "10 classes"});
  write_file(root / "labels-idx1-ubyte", labels);
  CHECK(open(DataKind::kImages, root, kPictures)->samples() == 3);
}

TEST_CASE_METHOD(Place, "dataset: files without permission") {
  if (geteuid() == 0) return;  // root may read everything
  write_file(root / "tokens.bin", token_file(counting(10)));
  write_pictures(root, "train", 5, 4, 3, 1);
  for (const char* name : {"tokens.bin", "train-images-idx3-ubyte"}) {
    fs::permissions(root / name, fs::perms::none);
  }
  check_refused(DataKind::kTokenWindows, root / "tokens.bin", kTokens, {"cannot be opened"});
  check_refused(DataKind::kImages, root, kPictures, {"cannot be opened", "train-images"});
}

TEST_CASE("dataset: each rank's own path") {
  CHECK(path_for_rank("data/part-{rank}.bin", 3) == "data/part-3.bin");
  CHECK(path_for_rank("{rank}/{rank}{rank}", 12) == "12/1212");
  CHECK(path_for_rank("data/{ran}k", 3) == "data/{ran}k");
  CHECK(path_for_rank("", 3).empty());
}
