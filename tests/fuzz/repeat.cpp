// Random numbers that repeat: nonces are part of the handshake that is fuzzed.
#include <sodium.h>

#include <random>

#include "tests/fuzz/fuzz.hpp"

namespace rondo::fuzz {
namespace {

std::mt19937& generator() {
  static std::mt19937 numbers(1);
  return numbers;
}

const char* name() { return "repeating"; }
uint32_t number() { return static_cast<uint32_t>(generator()()); }
void fill(void* bytes, const size_t count) {
  auto* const into = static_cast<unsigned char*>(bytes);
  for (size_t i = 0; i < count; ++i) into[i] = static_cast<unsigned char>(number());
}

}  // namespace

void make_random_numbers_repeat() {
  static randombytes_implementation repeating{.implementation_name = name,
                                              .random = number,
                                              .stir = nullptr,
                                              .uniform = nullptr,
                                              .buf = fill,
                                              .close = nullptr};
  static const bool done = randombytes_set_implementation(&repeating) == 0 && sodium_init() >= 0;
  must(done, "libsodium starts");
}

}  // namespace rondo::fuzz
