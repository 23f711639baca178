// Tensor files: what is written comes back, and whatever is not exactly a safetensors file, or dies
// while it writes one, is found out.
#include "trainer/files/tensor_file.hpp"

#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/trainer/crash.hpp"
#include "tests/trainer/files.hpp"

namespace rondo::trainer::tensor_file_test {

using namespace rondo;
using namespace rondo::trainer::testing;
using rondo::testing::kSanitized;
using rondo::testing::TempDirectory;
namespace fs = std::filesystem;
using rondo::testing::contains;

namespace {

/// A file by hand: the JSON's length, the JSON, data.
std::string by_hand(const std::string& json, const std::string& data) {
  const uint64_t bytes = json.size();
  return std::string(reinterpret_cast<const char*>(&bytes), 8) + json + data;
}

/// A tensor and its data.
struct Owned {
  TensorView view;
  std::string bytes;

  Owned(std::string name, DataType type, std::vector<size_t> shape) {
    view = {.name = std::move(name), .type = type, .shape = std::move(shape), .data = nullptr};
    for (size_t i = 0; i < view.bytes(); ++i) {
      bytes.push_back(static_cast<char>(i * 37 + static_cast<size_t>(type) * 11 + 1));
    }
  }
};

std::vector<TensorView> views_of(std::vector<Owned>& tensors) {
  std::vector<TensorView> views;
  for (Owned& tensor : tensors) {
    tensor.view.data = tensor.bytes.data();
    views.push_back(tensor.view);
  }
  return views;
}

void check_same(const TensorFile& file, const std::vector<TensorView>& tensors) {
  REQUIRE(file.tensors().size() == tensors.size());
  for (const TensorView& tensor : tensors) {
    INFO(tensor.name);
    const TensorView* found = file.find(tensor.name);
    REQUIRE(found != nullptr);
    CHECK(found->name == tensor.name);
    CHECK(found->type == tensor.type);
    CHECK(found->shape == tensor.shape);
    CHECK((tensor.bytes() == 0 || std::memcmp(found->data, tensor.data, tensor.bytes()) == 0));
  }
}

/// The error of a file that must be refused, naming it.
std::string refusal(const std::string& path) {
  const Result<TensorFile> file = TensorFile::open(path);
  REQUIRE_FALSE(file.ok());
  CHECK(file.status().code() == Code::kDataError);
  CHECK_THAT(file.status().message(), contains("tensor file '" + path + "'"));
  return file.status().message();
}

/// A file of two small tensors.
struct Small {
  const TempDirectory folder;
  const std::string path = folder.path() + "/file";
  std::vector<Owned> tensors = {{"w", DataType::kFloat32, {2, 3}}, {"b", DataType::kUint8, {3}}};
  const std::vector<TensorView> views = views_of(tensors);

  Small() { REQUIRE(write_tensor_file(path, views, {{"key", "value"}}).ok()); }
};

}  // namespace

TEST_CASE("tensor file: every type comes back, and scalars, and tensors without elements") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/all.safetensors";
  std::vector<Owned> tensors;
  for (int t = 0; t < kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    tensors.emplace_back("odd." + std::string(name(type)), type, std::vector<size_t>{3, 1, 7});
    tensors.emplace_back("scalar." + std::string(name(type)), type, std::vector<size_t>{});
    tensors.emplace_back("none." + std::string(name(type)), type, std::vector<size_t>{5, 0, 2});
  }
  const std::vector<TensorView> views = views_of(tensors);
  const std::map<std::string, std::string> metadata = {{"a", "1"}, {"quoted \"\n", "\xc3\xa4"}};
  REQUIRE(write_tensor_file(path, views, metadata).ok());
  const Result<TensorFile> file = TensorFile::open(path);
  INFO(file.status().to_string());
  REQUIRE(file.ok());
  check_same(file.value(), views);
  CHECK(file.value().metadata() == metadata);
  CHECK(file.value().has_checksum());
  CHECK(file.value().find("absent") == nullptr);
  for (const TensorView& tensor : file.value().tensors()) {
    CHECK(reinterpret_cast<uintptr_t>(tensor.data) % size_of(tensor.type) == 0);
  }
}

TEST_CASE("tensor file: a file without tensors") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/empty";
  REQUIRE(write_tensor_file(path, {}, {}).ok());
  const Result<TensorFile> file = TensorFile::open(path);
  REQUIRE(file.ok());
  CHECK(file.value().tensors().empty());
  write_file(path, by_hand("{}", ""));
  CHECK(TensorFile::open(path).ok());
}

TEST_CASE("tensor file: the bytes are the format's") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/file";
  const uint16_t halves[] = {0x1234, 0x5678};
  const float one = 1;
  const TensorView tensors[] = {
      {.name = "h", .type = DataType::kBFloat16, .shape = {2}, .data = halves},
      {.name = "f", .type = DataType::kFloat32, .shape = {1, 1}, .data = &one}};
  REQUIRE(write_tensor_file(path, tensors, {{"k", "v"}}).ok());
  const std::string content = read_text(path);
  const size_t header = content.size() - 16;
  CHECK(header % 8 == 0);
  CHECK(static_cast<unsigned char>(content[0]) == (header & 255));
  CHECK(static_cast<unsigned char>(content[1]) == header >> 8);
  CHECK(content.substr(2, 6) == std::string(6, '\0'));
  const std::string json = content.substr(8, header);
  const std::string before = "{\"__metadata__\":{\"k\":\"v\",\"rondo.checksum\":\"";
  CHECK(json.substr(0, before.size()) == before);
  const std::string after =
      "\"},\"f\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]},"
      "\"h\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[4,8]}}";
  CHECK(json.substr(before.size() + 16, after.size()) == after);
  CHECK(json.find_first_not_of(' ', before.size() + 16 + after.size()) == std::string::npos);
  CHECK(content.substr(8 + header) == std::string("\0\0\x80\x3f\x34\x12\x78\x56", 8));
}

TEST_CASE("tensor file: another program's file, unaligned and without a checksum") {
  const TempDirectory folder;
  const std::string path = folder.path() + "/foreign";
  write_file(
      path,
      by_hand(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}, "other": )"
              R"({"shape":[],"data_offsets":[0,1],"dtype":"U8"},"__metadata__":{"format":"pt"}})"
              "   ",
              std::string("\x07\0\0\x80\x3f", 5)));
  const Result<TensorFile> file = TensorFile::open(path);
  INFO(file.status().to_string());
  REQUIRE(file.ok());
  CHECK_FALSE(file.value().has_checksum());
  CHECK(file.value().metadata().at("format") == "pt");
  CHECK(file.value().tensors()[0].name == "other");
  float value = 0;
  std::memcpy(&value, file.value().find("b")->data, 4);
  CHECK(value == 1);
}

TEST_CASE_METHOD(Small, "tensor file: a view outlives the move of its file") {
  Result<TensorFile> opened = TensorFile::open(path);
  REQUIRE(opened.ok());
  const TensorFile file = std::move(opened).value();
  fs::remove(path);  // the mapping keeps what was there
  check_same(file, views);
}

TEST_CASE_METHOD(Small, "tensor file: cut off at any byte it is refused") {
  const std::string whole = read_text(path);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    write_file(path, whole.substr(0, bytes));
    refusal(path);
  }
  CHECK_THAT(refusal(path), contains("truncated"));
  write_file(path, whole.substr(0, 100));
  CHECK_THAT(refusal(path), contains("says that its header has"));
  write_file(path, whole + '\0');
  CHECK_THAT(refusal(path), contains("belong to no tensor"));
}

TEST_CASE_METHOD(Small,
                 "tensor file: one flipped bit is found, or has changed nothing that is read") {
  const std::string whole = read_text(path);
  const size_t key = whole.find(kChecksumKey);
  size_t accepted = 0;
  for (size_t byte = 0; byte < whole.size(); ++byte) {
    for (int bit = 0; bit < 8; bit += kSanitized ? 5 : 1) {
      std::string flipped = whole;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      write_file(path, flipped);
      const Result<TensorFile> file = TensorFile::open(path);
      if (!file.ok()) continue;
      INFO("byte " << byte << ", bit " << bit);
      // Only the name of the checksum, which makes it a file without one.
      REQUIRE((byte >= key && byte < key + std::strlen(kChecksumKey)));
      REQUIRE_FALSE(file.value().has_checksum());
      check_same(file.value(), views);
      ++accepted;
    }
  }
  CHECK(accepted > 0);
}

TEST_CASE("tensor file: foreign and wrong headers are refused by what is wrong") {
  struct Case {
    std::string json, data, message;
  };
  const std::string ok = R"("w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  const Case cases[] = {
      {"", "", "no valid JSON"},
      {"nonsense", "", "no valid JSON"},
      {"{" + ok + "}}", "ab", "no valid JSON"},
      {"{" + ok, "ab", "no valid JSON"},
      {std::string("{}\0{}", 5), "", "no valid JSON"},
      {"[1]", "", "no JSON object"},
      {"{\"\xff\":1}", "", "no valid JSON"},
      {"{" + ok + "," + ok + "}", "ab", "has 'w' twice"},
      {R"({"w":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "ab", "twice"},
      {R"({"w":3})", "", "tensor 'w' is described by no JSON object"},
      {R"({"w":{"shape":[2],"data_offsets":[0,2]}})", "ab", "no text 'dtype'"},
      {R"({"w":{"dtype":8,"shape":[2],"data_offsets":[0,2]}})", "ab", "no text 'dtype'"},
      {R"({"w":{"dtype":"C64","shape":[2],"data_offsets":[0,2]}})", "ab", "type 'C64'"},
      {R"({"w":{"dtype":"U8","data_offsets":[0,2]}})", "ab", "no list 'shape'"},
      {R"({"w":{"dtype":"U8","shape":2,"data_offsets":[0,2]}})", "ab", "no list 'shape'"},
      {R"({"w":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}})", "ab", "whole numbers"},
      {R"({"w":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}})", "ab", "whole numbers"},
      {R"({"w":{"dtype":"U8","shape":["2"],"data_offsets":[0,2]}})", "ab", "whole numbers"},
      {R"({"w":{"dtype":"U8","shape":[2]}})", "ab", "no list 'data_offsets'"},
      {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2,2]}})", "ab", "no [begin, end]"},
      {R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[2,0]}})", "ab", "no [begin, end]"},
      {R"({"w":{"dtype":"U8","shape":[3],"data_offsets":[0,2]}})", "ab", "has 2 bytes of data"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,2]}})", "ab", "type say 8"},
      {R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", "",
       "more elements than there can be"},
      {"{" + ok + "}", "a", "truncated"},
      {"{" + ok + "}", "abc", "the last 1 belong to no tensor"},
      {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "abc", "starts at byte 1"},
      {"{" + ok + R"(,"x":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})", "abcd",
       "'x' starts at byte 3 of the data, but byte 2"},
      {"{" + ok + R"(,"x":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "abc",
       "'x' starts at byte 1 of the data, but byte 2"},
      {R"({"__metadata__":[]})", "", "metadata is no JSON object"},
      {R"({"__metadata__":{"a":1}})", "", "metadata 'a' is no text"},
      {R"({"__metadata__":{"rondo.checksum":"0"}})", "", "checksum"},
      {std::string(5000, '['), "", "no valid JSON"},
  };
  const TempDirectory folder;
  const std::string path = folder.path() + "/file";
  for (const Case& c : cases) {
    write_file(path, by_hand(c.json, c.data));
    const std::string message = refusal(path);
    INFO(message);
    CHECK_THAT(message, contains(c.message));
  }
}

TEST_CASE("tensor file: what is no file at all") {
  const TempDirectory folder;
  CHECK_THAT(refusal(folder.path() + "/missing"), contains("No such file"));
  CHECK_THAT(refusal(folder.path()), contains("no regular file"));
  CHECK_THAT(refusal("/dev/zero"), contains("no regular file"));
  write_file(folder.path() + "/short", "1234567");
  CHECK_THAT(refusal(folder.path() + "/short"), contains("has 7 bytes"));
  write_file(folder.path() + "/elf", std::string("\x7f"
                                                 "ELF\2\1\1\0\0\0\0\0",
                                                 12));
  CHECK_THAT(refusal(folder.path() + "/elf"), contains("no safetensors file"));
}

TEST_CASE_METHOD(Small, "tensor file: what cannot be written is refused, and the old file stays") {
  const std::string before = read_text(path);
  const auto refused = [&](auto change, const std::string& part,
                           const std::map<std::string, std::string>& metadata = {}) {
    std::vector<TensorView> changed = views;
    change(changed);
    const Status status = write_tensor_file(path, changed, metadata);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_THAT(status.message(), contains(path));
    CHECK_THAT(status.message(), contains(part));
  };
  refused([](auto& v) { v[1].name = "w"; }, "'w' is there twice");
  refused([](auto& v) { v[1].name = ""; }, "no name");
  refused([](auto& v) { v[1].name = "__metadata__"; }, "keeps this name");
  refused([](auto& v) { v[1].name = "\xff"; }, "UTF-8");
  refused([](auto& v) { v[0].data = nullptr; }, "no data");
  refused([](auto& v) { v[0].type = static_cast<DataType>(99); }, "no type");
  refused([](auto&) {}, kChecksumKey, {{kChecksumKey, ""}});
  refused([](auto&) {}, "UTF-8", {{"k", "\xff"}});
  CHECK(read_text(path) == before);

  const Status nowhere = write_tensor_file(folder.path() + "/no/file", views, {});
  CHECK(nowhere.code() == Code::kSystem);
  CHECK_THAT(nowhere.message(), contains("No such file"));
  fs::create_directory(folder.path() + "/taken");
  CHECK(write_tensor_file(folder.path() + "/taken", views, {}).code() == Code::kSystem);
  CHECK(names_in(folder.path()).size() == 2);
}

TEST_CASE_METHOD(Small,
                 "tensor file: a symlink stays, its target is replaced; what is no file stays") {
  const std::string target = folder.path() + "/in/target", link = folder.path() + "/link";
  fs::create_directory(folder.path() + "/in");
  fs::create_symlink("in/target", folder.path() + "/second");
  fs::create_symlink(folder.path() + "/second", link);
  for (const char* what : {"a target that is not there yet", "one that is"}) {
    INFO(what);
    REQUIRE(write_tensor_file(link, views, {}).ok());
    CHECK(fs::is_symlink(link));
    check_same(TensorFile::open(target).value(), views);
  }

  const std::string pipe = folder.path() + "/pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_symlink("pipe", folder.path() + "/to_pipe");
  fs::create_symlink("loop", folder.path() + "/loop");
  for (const char* name : {"/pipe", "/to_pipe", "/loop", "/in", "/in/", "/none/", "/in/target/x"}) {
    INFO(name);
    CHECK(try_replace(folder.path() + name).code() == Code::kSystem);
    CHECK(write_tensor_file(folder.path() + name, views, {}).code() == Code::kSystem);
  }
  CHECK(fs::is_fifo(pipe));
  CHECK(try_replace(link).ok());
}

TEST_CASE_METHOD(
    Small, "tensor file: a writer that dies at any byte or before any change leaves the old file") {
  const std::string old_content = read_text(path);
  std::vector<Owned> new_tensors = {{"other", DataType::kFloat64, {4}}};
  const std::vector<TensorView> after = views_of(new_tensors);
  const auto write = [&] { (void)write_tensor_file(path, after, {}); };

  size_t bytes = 0;
  for (; dies_at_file_size(bytes, write); bytes += 3) REQUIRE(read_text(path) == old_content);
  CHECK(bytes > 100);
  check_same(TensorFile::open(path).value(), after);

  write_file(path, old_content);
  size_t deaths_before_the_rename = 0;
  size_t nth = 0;
  for (; dies_before_change(nth, write); ++nth) {
    const Result<TensorFile> file = TensorFile::open(path);
    REQUIRE(file.ok());
    const bool is_old = read_text(path) == old_content;
    if (!is_old) check_same(file.value(), after);
    deaths_before_the_rename += is_old;
  }
  CHECK(deaths_before_the_rename == 5);  // create, write twice, sync, rename
  CHECK(nth == 6);                       // and the folder's sync
}

TEST_CASE_METHOD(Small,
                 "tensor file: the disk has a file before its name says so, and then the name") {
  const auto seen = operations_of([&] { REQUIRE(write_tensor_file(path, views, {}).ok()); });
  REQUIRE(seen.size() == 7);
  const std::string temporary = seen[0].second;
  CHECK(fs::path(temporary).parent_path() == folder.path());
  CHECK(seen[0].first == "create");
  CHECK(seen[4] == std::pair<std::string, std::string>("sync", temporary));
  CHECK(seen[5] == std::pair<std::string, std::string>("rename", path));
  CHECK(seen[6] == std::pair<std::string, std::string>("sync", folder.path()));
}

TEST_CASE_METHOD(Small, "tensor file: a disk that is full is an error, and nothing is left") {
  check_on_full_disk(50,
                     [&] { return write_tensor_file(path, views, {}).code() == Code::kSystem; });
  CHECK(names_in(folder.path()).size() == 1);
  check_same(TensorFile::open(path).value(), views);
}

}  // namespace rondo::trainer::tensor_file_test
