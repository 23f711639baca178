// What the writer and the reader of tensor files share: names of types, limits, the checksum.
// Nobody else's.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/files/tensor_file.hpp"

namespace rondo::trainer::tensor_format {

inline constexpr char kMetadataKey[] = "__metadata__";
/// As in the reference implementation: no file needs more, and a foreign file often claims more.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
/// The header is filled up with spaces, so that the data starts at a multiple of this.
inline constexpr size_t kAlignment = 8;

/// By DataType.
inline constexpr std::string_view kTypeNames[kDataTypes] = {
    "F32", "F64", "F16", "BF16", "I32",  "I64",     "U8",     "I8",
    "I16", "U16", "U32", "U64",  "BOOL", "F8_E4M3", "F8_E5M2"};

/// What the caller puts the file's name in front of.
inline Status wrong(const std::string& what) { return Status(Code::kDataError, what); }

/// A tensor without its data, and where that lies, in bytes from the first of all data.
struct TensorEntry {
  TensorView tensor;
  size_t begin = 0, end = 0;
};

struct TensorHeader {
  std::vector<TensorEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// Checks each entry by itself; how they lie to each other is not looked at. An error's message
/// is to follow the file's name.
Status parse_header(const char* text, size_t bytes, TensorHeader& header);

/// Of tensors in the order of their data. 16 hexadecimal digits.
std::string checksum(std::span<const TensorView* const> tensors,
                     const std::map<std::string, std::string>& metadata);

}  // namespace rondo::trainer::tensor_format
