// What several tests of the meeting need.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "comm/bootstrap/connection/wire.hpp"
#include "comm/bootstrap/identity/environment.hpp"
#include "comm/bootstrap/session/bootstrap.hpp"
#include "rondo/status.hpp"
#include "tests/harness/rank_group.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo {

constexpr std::chrono::milliseconds kLong{30'000};
// For ranks that have to find each other before it is over.
constexpr std::chrono::milliseconds kMedium{3'000};
constexpr std::chrono::milliseconds kShort{700};

inline void expect_failure(const Status& status, Code code, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    testing::expect(status.code() == code && status.message().find(part) != std::string::npos,
                    "expected " + std::string(to_string(code)) + " with \"" + part + "\", got \"" +
                        status.to_string() + "\"");
  }
}

inline comm::Identity identity(int rank, int world_size, const testing::TempDirectory& place,
                               const std::string& secret = "s3cret") {
  return {.rank = rank,
          .world_size = world_size,
          .local_rank = rank,
          .local_world_size = world_size,
          .rendezvous = place.path(),
          .secret = secret};
}

inline comm::Bootstrap must_meet(const comm::Identity& id,
                                 std::chrono::milliseconds timeout = kLong,
                                 const std::string& name = "world") {
  auto met = comm::Bootstrap::meet(id, name, timeout);
  testing::expect(met.ok(), met.status().to_string());
  return std::move(*met);
}

/// Every rank's descriptor on this host, by local rank; -1: this one gives none.
inline Result<std::vector<transport::UniqueFd>> all_gather_fds(comm::Bootstrap& met, int fd) {
  auto all = RONDO_TRY(met.all_gather({}, {&fd, fd >= 0 ? 1u : 0u}));
  std::vector<transport::UniqueFd> fds;
  for (const int rank : met.local_ranks()) {
    std::vector<transport::UniqueFd>& given = all[static_cast<size_t>(rank)].fds;
    testing::expect(given.size() <= 1, "one descriptor");
    fds.push_back(given.empty() ? transport::UniqueFd() : std::move(given[0]));
  }
  return fds;
}

/// That of the host's first rank; the others give none.
inline Result<transport::UniqueFd> broadcast_fd(comm::Bootstrap& met, int fd) {
  auto fds = RONDO_TRY(all_gather_fds(met, fd));
  return std::move(fds[0]);
}

/// This rank meets the others, and exchanges something with them.
inline void meet(const comm::Identity& id) {
  testing::expect(must_meet(id).barrier().ok(), "barrier");
}

/// This rank does not meet the others, and the error says all of `parts`.
inline void expect_no_meeting(const comm::Identity& id, std::chrono::milliseconds timeout,
                              Code code, const std::vector<std::string>& parts) {
  expect_failure(comm::Bootstrap::meet(id, "world", timeout).status(), code, parts);
}

/// Leaves this process `count` descriptors of a limit of `limit`, as long as the result lives.
inline std::vector<transport::UniqueFd> take_descriptors(rlim_t limit, size_t count) {
  rlimit limits{};
  getrlimit(RLIMIT_NOFILE, &limits);
  limits.rlim_cur = limit;
  testing::expect(setrlimit(RLIMIT_NOFILE, &limits) == 0, "setrlimit");
  std::vector<transport::UniqueFd> taken;
  for (int fd; (fd = dup(STDERR_FILENO)) >= 0;) taken.emplace_back(fd);
  testing::expect(errno == EMFILE && taken.size() > count, "descriptors");
  taken.resize(taken.size() - count);
  return taken;
}

/// What rank 0 says first; all zeros when it closes instead.
inline comm::Challenge read_challenge(const transport::UniqueFd& fd) {
  comm::Challenge challenge{};
  const ssize_t got = recv(fd.get(), &challenge, sizeof challenge, MSG_WAITALL);
  return got == sizeof challenge ? challenge : comm::Challenge{};
}

/// As a rank of the job that has `secret` would answer.
inline comm::Hello good_hello(uint32_t rank, uint32_t world_size, const comm::Challenge& challenge,
                              const std::string& secret = "s3cret") {
  comm::Hello hello{.magic = comm::kHelloMagic,
                    .version = comm::kProtocolVersion,
                    .rank = rank,
                    .world_size = world_size,
                    .pid = static_cast<uint32_t>(getpid()),
                    .pid_namespace = 0,
                    .limit_ms = 30'000,
                    .left_ms = 30'000,
                    .name = comm::pack_name("world"),
                    .job = {},
                    .nonce = {},
                    .proof = {}};
  comm::prove(hello, challenge, comm::key_of(secret));
  return hello;
}

inline void send_bytes(const transport::UniqueFd& fd, const void* bytes, size_t count) {
  (void)send(fd.get(), bytes, count, MSG_NOSIGNAL);
}

/// All that rank 0 says until it closes the connection.
inline std::string hear_out(const transport::UniqueFd& fd) {
  std::string heard;
  char bytes[512];
  for (ssize_t got; (got = recv(fd.get(), bytes, sizeof bytes, 0)) > 0;) {
    heard.append(bytes, static_cast<size_t>(got));
  }
  return heard;
}

/// Rank 0 opens one for each rank of another process that it has let in.
inline int count_pidfds(pid_t pid) {
  int pidfds = 0;
  const std::string table = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(table)) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry, ignored);
    if (target.find("pidfd") != std::string::npos) ++pidfds;
  }
  return pidfds;
}

/// Waits, in the test, for a condition that ranks of `gang` bring about.
template <class Condition>
void await_in(const testing::ForkGang& gang, const Condition& condition) {
  while (!condition()) {
    testing::expect(gang.seconds() < 30, "what is awaited does not happen");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the ranks need the CPUs
  }
}

/// Until the gang's rank 0 has let so many others in.
inline void await_guests(const testing::ForkGang& gang, int guests) {
  await_in(gang, [&] { return count_pidfds(gang.pid(0)) == guests; });
}

inline void tell_all(testing::ForkGang& gang, std::initializer_list<int> ranks,
                     const std::string& word) {
  for (const int rank : ranks) gang.tell(rank, word);
}

/// All but the victim, which SIGKILL has ended, are ok.
inline void require_others_ok(testing::ForkGang& gang, int victim) {
  auto results = gang.join();
  testing::expect(results[static_cast<size_t>(victim)].signal == SIGKILL, "the victim's end");
  results.erase(results.begin() + victim);
  testing::require_all_ok(results);
}

}  // namespace rondo
