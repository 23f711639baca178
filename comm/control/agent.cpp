// See agent.hpp. Messages are frames of kind kControl: a letter and its payload.
//
//   R  of one host or several: host, 4 bytes; length, 4 bytes; that host's rows (board/mirror.hpp)
//   E  an error found on this host, for rank 0's host to decide
//   V  the error that all ranks report
//   A  some rank waits for long: send rows often
//   L  this host holds the other one for lost, and closes the connection
//   G  goodbye
#include "comm/control/agent.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/base/process.hpp"
#include "comm/bootstrap/rendezvous/rendezvous.hpp"
#include "comm/bootstrap/session/star.hpp"
#include "comm/health/process_state.hpp"
#include "rondo/log.hpp"

namespace rondo::comm {

using board::Life;
using std::chrono::milliseconds;

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kQuietRowsNs = 1000 * kMs, kAlertRowsNs = 50 * kMs;
constexpr int64_t kRowsInSilence = 4;    // rows come so often, at least, while a host may be silent
constexpr int64_t kAlertNs = 500 * kMs;  // for so long rows travel often after the last A
constexpr int64_t kLongWaitNs = 20 * kMs;  // of a rank, until its agent asks for that
// Something comes more often from an agent that does not stand still.
constexpr int64_t kAnswersNs = 1500 * kMs;
// How long the agent sleeps at most: what this host's ranks do wakes nobody, so it has to look. While
// some rank waits for long, or an error has been found, that is often.
constexpr int64_t kAlertTurnNs = 20 * kMs, kQuietTurnNs = 100 * kMs;
// While a connection is missing.
constexpr int64_t kCutTurnNs = 5 * kMs;
constexpr int64_t kLeaveNs = 1000 * kMs;
// Of each rank, along with its row, while nobody waits.
constexpr uint64_t kFewOperations = 4;
// A message is a letter, and one host's rows at least, with their host and length.
static_assert(board::kMostRowsBytes + 16 <= kMaxBlobBytes);

std::string words_of_ranks(std::span<const int> ranks) {
  return name_ranks(std::vector<int>(ranks.begin(), ranks.end()));
}

}  // namespace

Agent::Agent(const board::Board& board, std::vector<PeerConnection> lines,
             std::function<int(int)> find_dead, std::unique_ptr<Reconnector> reconnector,
             milliseconds silence)
    : board_(board),
      mirror_(board),
      find_dead_(std::move(find_dead)),
      reconnector_(std::move(reconnector)),
      silence_ns_(std::chrono::nanoseconds(silence).count()),
      host_(board.places().hosts.host_of(board.rank())),
      is_hub_(host_ == 0),
      moves_(static_cast<size_t>(board.ranks())),
      known_(static_cast<size_t>(board.ranks())),
      has_news_(static_cast<size_t>(board.places().hosts.hosts()), true),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_.valid()) throw std::system_error(errno, std::generic_category(), "eventfd");
  for (PeerConnection& line : lines) {
    (void)set_liveness(line.connection.fd(), silence);
    const int fd = line.connection.fd();
    lines_.push_back({.host = board.places().hosts.host_of(line.rank),
                      .connection = std::move(line.connection),
                      .heard_ns = base::now_ns(),
                      .in_children = ClosedInChildren(fd)});
  }
  thread_ = std::thread([this] {
    // Without an agent this host's ranks learn of nothing: they fail, rather than wait for ever.
    const Status ended = base::guarded([this] { return run(), Status(); });
    if (!ended.ok()) board_.propose(ended);
    mirror_.show_agent(board::FirstError::kAgentEnded);
  });
}

void Agent::HostLine::close() {
  in_children.end();
  connection.close();
}

Agent::~Agent() {
  leaving_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void Agent::run() {
  int64_t leave_by_ns = 0;
  int64_t last = base::now_ns();
  while (true) {
    wait(until_next_turn(base::now_ns()));
    const int64_t now = base::now_ns();
    if (now - last > base::kStoppedNs) {
      for (HostLine& line : lines_) line.heard_ns += now - last;
    }
    last = now;
    mirror_.show_agent(now);
    listen(now);
    look(now);
    if (!leaving_.load(std::memory_order_acquire)) continue;
    if (leave_by_ns == 0) leave_by_ns = now + kLeaveNs;
    if (may_leave() || now > leave_by_ns) break;
  }
  send_rows(false);
  send_all('G', {});
  // The other side reads until the end of the stream.
  while (base::now_ns() < leave_by_ns) {
    const bool writes = std::ranges::any_of(
        lines_, [](const HostLine& line) { return line.connection.wants_to_write(); });
    if (!writes) break;
    wait(milliseconds(1));
  }
}

milliseconds Agent::until_next_turn(int64_t now) const {
  const bool settles = !has_settled_ && mirror_.error().has_value();
  const bool often = alert_until_ns_ > now || settles || leaving_.load(std::memory_order_acquire);
  const int64_t rows_ns = std::max<int64_t>(next_rows_ns_ - now, kMs);
  const int64_t turn_ns = std::min(often ? kAlertTurnNs : kQuietTurnNs, rows_ns);
  if (std::ranges::any_of(lines_, &HostLine::is_cut)) return milliseconds(kCutTurnNs / kMs);
  return std::chrono::ceil<milliseconds>(std::chrono::nanoseconds(turn_ns));
}

// A death ends the wait for who said no goodbye: there is no other news to hand on.
bool Agent::may_leave() const {
  if (is_hub_ && !lines_.empty()) return false;
  // The goodbye needs a connection.
  if (std::ranges::any_of(lines_, &HostLine::is_cut)) return false;
  const std::span<const int> own = board_.places().hosts.ranks_on(host_);
  return std::ranges::none_of(own, [this](int rank) { return board_.life(rank) == Life::kAlive; });
}

void Agent::wait(milliseconds most) {
  std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}};
  for (const HostLine& line : lines_) {
    const int write = line.connection.wants_to_write() ? POLLOUT : 0;
    watched.push_back({line.connection.fd(), static_cast<short>(POLLIN | write), 0});
  }
  (void)poll(watched.data(), watched.size(), static_cast<int>(most.count()));
  uint64_t rings = 0;
  (void)!read(wake_.get(), &rings, sizeof rings);
  for (size_t i = 0; i < lines_.size(); ++i) {
    if ((watched[i + 1].revents & POLLOUT) != 0) (void)lines_[i].connection.flush();
  }
}

void Agent::listen(int64_t now) {
  for (HostLine& line : lines_) {
    while (line.connection.is_open()) {
      auto received = line.connection.try_receive();
      if (!received.ok()) {
        lose(line, received.status());
        break;
      }
      if (!*received) {
        if (!line.failed.ok()) lose(line, Status(line.failed));
        break;
      }
      line.heard_ns = now;
      const Frame& frame = (*received)->frame;
      if (frame.kind == FrameKind::kControl && !frame.payload.empty()) {
        handle(line, frame.payload);
      }
    }
  }
  for (HostLine& line : lines_) {
    if (line.is_cut()) restore(line, now);
    if (!line.over && now - line.heard_ns > silence_ns_) {
      const bool cut = line.is_cut();
      give_up(line,
              fmt::format("has not answered host {} for {:.3g} s{}",
                          board_.places().names[static_cast<size_t>(host_)],
                          static_cast<double>(now - line.heard_ns) * 1e-9,
                          cut ? " (the connection was lost: " + line.failed.message() + ")" : ""));
    }
  }
  std::erase_if(lines_, [](const HostLine& line) { return line.over; });
}

void Agent::handle(HostLine& line, std::string_view message) {
  const char kind = message.front();
  message.remove_prefix(1);
  Status understood;
  switch (kind) {
    case 'R':
      understood = take_rows(line, message);
      break;
    case 'E':
    case 'V': {
      auto error = mirror_.unpack_error(message);
      understood = error.status();
      if (error.ok() && kind == 'E' && is_hub_) settle(*error);
      if (error.ok() && kind == 'V' && !is_hub_) {
        has_settled_ = true;
        mirror_.decide(*error);
      }
      break;
    }
    case 'A':
      alert_until_ns_ = base::now_ns() + kAlertNs;
      if (is_hub_) alarm(base::now_ns());
      break;
    case 'L':
      give_up(line, fmt::format("holds host {} for lost: what this one sends does not arrive there",
                                board_.places().names[static_cast<size_t>(host_)]));
      break;
    case 'G':
      end(line);
      break;
    default:
      understood = Status(Code::kBootstrap, "an unknown message");
  }
  if (!understood.ok() && !std::exchange(line.complained, true)) {
    log(LogLevel::kWarn,
        fmt::format("rank {} ignores what the agent of {} sent, and will say so once: {}",
                    board_.rank(),
                    board_.name_of(board_.places().hosts.ranks_on(line.host).front()),
                    understood.message()));
  }
}

// The first error that rank 0's agent hears of, its own host's included, is everybody's, and one that
// another host decides on alone is news for rank 0's agent. What this host's ranks report counts: they
// may have decided while this agent stood still.
void Agent::settle(const board::FoundError& error) {
  if (std::exchange(has_settled_, true)) return;
  mirror_.decide(error);
  send_all(is_hub_ ? 'V' : 'E', board::Mirror::pack_error(mirror_.error().value_or(error)));
}

// While rank 0's agent stands still, with its process, it decides nothing.
bool Agent::decides(int64_t now) const {
  return is_hub_ || lines_.empty() || now - lines_.front().heard_ns > kAnswersNs;
}

bool Agent::someone_waits(int64_t now) const {
  const std::span<const int> own = board_.places().hosts.ranks_on(host_);
  return std::ranges::any_of(own, [&](int rank) {
    const board::Observation seen = board_.observe(rank);
    return seen.waiting_for != -1 && now - seen.waiting_since_ns > kLongWaitNs;
  });
}

std::vector<Life> Agent::lives() const {
  std::vector<Life> all;
  for (int rank = 0; rank < board_.ranks(); ++rank) all.push_back(board_.life(rank));
  return all;
}

// As often as the others forget it. The hub speaks for all hosts: it does not hand on each one's.
void Agent::alarm(int64_t now) {
  if (now < next_alarm_ns_) return;
  next_alarm_ns_ = now + kAlertNs / 2;
  send_all('A', {});
}

void Agent::look(int64_t now) {
  board_.learn_deaths(find_dead_);
  if (someone_waits(now)) {
    alarm(now);
    alert_until_ns_ = now + kAlertNs;
  }
  const bool alert = alert_until_ns_ > now;
  auto lives_now = lives();
  const bool changed = lives_now != lives_;
  if (changed || now >= next_rows_ns_ || (alert && now + kAlertRowsNs < next_rows_ns_)) {
    lives_ = std::move(lives_now);
    look_at_processes();
    if (changed || now - whole_rows_ns_ >= kQuietRowsNs) {
      has_news_.assign(has_news_.size(), true);
      whole_rows_ns_ = now;
    }
    send_rows(alert);
    next_rows_ns_ =
        now + std::min(alert ? kAlertRowsNs : kQuietRowsNs, silence_ns_ / kRowsInSilence);
  }
  const auto error = has_settled_ ? std::nullopt : mirror_.error();
  if (!error) return;
  if (decides(now)) {
    settle(*error);
  } else if (!has_proposed_) {
    has_proposed_ = true;
    send_all('E', board::Mirror::pack_error(*error));
  }
}

// Only the kernel of its host knows that a rank is stopped. One that has moved is not asked about.
void Agent::look_at_processes() {
  for (const int rank : board_.places().hosts.ranks_on(host_)) {
    const board::Observation seen = board_.observe(rank);
    const uint64_t moves = seen.heartbeat + seen.progress + seen.posted;
    const bool moved = moves != std::exchange(moves_[static_cast<size_t>(rank)], moves);
    const bool shown = !moved && base::proc_shows(seen.pid_namespace);
    const char letter = shown ? board::process_letter(seen.pid) : '\0';
    mirror_.show_process(rank, board::is_stopped(letter) ? letter : '\0');
  }
}

// In as few messages as hold them: the centre of many hosts hands on the rows of all of them.
void Agent::send_rows(bool fully) {
  if (lines_.empty()) return;
  struct RowsOf {
    int32_t host;
    std::string bytes;
  };
  const base::HostMap& hosts = board_.places().hosts;
  std::vector<RowsOf> all;
  for (int host = 0; host < hosts.hosts(); ++host) {
    if (host != host_ && (!is_hub_ || !has_news_[static_cast<size_t>(host)])) continue;
    has_news_[static_cast<size_t>(host)] = false;
    all.push_back(
        {host, mirror_.pack_rows(host, fully ? board::kHistory : kFewOperations, known_)});
  }
  for (HostLine& line : lines_) {
    std::string message;
    for (const auto& [host, bytes] : all) {
      if (line.host == host) continue;
      if (!message.empty() && message.size() + bytes.size() > board::kMostRowsBytes) {
        send(line, 'R', std::exchange(message, {}));
      }
      const auto length = static_cast<uint32_t>(bytes.size());
      message.append(reinterpret_cast<const char*>(&host), sizeof host);
      message.append(reinterpret_cast<const char*>(&length), sizeof length);
      message += bytes;
    }
    if (!message.empty()) send(line, 'R', message);
  }
}

Status Agent::take_rows(const HostLine& line, std::string_view message) {
  while (!message.empty()) {
    int32_t host = -1;
    uint32_t length = 0;
    if (message.size() < sizeof host + sizeof length) break;
    std::memcpy(&host, message.data(), sizeof host);
    std::memcpy(&length, message.data() + sizeof host, sizeof length);
    message.remove_prefix(sizeof host + sizeof length);
    if (message.size() < length) break;
    // Rank 0's agent speaks for all hosts, any other one for its own.
    if (is_hub_ && host != line.host) return {Code::kBootstrap, "rows of another host"};
    RONDO_TRY(mirror_.unpack_rows(message.substr(0, length), host));
    has_news_[static_cast<size_t>(host)] = true;
    message.remove_prefix(length);
  }
  return message.empty() ? Status() : Status(Code::kBootstrap, "rows that are cut off");
}

void Agent::send(HostLine& line, char kind, std::string_view payload) {
  if (!line.connection.is_open()) return;
  std::string message(1, kind);
  message += payload;
  const Status sent = line.connection.try_send(FrameKind::kControl, 0, message);
  if (sent.ok()) return;
  if (sent.code() != Code::kTimeout) {
    line.failed = sent;  // listen() reads the rest, then restores the connection
    return;
  }
  // Rows are sent again, whole. An error is not: without it the ranks there would report another one.
  if (kind == 'R') {
    std::ranges::fill(known_, 0);
    has_news_.assign(has_news_.size(), true);
  }
  if (kind == 'E' || kind == 'V') give_up(line, "does not read what it is sent");
}

void Agent::send_all(char kind, std::string_view payload) {
  for (HostLine& line : lines_) send(line, kind, payload);
}

int Agent::first_of(const HostLine& line) const {
  return board_.places().hosts.ranks_on(line.host).front();
}

void Agent::end(HostLine& line) {
  line.over = true;
  line.close();
  reconnector_->give_up(first_of(line));
}

// Whatever the reason is, the process at the other end may live: the kernel, a firewall or a faulty
// device may have ended the connection, or this process ran out of memory.
void Agent::lose(HostLine& line, const Status& why) {
  line.failed = why;
  line.close();
  if (board_.has_left(first_of(line))) return end(line);
  if (why.code() != Code::kPeerDied) log(LogLevel::kWarn, why.message());
}

// Only marks a death. The rank that waits for the dead one raises the error, which names the operation.
void Agent::restore(HostLine& line, int64_t now) {
  const int first = first_of(line);
  if (auto made = reconnector_->reconnect(first)) {
    line.connection = std::move(*made);
    line.in_children = ClosedInChildren(line.connection.fd());
    (void)set_liveness(line.connection.fd(), std::chrono::duration_cast<milliseconds>(
                                                 std::chrono::nanoseconds(silence_ns_)));
    line.heard_ns = now;
    line.failed = {};
    log(LogLevel::kInfo,
        fmt::format("rank {} has a new connection to {}", board_.rank(), board_.name_of(first)));
    // What was under way is lost: rows are sent again, whole, and so is an error.
    std::ranges::fill(known_, 0);
    has_news_.assign(has_news_.size(), true);
    next_rows_ns_ = 0;
    has_proposed_ = false;
    const auto error = mirror_.error();
    if (has_settled_ && error) send(line, is_hub_ ? 'V' : 'E', board::Mirror::pack_error(*error));
  } else if (reconnector_->has_ended(first)) {
    end(line);
    board_.learn(first, Life::kDead);
  }
}

void Agent::give_up(HostLine& line, const std::string& why) {
  if (std::exchange(line.lost, true)) return;
  const std::span<const int> ranks = board_.places().hosts.ranks_on(line.host);
  if (!board_.has_left(ranks.front())) {
    board_.propose(
        {Code::kPeerDied,
         fmt::format(
             "host {} with {} {}: it is down or cut off, or the process of rank {} there is "
             "stopped (RONDO_HOST_TIMEOUT sets how long a host may be silent)",
             board_.places().names[static_cast<size_t>(line.host)], words_of_ranks(ranks), why,
             ranks.front())});
    // Before the connection closes: a host that comes back learns what became of it.
    const auto error = mirror_.error();
    if (is_hub_ && error) settle(*error);
    // After the error: a rank that waits for one of them would report that it ended.
    for (const int rank : ranks) board_.learn(rank, Life::kLost);
    // If that host hears this one, it would connect again.
    send(line, 'L', {});
  }
  end(line);
}

}  // namespace rondo::comm
