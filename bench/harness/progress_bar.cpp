// See progress_bar.hpp.
#include "bench/harness/progress_bar.hpp"

#include <algorithm>
#include <cstdio>

namespace rondo::bench {

void ProgressBar::draw(size_t done, const std::string& next) {
  constexpr size_t kWidth = 40;
  constexpr std::chrono::milliseconds kMoment{500};
  if (!watched_ || total_ == 0 || std::chrono::steady_clock::now() - start_ < kMoment) return;
  const size_t filled = kWidth * std::min(done, total_) / total_;
  std::fprintf(stderr, "\033[K[%s%s] %zu of %zu rows, now %s\r", std::string(filled, '#').c_str(),
               std::string(kWidth - filled, '.').c_str(), done, total_, next.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressBar::erase() {
  if (!drawn_) return;
  std::fputs("\033[K\r", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace rondo::bench
