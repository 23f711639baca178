// See hosts_world.hpp.
#include "tests/comm/faults/hosts_world.hpp"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <stdexcept>

#include "comm/bootstrap/identity/host.hpp"

namespace rondo::testing {
namespace {

// The hosts share the machine's name, as far as a forked rank can see.
std::string own_host;

void enter(const Hosts& hosts, int host) {
  hosts.enter_network(host);
  own_host = Hosts::name(host);
  setenv("RONDO_SECRET", "between the hosts of a test", 1);
  // UCX 1.13 may abort a rank whose peer dies inside a large message (transport/ucx/README.md). These
  // tests would find that again and again.
  setenv("UCX_ZCOPY_THRESH", "inf", 0);
  comm::pretend_host = [](int, comm::RankHost& here) { here.name = own_host; };
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

void show_time(const std::string& row, double seconds) {
  std::printf("%-76s %6.3f s\n", row.c_str(), seconds);
  std::fflush(stdout);
}

void Outcome::is(const Status& status) {
  code = status.code();
  std::snprintf(text, sizeof text, "%s", status.message().c_str());
  at_ns = now_ns();
}

HostsGang HostsGang::raw(const Hosts& hosts, Placement placement, const RawBody& body,
                         const Config& config, std::chrono::seconds limit) {
  HostsGang gang;
  gang.placement_ = std::move(placement);
  gang.outcomes_ = shared_array<Outcome>(gang.placement_.size());
  Outcome* const outcomes = gang.outcomes_.get();
  gang.ranks_ = std::make_unique<ForkGang>(
      gang.size(),
      [&, outcomes, places = gang.placement_](int rank, Link& link) {
        const int host = places[static_cast<size_t>(rank)];
        enter(hosts, host);
        Config own = config;
        own.rank = rank;
        own.world_size = static_cast<int>(places.size());
        own.rendezvous = "tcp://" + Hosts::address(places.front()) + ":7000";
        if (own.bootstrap_timeout == Config{}.bootstrap_timeout) {
          own.bootstrap_timeout = std::chrono::seconds{20};
        }
        if (own.stall_timeout == Config{}.stall_timeout)
          own.stall_timeout = std::chrono::seconds{30};
        Outcome& outcome = outcomes[rank];
        const Status status = body(own, link, outcome);
        if (outcome.gone_ns == 0) outcome.gone_ns = now_ns();
        if (outcome.at_ns == 0) outcome.is(status);
      },
      limit);
  return gang;
}

HostsGang::HostsGang(const Hosts& hosts, Placement placement, const Body& body,
                     const Config& config, std::chrono::seconds limit) {
  *this = raw(
      hosts, std::move(placement),
      [&](const Config& own, Link& link, Outcome& outcome) {
        auto comm = Communicator::create(own);
        expect(comm.ok(), "create: " + comm.status().to_string());
        outcome.is(body(*comm, link));
        return Status();
      },
      config, limit);
}

void HostsGang::await_all(const std::string& event) {
  for (int rank = 0; rank < size(); ++rank) {
    try {
      ranks_->await(rank, event);
    } catch (const std::exception& error) {
      throw std::runtime_error(error.what() +
                               Status(outcome(rank).code, outcome(rank).text).to_string());
    }
  }
}

int64_t HostsGang::begin() {
  await_all("met");
  const int64_t at_ns = now_ns();
  for (int rank = 0; rank < size(); ++rank) ranks_->tell(rank, "go");
  return at_ns;
}

int64_t HostsGang::signal(int rank, int signal) {
  const int64_t at_ns = now_ns();
  ranks_->kill(rank, signal);
  return at_ns;
}

double HostsGang::check(int64_t fault_ns, const Wanted& wanted) {
  std::vector<int> ending = wanted.survivors;
  ending.insert(ending.end(), wanted.ends_too.begin(), wanted.ends_too.end());
  for (const int rank : ending) ranks_->await_end(rank);
  for (int rank = 0; rank < size(); ++rank) {
    if (std::ranges::find(ending, rank) == ending.end()) ranks_->kill(rank, SIGKILL);
  }
  const std::vector<RankResult> results = ranks_->join();
  double longest = 0;
  for (const int rank : wanted.survivors) {
    const Outcome& own = outcome(rank);
    const Outcome& first = outcome(wanted.survivors.front());
    INFO("rank " << rank << " of " << size() << ": " << results[static_cast<size_t>(rank)].message
                 << Status(own.code, own.text).to_string());
    CHECK(results[static_cast<size_t>(rank)].ok);
    CHECK(std::ranges::find(wanted.codes, own.code) != wanted.codes.end());
    CHECK(own.code == first.code);
    for (const std::string& part : wanted.says) CHECK(has(own.text, part));
    for (const std::vector<std::string>& parts : {wanted.one_of, wanted.called}) {
      const bool says_one =
          std::ranges::any_of(parts, [&](const std::string& part) { return has(own.text, part); });
      CHECK((parts.empty() || says_one));
    }
    if (wanted.same_text) CHECK(std::string(own.text) == first.text);
    const double took = static_cast<double>(own.at_ns - fault_ns) * 1e-9;
    CHECK(took < wanted.within_s + kBusyS);
    longest = std::max(longest, took);
    CHECK(static_cast<double>(own.gone_ns - own.at_ns) * 1e-9 < wanted.gone_within_s + kBusyS);
  }
  for (const int rank : wanted.ends_too) {
    INFO("rank " << rank << " of " << size() << ": " << outcome(rank).text);
    CHECK(outcome(rank).at_ns != 0);
    CHECK(outcome(rank).code != Code::kOk);
    const double took = static_cast<double>(outcome(rank).at_ns - fault_ns) * 1e-9;
    CHECK(took < wanted.within_s + kBusyS);
    longest = std::max(longest, took);
  }
  show_time(wanted.row, longest);
  return longest;
}

void require_all_fine(HostsGang& gang) {
  require_all_ok(gang.ranks().join());
  for (int rank = 0; rank < gang.size(); ++rank) {
    INFO("rank " << rank << ": " << gang.outcome(rank).text);
    CHECK(gang.outcome(rank).code == Code::kOk);
  }
}

}  // namespace rondo::testing
