// See mirror.hpp.
#include "comm/board/mirror.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "comm/base/clock.hpp"
#include "comm/base/limits.hpp"
#include "comm/base/printable.hpp"

namespace rondo::board {
namespace {

//  A row on the wire, 128 bytes, followed by its operations and messages
//    0  what        112   times are ages; heard_ns: since the row left its own host
//  112  rank          4
//  116  operations    4   how many MirroredOperation follow,
//  120  shown         4   then MirroredMessage
//  124  reserved      4   0
struct MirroredRow {
  Observation what;
  int32_t rank;
  uint32_t operations = 0, shown = 0, reserved = 0;
};
static_assert(sizeof(MirroredRow) == 128);

//  MirroredOperation, 48 bytes: OperationRecord's words of the same names; counted: 1, and the 2 * ranks
//  words of an all_to_all_v follow, or 0
struct MirroredOperation {
  uint64_t sequence, count, shape, layout;
  double factor;
  uint64_t counted;
};
static_assert(sizeof(MirroredOperation) == 48);

//  MirroredMessage, 32 bytes: MessageRecord's words of the same names
struct MirroredMessage {
  uint64_t what, moved_bytes;
  int64_t age_ns;
  uint32_t end, behind;
};
static_assert(sizeof(MirroredMessage) == 32);

static_assert(kMostRowsBytes / base::kMaxRanks >= sizeof(MirroredRow) + sizeof(MirroredOperation) +
                                                      kMessages * sizeof(MirroredMessage));

/// Far from where a loop to the last operation would not end.
constexpr uint64_t kMostPosted = uint64_t{1} << 62;

/// Of references' kinds, which mean nothing on another host (Board::pack_kinds).
constexpr uint64_t kKinds = uint64_t{0xff} << 32;

template <class T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

int64_t age_of(int64_t since_ns) { return std::max<int64_t>(base::now_ns() - since_ns, 0); }

/// Of an age that another host has sent.
int64_t since_of(int64_t age_ns) {
  const int64_t now = base::now_ns();
  return now - std::clamp<int64_t>(age_ns, 0, now);
}

/// A number for a PID namespace of another host. Numbers of processes, and of namespaces, may be the
/// same on several hosts. Linux's own begin at 0xef000000, so that this is none of this host's.
uint32_t name_elsewhere(uint64_t pid_namespace, std::string_view boot_id) {
  uint32_t hash = 2166136261U;  // FNV-1a
  const auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * 16777619U; };
  for (const char c : boot_id) add(static_cast<unsigned char>(c));
  for (unsigned shift = 0; shift < 64; shift += 8) {
    add(static_cast<unsigned char>(pid_namespace >> shift));
  }
  return (hash & 0x7fffffff) | 1;
}

Status nonsense() {
  return {Code::kBootstrap, "another host's agent sent rows that make no sense"};
}

}  // namespace

/// Reads what append() wrote; stays at the end once something is missing.
class Mirror::Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  bool take(T& into) {
    if (bytes_.size() < sizeof into) return false;
    std::memcpy(&into, bytes_.data(), sizeof into);
    bytes_.remove_prefix(sizeof into);
    return true;
  }
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
};

/// False: it is not there any more, or there is no room for it in `bytes`, which may have `room`.
bool Mirror::pack_operation(int rank, uint64_t sequence, size_t room, std::string& bytes) const {
  const auto posted = board_.read(rank, sequence);
  if (!posted || bytes.size() + sizeof(MirroredOperation) > room) return false;
  const std::atomic<uint64_t>* const words = board_.counts(rank, sequence);
  const size_t words_bytes = 2 * static_cast<size_t>(board_.ranks()) * sizeof(uint64_t);
  const bool counted = posted->call.collective == Collective::kAllToAllV &&
                       words[0].load(std::memory_order_acquire) == sequence &&
                       bytes.size() + sizeof(MirroredOperation) + words_bytes <= room;
  append(bytes, MirroredOperation{.sequence = sequence,
                                  .count = posted->call.count,
                                  .shape = Board::pack_shape(posted->call),
                                  .layout = posted->call.layout,
                                  .factor = posted->factor,
                                  .counted = counted ? 1U : 0U});
  for (size_t i = 0; counted && i < 2 * static_cast<size_t>(board_.ranks()); ++i) {
    append(bytes, words[1 + i].load(std::memory_order_acquire));
  }
  return true;
}

/// Returns how many.
uint32_t Mirror::pack_operations(int rank, uint64_t posted, uint64_t asked, uint64_t* known,
                                 size_t room, std::string& bytes) const {
  const uint64_t forgotten = posted - std::min(posted, kHistory);
  const uint64_t needed = std::max(forgotten, known != nullptr ? *known : 0);  // all after it
  uint64_t at = posted;
  uint32_t packed = 0;
  // Where one does not go along, or has not come from its own host yet, all go along the next time.
  bool whole = true;
  for (; at > needed && posted - at < std::min(asked, kHistory); --at) {
    const bool fits = pack_operation(rank, at, room, bytes);
    whole = whole && fits;
    packed += fits ? 1 : 0;
  }
  if (known != nullptr && whole && at <= needed) *known = posted;
  return packed;
}

// Relaxed loads: the words are read for diagnosis, and each is whole by itself.
std::string Mirror::pack_rows(int host, uint64_t operations, std::span<uint64_t> known) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const std::span<const int> ranks = board_.places().hosts.ranks_on(host);
  const size_t room = kMostRowsBytes / ranks.size() - sizeof(MirroredRow);
  std::string bytes;
  for (const int rank : ranks) {
    MirroredRow row{.what = board_.observe(rank), .rank = rank};
    row.what.waiting_since_ns = age_of(row.what.waiting_since_ns);
    row.what.heard_ns = board_.is_local(rank) ? 0 : age_of(row.what.heard_ns);
    row.shown = std::min(row.what.messages, kMessages);
    std::string last;
    row.operations = pack_operations(rank, row.what.posted, operations,
                                     known.empty() ? nullptr : &known[static_cast<size_t>(rank)],
                                     room - row.shown * sizeof(MirroredMessage), last);
    append(bytes, row);
    bytes += last;
    for (uint32_t i = 0; i < row.shown; ++i) {
      const MessageRecord& r = board_.messages_[static_cast<size_t>(rank) * kMessages + i];
      append(bytes, MirroredMessage{.what = r.what.load(kRelaxed),
                                    .moved_bytes = r.moved_bytes.load(kRelaxed),
                                    .age_ns = age_of(r.since_ns.load(kRelaxed)),
                                    .end = r.end.load(kRelaxed),
                                    .behind = r.behind.load(kRelaxed)});
    }
  }
  return bytes;
}

// Order and releases as in post_counts() and post(), for the same readers.
bool Mirror::unpack_operation(int rank, Reader& reader) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  constexpr auto kRelease = std::memory_order_release;
  MirroredOperation operation;
  if (!reader.take(operation) || operation.sequence == 0 || operation.counted > 1 ||
      (operation.shape & 0x1f) >= kCollectives) {
    return false;
  }
  std::atomic<uint64_t>* const words = board_.counts(rank, operation.sequence);
  // Only the last few are kept: an older one must not take a newer one's place.
  const bool keeps = words[0].load(kRelaxed) < operation.sequence;
  if (operation.counted != 0 && keeps) words[0].store(0, kRelaxed);
  for (size_t i = 0; operation.counted != 0 && i < 2 * static_cast<size_t>(board_.ranks()); ++i) {
    uint64_t word;
    if (!reader.take(word)) return false;
    if (keeps) words[1 + i].store(word, kRelease);
  }
  if (operation.counted != 0 && keeps)
    words[0].store(operation.sequence, std::memory_order_seq_cst);
  OperationRecord& r = board_.records(rank)[operation.sequence % kHistory];
  if (r.sequence.load(kRelaxed) == operation.sequence) return true;
  r.sequence.store(0, kRelaxed);
  r.count.store(operation.count, kRelease);
  r.shape.store(operation.shape & ~kKinds, kRelease);
  r.arenas.store(0, kRelease);
  r.layout.store(operation.layout, kRelease);
  r.factor.store(operation.factor, kRelease);
  r.sequence.store(operation.sequence, kRelease);
  return true;
}

// As the rank itself would write it. What names processes of its host stays: introduce() has named them.
void Mirror::copy(const Observation& row, int rank) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  RankState& s = board_.state(rank);
  s.pid.store(row.pid, kRelaxed);
  s.heard_ns.store(since_of(row.heard_ns), kRelaxed);
  s.heartbeat.store(row.heartbeat, kRelaxed);
  s.progress.store(row.progress, kRelaxed);
  s.failed_split.store(row.failed_split, kRelaxed);
  s.shrunk.store(row.shrunk, kRelaxed);
  s.waiting_since_ns.store(since_of(row.waiting_since_ns), kRelaxed);
  s.waiting_for.store(row.waiting_for, kRelaxed);
  s.step.store(row.step, kRelaxed);
  s.round.store(row.round, kRelaxed);
  s.withdrawn.store(row.withdrawn, kRelaxed);
  s.algorithm.store(row.algorithm, kRelaxed);
  s.process.store(row.process, kRelaxed);
  s.messages.store(row.messages, std::memory_order_release);
  s.finished.store(row.finished, std::memory_order_release);
  s.posted.store(row.posted, std::memory_order_release);
  board_.learn(rank, row.life);
}

// The rows' only writer is the agent that calls this.
Status Mirror::unpack_rows(std::string_view bytes, int host) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const base::HostMap& hosts = board_.places().hosts;
  const int own = hosts.host_of(board_.rank());
  if (host < 0 || host >= hosts.hosts() || host == own) return nonsense();
  Reader reader(bytes);
  for (const int rank : hosts.ranks_on(host)) {
    MirroredRow row;
    if (!reader.take(row) || row.rank != rank || row.operations > kHistory ||
        row.shown > kMessages || row.what.life > Life::kGone ||
        row.what.waiting_for >= board_.ranks() || row.what.waiting_for < kAnySource ||
        row.what.posted > kMostPosted) {
      return nonsense();
    }
    for (uint32_t i = 0; i < row.operations; ++i) {
      if (!unpack_operation(rank, reader)) return nonsense();
    }
    for (uint32_t i = 0; i < row.shown; ++i) {
      MirroredMessage message;
      if (!reader.take(message)) return nonsense();
      MessageRecord& r = board_.messages_[static_cast<size_t>(rank) * kMessages + i];
      r.what.store(message.what, kRelaxed);
      r.moved_bytes.store(message.moved_bytes, kRelaxed);
      r.since_ns.store(since_of(message.age_ns), kRelaxed);
      r.end.store(message.end, kRelaxed);
      r.behind.store(message.behind, kRelaxed);
    }
    copy(row.what, rank);
  }
  return reader.rest().empty() ? Status() : nonsense();
}

std::optional<FoundError> Mirror::error() const {
  const FirstError& first = *board_.first_error_;
  // Acquire: pairs with the exchange in decide() or propose(): the text is whole.
  uint32_t finder = first.verdict.load(std::memory_order_acquire);
  if (finder == 0) finder = first.finder.load(std::memory_order_acquire);
  if (finder == 0) return std::nullopt;
  return FoundError{finder - 1, board_.read_error()};
}

std::string Mirror::pack_error(const FoundError& error) {
  std::string bytes;
  append(bytes, error.finder);
  append(bytes, static_cast<int32_t>(error.status.code()));
  return bytes + error.status.message();
}

Result<FoundError> Mirror::unpack_error(std::string_view bytes) const {
  Reader reader(bytes);
  FoundError error{};
  int32_t code = 0;
  if (!reader.take(error.finder) || !reader.take(code) || code <= 0 ||
      code > static_cast<int32_t>(Code::kDataError) ||
      error.finder >= static_cast<uint32_t>(board_.ranks())) {
    return nonsense();
  }
  constexpr size_t kMost = sizeof(ErrorText::message) - 1;
  error.status = {static_cast<Code>(code), base::printable(reader.rest(), kMost)};
  return error;
}

void Mirror::decide(const FoundError& error) const {
  FirstError& first = *board_.first_error_;
  if (first.verdict.load(std::memory_order_acquire) != 0) return;
  const int finder = static_cast<int>(error.finder);
  // A rank of this host has written its own text, before it told of the error.
  if (!board_.is_local(finder)) {
    ErrorText& text = board_.error_texts_[finder];
    text.code = static_cast<int32_t>(error.status.code());
    const size_t length = error.status.message().copy(text.message, sizeof(text.message) - 1);
    text.message[length] = '\0';
  }
  uint32_t none = 0;
  // The verdict first: who sees an error finds it. Release: the text comes before.
  first.verdict.compare_exchange_strong(none, error.finder + 1, std::memory_order_acq_rel);
  none = 0;
  first.finder.compare_exchange_strong(none, error.finder + 1, std::memory_order_seq_cst);
  board_.wake_all();
}

void Mirror::introduce(int rank, int32_t pid, uint64_t pid_namespace,
                       std::string_view boot_id) const {
  RankState& s = board_.state(rank);
  s.pid.store(pid, std::memory_order_relaxed);
  s.pid_namespace.store(name_elsewhere(pid_namespace, boot_id), std::memory_order_relaxed);
  s.waiting_for.store(-1, std::memory_order_relaxed);
  s.heard_ns.store(base::now_ns(), std::memory_order_relaxed);
  board_.learn(rank, Life::kAlive);
}

// Relaxed: a fact by itself.
void Mirror::show_agent(int64_t now_ns) const {
  board_.first_error_->agent_ns.store(now_ns, std::memory_order_relaxed);
}

// Relaxed: a fact by itself. A cache line of the rank's: written when it changes only.
void Mirror::show_process(int rank, char letter) const {
  std::atomic<uint32_t>& shown = board_.state(rank).process;
  const auto word = static_cast<uint32_t>(static_cast<unsigned char>(letter));
  if (shown.load(std::memory_order_relaxed) != word) shown.store(word, std::memory_order_relaxed);
}

}  // namespace rondo::board
