// The last lines that several ranks print alike, as when all fail for one reason: printed once, with
// the ranks that printed them. Every line of another rank, and every line that is not a rank's
// last, is printed as it is and in its rank's order.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rondo::run {

/// A line that equals one that another rank has just printed is held, for half a second at most. If
/// by then both ranks have printed nothing more and closed their output, it is not printed;
/// otherwise it is. Takes the time as an argument and never waits.
class RepeatedLines {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kHold{500};

  /// `print` gets whole lines with their end. Rank r's lines come after prefixes[r].
  RepeatedLines(std::vector<std::string> prefixes, std::function<void(std::string_view)> print);

  /// `text`: with its end, without the prefix. One that ends in a carriage return replaces itself
  /// on a terminal and is never held.
  void add(int rank, std::string_view text, Time now);
  /// The rank prints nothing more.
  void end(int rank, Time now);
  /// Prints what has been held for long enough. Call it at next(), or whenever.
  void turn(Time now);
  std::optional<Time> next() const;
  /// All ranks have ended: prints what remains.
  void finish();

 private:
  static constexpr size_t kTail = 4;  // lines of a rank that others are compared with

  struct Stream {
    std::string prefix;
    std::deque<std::string> tail;  // the last lines that were printed
    size_t printed = 0;            // lines in all
    Time last{};                   // when
    bool ended = false;
    bool merged = false;            // its last lines are those of another rank
    std::vector<std::string> held;  // they equal lines of `model`, to before its line `at`
    int model = -1;
    size_t at = 0;
    Time since{};
  };
  /// The ranks whose last `lines` lines are `model`'s.
  struct Merged {
    int model;
    size_t lines;
    std::vector<int> ranks;
    Time since;
  };

  const std::string* line_of(const Stream& model, size_t number) const;
  bool starts_to_follow(int rank, std::string_view text, Time now);
  void print(Stream& stream, std::string_view text, Time now);
  void release(Stream& stream);
  void settle(int rank, Time now);
  void report(const Merged& merged);

  std::vector<Stream> streams_;
  std::vector<Merged> merged_;
  std::function<void(std::string_view)> print_;
};

}  // namespace rondo::run
