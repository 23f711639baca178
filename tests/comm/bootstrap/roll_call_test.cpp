// The roll call of shrink(), by its parts; the whole is tested with communicators (shrink_test.cpp).
#include "comm/bootstrap/rendezvous/roll_call.hpp"

#include "comm/bootstrap/connection/closed_in_children.hpp"
#include "comm/bootstrap/connection/tcp.hpp"
#include "tests/comm/bootstrap/meeting_helpers.hpp"
#include "tests/harness/catch.hpp"

namespace rondo {
namespace {

using testing::expect;
using testing::expect_eq;

/// One port for each rank.
std::vector<comm::ListeningPort> open_ports(int ranks) {
  std::vector<comm::ListeningPort> ports;
  for (int rank = 0; rank < ranks; ++rank) {
    auto listener = comm::listen_anywhere("127.0.0.1");
    expect(listener.ok(), listener.status().to_string());
    ports.push_back({.socket = comm::share_closed_in_children(std::move(listener->socket)),
                     .address = "127.0.0.1",
                     .port = listener->port});
  }
  return ports;
}

/// Each rank leads at its own place. `next`: the roll call of what is undecided there, or nothing.
std::optional<comm::Muster> call_roll(const std::string& name, int rank,
                                      const std::vector<comm::ListeningPort>& ports,
                                      const std::string& next = "") {
  std::vector<bool> is_late(ports.size());
  const auto place = [&ports](int leader) {
    return "tcp://127.0.0.1:" + std::to_string(ports[static_cast<size_t>(leader)].port);
  };
  auto called = comm::call_roll({.identity = {.rank = rank,
                                              .world_size = static_cast<int>(ports.size()),
                                              .rendezvous = "tcp://127.0.0.1:1",
                                              .secret = "s3cret",
                                              .listening = ports[static_cast<size_t>(rank)].socket},
                                 .name = name,
                                 .patience = kLong,
                                 .began = std::chrono::steady_clock::now(),
                                 .place = place,
                                 .has_ended = [](int) { return false; },
                                 .is_lost = [](int) { return false; },
                                 .is_unseen = [](int) { return true; },
                                 .exists = [] { return false; },
                                 .next = [next] { return next; },
                                 .interrupt = [] { return Status(); },
                                 .is_late = is_late});
  expect(called.ok(), called.status().to_string());
  return std::move(*called);
}

void expect_all_in(const std::optional<comm::Muster>& muster, size_t ranks) {
  expect(muster.has_value(), "no decision");
  expect_eq(muster->members.size(), ranks, "members");
}

}  // namespace

TEST_CASE("ranks that do not know whether a communicator exists meet those that have it") {
  constexpr int kRanks = 3;
  for (unsigned undecided = 1; undecided + 1 < 1u << kRanks; ++undecided) {
    INFO("undecided ranks, by bits: " << undecided);
    const auto ports = open_ports(kRanks);
    testing::require_all_ok(testing::run_ranks(testing::How::kThreads, kRanks, [&](int rank) {
      if ((undecided >> rank & 1) != 0) {
        expect(!call_roll("before", rank, ports, "after"),
               "there was a decision without ranks that have gone on");
      }
      expect_all_in(call_roll("after", rank, ports), kRanks);
    }));
  }
}

TEST_CASE("a roll call is not disturbed by one of another communicator at its place") {
  const auto ports = open_ports(2);
  testing::require_all_ok(testing::run_ranks(testing::How::kThreads, 4, [&](int thread) {
    expect_all_in(call_roll(thread < 2 ? "one" : "another", thread % 2, ports), 2);
  }));
}

}  // namespace rondo
