#include "comm/board/board.hpp"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/base/printable.hpp"
#include "comm/base/process.hpp"
#include "comm/base/wait_callback.hpp"
#include "comm/board/tags.hpp"

namespace rondo::board {

namespace {

constexpr uint64_t mix(uint64_t x) {  // the finaliser of splitmix64 (Steele et al., 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Words of one Counts, on cache lines of its own.
constexpr size_t counts_words(int ranks) {
  return (1 + 2 * static_cast<size_t>(ranks) + 15) / 16 * 16;
}
// How many of a rank's last all_to_all_v's are kept: 16 KiB of them, which are untouched until
// used.
constexpr uint64_t counts_kept(int ranks) {
  constexpr uint64_t kWords = 2048;
  return std::clamp<uint64_t>(kWords / counts_words(ranks), 2, kHistory);
}

const char* word_of(Life life) {
  static constexpr const char* kWords[] = {"not come", "here", "lost", "dead", "gone"};
  return kWords[life <= Life::kGone ? static_cast<size_t>(life) : 0];  // a stranger's board
}

// CallOptions::layout.
std::string order_in_words(uint64_t layout) {
  if (layout == 0) return "in C order";
  std::string dimensions;
  for (uint64_t rest = layout; rest != 0; rest >>= 4) {
    dimensions.insert(0, fmt::format(" {}", (rest & 0xf) - 1));
  }
  return "dimensions in the order" + dimensions;
}

}  // namespace

uint64_t Fingerprint::hash() const {
  const uint64_t shape = static_cast<uint64_t>(collective) | static_cast<uint64_t>(kind) << 5 |
                         static_cast<uint64_t>(type) << 8 | static_cast<uint64_t>(op) << 16 |
                         static_cast<uint64_t>(algorithm) << 24 |
                         static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32;
  return mix(mix(shape + 0x9e3779b97f4a7c15u) + count) ^ layout;
}

std::string Fingerprint::to_string(bool with_layout) const {
  if (kind == FingerprintKind::kSplit) return "split";
  if (kind == FingerprintKind::kDuplicate) return "duplicate";
  if (kind == FingerprintKind::kRegister) return "register_device_memory";
  const bool reduces = internal::form_of(collective).reduces;
  std::string text{name(collective)};
  if (collective != Collective::kBarrier) {
    text += fmt::format("({}{}{}", name(type), reduces ? ", " : "", reduces ? name(op) : "");
    if (collective != Collective::kAllToAllV) text += fmt::format(", count {}", count);
    const bool varies = is_varying(collective);
    if (varies && layout != 0) {
      text += fmt::format(" in all, counts and offsets #{:08x}", layout >> 32);
    }
    if (!varies && (layout != 0 || with_layout)) text += ", " + order_in_words(layout);
    if (internal::is_rooted(collective)) text += fmt::format(", root {}", root);
    text += ")";
  }
  if (algorithm != Algorithm::kAuto) text += fmt::format(" by {}", name(algorithm));
  return text;
}

std::string Message::to_string() const {
  std::string what = probes ? "" : fmt::format("{}, count {}", name(type), count);
  if (tag != 0 || probes) {
    what += fmt::format("{}{}", probes ? "" : ", ",
                        tag == kAnyTag ? "any tag" : fmt::format("tag {}", tag));
  }
  return fmt::format("{}({}) {} {}",
                     probes  ? "probe"
                     : sends ? "send"
                             : "recv",
                     what, sends ? "to" : "from",
                     peer == kAnySource ? "any rank" : fmt::format("rank {}", peer));
}

double Message::seconds() const {
  return static_cast<double>(std::max<int64_t>(base::now_ns() - since_ns, 0)) * 1e-9;
}

std::string Message::describe() const {
  std::string text = to_string() + ": ";
  if (!probes) text += fmt::format("{} of {} bytes, ", moved_bytes, count * size_of(type));
  text += fmt::format("for {:.3g} s", seconds());
  if (behind > 0) text += fmt::format("; {} more queued after it", behind);
  return text;
}

size_t BoardView::bytes_needed(int ranks) {
  return sizeof(BoardHeader) + sizeof(FirstError) +
         static_cast<size_t>(ranks) *
             (sizeof(RankState) + sizeof(Doorbell) + kHistory * sizeof(OperationRecord) +
              kMessages * sizeof(MessageRecord) +
              counts_kept(ranks) * counts_words(ranks) * sizeof(uint64_t) + sizeof(ErrorText) +
              sizeof(HostRecord));
}

BoardView::BoardView(const std::byte* base, int ranks) : ranks_(ranks) {
  // The memory is zero, and zero is a valid start for every entry, so nothing is constructed: ranks
  // may already be using it.
  std::byte* at = const_cast<std::byte*>(base);
  header_ = reinterpret_cast<BoardHeader*>(at);
  at += sizeof(BoardHeader);
  first_error_ = reinterpret_cast<FirstError*>(at);
  at += sizeof(FirstError);
  states_ = reinterpret_cast<RankState*>(at);
  at += sizeof(RankState) * static_cast<size_t>(ranks);
  doorbells_ = reinterpret_cast<Doorbell*>(at);
  at += sizeof(Doorbell) * static_cast<size_t>(ranks);
  records_ = reinterpret_cast<OperationRecord*>(at);
  at += sizeof(OperationRecord) * static_cast<size_t>(ranks) * kHistory;
  messages_ = reinterpret_cast<MessageRecord*>(at);
  at += sizeof(MessageRecord) * static_cast<size_t>(ranks) * kMessages;
  counts_ = reinterpret_cast<std::atomic<uint64_t>*>(at);
  at += sizeof(uint64_t) * static_cast<size_t>(ranks) * counts_kept(ranks) * counts_words(ranks);
  error_texts_ = reinterpret_cast<ErrorText*>(at);
  at += sizeof(ErrorText) * static_cast<size_t>(ranks);
  host_records_ = reinterpret_cast<HostRecord*>(at);
}

Board::Board(std::byte* base, int ranks, int rank, std::string_view name, Places places)
    : BoardView(base, ranks),
      rank_(rank),
      places_(std::move(places)),
      counts_kept_(counts_kept(ranks)) {
  if (places_.hosts.ranks() == 0) places_.hosts = base::HostMap::one_host(ranks);
  own_ = states_ + rank;
  own_records_ = records(rank);
  own_->pid.store(static_cast<int32_t>(getpid()), std::memory_order_relaxed);
  own_->pid_namespace.store(base::own_pid_namespace(), std::memory_order_relaxed);
  own_->waiting_for.store(-1, std::memory_order_relaxed);
  learn(rank, Life::kAlive);
  if (places_.hosts.local_rank(rank) != 0) return;
  header_->version = BoardHeader::kVersion;
  header_->ranks = static_cast<uint32_t>(ranks);
  header_->host = static_cast<uint32_t>(places_.hosts.host_of(rank));
  for (int peer = 0; peer < ranks; ++peer) {
    const auto host = static_cast<size_t>(places_.hosts.host_of(peer));
    HostRecord& record = host_records_[peer];
    record.host = static_cast<uint32_t>(host);
    if (!places_.several() || host >= places_.names.size()) continue;
    places_.names[host].copy(record.name, sizeof(record.name) - 1);
  }
  const std::string_view shown = base::whole_characters(name, sizeof(header_->name) - 1);
  shown.copy(header_->name, shown.size());
  // Release: pairs with the acquire of who finds the board (status/mapped_board.cpp).
  header_->magic.store(BoardHeader::kMagic, std::memory_order_release);
}

std::string Board::name_of(int peer) const {
  const int32_t pid = states_[peer].pid.load(std::memory_order_relaxed);
  if (!places_.several()) return fmt::format("rank {} (pid {})", peer, pid);
  return fmt::format("rank {} (pid {} on host {})", peer, pid,
                     places_.names[static_cast<size_t>(places_.hosts.host_of(peer))]);
}

std::optional<Posted> BoardView::read(int peer, uint64_t sequence) const {
  if (sequence == 0) return std::nullopt;  // what a record that was never used says
  const OperationRecord& r = records(peer)[sequence % kHistory];
  if (r.sequence.load(std::memory_order_acquire) != sequence) return std::nullopt;
  // Acquire on every word keeps the second look at the sequence behind it: see post().
  const uint64_t count = r.count.load(std::memory_order_acquire);
  const uint64_t shape = r.shape.load(std::memory_order_acquire);
  const uint64_t arenas = r.arenas.load(std::memory_order_acquire);
  const uint64_t in_offset = r.in_offset.load(std::memory_order_acquire);
  const uint64_t out_offset = r.out_offset.load(std::memory_order_acquire);
  const uint64_t layout = r.layout.load(std::memory_order_acquire);
  const double factor = r.factor.load(std::memory_order_acquire);
  if (r.sequence.load(std::memory_order_relaxed) != sequence) return std::nullopt;
  Posted posted;
  posted.call = {.collective = static_cast<Collective>(shape & 0x1f),
                 .type = static_cast<DataType>(shape >> 8 & 0xff),
                 .op = static_cast<ReduceOp>(shape >> 16 & 0xff),
                 .algorithm = static_cast<Algorithm>(shape >> 24 & 0xff),
                 .root = static_cast<int32_t>(shape >> 40),
                 .count = count,
                 .layout = layout,
                 .kind = static_cast<FingerprintKind>(shape >> 5 & 0x7)};
  posted.in = {.kind = static_cast<uint32_t>(shape >> 32 & 0xf),
               .arena = static_cast<uint32_t>(arenas),
               .offset = in_offset};
  posted.out = {.kind = static_cast<uint32_t>(shape >> 36 & 0xf),
                .arena = static_cast<uint32_t>(arenas >> 32),
                .offset = out_offset};
  posted.factor = factor;
  return posted;
}

void Board::show_message(uint32_t index, const Message& message) const {
  if (index >= kMessages) return;
  MessageRecord& r = messages_[static_cast<size_t>(rank_) * kMessages + index];
  // Relaxed, here and in messages(): read for diagnosis only, and show_messages() releases them.
  r.what.store(message_word(message.type, message.count, message.tag), std::memory_order_relaxed);
  r.moved_bytes.store(message.moved_bytes, std::memory_order_relaxed);
  r.since_ns.store(message.since_ns, std::memory_order_relaxed);
  const uint32_t end =
      message.peer == kAnySource ? kAnyEnd : static_cast<uint32_t>(message.peer) * kEnds;
  const uint32_t verb = message.sends ? 0 : message.probes ? 2 : 1;
  r.end.store(end + verb, std::memory_order_relaxed);
  r.behind.store(message.behind, std::memory_order_relaxed);
}

std::vector<Message> BoardView::messages(int peer) const {
  std::vector<Message> shown;
  // Acquire: pairs with the release in show_messages().
  const uint32_t all = states_[peer].messages.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < std::min(all, kMessages); ++i) {
    const MessageRecord& r = messages_[static_cast<size_t>(peer) * kMessages + i];
    const uint64_t what = r.what.load(std::memory_order_relaxed);
    const uint32_t end = r.end.load(std::memory_order_relaxed);
    const Message message{.sends = end % kEnds == 0,
                          .peer = end >= kAnyEnd ? kAnySource : static_cast<int>(end / kEnds),
                          .type = type_of_word(what),
                          .count = count_of_word(what),
                          .tag = tag_of_word(what),
                          .probes = end % kEnds == 2,
                          .moved_bytes = r.moved_bytes.load(std::memory_order_relaxed),
                          .since_ns = r.since_ns.load(std::memory_order_relaxed),
                          .behind = r.behind.load(std::memory_order_relaxed)};
    // A board that a stranger reads may say anything.
    if (message.peer < ranks_ && static_cast<int>(message.type) < kDataTypes) {
      shown.push_back(message);
    }
  }
  return shown;
}

// Relaxed, where nothing else is said: facts by themselves, read for diagnosis. In this order: a rank
// posts before it leaves.
Observation BoardView::observe(int peer) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const RankState& s = states_[peer];
  return {.life = life(peer),
          .pid = s.pid.load(kRelaxed),
          .posted = s.posted.load(std::memory_order_acquire),
          .finished = s.finished.load(std::memory_order_acquire),
          .heartbeat = s.heartbeat.load(kRelaxed),
          .progress = s.progress.load(kRelaxed),
          .failed_split = s.failed_split.load(kRelaxed),
          .waiting_since_ns = s.waiting_since_ns.load(kRelaxed),
          .waiting_for = s.waiting_for.load(kRelaxed),
          .step = s.step.load(kRelaxed),
          .round = s.round.load(kRelaxed),
          .algorithm = s.algorithm.load(kRelaxed),
          .withdrawn = s.withdrawn.load(kRelaxed),
          .messages = s.messages.load(std::memory_order_acquire),
          .shrunk = s.shrunk.load(kRelaxed),
          .elsewhere = s.elsewhere.load(kRelaxed),
          .heard_ns = s.heard_ns.load(kRelaxed),
          .process = s.process.load(kRelaxed),
          .pid_namespace = s.pid_namespace.load(kRelaxed)};
}

std::vector<Observation> BoardView::observe_all() const {
  std::vector<Observation> all;
  for (int rank = 0; rank < ranks_; ++rank) all.push_back(observe(rank));
  return all;
}

void Board::learn(int peer, Life life) const {
  std::atomic<uint32_t>& known = states_[peer].life;
  uint32_t before = known.load(std::memory_order_relaxed);
  // Release: what this rank did before its goodbye comes before it (BoardView::life).
  while (before < static_cast<uint32_t>(life) &&
         !known.compare_exchange_weak(before, static_cast<uint32_t>(life),
                                      std::memory_order_acq_rel)) {
  }
}

void Board::learn_deaths(const std::function<int(int)>& find_ended) const {
  for (int r = find_ended(0); r >= 0; r = find_ended(r + 1)) learn(r, Life::kDead);
}

std::atomic<uint64_t>* Board::counts(int peer, uint64_t sequence) const {
  const uint64_t entry = static_cast<uint64_t>(peer) * counts_kept_ + sequence % counts_kept_;
  return counts_ + entry * counts_words(ranks_);
}

void Board::post_counts(uint64_t sequence, std::span<const uint64_t> sends,
                        std::span<const uint64_t> expects) const {
  std::atomic<uint64_t>* const row = counts(rank_, sequence);
  // As in post(): 0 while it is being written.
  row[0].store(0, std::memory_order_relaxed);
  const auto n = static_cast<size_t>(ranks_);
  for (size_t p = 0; p < n; ++p) row[1 + p].store(sends[p], std::memory_order_release);
  for (size_t p = 0; p < n; ++p) row[1 + n + p].store(expects[p], std::memory_order_release);
  // Sequentially consistent, here and in read_count(): of two ranks that end at the same moment one
  // at least sees the other's (Runner::finish).
  row[0].store(sequence, std::memory_order_seq_cst);
}

std::optional<uint64_t> Board::read_count(int peer, uint64_t sequence, size_t index) const {
  const std::atomic<uint64_t>* const row = counts(peer, sequence);
  if (row[0].load(std::memory_order_seq_cst) != sequence) return std::nullopt;
  const uint64_t value = row[1 + index].load(std::memory_order_acquire);
  if (row[0].load(std::memory_order_relaxed) != sequence) return std::nullopt;
  return value;
}

std::optional<Board::Exchange> Board::exchange(int from, int to, uint64_t sequence) const {
  const auto sends = read_count(from, sequence, static_cast<size_t>(to));
  const auto expects = read_count(to, sequence, static_cast<size_t>(ranks_ + from));
  if (!sends || !expects) return std::nullopt;
  return Exchange{.sends = *sends, .expects = *expects};
}

void Board::wake(int peer) const {
  Doorbell& bell = doorbells_[peer];
  bell.value.fetch_add(
      1, std::memory_order_release);  // a sleeper that reads the new value does not go to sleep
  // Not FUTEX_PRIVATE: the sleeper may be another process.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell.value), FUTEX_WAKE, INT_MAX, nullptr,
          nullptr, 0);
}

void Board::wake_all() const {
  for (int peer = 0; peer < ranks_; ++peer) wake(peer);
}

Status Board::raise(const Status& status) const {
  propose(status);
  return read_error();
}

Status Board::error() const {
  constexpr timespec kPause{0, 1'000'000};
  if (!has_error()) return {};
  while (!has_verdict()) {
    nanosleep(&kPause, nullptr);
    base::call_back_if_due();
  }
  return read_error();
}

// Not seen by spinning loops: only a rank that has found an error comes here.
bool Board::has_verdict() const {
  constexpr int64_t kMostNs = 2'000'000'000;
  if (!places_.several() || !has_error()) return true;
  // Acquire: pairs with the release by which the agent publishes the verdict's text (Mirror).
  if (first_error_->verdict.load(std::memory_order_acquire) != 0) return true;
  const int64_t now = base::now_ns();
  int64_t asked_ns = 0;
  // Relaxed: a fact by itself.
  if (asked_ns_.compare_exchange_strong(asked_ns, now, std::memory_order_relaxed)) asked_ns = now;
  if (now - asked_ns <= kMostNs && agent_looks(now)) return false;
  uint32_t none = 0;
  const uint32_t finder = first_error_->finder.load(std::memory_order_acquire);
  first_error_->verdict.compare_exchange_strong(none, finder, std::memory_order_acq_rel);
  return true;
}

// An agent looks every 100 ms, and every 20 ms while some rank waits for long. On a machine that has
// many more threads than CPUs it may come late by several hundred; one that is held for stopped by
// mistake is blamed for what another rank does. More than this would be too late for a stall of a
// second. A death of its process is known sooner (agent_has_ended()).
bool Board::agent_looks(int64_t now_ns) const {
  constexpr int64_t kStandsStillNs = 800'000'000;
  // Relaxed: a fact by itself.
  const int64_t looked_ns = first_error_->agent_ns.load(std::memory_order_relaxed);
  return looked_ns == 0 || now_ns - looked_ns < kStandsStillNs;
}

void Board::agent_has_ended() const {
  first_error_->agent_ns.store(FirstError::kAgentEnded, std::memory_order_relaxed);
}

void Board::propose(const Status& status) const {
  const std::scoped_lock lock(raising_);
  if (has_error()) return;
  ErrorText& own = error_texts_[rank_];
  own.code = static_cast<int32_t>(status.code());
  size_t length = 0;
  for (const std::string_view part :
       {std::string_view(errors_begin_), std::string_view(status.message())}) {
    const size_t room = sizeof(own.message) - 1 - length;
    length += base::whole_characters(part, room).copy(own.message + length, room);
  }
  own.message[length] = '\0';
  uint32_t none = 0;
  // Sequentially consistent: see is_posted_after_error(); as a release it pairs with read_error().
  if (first_error_->finder.compare_exchange_strong(none, static_cast<uint32_t>(rank_) + 1,
                                                   std::memory_order_seq_cst)) {
    wake_all();
  }
}

Status BoardView::read_error() const {
  // Acquire: pairs with the agent's verdict, and with the exchange in propose(), after which nobody
  // writes that text again. Both in any case: another process may have passed this rank's own error
  // on as the verdict, and ThreadSanitizer knows only what threads of this one have paired.
  const uint32_t verdict = first_error_->verdict.load(std::memory_order_acquire);
  const uint32_t first = first_error_->finder.load(std::memory_order_acquire);
  const uint32_t finder = (verdict != 0 ? verdict : first) - 1;
  if (finder >= static_cast<uint32_t>(ranks_)) {  // a board that a stranger reads may say anything
    return {Code::kSystem, "the board names a finder of the error that is no rank"};
  }
  const ErrorText& error = error_texts_[finder];
  char text[sizeof(error.message)];
  std::memcpy(text, error.message, sizeof(text));
  const Code code = static_cast<Code>(error.code);
  return base::guarded([&] {
    return Status(code == Code::kOk ? Code::kSystem : code,
                  base::printable({text, ::strnlen(text, sizeof(text) - 1)}, sizeof(text)));
  });
}

Places BoardView::read_places() const {
  std::vector<int> labels;
  for (int rank = 0; rank < ranks_; ++rank) {
    const uint32_t host = host_records_[rank].host;
    labels.push_back(host < static_cast<uint32_t>(ranks_) ? static_cast<int>(host) : 0);
  }
  Places places{.hosts = base::HostMap(labels), .names = {}};
  for (int host = 0; places.several() && host < places.hosts.hosts(); ++host) {
    char name[sizeof(HostRecord::name)];
    std::memcpy(name, host_records_[places.hosts.ranks_on(host)[0]].name, sizeof(name));
    places.names.push_back(base::printable({name, ::strnlen(name, sizeof(name))}, sizeof(name)));
  }
  return places;
}

std::string BoardView::to_string() const {
  const Places places = read_places();
  std::string text;
  for (int peer = 0; peer < ranks_; ++peer) {
    const Observation rank = observe(peer);
    const std::string where =
        places.several()
            ? " on host " + places.names[static_cast<size_t>(places.hosts.host_of(peer))]
            : "";
    text += fmt::format("rank {} (pid {}{}, {}): {} begun, {} finished", peer, rank.pid, where,
                        word_of(rank.life), rank.posted, rank.finished);
    if (rank.waiting_for >= 0 && rank.posted > rank.finished) {
      text += fmt::format("; waits for rank {} in step {} of round {}", rank.waiting_for, rank.step,
                          rank.round);
    }
    text += "\n";
    const std::vector<Message> waiting = messages(peer);
    for (const Message& message : waiting) text += "  " + message.describe() + "  <- pending\n";
    if (rank.messages > kMessages) {
      text += fmt::format("  and those of {} more lanes\n", rank.messages - kMessages);
    }
    const uint64_t first = rank.posted > kHistory ? rank.posted - kHistory + 1 : 1;
    for (uint64_t sequence = first; sequence <= rank.posted; ++sequence) {
      if (const auto p = read(peer, sequence)) {
        text += fmt::format("  #{} {}{}\n", sequence, p->call.to_string(),
                            sequence > rank.finished ? "  <- in progress" : "");
      }
    }
  }
  return text;
}

}  // namespace rondo::board
