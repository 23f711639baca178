// A fuzzed parser: one function over arbitrary bytes, and inputs to begin with. Each source file
// beside this one is a program with both, under libFuzzer or the driver of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace rondo::fuzz {

/// Defined by each program. `input` has any content and length; ends the process if the parser does
/// not do what it promises.
void run(std::string_view input);
/// Defined by each program: well-formed inputs, from which others are made. The same in every run.
std::vector<std::string> seeds();

/// Ends the process, which the engine reports with the input.
inline void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

/// Takes an input apart; gives zeros after its end.
class Reader {
 public:
  explicit Reader(std::string_view input) : input_(input) {}

  template <class T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::string_view bytes = take_bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::string_view take_bytes(size_t most) {
    const std::string_view bytes = input_.substr(0, most);
    input_.remove_prefix(bytes.size());
    return bytes;
  }
  std::string_view rest() { return take_bytes(input_.size()); }
  bool is_empty() const { return input_.empty(); }

 private:
  std::string_view input_;
};

template <class T>
std::string bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// From now on libsodium's random numbers are the same in every run. Call it first.
void make_random_numbers_repeat();

}  // namespace rondo::fuzz
