// The exchanges of ranks that have met: every rank sends a frame to rank 0, and rank 0 answers
// each. No tree and no pipelining: a communicator exchanges a handful of times, when it is made.
#include "comm/bootstrap/session/star.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "comm/base/bytes.hpp"
#include "comm/base/guarded.hpp"
#include "comm/base/process.hpp"

namespace rondo::comm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::UniqueFd;

namespace {

Status wrong_fds() { return {Code::kBootstrap, "rank 0 sent descriptors that make no sense"}; }

}  // namespace

Star::Star(const Identity& identity, milliseconds timeout, Interrupt interrupt)
    : rank_(identity.rank),
      size_(identity.world_size),
      timeout_(timeout),
      interrupt_(std::move(interrupt)),
      peers_(static_cast<size_t>(size_)) {
  if (size_ == 1) peers_[0] = {.pid = getpid(), .same_process = true};
}

Status Star::gather(const Identity& identity, const std::string& name, const Rendezvous& rendezvous,
                    Deadline until) {
  const Meeting meeting{.identity = identity,
                        .name = name,
                        .rendezvous = rendezvous,
                        .timeout = std::max(until.left(), milliseconds(1)),
                        .interrupt = interrupt_,
                        .facts = facts_,
                        .numbers = numbers_};
  facts_ = {};
  Status why;
  try {
    return try_to_gather(meeting);
  } catch (...) {
    why = base::caught();
  }
  return base::guarded([&] {
    const bool is_known = !links_.empty() || facts_.is_seen;
    if (!is_known) RONDO_TRY(try_to_gather(meeting));
    return failed_here(why);
  });
}

Status Star::try_to_gather(const Meeting& meeting) {
  std::string welcome;
  if (is_root()) {
    auto peers = RONDO_TRY(host_meeting(meeting));
    links_ = std::move(peers);
    base::ByteWriter ids;
    ids.put(ProcessId{.pid_namespace = base::own_pid_namespace(), .pid = getpid()});
    for (const PeerConnection& peer : links_) {
      ids.put(ProcessId{.pid_namespace = peer.pid_namespace, .pid = peer.pid});
    }
    welcome = ids.take();
    RONDO_TRY(send_all(FrameKind::kWelcome, welcome));
  } else {
    links_.reserve(1);
    auto joined = RONDO_TRY(join_meeting(meeting));
    welcome = std::move(joined.welcome);
    links_.push_back(std::move(joined.host));
  }
  Status known = know_peers(welcome);
  return known.ok() ? known : failed(known);
}

Status Star::know_peers(const std::string& welcome) {
  base::ByteReader reader(welcome);
  for (Peer& peer : peers_) {
    const auto id = reader.get<ProcessId>();
    peer.pid = id.pid;
    peer.pid_namespace = id.pid_namespace;
    peer.same_process = id.pid == getpid() && id.pid_namespace == base::own_pid_namespace();
  }
  if (!reader.is_done()) {
    return Status(Code::kBootstrap, "rank 0 sent a welcome for another number of ranks");
  }
  for (PeerConnection& link : links_) {
    Peer& peer = peers_[static_cast<size_t>(link.rank)];
    link.pid = peer.pid;
    peer.pidfd = ProcessHandle(std::move(link.pidfd));
  }
  return {};
}

Status Star::begin() {
  RONDO_TRY(status_);
  if (size_ > 1 && links_.empty()) {
    return Status(Code::kBootstrap, "the bootstrap's sockets have been closed");
  }
  ++sequence_;
  return {};
}

/// Every later operation of this rank returns `why`; sends it to the others.
Status Star::failed(Status why) {
  if (!status_.ok()) return status_;
  status_ = std::move(why);
  if (is_root() || !heard_from_peer_) {
    const std::string packed = pack_status(status_);
    for (PeerConnection& link : links_) {
      // A rank whose socket is full finds it closed instead.
      (void)link.connection.send(FrameKind::kError, 0, packed, {}, steady_clock::now());
    }
  }
  return status_;
}

Status Star::failed_here(const Status& why) {
  // Rank 0 names the others when it passes their words on.
  return failed(
      is_root() ? Status(why.code(), "rank " + std::to_string(number_of(0)) + ": " + why.message())
                : why);
}

Status Star::send_to(PeerConnection& link, FrameKind kind, std::string_view payload,
                     std::span<const int> fds, Deadline until) {
  Status sent = link.connection.send(kind, sequence_, payload, fds, until);
  if (sent.ok()) return sent;
  if (sent.code() != Code::kPeerDied && sent.code() != Code::kTimeout) {
    return failed_here(Status(sent.code(), "sending to " + name_of(link) + ": " + sent.message()));
  }
  // It may have sent its error before it closed.
  Received last_words;
  auto heard = hear(link, kind, last_words);
  if (!heard.ok()) return failed(heard.status());
  return failed(Status(sent.code(), name_of(link) + " did not take part in " + to_string(kind) +
                                        ": " + sent.message()));
}

Status Star::send_all(FrameKind kind, std::string_view payload, std::span<const int> fds) {
  const Deadline until = deadline();
  for (PeerConnection& link : links_) RONDO_TRY(send_to(link, kind, payload, fds, until));
  return {};
}

/// The error that a frame of `link` has, with its rank.
Status Star::said_by(const PeerConnection& link, const Frame& frame) {
  Status why = unpack_status(frame.payload);
  heard_from_peer_ = true;
  if (!is_root()) return why;
  return {why.code(), "rank " + std::to_string(number_of(link.rank)) + ": " + why.message()};
}

/// Receives this operation's frame from `link`; false: it has not arrived.
Result<bool> Star::hear(PeerConnection& link, FrameKind kind, Received& into) {
  auto received = link.connection.try_receive();
  if (!received.ok() && received.status().code() == Code::kPeerDied) {
    return lost_peer(name_of(link), "ended or left", std::string("during ") + to_string(kind),
                     received.status());
  }
  if (!received.ok()) {
    return failed_here(Status(received.status().code(), "receiving from " + name_of(link) + ": " +
                                                            received.status().message()));
  }
  if (!*received) return false;
  Frame& frame = (*received)->frame;
  if (frame.kind == FrameKind::kError) return said_by(link, frame);
  if (frame.kind != kind || frame.sequence != sequence_) {
    return Status(Code::kMismatch, name_of(link) + " is at " + to_string(frame.kind) +
                                       " (exchange " + std::to_string(frame.sequence) + "), rank " +
                                       std::to_string(number_of(rank_)) + " at " + to_string(kind) +
                                       " (exchange " + std::to_string(sequence_) + ")");
  }
  into = std::move(**received);
  return true;
}

Status Star::check_links() {
  RONDO_TRY(status_);
  for (PeerConnection& link : links_) {
    pollfd closed{link.connection.fd(), POLLRDHUP, 0};
    if (poll(&closed, 1, 0) <= 0) continue;
    Received last_words;
    auto heard = hear(link, FrameKind::kGather, last_words);
    const bool says_why = !heard.ok() && heard.status().code() != Code::kMismatch;
    return failed(
        says_why ? heard.status()
                 : Status(Code::kPeerDied, name_of(link) + " ended while the ranks were meeting"));
  }
  return {};
}

Status Star::await_last_words(milliseconds patience) {
  RONDO_TRY(status_);
  std::vector<pollfd> ends;
  for (const PeerConnection& link : links_) ends.push_back({link.connection.fd(), POLLRDHUP, 0});
  RONDO_TRY(poll_until(ends, {steady_clock::now() + patience, &interrupt_}).status());
  return check_links();
}

/// Waits until a link of `links_` is ready; marks in `ended` the links whose process has ended.
/// Links whose frame has arrived are watched too, so that a death ends the wait for the others.
Status Star::await_links(const std::vector<Received*>& come, std::vector<bool>& ended,
                         FrameKind kind, Deadline until) {
  std::vector<pollfd> watched;
  std::vector<int> missing;
  for (size_t i = 0; i < links_.size(); ++i) {
    const PeerConnection& link = links_[i];
    watched.push_back({link.connection.fd(), static_cast<short>(come[i] ? 0 : POLLIN), 0});
    watched.push_back({peers_[static_cast<size_t>(link.rank)].pidfd.get(), POLLIN, 0});
    if (come[i] == nullptr) missing.push_back(number_of(link.rank));
  }
  auto ready = RONDO_TRY(poll_until(watched, until));
  if (!ready) {
    return Status(Code::kTimeout, name_ranks(missing) + " of " + std::to_string(size_) +
                                      " did not reach the bootstrap's " + to_string(kind) +
                                      " within " + name_duration(timeout_));
  }
  for (size_t i = 0; i < links_.size(); ++i) {
    const bool hung_up = come[i] != nullptr && (watched[2 * i].revents & (POLLHUP | POLLERR)) != 0;
    if (hung_up || watched[2 * i + 1].revents != 0) ended[i] = true;
  }
  return {};
}

/// One frame of this operation from every link, in the links' order.
Result<std::vector<Connection::Received>> Star::collect(FrameKind kind) {
  const Deadline until = deadline() + (is_root() ? milliseconds(0) : kVerdictGrace);
  std::vector<Received> all(links_.size());
  std::vector<Received*> come(links_.size(), nullptr);
  std::vector<bool> ended(links_.size(), false);
  size_t missing = links_.size();
  while (true) {
    for (size_t i = 0; i < links_.size(); ++i) {
      if (come[i] == nullptr) {
        auto heard = hear(links_[i], kind, all[i]);
        if (!heard.ok()) return failed(heard.status());
        if (*heard) {
          come[i] = &all[i];
          --missing;
        }
      }
      if (ended[i] && missing > 0) {
        auto why = links_[i].connection.try_receive();
        if (why.ok() && *why && (*why)->frame.kind == FrameKind::kError) {
          return failed(said_by(links_[i], (*why)->frame));
        }
        const std::string moment = std::string("during ") + to_string(kind);
        return failed(why.ok() ? Status(Code::kPeerDied, name_of(links_[i]) + " ended " + moment)
                               : lost_peer(name_of(links_[i]), "ended", moment, why.status()));
      }
    }
    if (missing == 0) return all;
    Status waited = await_links(come, ended, kind, until);
    if (!waited.ok()) return failed(waited);
  }
}

Status Star::post(FrameKind kind, std::string_view bytes, std::span<const int> fds) {
  RONDO_TRY(begin());
  if (bytes.size() > kMaxBlobBytes) {
    return failed(Status(Code::kInvalidArgument, "a blob of " + std::to_string(bytes.size()) +
                                                     " bytes on rank " + std::to_string(rank_) +
                                                     ": at most " + std::to_string(kMaxBlobBytes)));
  }
  return is_root() ? Status() : send_all(kind, bytes, fds);
}

Result<std::vector<Parcel>> Star::finish(FrameKind kind, std::string_view bytes,
                                         std::span<const int> fds) {
  return is_root() ? distribute(kind, bytes, fds) : receive(kind);
}

/// No rank gets its own descriptors back.
Result<std::vector<Parcel>> Star::distribute(FrameKind kind, std::string_view bytes,
                                             std::span<const int> fds) {
  auto come = RONDO_TRY(collect(kind));
  std::vector<Parcel> all(1);
  all[0].bytes = bytes;
  all[0].fds.resize(fds.size());  // for their number
  for (Received& received : come) {
    all.push_back({.bytes = std::move(received.frame.payload), .fds = std::move(received.fds)});
  }
  const std::string packed = pack_parcels(all);
  all[0].fds.clear();
  const Deadline until = deadline();
  for (PeerConnection& link : links_) {
    std::vector<int> given(fds.begin(), fds.end());
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (static_cast<int>(rank) == link.rank) continue;
      for (const UniqueFd& fd : all[rank].fds) given.push_back(fd.get());
    }
    std::string_view payload = packed;
    std::span<const int> left = given;
    do {
      const auto now = left.first(std::min(left.size(), kMaxFdsPerFrame));
      RONDO_TRY(send_to(link, kind, payload, now, until));
      left = left.subspan(now.size());
      payload = {};
    } while (!left.empty());
  }
  return all;
}

Result<std::vector<Parcel>> Star::receive(FrameKind kind) {
  auto come = RONDO_TRY(collect(kind));
  auto all = unpack_parcels(come[0].frame.payload, static_cast<size_t>(size_));
  if (!all) return failed(Status(Code::kBootstrap, "rank 0 sent blobs that make no sense"));
  (*all)[static_cast<size_t>(rank_)].fds.clear();
  std::vector<UniqueFd> fds = std::move(come[0].fds);
  auto next = fds.begin();
  for (Parcel& parcel : *all) {
    for (UniqueFd& fd : parcel.fds) {
      if (next == fds.end()) {
        fds = std::move(RONDO_TRY(collect(kind))[0].fds);
        next = fds.begin();
      }
      if (next == fds.end()) return failed(wrong_fds());
      fd = std::move(*next++);
    }
  }
  if (next != fds.end()) return failed(wrong_fds());
  return std::move(*all);
}

}  // namespace rondo::comm
