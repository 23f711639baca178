// See chaos_run.hpp.
#include "tests/comm/faults/chaos_run.hpp"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <random>

#include "tests/comm/faults/leftovers.hpp"
#include "tests/comm/faults/operations.hpp"

namespace rondo::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

const Placement kPlacements[] = {{0, 1},       {0, 0, 1},    {0, 1, 2},    {0, 0, 1, 1},
                                 {0, 1, 0, 1}, {0, 1, 1, 2}, {0, 0, 1, 2}, {0, 0, 1, 1, 2, 2}};
constexpr size_t kMostElements = 60'000;
constexpr int kTurnsWithoutFault = 20, kTurnsUntilLeaving = 8, kTurnsWithLimits = 10;
constexpr milliseconds kPatience{3000};
// Other tests measure what it takes on a machine that does nothing else.
constexpr double kLeavesWithinS = 8;

// As often as they stand here: those that need a deadline take seconds.
constexpr Fault kFaultsOfCreate[] = {Fault::kKill,   Fault::kKill, Fault::kKillTwo, Fault::kStop,
                                     Fault::kFreeze, Fault::kCut,  Fault::kLeave,   Fault::kKill};
constexpr Fault kFaultsOfWork[] = {
    Fault::kNone,  Fault::kNone,     Fault::kKill,        Fault::kKill,  Fault::kKill,
    Fault::kKill,  Fault::kKillTwo,  Fault::kKillTwo,     Fault::kStop,  Fault::kCut,
    Fault::kMute,  Fault::kFreeze,   Fault::kAbort,       Fault::kAbort, Fault::kDisagree,
    Fault::kLeave, Fault::kDisagree, Fault::kDescriptors, Fault::kLeave, Fault::kMemory};
constexpr Fault kFaultsOfShrink[] = {Fault::kKill, Fault::kKill,   Fault::kKill, Fault::kStop,
                                     Fault::kCut,  Fault::kFreeze, Fault::kNone};
constexpr Fault kFaultsOfLeaving[] = {Fault::kKill, Fault::kKill, Fault::kStop, Fault::kCut,
                                      Fault::kNone};
constexpr During kMoments[] = {During::kCreate, During::kWork,   During::kWork,   During::kWork,
                               During::kWork,   During::kShrink, During::kShrink, During::kLeave};

class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}
  int below(size_t n) { return static_cast<int>(random_() % n); }
  template <class Many>
  auto one_of(const Many& many) {
    return many[static_cast<size_t>(below(std::size(many)))];
  }

 private:
  std::mt19937 random_;
};

Wire bad_wire(Dice& dice) {
  Wire wire;
  if (dice.below(2) == 0) wire.delay = microseconds(dice.below(3000));
  if (dice.below(2) == 0) wire.jitter = microseconds(dice.below(1000));
  if (dice.below(2) == 0) wire.lost = 0.002 * dice.below(4);
  if (dice.below(2) == 0) wire.doubled = 0.02 * dice.below(4);
  if (dice.below(4) == 0) wire.bytes_per_s = 1e7 * (1 + dice.below(4));
  return wire;
}

/// This process may map, or open, hardly more than it has, as long as this lives.
class Limit {
 public:
  Limit(bool memory, int more) : kind_(memory ? RLIMIT_AS : RLIMIT_NOFILE) {
    getrlimit(kind_, &before_);
    rlimit now = before_;
    now.rlim_cur = memory ? mapped_bytes() + (rlim_t{4096} << (more % 12))
                          : descriptors().size() + static_cast<rlim_t>(more % 6);
    setrlimit(kind_, &now);
  }
  ~Limit() { setrlimit(kind_, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  static rlim_t mapped_bytes() {
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    return pages * 4096;
  }
  const __rlimit_resource_t kind_;
  rlimit before_{};
};

/// A part of the ranks, or of all of them; used once.
Status use_part(Communicator& comm, Buffers& buffers, int turn) {
  auto part = comm.split(turn % 2 == 0 ? comm.rank() % 2 : 0, -comm.rank());
  if (!part.ok()) return part.status();
  return operations()[0].call(**part, buffers, turn);
}

/// The part's error counts its own ranks: the whole communicator's says which one it is in the world.
/// Where nobody has ended, the others know nothing of it yet.
Status split_and_use(Communicator& comm, Buffers& buffers, int turn, bool others_know) {
  const Status status = use_part(comm, buffers, turn);
  if (status.ok()) return status;
  if (!others_know) comm.abort("a part failed: " + status.to_string());
  const Status whole = comm.barrier();
  return whole.ok() ? status : whole;
}

/// The same calls on all ranks, by the seed.
Status work(const Run& run, Communicator& comm, Link& link, Afterwards& afterwards) {
  const std::vector<Operation>& all = operations();
  Dice common(run.seed), own(run.seed * 64 + static_cast<unsigned>(comm.rank()));
  Buffers buffers(kMostElements, own.below(2) == 0);
  const bool is_victim = comm.rank() == run.victim && run.during == During::kWork;
  const bool is_limited = run.fault == Fault::kMemory || run.fault == Fault::kDescriptors;
  std::optional<Limit> limit;
  for (int turn = 0;; ++turn) {
    // A rank that fails by itself may be three turns ahead of one that has not begun.
    if (turn == (run.strikes_itself() ? 0 : 3)) link.announce("going");
    if (run.during == During::kLeave && turn == kTurnsUntilLeaving) return {};
    if (run.during == During::kWork && run.fault == Fault::kNone && turn == kTurnsWithoutFault) {
      return {};
    }
    if (is_limited && turn == run.turn + kTurnsWithLimits) return {};
    constexpr size_t kCounts[] = {60, 1200, 12'000, kMostElements};
    buffers.count = common.one_of(kCounts);
    const Operation& operation = common.one_of(all);
    const bool splits = common.below(10) == 0;
    if (is_victim && turn == run.turn) {
      afterwards.struck_ns = now_ns();
      if (run.fault == Fault::kAbort) comm.abort("chaos");
      if (run.fault == Fault::kLeave) return {};
      if (is_limited) limit.emplace(run.fault == Fault::kMemory, own.below(100));
    }
    if (run.during == During::kWork && run.fault == Fault::kDisagree && turn == run.turn) {
      RONDO_TRY(is_victim ? comm.barrier() : all[0].call(comm, buffers, turn));
    }
    RONDO_TRY(splits ? split_and_use(comm, buffers, turn, !is_limited)
                     : operation.call(comm, buffers, turn));
  }
}

void go_on(const Run& run, Communicator& comm, Link& link, Afterwards& afterwards) {
  link.announce("shrinks");
  auto left = comm.shrink(kPatience);
  afterwards.code = left.status().code();
  std::snprintf(afterwards.text, sizeof afterwards.text, "%s", left.status().message().c_str());
  afterwards.shrank = true;
  if (!left.ok()) return;
  Dice common(run.seed + 1);
  Buffers buffers(kMostElements, common.below(2) == 0);
  Status status;
  for (int turn = 0; status.ok() && turn < 4; ++turn) {
    status = common.one_of(operations()).call(*left, buffers, turn);
  }
  if (status.ok()) status = left->barrier();
  afterwards.code = status.code();
  std::snprintf(afterwards.text, sizeof afterwards.text, "%s", status.message().c_str());
  if (!status.ok()) return;
  for (const int rank : left->former_ranks()) afterwards.members |= 1u << rank;
}

bool is_code(Code code, std::initializer_list<Code> codes) {
  return std::ranges::find(codes, code) != codes.end();
}

/// Whether an error of this fault may have this code.
bool fits(const Run& run, Code code) {
  const bool creates = run.during == During::kCreate;
  switch (run.fault) {
    case Fault::kNone:
      // In a shrink, of the death before it.
      return run.during == During::kShrink && code == Code::kPeerDied;
    case Fault::kKill:
    case Fault::kKillTwo:
    case Fault::kLeave:
      return is_code(code, {Code::kPeerDied}) ||
             (creates && is_code(code, {Code::kBootstrap, Code::kTimeout}));
    case Fault::kStop:
    case Fault::kCut:
    case Fault::kMute:
    case Fault::kFreeze:
      return is_code(code, {Code::kTimeout, Code::kPeerDied}) ||
             (creates && code == Code::kBootstrap);
    case Fault::kAbort:
      return code == Code::kAborted;
    case Fault::kDisagree:
      return code == Code::kMismatch;
    case Fault::kMemory:
    case Fault::kDescriptors:
      // kTimeout: UCX may keep a message for which it has no memory.
      return is_code(code, {Code::kResourceExhausted, Code::kAborted, Code::kSystem,
                            Code::kPeerDied, Code::kUnavailable, Code::kTimeout});
  }
  return false;
}

/// Whom an error may blame.
bool blames(const Run& run, std::string_view text) {
  const auto says = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  const auto says_rank = [&](int rank) {
    const std::string number = std::to_string(rank);
    return says("rank " + number) || says("ranks " + number) || says(" and " + number);
  };
  if (run.takes_host()) {
    for (int rank = 0; rank < run.size(); ++rank) {
      if (run.host_of(rank) == run.host_of(run.victim) && says_rank(rank)) return true;
    }
  }
  const bool both = run.fault == Fault::kKillTwo || run.during == During::kShrink;
  // A meeting that has failed before this rank came.
  if (run.during == During::kCreate && (says_rank(0) || says("tcp://"))) return true;
  // In a part, with a sentence that says which ranks these are.
  if (run.fault >= Fault::kMemory && says("in the new one")) return true;
  // In a part, where the others do not see for whom it waits.
  if (run.fault == Fault::kStop && says("has not called it")) return true;
  return says_rank(run.victim) || (both && says_rank(run.other));
}

double within_s(const Run& run) {
  // A create, or a split, that nobody's end interrupts, and RONDO_HOST_TIMEOUT.
  const bool by_time = run.takes_host() || run.fault == Fault::kStop;
  return 4 + (run.during == During::kCreate || by_time ? 8 : 0) + (run.wire ? 4 : 0);
}

std::string state_of(const HostsGang& gang, const Afterwards* afterwards) {
  std::string text;
  for (int rank = 0; rank < gang.size(); ++rank) {
    const Outcome& own = gang.outcome(rank);
    const Afterwards& after = afterwards[rank];
    text += "\nrank " + std::to_string(rank) + ": ";
    text += own.at_ns == 0 ? "works" : Status(own.code, own.text).to_string();
    if (own.at_ns != 0 && !after.shrank)
      text += own.gone_ns != 0 ? ", gone" : ", shrinks or leaves";
    if (after.shrank) text += "; then " + Status(after.code, after.text).to_string();
  }
  return text;
}

void await_end(HostsGang& gang, const Afterwards* afterwards, int rank) {
  try {
    gang.ranks().await_end(rank);
  } catch (const std::exception& error) {
    throw std::runtime_error(error.what() + state_of(gang, afterwards));
  }
}

}  // namespace

const char* name(Fault fault) {
  constexpr const char* kNames[] = {"nothing",  "kill",  "kill two", "stop",
                                    "cut",      "mute",  "freeze",   "abort",
                                    "disagree", "leave", "memory",   "descriptors"};
  return kNames[static_cast<size_t>(fault)];
}

const char* name(During during) {
  constexpr const char* kNames[] = {"create", "work", "shrink", "destroy"};
  return kNames[static_cast<size_t>(during)];
}

Run::Run(unsigned of) : seed(of) {
  Dice dice(seed);
  placement = dice.one_of(kPlacements);
  during = dice.one_of(kMoments);
  switch (during) {
    case During::kCreate:
      fault = dice.one_of(kFaultsOfCreate);
      break;
    case During::kWork:
      fault = dice.one_of(kFaultsOfWork);
      break;
    case During::kShrink:
      fault = dice.one_of(kFaultsOfShrink);
      break;
    case During::kLeave:
      fault = dice.one_of(kFaultsOfLeaving);
      break;
  }
  victim = dice.below(placement.size());
  other = (victim + 1 + dice.below(placement.size() - 1)) % size();
  turn = 3 + dice.below(20);
  moment = microseconds(dice.below(during == During::kCreate ? 80'000 : 40'000));
  if (during == During::kShrink || during == During::kLeave) moment /= 4;
  if (fault == Fault::kMute || dice.below(4) == 0) {
    wire = fault == Fault::kMute && dice.below(2) == 0 ? Wire{} : bad_wire(dice);
  }
  host_timeout = takes_host() && dice.below(2) == 0;
}

bool Run::is_gone(int rank) const {
  const bool killed = fault == Fault::kKill || fault == Fault::kKillTwo || fault == Fault::kStop;
  if (during == During::kShrink && rank == other) return true;
  if (fault == Fault::kFreeze && host_of(rank) == host_of(victim)) return true;
  return (killed && rank == victim) || (fault == Fault::kKillTwo && rank == other);
}

bool Run::is_struck(int rank) const {
  if (is_gone(rank)) return true;
  if (takes_host()) return host_of(rank) == host_of(victim);
  return fault == Fault::kLeave && rank == victim;
}

Config Run::config() const {
  Config config;
  config.stall_timeout = wire ? std::chrono::seconds{3} : std::chrono::seconds{1};
  config.bootstrap_timeout = std::chrono::seconds{during == During::kCreate ? 3 : 5};
  return config;
}

std::string Run::to_string() const {
  std::string text = "seed " + std::to_string(seed) + ": " + name(fault) + " during " +
                     name(during) + ", rank " + std::to_string(victim);
  if (fault == Fault::kKillTwo || during == During::kShrink)
    text += " and " + std::to_string(other);
  if (wire) text += ", bad network";
  if (host_timeout) text += ", host timeout 3 s";
  text += ", hosts";
  for (const int at : placement) text += " " + std::to_string(at);
  return text;
}

Status live(const Run& run, const Config& own, Link& link, Outcome& outcome,
            Afterwards& afterwards) {
  if (run.host_timeout) setenv("RONDO_HOST_TIMEOUT", "3", 1);
  { const Buffer makes_the_arena(64, true); }  // which stays as long as the process
  const Leftovers leftovers;
  if (run.during == During::kCreate) link.announce("going");
  const bool stays_away = run.fault == Fault::kLeave && run.during == During::kCreate;
  if (stays_away && own.rank == run.victim) return {};
  {
    auto comm = Communicator::create(own);
    outcome.is(comm.ok() ? work(run, *comm, link, afterwards) : comm.status());
    if (comm.ok() && outcome.code != Code::kOk) go_on(run, *comm, link, afterwards);
    outcome.leaving_ns = now_ns();
  }
  outcome.gone_ns = now_ns();
  leftovers.check(run.fault == Fault::kDescriptors && own.rank == run.victim);
  return {};
}

double judge(const Run& run, HostsGang& gang, const Afterwards* afterwards, int64_t struck_ns) {
  for (int rank = 0; rank < run.size(); ++rank) {
    if (!run.is_gone(rank)) await_end(gang, afterwards, rank);
  }
  if (run.strikes_itself()) struck_ns = std::max(struck_ns, afterwards[run.victim].struck_ns);
  for (int rank = 0; rank < run.size(); ++rank) gang.ranks().kill(rank, SIGKILL);
  const std::vector<RankResult> results = gang.ranks().join();
  const bool may_be_fine = run.fault == Fault::kNone || run.during == During::kLeave ||
                           run.fault == Fault::kMemory || run.fault == Fault::kDescriptors;
  double longest = 0;
  uint32_t alive = 0, went_on = 0;
  for (int rank = 0; rank < run.size(); ++rank) {
    if (!run.is_gone(rank) && !(run.fault == Fault::kLeave && rank == run.victim))
      alive |= 1u << rank;
    went_on |= afterwards[rank].members;
  }
  for (int rank = 0; rank < run.size(); ++rank) {
    const Outcome& own = gang.outcome(rank);
    const Afterwards& after = afterwards[rank];
    INFO("rank " << rank << " of " << run.size() << ": "
                 << results[static_cast<size_t>(rank)].message
                 << Status(own.code, own.text).to_string() << "; then "
                 << Status(after.code, after.text).to_string() << " members " << after.members);
    // No two parts of the ranks go on.
    CHECK((after.members == 0 || after.members == went_on));
    if (run.is_gone(rank)) continue;
    const RankResult& result = results[static_cast<size_t>(rank)];
    // UCX aborts a process that has no memory for what arrives.
    const bool lacks_memory = run.fault == Fault::kMemory && rank == run.victim;
    if (lacks_memory && result.signal == SIGABRT) continue;
    CHECK(result.ok);
    if (own.at_ns == 0 || (run.fault == Fault::kLeave && run.is_struck(rank))) continue;
    CHECK(static_cast<double>(own.gone_ns - own.leaving_ns) * 1e-9 < kLeavesWithinS);
    if (own.code == Code::kOk) {
      CHECK((may_be_fine || run.is_struck(rank)));
      continue;
    }
    CHECK((fits(run, own.code) || run.is_struck(rank)));
    // What this rank itself has not enough of names no rank here.
    const bool is_own = run.fault >= Fault::kMemory && rank == run.victim;
    CHECK((blames(run, own.text) || run.is_struck(rank) || is_own));
    const double took = static_cast<double>(own.at_ns - struck_ns) * 1e-9;
    CHECK(took < within_s(run) + kBusyS);
    if (!run.is_struck(rank)) longest = std::max(longest, took);
    if (!after.shrank) continue;
    const bool certain = run.during == During::kWork && !run.wire && !run.takes_host() &&
                         run.fault != Fault::kStop && run.fault != Fault::kMemory &&
                         run.fault != Fault::kDescriptors;
    if (certain) CHECK(after.members == alive);
    if (after.members == 0) {
      CHECK(is_code(after.code, {Code::kTimeout, Code::kPeerDied, Code::kBootstrap}));
      CHECK(after.text[0] != '\0');
    }
  }
  return longest;
}

}  // namespace rondo::testing
