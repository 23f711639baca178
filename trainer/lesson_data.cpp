// See lesson_data.hpp.
#include "trainer/lesson_data.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "trainer/random.hpp"

namespace rondo::trainer {
namespace {

namespace fs = std::filesystem;

Status write_whole(const fs::path& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (file) return {};
  return Status(Code::kSystem, "cannot write '" + path.string() + "', which the lesson trains on");
}

std::string text_of(size_t bytes, uint64_t seed) {
  static const char* const kWords[] = {"ring ", "rank ", "sum ", "bucket ", "step ", "wait.\n"};
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) text += kWords[mix(seed ^ mix(i)) % 6];
  text.resize(bytes);
  return text;
}

std::string idx_of(uint32_t magic, const std::vector<uint32_t>& extents, const std::string& bytes) {
  std::string file;
  const auto put = [&](uint32_t word) {
    for (int shift = 24; shift >= 0; shift -= 8) file.push_back(static_cast<char>(word >> shift));
  };
  put(magic);
  for (const uint32_t extent : extents) put(extent);
  return file + bytes;
}

/// Class c has a brighter bar of two rows. Exposure differs from picture to picture, so that the
/// statistics of a few pictures say little about those of many.
Status write_bars(const fs::path& folder, uint32_t count, uint64_t seed) {
  constexpr uint32_t kSide = 8, kClasses = 4;
  std::string pixels, labels;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t key = mix(seed ^ mix(i)), label = key % kClasses;
    const uint64_t exposure = mix(key ^ 1) % 160;
    labels.push_back(static_cast<char>(label));
    for (uint64_t p = 0; p < uint64_t{kSide} * kSide; ++p) {
      const uint64_t noise = mix(key ^ (p + 2)) % 48, bar = p / (2 * kSide) == label ? 40 : 0;
      pixels.push_back(static_cast<char>(exposure + noise + bar));
    }
  }
  std::error_code error;
  fs::create_directories(folder, error);
  RONDO_RETURN_IF_ERROR(
      write_whole(folder / "t-images-idx3-ubyte", idx_of(0x803, {count, kSide, kSide}, pixels)));
  return write_whole(folder / "t-labels-idx1-ubyte", idx_of(0x801, {count}, labels));
}

}  // namespace

Status write_lesson_data(const std::string& folder) {
  const fs::path root(folder);
  const std::string text = text_of(32768, 1);
  RONDO_RETURN_IF_ERROR(write_whole(root / "text", text));
  RONDO_RETURN_IF_ERROR(write_whole(root / "short", text.substr(0, 16 + 320)));
  RONDO_RETURN_IF_ERROR(write_whole(root / "share-0", text.substr(0, 16 + 128)));
  RONDO_RETURN_IF_ERROR(write_whole(root / "share-1", text.substr(1000, 16 + 96)));
  RONDO_RETURN_IF_ERROR(write_bars(root / "pictures", 512, 1));
  return write_bars(root / "validation", 256, 2);
}

}  // namespace rondo::trainer
