// Small training data made up for tests: text, a token file, a folder of pictures. Functions of
// their arguments, in the formats that trainer/data reads; with handles to spoil them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/trainer/files.hpp"
#include "trainer/base/random.hpp"

namespace rondo::trainer::testing {

/// Words of a small vocabulary: there is something to learn in it.
inline std::string synthetic_text(size_t bytes, uint64_t seed) {
  static const char* const kWords[] = {"ring ", "rank ", "sum ", "bucket ", "step ", "wait.\n"};
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) text += kWords[mix(seed ^ mix(i)) % 6];
  text.resize(bytes);
  return text;
}

/// An llm.c token file. `claimed`: what its header says it holds, -1: the truth.
inline std::string token_file(const std::vector<uint16_t>& tokens, int32_t magic = 20240520,
                              int32_t version = 1, int64_t claimed = -1) {
  std::string file(1024, '\0');
  const auto put = [&](size_t index, int32_t value) {
    for (size_t b = 0; b < 4; ++b) {
      file[4 * index + b] = static_cast<char>(static_cast<uint32_t>(value) >> (8 * b));
    }
  };
  put(0, magic);
  put(1, version);
  put(2, static_cast<int32_t>(claimed < 0 ? static_cast<int64_t>(tokens.size()) : claimed));
  for (const uint16_t token : tokens) {
    file.push_back(static_cast<char>(token & 0xff));
    file.push_back(static_cast<char>(token >> 8));
  }
  return file;
}

/// An IDX file of bytes with these extents in its header.
inline std::string idx_file(uint32_t magic, const std::vector<uint32_t>& extents,
                            const std::string& bytes) {
  std::string file;
  const auto put = [&](uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) file.push_back(static_cast<char>(value >> shift));
  };
  put(magic);
  for (const uint32_t extent : extents) put(extent);
  return file + bytes;
}

/// Pictures that a linear model can tell apart: class c has a bright row c, all else is dim noise.
/// Writes `prefix`-images-idx3-ubyte and `prefix`-labels-idx1-ubyte, beginning with picture `first`
/// of the seed. REQUIRES: classes <= side.
inline void write_pictures(const std::filesystem::path& folder, const std::string& prefix,
                           uint32_t count, uint32_t side, uint32_t classes, uint64_t seed,
                           uint64_t first = 0) {
  std::string pixels, labels;
  for (uint64_t i = first; i < first + count; ++i) {
    const uint64_t key = mix(seed ^ mix(i)), label = key % classes;
    labels.push_back(static_cast<char>(label));
    for (uint64_t p = 0; p < uint64_t{side} * side; ++p) {
      const uint64_t noise = mix(key ^ p) % 64;
      pixels.push_back(static_cast<char>(p / side == label ? 255 - noise : noise));
    }
  }
  write_file(folder / (prefix + "-images-idx3-ubyte"),
             idx_file(0x803, {count, side, side}, pixels));
  write_file(folder / (prefix + "-labels-idx1-ubyte"), idx_file(0x801, {count}, labels));
}

}  // namespace rondo::trainer::testing
