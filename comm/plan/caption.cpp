// The words of a picture: what is drawn, and what it sends beside the formula.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "comm/base/counted.hpp"
#include "comm/plan/plan.hpp"

namespace rondo::plan {
namespace {

using comm::counted;

/// 1234567 as 1,234,567.
std::string with_commas(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::string ranks_text(const std::vector<int>& ranks, size_t all) {
  if (ranks.size() == all) return "each rank";
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string amount_text(uint64_t bytes, double formula, std::string_view text) {
  if (bytes == 0 && formula == 0) return "nothing";
  const bool same = static_cast<double>(bytes) == formula;
  return fmt::format("{} bytes {} {}{}", with_commas(bytes), same ? "=" : "~", text,
                     same ? "" : fmt::format(" = {:.1f}", formula));
}

/// "Ranks 0, 1 send 8 bytes = S/N and fetch nothing.", for each kind of rank.
std::vector<std::string> bytes_in_words(const ExplainedPlan& plan, bool one_hop) {
  std::vector<std::pair<const RankBytes*, std::vector<int>>> kinds;
  for (const RankBytes& b : plan.bytes) {
    const auto alike = [&](const auto& kind) {
      const RankBytes& k = *kind.first;
      return k.sent == b.sent && k.fetched == b.fetched && k.sent_text == b.sent_text &&
             k.fetched_text == b.fetched_text;
    };
    const auto kind = std::find_if(kinds.begin(), kinds.end(), alike);
    if (kind == kinds.end()) {
      kinds.emplace_back(&b, std::vector<int>{b.rank});
    } else {
      kind->second.push_back(b.rank);
    }
  }
  const bool fetches = std::any_of(plan.bytes.begin(), plan.bytes.end(), [](const RankBytes& b) {
    return b.fetched != 0 || b.formula_fetched != 0;
  });
  std::vector<std::string> lines;
  for (const auto& [b, ranks] : kinds) {
    const bool one = ranks.size() == 1 || ranks.size() == plan.bytes.size();
    std::string line = fmt::format("{}{} {} {}", one_hop ? "in all hops together " : "",
                                   ranks_text(ranks, plan.bytes.size()), one ? "sends" : "send",
                                   amount_text(b->sent, b->formula_sent, b->sent_text));
    if (fetches) {
      line += fmt::format(" and {} {}", one ? "fetches" : "fetch",
                          amount_text(b->fetched, b->formula_fetched, b->fetched_text));
    }
    line[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(line[0])));
    lines.push_back(line + ".");
  }
  return lines;
}

/// What the ranks send in a hop; empty if they do not all send equally much, or chunks differ.
std::string hop_in_words(const ExplainedPlan& plan, const Picture& picture, int hop) {
  std::vector<int> now(static_cast<size_t>(picture.ranks)), before = now;
  for (const Box& box : picture.boxes) {
    const auto rank = static_cast<size_t>(box.rank);
    if (box.level == hop - 1) now[rank] += box.sends;
    if (box.level < hop - 1) before[rank] += box.sends;
  }
  const auto differ = [](const std::vector<int>& counts) {
    return std::count(counts.begin(), counts.end(), counts[0]) !=
           static_cast<std::ptrdiff_t>(counts.size());
  };
  if (!plan.equal_chunks || plan.bytes.empty() || differ(now) || differ(before)) return {};
  const uint64_t chunk = plan.programs[0].channels[0].block * size_of(plan.request.type);
  return fmt::format("In this hop each rank sends {} = {} bytes, with the hops before it {} bytes.",
                     counted(now[0], "chunk"), with_commas(static_cast<uint64_t>(now[0]) * chunk),
                     with_commas(static_cast<uint64_t>(now[0] + before[0]) * chunk));
}

}  // namespace

Caption caption_of(const ExplainedPlan& plan, const Picture& picture, int hop) {
  const PlanRequest& r = plan.request;
  Caption caption;
  caption.title =
      fmt::format("{} by {}, {}", name(r.collective), name(plan.algorithm), ranks_text(r));
  if (hop != 0) caption.title += fmt::format(": hop {} of {}", hop, picture.hops());
  const int chunks = plan.schedules[0].chunks;
  if (r.collective == Collective::kBarrier) {
    caption.subtitle = "no data";
  } else {
    caption.subtitle = fmt::format(
        "S = {} bytes, a rank's larger buffer; N = {}{}; {}{}", with_commas(r.size_bytes), r.ranks,
        r.hosts->hosts() > 1 ? fmt::format("; H = {}", r.hosts->hosts()) : "",
        counted(chunks, "chunk"),
        plan.equal_chunks
            ? fmt::format(" of {} bytes",
                          with_commas(plan.programs[0].channels[0].block * size_of(r.type)))
            : " of different length");
  }
  if (hop != 0) caption.notes.push_back(hop_in_words(plan, picture, hop));
  for (std::string& line : bytes_in_words(plan, hop != 0)) caption.notes.push_back(std::move(line));
  if (plan.wire && !plan.wire->hosts.empty()) {
    const WireBytes& wire = *plan.wire;
    caption.notes.push_back(
        fmt::format("The busiest host's link carries {} each way.",
                    amount_text(wire.busiest(), wire.formula,
                                wire.text.empty() ? "the formula" : std::string_view(wire.text))));
  }
  std::erase(caption.notes, "");
  return caption;
}

}  // namespace rondo::plan
