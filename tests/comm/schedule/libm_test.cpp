// Ranks choose alike without talking, also where their C libraries differ: this program's own log,
// pow and so on stand for another libm, whose results are off by one in the last place.
#include <dlfcn.h>

#include <cmath>

#include "comm/tuner/choose.hpp"
#include "tests/comm/schedule/builtins.hpp"
#include "tests/comm/schedule/predictions.hpp"

namespace {

bool other_libm = false;

double result_of(double result) { return other_libm ? std::nextafter(result, INFINITY) : result; }

double call(const char* function, double x) {
  return result_of(reinterpret_cast<double (*)(double)>(dlsym(RTLD_NEXT, function))(x));
}

}  // namespace

extern "C" {
double exp(double x) noexcept { return call("exp", x); }
double exp2(double x) noexcept { return call("exp2", x); }
double log(double x) noexcept { return call("log", x); }
double log2(double x) noexcept { return call("log2", x); }
double log10(double x) noexcept { return call("log10", x); }
double log1p(double x) noexcept { return call("log1p", x); }
double pow(double x, double y) noexcept {
  return result_of(reinterpret_cast<double (*)(double, double)>(dlsym(RTLD_NEXT, "pow"))(x, y));
}
}

namespace rondo::tuner::test {
namespace {

LinkProfile calibrated(int ranks) {
  LinkProfile profile = shared_memory_profile();
  Corrections corrections{.hosts = base::HostMap::one_host(ranks), .tables = {}};
  for (const auto& [collective, algorithm] : schedule::test::all_builtins()) {
    for (const bool mapped : {false, true}) {
      corrections.tables.push_back({.collective = collective,
                                    .algorithm = algorithm,
                                    .mapped = mapped,
                                    .points = {{8, 0.7}, {3000, 1.9}, {uint64_t{1} << 24, 0.6}}});
    }
  }
  profile.corrections = {std::move(corrections)};
  return profile;
}

/// Of everything that can be predicted for as many ranks.
std::vector<double> predictions(int ranks) {
  std::vector<double> all;
  for (const LinkProfile& profile : {shared_memory_profile(), wire_profile(1e9, 20e-6),
                                     oversubscribed_profile(), calibrated(ranks)}) {
    for (const auto& [collective, algorithm] : schedule::test::all_builtins()) {
      const auto hosts = schedule::test::usual_hosts(algorithm, ranks);
      for (uint64_t bytes = 1; bytes < uint64_t{1} << 30; bytes = bytes * 3 + 1) {
        for (const bool mapped : {false, true}) {
          Question question = question_of(collective, algorithm, ranks, bytes, hosts);
          question.mapped = mapped;
          all.push_back(price(question, profile).total_us());
        }
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("predictions are the same to the last bit, whatever the C library's log and pow") {
  volatile double three = 3, half = 0.5;
  const double log_here = std::log(three), pow_here = std::pow(three, half);
  for (const int ranks : {2, 3, 4, 8, 33, 64}) {
    other_libm = false;
    const std::vector<double> here = predictions(ranks);
    other_libm = true;
    const std::vector<double> there = predictions(ranks);
    INFO(ranks << " ranks");
    CHECK(here == there);
  }
  CHECK(std::log(three) > log_here);  // it is another libm
  CHECK(std::pow(three, half) > pow_here);
  other_libm = false;
}

}  // namespace rondo::tuner::test
