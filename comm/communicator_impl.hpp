// The implementation of Communicator: everything that create() brings up, in the order in which it must
// go down.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/base/this_process.hpp"
#include "comm/board/board.hpp"
#include "comm/bootstrap/rendezvous/roll_call.hpp"
#include "comm/bootstrap/session/bootstrap.hpp"
#include "comm/control/agent.hpp"
#include "comm/control/endings.hpp"
#include "comm/executor.hpp"
#include "comm/fit_buffers.hpp"
#include "comm/health/watch.hpp"
#include "comm/host_executor.hpp"
#include "comm/setup/assemble.hpp"
#include "rondo/communicator.hpp"
#include "transport/memory/segment.hpp"

namespace rondo {

namespace comm {

/// What a communicator takes over from the one that it is made from.
struct Parent {
  std::optional<AgreedLinks> links{};            // else as Config says
  Interrupt interrupt{};                         // may end the setup early
  std::function<void(const Status&)> failing{};  // this rank fails, and may be the first to
  std::string title{}, members{};  // "world/color 1", "ranks 0 and 2 of world"; else Config::name
  bool named = false;              // the title is the caller's, and errors begin with it
  std::string place{};             // where to meet; else as Config says
  std::shared_ptr<const transport::UniqueFd> listening{};  // Identity::listening
  std::shared_ptr<const ListeningPort> life_port{};        // else one of its own
  /// Not null: where a communicator goes whose last exchange has failed, because a rank has ended or
  /// did not answer, so that other ranks may have it.
  std::unique_ptr<Communicator::Impl>* undecided = nullptr;
  Status refused{};  // not ok: this rank only comes to the meeting to say so
};

}  // namespace comm

class Communicator::Impl {
 public:
  /// `parent`: if this one is made from another communicator.
  static Result<std::unique_ptr<Impl>> create(const Config& config,
                                              const comm::Parent& parent = {});
  ~Impl();

  /// Every call comes through here. Without `work` it blocks until the operation has ended, or, in a
  /// group, returns at once; with it, `work` ends with the operation, or with why nothing has begun.
  Status submit(const Call& call, const CallOptions& options,
                const comm::WorkState* work = nullptr);
  /// One end of a message.
  Status submit(engine::Transfer transfer, const CallOptions& options,
                const comm::WorkState* work = nullptr);
  /// The error, raised on the board, if messages from `peer`, or from any rank, cannot come any more.
  /// Looks at most once a millisecond: for ranks that poll, because nobody watches between polls.
  Status check_senders(int peer);
  /// Completes a call on typed buffers.
  Status fit(Call& call, const InSpan& in, const OutSpan& out) const {
    RONDO_TRY(check_process());
    return comm::fit(call, in, out, rank(), size());
  }
  /// Refuses a call before it has begun, and with it the group that it is in. The communicator goes on.
  Status refuse_call(const Status& why);
  Status register_memory(void* pointer, size_t bytes);
  Status unregister_memory(void* pointer);
  Status group_start();
  Status group_end();
  Status group_abandon(const std::string& reason);
  /// What `body` returns. If it throws, the communicator fails, on every rank.
  template <class Body>
  auto guarded(const Body& body) noexcept -> decltype(body()) {
    try {
      return body();
    } catch (...) {
      return broken_off();
    }
  }
  /// A communicator to be made from this one.
  struct SplitPart {
    Config config;
    std::vector<int> members;  // by their ranks here
    std::string_view called;   // "split" or "duplicate"
    uint64_t number;           // of this communicator's splits and duplicates, from 1
    std::string title;         // comm::Parent's
    bool named = false;        // likewise
  };
  /// This rank's part; nothing: it has none.
  Result<std::optional<SplitPart>> choose_part(int color, int key, std::string_view called,
                                               std::string_view name = {});
  Result<std::unique_ptr<Impl>> make_part(const SplitPart& part);
  /// See Communicator.
  Result<std::unique_ptr<Impl>> shrink(std::chrono::milliseconds patience);
  const std::vector<int>& former_ranks() const { return former_ranks_; }
  Result<Plan> plan(Collective collective, size_t count, DataType type, bool direct,
                    Algorithm algorithm, ReduceOp op) const;

  int rank() const { return board_->rank(); }
  int size() const { return board_->ranks(); }
  std::vector<int> hosts() const;
  int host_of(int rank) const {
    return rank >= 0 && rank < size() ? host_->plans().limits().hosts.host_of(rank) : -1;
  }
  bool is_reproducible() const { return host_->plans().limits().available.rank_order_only; }
  int device() const { return config_.device; }
  Status status() const;
  Status finish();
  bool is_idle() const { return executor_->is_idle(); }
  void abort(const std::string& reason);
  /// Raises the error, and ends all waits. Any thread.
  void fail(const Status& error);
  Stats stats() const;
  std::string flight_record() const { return board_->to_string(); }

 private:
  explicit Impl(comm::Bootstrap bootstrap);
  /// What is done before the others can know of this rank: completes `settled`.
  static Result<comm::Identity> prepare(Config& settled, bool agreed);
  /// Meets the others and sets the communicator up; or, if this rank has `failed`, tells them. Throws
  /// only before they can know of this rank.
  static Result<std::unique_ptr<Impl>> come(const Config& config, const comm::Parent& parent,
                                            const Status& failed);
  Status set_up(const comm::Parent& parent);
  /// On the first rank of each of several hosts. REQUIRES: the bootstrap's sockets are open.
  Status start_agent();
  /// Whether this is a forked child's copy: the threads and the place on the board are the parent's.
  bool is_copy() const { return process_.forks != base::this_process.forks; }
  /// An error if it is: the first thing that a call looks at.
  Status check_process() const {
    if (!is_copy()) [[likely]]
      return {};
    return refuse_copy();
  }
  Status refuse_copy() const;
  /// While an exception is handled.
  Status broken_off() noexcept;
  /// The communicator's error, as far as it is known here; ok: none.
  Status failure() const { return executor_->error(false); }
  template <class CallOrMessage>
  Status hand_over(CallOrMessage&& what, const CallOptions& options, const comm::WorkState* work);
  /// Checks the call, and adds it to the group.
  Status add(const Call& call, const CallOptions& options, const comm::WorkState* work,
             comm::Group& group);
  Status add(engine::Transfer transfer, const CallOptions& options, const comm::WorkState* work,
             comm::Group& group);
  /// Whether a message can be waited for here.
  Status check_place(const engine::Transfer& transfer, bool asynchronous) const;
  /// The calls of a group, or one that is a group of its own.
  Status carry_out(comm::Group& group);
  /// Whether the call repeats the last one, so that last_.operation is what it asks for.
  bool repeats_last(const Call& call, const CallOptions& options) const;
  /// Checks the call, finds its plan, and remembers the operation in last_.
  Status resolve(const Call& call, const CallOptions& options);
  /// Whether ranks have made different calls that none of them has noticed: then the error.
  Status compare_calls();
  /// The same at the end, when there is no call to return it.
  void log_disagreement();
  /// This communicator's error, one that is raised now if a member has ended included.
  Status check_members(const SplitPart& part);
  void note_failure(const SplitPart& part, const Status& why);
  Status explain_failure(const SplitPart& part, const Status& status);
  /// This rank's part of what is left: `members`, by their ranks here.
  Result<std::unique_ptr<Impl>> make_remainder(const comm::Muster& muster, uint64_t number,
                                               comm::Endings& endings,
                                               std::chrono::milliseconds left);
  /// Of shrink() number `number`, without the leader's number.
  std::string roll_call_name(uint64_t number) const;
  /// Whether others have got communicator `number` of shrink() without this rank: then the error.
  Status check_left_out(uint64_t number, std::chrono::steady_clock::time_point began) const;
  /// What every rank says, by rank, in the host's memory. Outside of groups.
  template <class Word>
  Result<std::vector<Word>> gather_on_host(const Word& own, board::FingerprintKind kind) {
    std::vector<Word> all(static_cast<size_t>(size()));
    RONDO_TRY(failure());
    RONDO_TRY(host_->exchange(&own, all.data(), sizeof(Word), kind));
    return all;
  }

  const base::OwnProcess process_ = base::known_process();
  comm::Bootstrap bootstrap_;
  transport::Segment board_segment_;
  transport::Segment segment_;  // the transport's FIFOs
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<board::Board> board_;
  std::unique_ptr<board::Watch> watch_;
  std::unique_ptr<comm::Agent> agent_;  // on the first rank of each of several hosts
  std::shared_ptr<comm::HostExecutor> host_;
  std::shared_ptr<comm::Executor> executor_;  // host_, or one that borrows it

  struct Resolved {
    Call call;
    CallOptions options;
    engine::Operation operation;  // of blocking calls itself, for others to be copied
  };
  Resolved last_{};  // most programs repeat themselves

  std::optional<comm::Group> group_;
  Config config_;      // with rank 0's settings; communicators made from this one start from it
  std::string title_;  // for people; Config::name is for the ranks that meet
  std::optional<comm::AgreedLinks> links_;  // likewise
  uint64_t splits_ = 0;                     // so far
  uint64_t token_ = 0;                      // no other communicator's
  std::vector<int> former_ranks_;           // of one that shrink() has made
  // Over TCP: where this rank listens, also in the communicators that shrink() makes from this one. A
  // rank that is left out of these must not take this one for ended.
  std::shared_ptr<const comm::ListeningPort> life_port_;
  comm::Identity identity_;           // with which it has met
  bool is_at_last_exchange_ = false;  // of setting it up
  std::unique_ptr<Impl> undecided_;   // by shrink(): other ranks may have got it
  int64_t senders_checked_ns_ = 0;
};

}  // namespace rondo
