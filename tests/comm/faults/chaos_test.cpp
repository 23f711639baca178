// Random faults at random moments, on ranks, hosts, networks, memory and descriptors, by a seed. Every
// run ends in right results, or in an error on every survivor that names who is to blame; then the
// survivors shrink. Nothing hangs, and nothing is left. RONDO_TEST_CHAOS: so many runs (else 25), from
// seed RONDO_TEST_CHAOS_SEED (else 1); RONDO_TEST_CHAOS_FAULT: of these, the runs with "cut" or another
// fault only.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "tests/comm/faults/chaos_run.hpp"
#include "tests/comm/faults/leftovers.hpp"

namespace rondo::testing {
namespace {

/// Paths below it.
std::set<std::string> files(const std::string& directory) {
  std::set<std::string> all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    all.insert(entry.path());
  }
  return all;
}

/// What all runs with this fault at this moment have in common.
struct Seen {
  int runs = 0, right = 0, failed = 0, went_on = 0;
  double longest = 0;

  void add(const Run& run, const HostsGang& gang, const Afterwards* afterwards) {
    ++runs;
    bool all_right = true, some_go_on = false;
    for (int rank = 0; rank < run.size(); ++rank) {
      all_right = all_right && (run.is_gone(rank) || gang.outcome(rank).code == Code::kOk);
      some_go_on = some_go_on || afterwards[rank].members != 0;
    }
    ++(all_right ? right : failed);
    went_on += some_go_on ? 1 : 0;
  }
  std::string to_string() const {
    return std::to_string(runs) + " runs, " + std::to_string(right) + " right, " +
           std::to_string(failed) + " with errors, " + std::to_string(went_on) + " went on";
  }
};

class Striker {
 public:
  Striker(const Hosts& hosts, const Run& run) : hosts_(hosts), run_(run) {
    if (!run.wire) return;
    network_.emplace(hosts, run.seed);
    network_->set_all(*run.wire);
  }

  void strike(ForkGang& ranks) {
    switch (run_.fault) {
      case Fault::kKillTwo:
        ranks.kill(run_.other, SIGKILL);
        [[fallthrough]];
      case Fault::kKill:
        ranks.kill(run_.victim, SIGKILL);
        break;
      case Fault::kStop:
        ranks.kill(run_.victim, SIGSTOP);
        break;
      case Fault::kCut:
        if (network_) {
          network_->cut(host());
        } else {
          hosts_.cut(host());
        }
        break;
      case Fault::kMute:
        for (int other = 0; other < hosts_.count(); ++other) {
          network_->set(host(), other, Wire::none());
        }
        break;
      case Fault::kFreeze:
        hosts_.freeze(host());
        break;
      default:  // the victim does it by itself
        break;
    }
  }
  ~Striker() {
    if (run_.fault == Fault::kCut && !network_) hosts_.mend(host());
  }
  Striker(const Striker&) = delete;
  Striker& operator=(const Striker&) = delete;

 private:
  int host() const { return run_.host_of(run_.victim); }
  const Hosts& hosts_;
  const Run& run_;
  std::optional<BadNetwork> network_;
};

void carry_out(const Hosts& hosts, const Run& run, Seen& seen) {
  INFO(run.to_string());
  const auto descriptors_before = descriptors();
  try {
    Striker striker(hosts, run);
    const auto afterwards = shared_array<Afterwards>(run.placement.size());
    HostsGang gang = HostsGang::raw(
        hosts, run.placement,
        [&](const Config& own, Link& link, Outcome& outcome) {
          return live(run, own, link, outcome, afterwards.get()[own.rank]);
        },
        run.config(), std::chrono::seconds{40});
    gang.await_all("going");
    if (run.during == During::kShrink) {
      gang.ranks().kill(run.other, SIGKILL);
      for (int rank = 0; rank < run.size(); ++rank) {
        if (rank != run.other) gang.ranks().await(rank, "shrinks");
      }
    }
    // A random moment; nothing is synchronised by it.
    std::this_thread::sleep_for(run.moment);
    const int64_t struck_ns = now_ns();
    striker.strike(gang.ranks());
    seen.longest = std::max(seen.longest, judge(run, gang, afterwards.get(), struck_ns));
    seen.add(run, gang, afterwards.get());
  } catch (const std::exception& error) {  // the other runs are to be seen, too
    FAIL_CHECK(error.what());
  }
  CHECK(files(std::getenv("TMPDIR")).empty());
  CHECK(descriptors() == descriptors_before);
  for (int host = 0; host < hosts.count(); ++host) CHECK(hosts.processes(host).empty());
}

int number(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

}  // namespace

TEST_CASE("random faults on random hosts end in right results or named errors") {
  const Hosts hosts(3);
  const TempDirectory directory;  // where ranks of other tests leave nothing
  setenv("TMPDIR", directory.path().c_str(), 1);
  setenv("XDG_RUNTIME_DIR", directory.path().c_str(), 1);
  const int runs = number("RONDO_TEST_CHAOS", 25), first = number("RONDO_TEST_CHAOS_SEED", 1);
  const char* const only = std::getenv("RONDO_TEST_CHAOS_FAULT");
  std::map<std::string, Seen> all;
  for (int i = 0; i < runs; ++i) {
    const Run run(static_cast<unsigned>(first + i));
    const std::string fault = name(run.fault);
    if (only != nullptr && fault != only) continue;
    carry_out(hosts, run, all[std::string(name(run.during)) + ", " + fault]);
  }
  unsetenv("TMPDIR");
  unsetenv("XDG_RUNTIME_DIR");
  for (const auto& [what, seen] : all) {
    show_time("chaos: " + what + ": " + seen.to_string(), seen.longest);
  }
}

}  // namespace rondo::testing
