// Writes and reads messages between ranks: numbers, structs of one build of rondo, and texts with
// their length before them. All hosts that rondo runs on are little-endian.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace rondo::base {

class ByteWriter {
 public:
  template <class T>
  ByteWriter& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  ByteWriter& put_text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Over bytes that are not trusted. Once something is missing, every further read fails, too.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  /// Zeros if it is missing.
  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
    T value{};
    const std::string_view bytes = get_bytes(sizeof value);
    if (is_ok_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  /// A view of what was given, empty if it is missing.
  std::string_view get_text() { return get_bytes(get<uint32_t>()); }
  std::string_view get_bytes(size_t count) {
    is_ok_ = is_ok_ && count <= left_.size();
    if (!is_ok_) return {};
    const std::string_view bytes = left_.substr(0, count);
    left_.remove_prefix(count);
    return bytes;
  }

  bool is_ok() const { return is_ok_; }
  /// What has not been read.
  std::string_view left() const { return left_; }
  /// Whether all has been read, and nothing was missing.
  bool is_done() const { return is_ok_ && left_.empty(); }

 private:
  std::string_view left_;
  bool is_ok_ = true;
};

}  // namespace rondo::base
