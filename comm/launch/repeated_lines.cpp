// See repeated_lines.hpp.
#include "comm/launch/repeated_lines.hpp"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace rondo::run {

RepeatedLines::RepeatedLines(std::vector<std::string> prefixes,
                             std::function<void(std::string_view)> print)
    : streams_(prefixes.size()), print_(std::move(print)) {
  for (size_t i = 0; i < prefixes.size(); ++i) streams_[i].prefix = std::move(prefixes[i]);
}

void RepeatedLines::add(int rank, std::string_view text, Time now) {
  Stream& stream = streams_[static_cast<size_t>(rank)];
  if (!stream.held.empty()) {
    const std::string* expected = line_of(streams_[static_cast<size_t>(stream.model)], stream.at);
    if (expected != nullptr && *expected == text) {
      stream.held.emplace_back(text);
      ++stream.at;
      return;
    }
    release(stream);
  }
  if (!text.ends_with('\r') && starts_to_follow(rank, text, now)) return;
  print(stream, text, now);
}

void RepeatedLines::end(int rank, Time now) {
  streams_[static_cast<size_t>(rank)].ended = true;
  for (size_t r = 0; r < streams_.size(); ++r) settle(static_cast<int>(r), now);
}

void RepeatedLines::turn(Time now) {
  for (Stream& stream : streams_) {
    if (!stream.held.empty() && now >= stream.since + kHold) release(stream);
  }
  std::erase_if(merged_, [&](const Merged& merged) {
    const bool due = now >= merged.since + kHold;
    if (due) report(merged);
    return due;
  });
}

std::optional<RepeatedLines::Time> RepeatedLines::next() const {
  std::optional<Time> first;
  const auto take = [&first](Time since) {
    if (!first || since + kHold < *first) first = since + kHold;
  };
  for (const Stream& stream : streams_) {
    if (!stream.held.empty()) take(stream.since);
  }
  for (const Merged& merged : merged_) take(merged.since);
  return first;
}

void RepeatedLines::finish() {
  for (Stream& stream : streams_) release(stream);
  for (const Merged& merged : std::exchange(merged_, {})) report(merged);
}

/// The line with this number, counted from the rank's first; null: not printed yet, or long ago.
const std::string* RepeatedLines::line_of(const Stream& model, size_t number) const {
  const size_t first = model.printed - model.tail.size();
  return number < first || number >= model.printed ? nullptr : &model.tail[number - first];
}

bool RepeatedLines::starts_to_follow(int rank, std::string_view text, Time now) {
  Stream& stream = streams_[static_cast<size_t>(rank)];
  for (size_t r = 0; r < streams_.size(); ++r) {
    const Stream& model = streams_[r];
    if (&model == &stream || model.merged || now >= model.last + kHold) continue;
    for (size_t i = 0; i < model.tail.size(); ++i) {
      if (model.tail[i] != text) continue;
      stream.held.emplace_back(text);
      stream.model = static_cast<int>(r);
      stream.at = model.printed - model.tail.size() + i + 1;
      stream.since = now;
      return true;
    }
  }
  return false;
}

void RepeatedLines::print(Stream& stream, std::string_view text, Time now) {
  print_(stream.prefix + std::string(text));
  if (text.ends_with('\r')) return;
  stream.tail.emplace_back(text);
  if (stream.tail.size() > kTail) stream.tail.pop_front();
  ++stream.printed;
  stream.last = now;
}

/// As if it had been printed when it came: a third rank is not to be held longer.
void RepeatedLines::release(Stream& stream) {
  for (const std::string& text : std::exchange(stream.held, {})) print(stream, text, stream.since);
}

/// Merges the held lines of a rank that has ended into those of one that has ended with them.
void RepeatedLines::settle(int rank, Time now) {
  Stream& stream = streams_[static_cast<size_t>(rank)];
  if (stream.held.empty() || !stream.ended) return;
  const Stream& model = streams_[static_cast<size_t>(stream.model)];
  if (!model.ended) return;
  // What the model itself holds comes after the lines that this one follows.
  if (!model.held.empty() || model.merged || stream.at != model.printed) {
    return release(stream);
  }
  const size_t lines = std::exchange(stream.held, {}).size();
  stream.merged = true;
  for (Merged& merged : merged_) {
    if (merged.model != stream.model || merged.lines != lines) continue;
    merged.ranks.push_back(rank);
    return;
  }
  merged_.push_back(
      {.model = stream.model, .lines = lines, .ranks = {stream.model, rank}, .since = now});
}

void RepeatedLines::report(const Merged& merged) {
  std::vector<int> ranks = merged.ranks;
  std::sort(ranks.begin(), ranks.end());
  const std::string what = merged.lines == 1 ? "line" : fmt::format("{} lines", merged.lines);
  print_(fmt::format("rondo-run: rank {}'s last {} came from {} ranks: {}\n", merged.model, what,
                     ranks.size(), fmt::join(ranks, " ")));
}

}  // namespace rondo::run
