// What ranks that are threads of rondo-perf say of errors.
#include "bench/perf/rank_errors.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <atomic>
#include <cstddef>
#include <latch>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/harness/catch.hpp"

namespace rondo::bench {
namespace {

/// Lines after one text of each of three ranks, which are threads.
std::string said(const std::vector<std::string>& texts) {
  std::ostringstream out;
  const auto target = std::make_shared<spdlog::sinks::ostream_sink_mt>(out);
  target->set_pattern("%v");
  const auto errors = std::make_shared<RankErrors>(target, 3);
  spdlog::logger logger("rank_errors", errors);
  std::latch all_have_said(static_cast<std::ptrdiff_t>(texts.size()));  // no two have one number
  std::vector<std::jthread> ranks;
  std::atomic<size_t> next = 0;
  for (size_t r = 0; r < texts.size(); ++r) {
    ranks.emplace_back([&, r] {
      for (size_t now = next; now != r; now = next) next.wait(now);
      logger.error("{}", texts[r]);
      ++next;
      next.notify_all();
      all_have_said.arrive_and_wait();
    });
  }
  ranks.clear();
  errors->finish();
  return out.str();
}

TEST_CASE("an error of all ranks is said once, also where one ended another by it") {
  const std::string own = "invalid argument: root 7: choose one with -r";
  const std::string ended = "aborted: rank 1 aborted: root 7: choose one with -r";
  CHECK(said({own, own, own}) == own + "\n");
  CHECK(said({own, ended, own}) == own + "\n");
  CHECK(said({own, ended, ended}) == own + "\n");
  CHECK(said({own, "aborted: rank 1 aborted: another reason"}) ==
        own + "\naborted: rank 1 aborted: another reason\n");
}

}  // namespace
}  // namespace rondo::bench
