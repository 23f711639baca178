// fuzz_NAME [RUNS [FIRST]] | FILE: runs inputs FIRST, FIRST + 1, ..., each made from a seed by a few
// mutations that follow from its number, or the one in FILE. Where there is no libFuzzer: it knows
// nothing of coverage. An input that ends the process is named before, and written to a file.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz.hpp"

namespace rondo::fuzz {
namespace {

constexpr size_t kMaxBytes = 4096;

class Mutator {
 public:
  Mutator(const std::vector<std::string>& seeds, uint64_t number)
      : seeds_(seeds), random_(number), bytes_(seeds[below(seeds.size())]) {}

  std::string make() {
    for (size_t left = below(6); left > 0; --left) mutate();
    bytes_.resize(std::min(bytes_.size(), kMaxBytes));
    return bytes_;
  }

 private:
  size_t below(size_t limit) { return static_cast<size_t>(random_()) % limit; }
  size_t place() { return below(bytes_.size() + 1); }

  void mutate() {
    const size_t at = place(), count = below(16) + 1;
    switch (below(8)) {
      case 0:
        if (at < bytes_.size()) bytes_[at] = static_cast<char>(bytes_[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < bytes_.size()) bytes_[at] = static_cast<char>(random_());
        break;
      case 2:
        overwrite(at);
        break;
      case 3:
        bytes_.erase(at, count);
        break;
      case 4:
        bytes_.insert(at, count, static_cast<char>(random_()));
        break;
      case 5:
        bytes_.insert(at, bytes_.substr(place(), 4 * count));
        break;
      case 6:
        bytes_.resize(at);
        break;
      default:
        const std::string& other = seeds_[below(seeds_.size())];
        bytes_ = bytes_.substr(0, at) + other.substr(below(other.size() + 1));
    }
  }

  /// A number that is at an edge, of 1 to 8 bytes.
  void overwrite(size_t at) {
    constexpr uint64_t kEdges[] = {0,          1,         0x7f,       0x80,          0xff,
                                   0x7fff,     0x8000,    0xffff,     0x7fffffff,    0x80000000,
                                   0xffffffff, INT64_MAX, UINT64_MAX, UINT64_MAX - 1};
    const uint64_t edge = kEdges[below(std::size(kEdges))];
    const size_t bytes = std::min(size_t{1} << below(4), bytes_.size() - at);
    std::memcpy(bytes_.data() + at, &edge, bytes);
  }

  const std::vector<std::string>& seeds_;
  std::mt19937_64 random_;
  std::string bytes_;
};

// For the handler of a signal that ends the process.
std::string current;
uint64_t current_number = 0;

void report(int signal) {
  std::fprintf(stderr, "fuzz: signal %d at input %lu, of %zu bytes: written to fuzz-crash\n",
               signal, current_number, current.size());
  std::ofstream("fuzz-crash", std::ios::binary) << current;
  _exit(1);
}

bool parse(const char* text, uint64_t& into) {
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), into);
  return error == std::errc() && *end == '\0';
}

}  // namespace
}  // namespace rondo::fuzz

int main(int count, char** arguments) {
  namespace fuzz = rondo::fuzz;
  fuzz::make_random_numbers_repeat();
  for (int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) ::signal(signal, fuzz::report);
  uint64_t runs = 20'000, first = 0;
  if (count > 1 && !fuzz::parse(arguments[1], runs)) {
    std::ifstream file(arguments[1], std::ios::binary);
    if (!file) return 2;
    fuzz::run(std::string(std::istreambuf_iterator<char>(file), {}));
    return 0;
  }
  if (count > 2 && !fuzz::parse(arguments[2], first)) return 2;
  const std::vector<std::string> seeds = fuzz::seeds();
  for (const std::string& seed : seeds) fuzz::run(fuzz::current = seed);
  for (fuzz::current_number = first; fuzz::current_number < first + runs; ++fuzz::current_number) {
    fuzz::run(fuzz::current = fuzz::Mutator(seeds, fuzz::current_number).make());
  }
  std::printf("%lu inputs\n", runs);
}
