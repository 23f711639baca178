// Runs one test body on several ranks over a medium of choice: threads or forked processes that
// share memory, and decorators over that. Bodies report in words: Catch2's macros are not
// thread-safe, and a forked child has no way to use them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "transport/link.hpp"
#include "transport/shm/factory.hpp"

namespace rondo::transport::test {

enum class Medium {
  kThreads,
  kForks,
  kPaced,
  kPacedLazy,  // a pace over a lazy wire (lazy.hpp)
  kUcx,        // UCX over this machine's loopback, between threads
  kUcxForks,   // and between processes
};
const char* to_string(Medium medium);
inline bool is_ucx(Medium medium) { return medium == Medium::kUcx || medium == Medium::kUcxForks; }
inline bool is_forked(Medium medium) {
  return medium == Medium::kForks || medium == Medium::kUcxForks;
}
/// Whether this machine has what the medium needs. Says once, on stderr, what it lacks.
bool is_available(Medium medium);

/// What a body works with on its rank.
struct Rank {
  Transport& transport;
  int rank;
  int ranks;
  int channels;
  std::string failure;  // the first one

  /// Remembers the first thing that was not so.
  void expect(bool so, const std::string& what) {
    if (!so && failure.empty()) failure = "rank " + std::to_string(rank) + ": " + what;
  }
  /// Polls until `condition` holds, and progresses all channels meanwhile; after 30 s without,
  /// fails with `what`.
  bool until(const std::function<bool()>& condition, const std::string& what);

  /// All ranks but this one.
  std::vector<int> peers() const;

  /// A slot for `bytes`, or null after 30 s.
  std::byte* acquire(Sender& sender, size_t bytes);
  /// Until nothing that this rank sent or released needs its progress() any more.
  void flush();

  /// A message of `bytes` patterned bytes that depend on `seed`, through any Sender; waits while it
  /// is full.
  void send(Sender& sender, size_t bytes, uint64_t seed);
  /// Waits for the next message and checks it to be the one of send(bytes, seed). Releases it.
  void receive(Receiver& receiver, size_t bytes, uint64_t seed);
};

/// Byte `index` of a message with this seed: neighbours, and the same place in other messages,
/// differ.
std::byte pattern(uint64_t seed, size_t index);

/// Runs `body` on every rank of `shape` and gives the failures of all; of none, if the medium is not
/// available. Forked ranks have arenas of their own.
std::vector<std::string> run_ranks(Medium medium, const shm::FifoSizes& shape,
                                   const std::function<void(Rank&)>& body);

}  // namespace rondo::transport::test
