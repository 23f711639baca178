// llm.c's token files as samples: windows of tokens side by side, one target per token. The files
// stay on disk and are read window by window. Opening a large file reads only a sample of it, to check
// and to hash it; every window is checked when it is read.
//
//   bytes        what
//   0..3         int32 magic, 20240520
//   4..7         int32 version, 1
//   8..11        int32 tokens
//   12..1023     not used
//   from 1024    uint16 per token, and nothing after them
//
// All little-endian. A folder is its *.bin files in bytewise order of their names; no window
// crosses from one into the next.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>

#include "trainer/base/hash.hpp"
#include "trainer/base/random.hpp"
#include "trainer/data/datasets.hpp"
#include "trainer/data/file.hpp"

namespace rondo::trainer {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "tokens are copied as they lie");

constexpr int32_t kMagic = 20240520, kTokensVersion = 1;
constexpr uint64_t kHeaderBytes = 1024;
// What is read of a file that is opened: pieces at equal distances, from its first token to its last.
// So opening takes milliseconds, on every rank and for any size.
constexpr uint64_t kPieces = 256, kPieceTokens = 2048;

struct Shard {
  InputFile file;
  uint64_t windows_end;  // windows in this shard and those before it
};

/// Fills `tokens` with those from position `first` on, and checks them.
Status read_tokens(const InputFile& file, uint64_t first, size_t classes,
                   std::vector<uint16_t>& tokens) {
  RONDO_TRY(file.read_at(kHeaderBytes + first * sizeof(uint16_t), tokens.data(),
                         tokens.size() * sizeof(uint16_t)));
  const auto too_large =
      std::find_if(tokens.begin(), tokens.end(), [&](uint16_t token) { return token >= classes; });
  if (too_large == tokens.end()) return {};
  const uint64_t position = first + static_cast<uint64_t>(too_large - tokens.begin());
  return data_error(file.path(),
                    fmt::format("token {} is {}, not below the {} classes of the model", position,
                                *too_large, classes));
}

class TokenData : public Dataset {
 public:
  TokenData(Facts facts, std::vector<Shard> shards)
      : Dataset(std::move(facts)), shards_(std::move(shards)) {}

  Status read(uint64_t index, const Slot& slot) const override {
    const auto shard =
        std::upper_bound(shards_.begin(), shards_.end(), index,
                         [](uint64_t i, const Shard& s) { return i < s.windows_end; });
    const uint64_t first = shard == shards_.begin() ? 0 : (shard - 1)->windows_end;
    const uint64_t position = (index - first) * shape().context;
    thread_local std::vector<uint16_t> window;
    window.resize(shape().context + 1);
    RONDO_TRY(read_tokens(shard->file, position, shape().classes, window));
    if (slot.tokens != nullptr) std::copy(window.begin(), window.end() - 1, slot.tokens);
    if (slot.targets != nullptr) std::copy(window.begin() + 1, window.end(), slot.targets);
    return {};
  }

 private:
  const std::vector<Shard> shards_;
};

/// The path itself, or the folder's *.bin files.
Result<std::vector<std::string>> list_shards(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> shards;
  fs::directory_iterator entries(path, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path& entry = entries->path();
    if (entry.extension() == ".bin" && !entry.filename().native().starts_with(".")) {
      shards.push_back(entry.native());
    }
  }
  if (error) return data_error(path, "cannot be listed: " + error.message());
  if (shards.empty()) return data_error(path, "holds no token file (*.bin)");
  std::sort(shards.begin(), shards.end());
  return shards;
}

/// How many tokens the file says and has.
Result<uint64_t> check_header(const InputFile& file) {
  int32_t header[3];
  if (file.size() < kHeaderBytes) {
    return data_error(file.path(), "has " + std::to_string(file.size()) +
                                       " bytes, but a token file begins with a header of 1024");
  }
  RONDO_TRY(file.read_at(0, header, sizeof header));
  if (header[0] != kMagic || header[1] != kTokensVersion) {
    return data_error(file.path(), "begins with magic " + std::to_string(header[0]) + ", version " +
                                       std::to_string(header[1]) +
                                       ": llm.c's token files have 20240520, version 1");
  }
  const int64_t tokens = header[2];
  const auto held = static_cast<int64_t>(file.size() - kHeaderBytes);
  if (tokens < 0 || tokens * int64_t{sizeof(uint16_t)} != held) {
    return data_error(file.path(), "should hold " + std::to_string(tokens) +
                                       " tokens of 2 bytes, but has " + std::to_string(held) +
                                       " bytes after its header: truncated?");
  }
  return static_cast<uint64_t>(tokens);
}

/// Adds the file's tokens, or a sample of them, to `hash`. Checks the tokens that it
/// reads.
Result<uint64_t> hash_tokens(const InputFile& file, uint64_t tokens, size_t classes,
                             uint64_t hash) {
  const bool whole = tokens <= kPieces * kPieceTokens;
  const uint64_t pieces = whole ? 1 : kPieces;
  std::vector<uint16_t> piece(static_cast<size_t>(whole ? tokens : kPieceTokens));
  for (uint64_t i = 0; i < pieces; ++i) {
    const uint64_t begin = whole ? 0 : i * (tokens - kPieceTokens) / (kPieces - 1);
    RONDO_TRY(read_tokens(file, begin, classes, piece));
    hash = hash_bytes(piece.data(), piece.size() * sizeof(uint16_t), hash);
  }
  return mix(hash ^ tokens);  // where one file ends matters: no window crosses
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_tokens(const std::string& path, const SampleShape& shape) {
  const std::vector<std::string> paths = RONDO_TRY(list_shards(path));
  Dataset::Facts facts{
      .path = path,
      .bytes = 0,
      .files = paths.size(),
      .samples = 0,
      .hash = 0,
      .shape = {.context = shape.context, .targets = shape.context, .classes = shape.classes}};
  std::vector<Shard> shards;
  uint64_t all_tokens = 0;
  for (const std::string& name : paths) {
    InputFile file = RONDO_TRY(InputFile::open(name));
    const uint64_t tokens = RONDO_TRY(check_header(file));
    const uint64_t hash = RONDO_TRY(hash_tokens(file, tokens, shape.classes, facts.hash));
    facts.hash = hash;
    facts.bytes += file.size();
    if (tokens > 0) facts.samples += (tokens - 1) / shape.context;
    all_tokens += tokens;
    shards.push_back({std::move(file), facts.samples});
  }
  if (facts.samples == 0) {
    return data_error(path, "holds " + std::to_string(all_tokens) + " tokens in " +
                                std::to_string(facts.files) + " files, but a sample needs " +
                                std::to_string(shape.context + 1) + " tokens of one file");
  }
  return std::unique_ptr<Dataset>(std::make_unique<TokenData>(std::move(facts), std::move(shards)));
}

}  // namespace rondo::trainer
