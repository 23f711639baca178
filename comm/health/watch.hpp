// The watch: what a wait does about once a millisecond once it has left its spin phase. It compares
// the boards, looks for the dead, follows who waits for whom when the stall deadline has passed,
// and raises the one error that all ranks report.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/board/board.hpp"
#include "comm/health/diagnose.hpp"
#include "comm/health/elsewhere.hpp"
#include "rondo/status.hpp"

namespace rondo::board {

/// One wait, as the watch needs to know it.
struct Wait {
  /// Of the collective; null and kNoSequence: point-to-point messages only.
  uint64_t sequence;
  const Fingerprint* call;
  std::string transfer{};  // of them, the first
  Algorithm algorithm;     // by which it is done; kAuto: not yet decided
  int peer;                // blocked on; kAnySource: whichever rank sends first
  uint32_t step;
  uint64_t round;
  int64_t since_ns;    // when anything of this wait last moved
  int64_t timeout_ns;  // the stall deadline

  /// "all_reduce(...) (operation 7)".
  std::string what() const;
};
/// Later than every operation: a rank that point-to-point messages wait for is never through.
inline constexpr uint64_t kNoSequence = ~uint64_t{0};

/// A wait for news of other hosts, in looks: it never sleeps, so that any thread may look again later.
/// Its end is counted in looks: if this process gets no CPU, the agents may get none either.
class NewsWait {
 public:
  /// Whether to look now: at most once a millisecond.
  bool is_due();
  /// Whether it has lasted long enough, about a second.
  bool is_over() const;
  /// For a thread that waits for nothing else: returns when look() does not return false any more.
  template <class Look>
  static void await(const Look& look) {
    while (!look()) pause();
  }

 private:
  static void pause();

  int looks_ = 0;
  int64_t next_ns_ = 0;
};

/// Nothing here waits. An error that is "raised" is put on the board. When the board has a verdict, all
/// ranks report that error (Board::error()). Until then the returned status is what this rank found.
/// Thread rule: check() and done() by the one thread that waits; the rest by any.
class Watch {
 public:
  /// `find_ended`: the first rank of this host from its argument on whose process has ended, or -1;
  /// may be called by any thread.
  Watch(const Board& board, std::function<int(int)> find_ended)
      : board_(board), elsewhere_(board), find_ended_(std::move(find_ended)) {}

  /// `show`: puts on the board the messages with which this rank waits, of a wait that began then;
  /// called by check(). Before the first check().
  void show_messages_with(std::function<void(int64_t)> show) { show_messages_ = std::move(show); }

  /// The communicator's, for errors: messages may be later than a deadline by it. Empty: none.
  void mention_pace(std::string pace) { pace_ = std::move(pace); }

  /// ok: go on waiting. Anything else has been raised on the board.
  Status check(const Wait& wait);

  /// The wait is over: this rank no longer counts as waiting.
  void done();

  /// The error, raised on the board, if the process of one of `ranks` has ended without goodbye;
  /// else ok. `when`: "during split".
  Status check_alive(std::span<const int> ranks, std::string_view when);
  /// The same of all ranks.
  Status check_all_alive(std::string_view when);
  /// The error, raised on the board, if a rank has left before it began operation `sequence`, in which
  /// this rank is; `call`: null if it is not known.
  Status check_left(uint64_t sequence, const Fingerprint* call);

  /// This rank could not make its part of the split or duplicate `number`. The first failure is the
  /// one that check_split() of the other ranks finds; the communicator goes on.
  void fail_split(uint64_t number, Code code) const;
  /// The error, not raised, if one of `ranks` could not make its part of `number`; else ok.
  Status check_split(std::span<const int> ranks, uint64_t number, std::string_view what) const;

  /// Whether the process of `peer` has ended without goodbye, or its host does not answer.
  bool has_ended(int peer) const;

  /// Whether operation `sequence` can be compared with the row of `peer`: always true for ranks of
  /// this host. The row of a rank on another host must have arrived, unless `wait` is over.
  bool has_row(int peer, uint64_t sequence, NewsWait& wait) const;

  /// The error for a slot from `peer` that belongs to another operation than this rank's; raised on
  /// the board.
  Status mismatch(int peer, uint64_t sequence, const Fingerprint& call);
  /// The same found by another rank, whose call `called` says in words.
  Status mismatch(int rank, int peer, uint64_t sequence, const std::string& called);
  /// The error, raised on the board, for a message that waits for a rank that has left;
  /// kAnySource: for all ranks, and all have.
  Status abandoned(int peer, const std::string& transfer);
  /// Raises the error for a link that failed during `what`, which waits for `peer` (kAnySource: for
  /// whichever). False: a rank may have ended, and the news of it may still come; look again.
  bool explain_link(const Status& link, const std::string& what, int peer, NewsWait& wait);
  /// The error, raised on the board, if this rank and `peer` disagree about what passes between them in
  /// an all_to_all_v; else ok.
  Status find_uneven(int peer, uint64_t sequence, const Fingerprint& call);
  /// The error, raised on the board, if any two ranks disagree about that operation; else ok.
  Status find_disagreement(uint64_t sequence);
  /// Compares this rank's calls with those of other ranks, as far as the board remembers both. Returns
  /// the error, raised on the board, if two differ, otherwise ok. Used at the end, because ranks that
  /// only send receive no hash. If two ranks compare at once, at least one sees the other's calls.
  /// No operation of this rank may be in progress.
  Status compare_calls();
  /// "rank 2 (pid 17, sleeping) has not called it; its last operation is 6".
  std::string describe_late(int rank) const;

 private:
  Status find_mismatch(const Wait& wait);
  /// The first rank that is dead or lost and `matters`, or -1.
  template <class Matters>
  int find_dead(const Matters& matters) const;
  Status raise_death(int rank, std::string_view when);
  Status stalled(const Wait& wait);
  /// Of a rank on another host: its row has not come for long, although this rank waits.
  bool rows_are_old(int rank) const;
  int source_of(int rank) const;
  std::string describe_stalled(int rank, const Wait& wait) const;
  /// Whom the wait waits for: "rank 2", or for any source its candidates.
  std::string describe_awaited(const Wait& wait) const;
  /// "rank 2 (pid 17, sleeping)".
  std::string name_of(int rank) const;
  /// Who holds up a circle of ranks, each of which waits for the next one.
  std::string describe_circle(const Wait& wait) const;
  /// Of every rank together; another number than before as soon as anything has moved anywhere.
  uint64_t all_moves() const;

  const Board& board_;
  Elsewhere elsewhere_;
  std::function<int(int)> find_ended_;
  std::function<void(int64_t)> show_messages_;
  std::string pace_;
  int64_t looked_ns_ = 0;  // when check() looked last,
  uint64_t moves_ = 0;     // what it saw,
  int64_t moved_ns_ = 0;   // and since when: a stop of this process does not count
  // Between the two looks of stalled(); 0: not between them.
  int64_t window_end_ns_ = 0;
  std::vector<Observation> before_;
};

}  // namespace rondo::board
