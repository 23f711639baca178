// libFuzzer's functions. Its corpus starts empty: the mutator takes the program's seeds instead.
#include "tests/fuzz/fuzz.hpp"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  rondo::fuzz::make_random_numbers_repeat();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rondo::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  constexpr unsigned kOneIn = 8;  // inputs that begin anew from a seed
  static const std::vector<std::string> seeds = rondo::fuzz::seeds();
  if (seed % kOneIn == 0) {
    const std::string& from = seeds[seed / kOneIn % seeds.size()];
    size = from.copy(reinterpret_cast<char*>(data), max_size);
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
