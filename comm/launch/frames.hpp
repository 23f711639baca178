// What two instances of rondo-run send each other through an agent such as ssh: the one that the
// user has started, and one on each host (rondo-run --serve). The bytes of a shell's greeting may
// come first. Neither end trusts the other less than its own user: the agent has authenticated it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/launch/console.hpp"
#include "comm/launch/local_job.hpp"

namespace rondo::run {

/// The first line of both directions, from where on there are frames: which version speaks.
std::string greeting();

enum class RunMessage : char {
  // to a host
  kPrepare = 'P',  // Preparation
  kStart = 'J',    // a JobOptions
  kSignal = 's',   // a number, in decimal digits
  kStop = 'q',
  // from a host
  kReady = 'r',   // Place
  kLine = 'o',    // stream, rank (4 digits or more, a space), a line
  kClosed = 'c',  // stream, rank
  kLog = 'l',     // level (one digit), a sentence
  kFailure = 'f',
  kResult = 'x',  // JobResult: nothing follows
  // both
  kAlive = 'a'
};

/// One frame: the kind, the length in 4 bytes, least significant first, and that many bytes.
std::string pack(RunMessage kind, std::string_view payload = {});

struct ReceivedFrame {
  RunMessage kind;
  std::string payload;
};

/// The largest frame: a command line and an environment, several times over.
inline constexpr size_t kMostFrameBytes = size_t{64} << 20;

/// Cuts a stream into the greeting, what comes before it, and frames. Takes time in proportion to the
/// bytes, however they come; holds a frame at most.
class FrameReader {
 public:
  void feed(std::string_view bytes);
  /// The end: what is left of a stream without a greeting is noise.
  void finish();
  /// Text before the greeting, as a shell's startup files print it, since the last call.
  std::string take_noise();
  /// The version at the other end, once its greeting has come.
  const std::optional<std::string>& version() const { return version_; }
  /// Nothing: none is complete. Throws std::length_error for one beyond kMostFrameBytes.
  std::optional<ReceivedFrame> next();

 private:
  std::string_view rest() const { return std::string_view(buffer_).substr(begin_); }
  std::string take(size_t bytes);
  void look_for_greeting();

  std::string buffer_, noise_;
  size_t begin_ = 0;  // what lies before it has been taken
  std::optional<std::string> version_;
};

/// What a host needs to know before ranks are started there.
struct Preparation {
  std::string directory;
  std::vector<std::pair<std::string, std::string>> environment;  // name, value
  /// On rank 0's host: the names by which others know it, for an address and ports. Else empty.
  std::vector<std::string> reserve_for;
  /// Whether the others are this host, too: loopback will do.
  bool only_this_host = false;
  /// Until nothing has come from the other end for so long.
  double lost_after_s = 60;
};

/// Where rank 0's host is reached; empty for other hosts. Or why a host cannot run the job.
struct Readiness {
  std::string problem{};
  std::string address{};
  int master_port = 0, rendezvous_port = 0;
};

/// A Preparation, Readiness, JobOptions, RankFailure or JobResult as JSON, in which each byte of a text
/// is one character (U+0000 to U+00FF), because arguments and variables need not be UTF-8.
template <class Message>
std::string encode(const Message& message);
/// Throws std::exception if `json` is not such a message.
template <class Message>
Message decode(std::string_view json);

}  // namespace rondo::run
