// See screen.hpp.
#include "trainer/report/screen.hpp"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace rondo::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kColumns = 79;

/// Greedily, a blank between words; lines after the first begin with two blanks.
std::string wrapped(const std::string& text) {
  std::istringstream words(text);
  std::string lines, line;
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > kColumns) {
      lines += line + "\n";
      line = "  " + word;
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
  }
  return "\n" + lines + line;
}

/// 0 of what is not there, as most of it with --strategy dp.
double number(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

/// A line for each time that ranks died.
std::string deaths(const Json& s) {
  std::string text;
  if (!s.contains("deaths")) return text;
  for (const Json& death : s["deaths"]) {
    const auto ranks = death["ranks"].get<std::vector<int>>();
    const int left = death["ranks_left"];
    const std::string what =
        ranks.empty()
            ? "no rank died, but a connection was lost"
            : fmt::format("rank{} {} died", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
    const std::string line = fmt::format("{}: {} rank{} went on after step {}", what, left,
                                         left == 1 ? "" : "s", death["after_step"].get<uint64_t>());
    text += wrapped(line).substr(1) + "\n";
  }
  return text;
}

/// Five columns, up to 99999.
std::string ms_text(double value) {
  return fmt::format("{:.{}f}", value, value < 99.995 ? 2 : value < 999.95 ? 1 : 0);
}

std::string ms_text(const Json& object, const char* key) { return ms_text(number(object, key)); }

std::string times(const Json& s) {
  const bool accounts = s.contains("accounting");
  const bool measured = accounts && !s["accounting"]["slowed_ms"].is_null();
  const double comm_ms = accounts ? number(s["accounting"], "cost_ms") : number(s, "comm_us") / 1e3;
  std::string text =
      fmt::format("step  {:>9} ms: compute {}, exposed {}, other waits {}, data {}\n",
                  ms_text(s, "step_ms"), ms_text(s, "compute_ms"), ms_text(s, "exposed_comm_ms"),
                  ms_text(s, "other_wait_ms"), ms_text(s, "data_wait_ms"));
  std::string hidden = "not measured";
  if (measured) {
    hidden = number(s["accounting"], "slowed_ms") < 0 ? "too noisy to tell" : "too little to tell";
  }
  if (!s["hidden_comm_ms"].is_null()) {
    hidden = fmt::format("{} ({:.0f} %)", ms_text(s, "hidden_comm_ms"),
                         100 * number(s, "hidden_fraction"));
  }
  text +=
      fmt::format("comm  {:>9} ms: hidden {}, exposed {}; predicted {}\n", ms_text(comm_ms), hidden,
                  ms_text(s, "exposed_comm_ms"), ms_text(number(s, "predicted_comm_us") / 1e3));
  if (!accounts) return text;
  const Json& a = s["accounting"];
  const bool overlaps = s["hidden_comm_ms"] != 0;
  const std::string slowed =
      measured && overlaps ? fmt::format("; slowed {}", ms_text(a, "slowed_ms")) : std::string();
  return text + fmt::format("apart {:>9} ms: compute {}, comm {}; at best {}{}\n",
                            ms_text(a, "sum_ms"), ms_text(a, "compute_ms"), ms_text(a, "cost_ms"),
                            ms_text(a, "max_ms"), slowed);
}

std::string bytes(const Json& s) {
  const auto sent = s["bytes_sent_per_step_by_rank"].get<std::vector<uint64_t>>();
  const auto [least, most] = std::minmax_element(sent.begin(), sent.end());
  const std::string by_ranks =
      *least == *most ? fmt::format("{}", *most) : fmt::format("{} to {}", *least, *most);
  return fmt::format("sent  {:>9} bytes by a rank; by the formula {:.0f}\n", by_ranks,
                     number(s, "bytes_formula_per_step"));
}

std::string bucket_row(size_t index, const Json& bucket) {
  const auto time = [&](const char* key) {
    return bucket.contains(key) ? ms_text(bucket, key) : std::string("-");
  };
  return fmt::format("{:>6} {:>11}  {:<15} {:>7} {:>8} {:>7} {:>7} {:>9.3f}\n", index,
                     bucket["bytes"].get<uint64_t>(), bucket["algorithm"].get<std::string>(),
                     time("ready_ms"), time("transfer_ms"), time("exposed_ms"), time("cost_ms"),
                     number(bucket, "predicted_us") / 1e3);
}

/// Of many buckets the first and the last.
std::string bucket_table(const Json& buckets) {
  constexpr size_t kRows = 8, kFirst = 5, kLast = 2;
  std::string text =
      fmt::format("{:>6} {:>11}  {:<15} {:>7} {:>8} {:>7} {:>7} {:>9}\n", "bucket", "bytes",
                  "algorithm", "ready", "transfer", "exposed", "cost", "predicted");
  const size_t count = buckets.size();
  for (size_t b = 0; b < count; ++b) {
    if (count > kRows && b == kFirst) {
      text += fmt::format("{:>6} {} more\n", "...", count - kFirst - kLast);
      b = count - kLast;
    }
    text += bucket_row(b, buckets[b]);
  }
  return text;
}

}  // namespace

std::string step_line(const StepRecord& r, uint64_t last_step) {
  const size_t digits = std::to_string(last_step).size();
  const bool tokens = r.tokens_per_s > 0;  // there is no room for both
  return fmt::format(
      "step {:>{}}  loss {:<8.4f} {:>7.0f} {}/s {:>6} ms, exposed {}{}{}", r.step, digits, r.loss,
      tokens ? r.tokens_per_s : r.samples_per_s, tokens ? "tokens" : "samples",
      ms_text(r.times.step_ms), ms_text(r.times.exposed_comm_ms),
      r.epoch > 0 ? fmt::format("  epoch {}", r.epoch) : "", r.skipped ? "  skipped" : "");
}

std::string validation_line(const ValidationRecord& r) {
  return fmt::format("step {}  validation: loss {:.4f}, accuracy {:.1f} % of {} samples", r.step,
                     r.loss, 100 * r.accuracy, r.samples);
}

std::string duration_in_words(double seconds) {
  const auto s = static_cast<uint64_t>(std::lround(std::clamp(seconds, 0.0, 3.6e8)));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string bar_line(const BarState& state) {
  constexpr uint64_t kLeast = 5, kMost = 30;
  const uint64_t last = std::max(state.last_step, state.step);  // by epochs it is only expected
  const double made = static_cast<double>(state.step - state.first_step);
  const double rate = state.elapsed_s > 0 ? made / state.elapsed_s : 0;
  std::string text = fmt::format(" step {} of {}, loss {:.4f}, {:.3g} steps/s", state.step, last,
                                 state.loss, rate);
  if (rate > 0 && state.step < last) {
    text += ", " + duration_in_words(static_cast<double>(last - state.step) / rate) + " left";
  }
  const uint64_t room = kColumns > text.size() + 2 ? kColumns - text.size() - 2 : 0;
  const uint64_t width = std::clamp(room, kLeast, kMost);
  const uint64_t filled = last == 0 ? width : width * state.step / last;
  return "[" + std::string(filled, '#') + std::string(width - filled, '.') + "]" + text;
}

std::string summary_screen(const Json& s) {
  const uint64_t ranks = s["ranks"], cores = s["cores"];
  std::string text =
      wrapped(fmt::format(
          "{} rank{} on {} core{}, {} step {}: loss {}, {:.0f} samples/s{}", ranks,
          ranks == 1 ? "" : "s", cores, cores == 1 ? "" : "s",
          s.contains("interrupted") ? "interrupted at" : "to", s["steps"].get<uint64_t>(),
          s["final_loss"].is_null() ? "-" : fmt::format("{:.4f}", number(s, "final_loss")),
          number(s, "samples_per_s"),
          s.contains("tokens_per_s") ? fmt::format(", {:.0f} tokens/s", number(s, "tokens_per_s"))
                                     : "")) +
      "\n";
  text += deaths(s) + times(s) + bytes(s) + bucket_table(s["buckets"]) +
          "Times in ms, medians over the steps; comm and apart are measured alone.";
  for (const char* key : {"diagnosis", "suggestion"}) {
    if (s.contains(key)) text += wrapped(std::string(key) + ": " + s[key].get<std::string>());
  }
  for (const Json& warning : s["warnings"])
    text += wrapped("warning: " + warning.get<std::string>());
  return text;
}

}  // namespace rondo::trainer
