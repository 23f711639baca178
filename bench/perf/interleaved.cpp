// See interleaved.hpp.
#include "bench/perf/interleaved.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <span>

#include "rondo/memory.hpp"

namespace rondo::bench {
namespace {

void show(const Rounds& how, size_t done, size_t all) {
  if (how.progress.empty() || isatty(STDERR_FILENO) != 1) return;
  std::fprintf(stderr, "\r%s: %3zu %%%s", how.progress.c_str(), 100 * done / all,
               done == all ? "\n" : "");
}

/// A fifth of the rounds, at least three if there are as many: those with the lowest geometric mean
/// over all contenders.
std::vector<size_t> fastest_rounds(std::span<const Contender> block) {
  const size_t rounds = block[0].times.size();
  std::vector<double> logs(rounds, 0);
  for (const Contender& contender : block) {
    for (size_t r = 0; r < rounds; ++r) logs[r] += std::log(contender.times[r]);
  }
  std::vector<size_t> order(rounds);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logs[a] < logs[b]; });
  order.resize(std::min(rounds, std::max<size_t>(3, rounds / 5)));
  return order;
}

/// As many of the rounds as fit, from how long the first one took on the slowest rank.
Result<size_t> affordable(RondoBackend& backend, const Rounds& how, double round_us) {
  constexpr size_t kLeastRounds = 5;
  auto slowest_us = RONDO_TRY(slowest_of(backend, {&round_us, 1}));
  const double fitting = how.total_us / std::max(slowest_us.front(), 1.0);
  if (fitting >= static_cast<double>(how.rounds)) return how.rounds;
  return std::min(how.rounds, std::max(kLeastRounds, static_cast<size_t>(fitting)));
}

}  // namespace

Result<size_t> time_interleaved(RondoBackend& backend, const BothMemories& memory,
                                const Rounds& how, std::vector<Contender>& contenders) {
  std::vector<double> times;
  size_t rounds = how.rounds;
  const auto start = std::chrono::steady_clock::now();
  for (size_t round = 0; round <= rounds; ++round) {
    for (size_t c = 0; c < contenders.size(); ++c) {
      Contender& contender = contenders[c];
      backend.select(contender.algorithm, contender.library);
      const BackendCall operation = operation_on(contender.shape, memory.of(contender.library),
                                                 false, backend.rank(), backend.size());
      RONDO_TRY(backend.run(operation));  // its data, not the last one's, in the caches
      if (round == 0) {
        contender.iterations = RONDO_TRY(choose_iterations(backend, operation, how.batch_us));
      } else {
        times.push_back(RONDO_TRY(time_batch(backend, operation, contender.iterations)));
      }
      show(how, round * contenders.size() + c + 1, (rounds + 1) * contenders.size());
    }
    if (round > 0) continue;
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (how.total_us != INFINITY) rounds = RONDO_TRY(affordable(backend, how, took.count()));
    if (how.planned) how.planned(rounds, 1e-6 * took.count() * static_cast<double>(rounds));
  }
  auto slowest = RONDO_TRY(slowest_of(backend, times));
  for (size_t i = 0; i < slowest.size(); ++i) {
    contenders[i % contenders.size()].times.push_back(slowest[i]);
  }
  return rounds;
}

void settle(std::vector<Contender>& contenders) {
  for (size_t first = 0; first < contenders.size();) {
    size_t last = first;
    while (last < contenders.size() && contenders[last].block == contenders[first].block) ++last;
    const std::span<Contender> block(&contenders[first], last - first);
    const std::vector<size_t> rounds = fastest_rounds(block);
    for (Contender& contender : block) {
      std::vector<double> times;
      for (const size_t round : rounds) times.push_back(contender.times[round]);
      contender.time_us = median(std::move(times));
    }
    first = last;
  }
}

std::vector<Algorithm> algorithms_for(RondoBackend& backend, const CallShape& shape, bool library) {
  std::vector<Algorithm> possible;
  for (int a = 1; a < kAlgorithms; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    backend.select(algorithm, library);
    if (backend.planned(shape)) possible.push_back(algorithm);
  }
  return possible;
}

}  // namespace rondo::bench
