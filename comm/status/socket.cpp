// SOCK_SEQPACKET keeps a packet and its descriptors together. Packets:
//
//   rank      -> launcher   "board", with the board's descriptor
//   anybody   -> launcher   "boards?"
//   launcher  -> asker      Job as lines, with the descriptors of all boards
#include "comm/status/socket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "comm/base/printable.hpp"
#include "comm/base/variables.hpp"
#include "comm/bootstrap/connection/packet.hpp"
#include "comm/bootstrap/rendezvous/rendezvous.hpp"

namespace rondo::status {
namespace {

using transport::UniqueFd;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kBoard = "board", kQuestion = "boards?";
constexpr const char* kSocketName = "status";
constexpr size_t kMostBoards = 250;  // at most comm::kMostFdsAtOnce
constexpr size_t kMostConnections = 64;
constexpr size_t kMostCommandBytes = 4096;
constexpr std::chrono::seconds kPatience{3};

Status failure(const std::string& what) {
  return {Code::kSystem, what + ": " + std::strerror(errno)};
}

UniqueFd make_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// Through /proc the address fits however long the directory's path is.
sockaddr_un address_in(const UniqueFd& directory) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = fmt::format("/proc/self/fd/{}/{}", directory.get(), kSocketName);
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

/// The directory, if it is this user's alone.
Result<UniqueFd> open_own_directory(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat facts {};
  if (!fd.valid() || ::fstat(fd.get(), &facts) != 0) {
    return Status(Code::kUnavailable, path + ": " + std::strerror(errno));
  }
  if (facts.st_uid != ::geteuid() || (facts.st_mode & 077) != 0) {
    return Status(Code::kInvalidArgument, path + " is not this user's alone");
  }
  return fd;
}

bool is_own_user(int socket) {
  auto peer = comm::credentials_of(socket);
  return peer.ok() && peer->uid == ::geteuid();
}

/// A connection to the launcher in `directory` whose other end is this user's.
Result<UniqueFd> connect_to(const std::string& directory) {
  auto opened = RONDO_TRY(open_own_directory(directory));
  UniqueFd socket = make_socket();
  if (!socket.valid()) return failure("socket");
  const sockaddr_un address = address_in(opened);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return Status(Code::kUnavailable,
                  "nobody answers in " + directory + ": " + std::strerror(errno));
  }
  if (!is_own_user(socket.get())) {
    return Status(Code::kInvalidArgument, "another user listens in " + directory);
  }
  return socket;
}

}  // namespace

std::string describe(const Job& job) {
  std::string command = job.command.substr(0, kMostCommandBytes);
  std::replace(command.begin(), command.end(), '\n', ' ');
  return fmt::format("{} {} {}\n{}", job.pid, job.ranks, job.started_s, command);
}

Result<Job> parse_job(const std::string& text) {
  Job job;
  std::istringstream stream(text);
  stream >> job.pid >> job.ranks >> job.started_s;
  if (!stream) return Status(Code::kInvalidArgument, "a launcher gave an answer without a job");
  stream.ignore();
  std::getline(stream, job.command);
  job.command = base::printable(job.command, kMostCommandBytes);
  return job;
}

void announce_board(int fd) {
  const auto path = comm::variable(kSocketVariable);
  if (!path) return;
  auto socket = connect_to(std::filesystem::path(*path).parent_path());
  if (socket.ok()) (void)comm::send_packet(socket->get(), kBoard, {&fd, 1});
}

Result<StatusServer> StatusServer::open(const std::string& directory, const Job& job) {
  auto opened = RONDO_TRY(open_own_directory(directory));
  StatusServer server;
  server.path_ = directory + "/" + kSocketName;
  server.description_ = describe(job);
  server.listener_ = make_socket();
  server.events_.reset(::epoll_create1(EPOLL_CLOEXEC));
  const sockaddr_un address = address_in(opened);
  epoll_event event{.events = EPOLLIN, .data = {.fd = server.listener_.get()}};
  if (!server.listener_.valid() || !server.events_.valid() ||
      ::bind(server.listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
          0 ||
      ::listen(server.listener_.get(), SOMAXCONN) != 0 ||
      ::epoll_ctl(server.events_.get(), EPOLL_CTL_ADD, server.listener_.get(), &event) != 0) {
    return failure("cannot listen in " + directory);
  }
  return server;
}

void StatusServer::serve() {
  epoll_event events[16];
  const int ready = ::epoll_wait(events_.get(), events, std::size(events), 0);
  for (int i = 0; i < ready; ++i) {
    if (events[i].data.fd == listener_.get()) {
      accept();
    } else {
      receive(events[i].data.fd);
    }
  }
}

void StatusServer::accept() {
  UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.valid() || !is_own_user(connection.get())) return;
  // The oldest silent connection makes room.
  if (connections_.size() >= kMostConnections) connections_.pop_front();
  epoll_event event{.events = EPOLLIN, .data = {.fd = connection.get()}};
  if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, connection.get(), &event) == 0) {
    connections_.push_back(std::move(connection));
  }
}

void StatusServer::receive(int socket) {
  const auto connection = std::find_if(connections_.begin(), connections_.end(),
                                       [&](const UniqueFd& fd) { return fd.get() == socket; });
  if (connection == connections_.end()) return;
  if (auto received = comm::receive_packet(socket); received.ok() && *received) {
    comm::Packet& packet = **received;
    if (packet.text == kQuestion) answer(socket);
    if (packet.text == kBoard && packet.fds.size() == 1) {
      drop_finished();
      auto board = MappedBoard::open(std::move(packet.fds.front()));
      if (board.ok()) boards_.push_back(std::move(*board));
      if (boards_.size() > kMostBoards) boards_.pop_front();
    }
  }
  connections_.erase(connection);
}

void StatusServer::answer(int socket) {
  drop_finished();
  std::vector<int> fds;
  for (const MappedBoard& board : boards_) fds.push_back(board.fd());
  (void)comm::send_packet(socket, description_, fds);  // an asker that has gone is no loss
}

void StatusServer::drop_finished() {
  std::erase_if(boards_, [](const MappedBoard& board) { return board.is_over(); });
}

Result<Answer> ask(const std::string& directory) {
  auto socket = RONDO_TRY(connect_to(directory));
  RONDO_TRY(comm::send_packet(socket.get(), kQuestion, {}));
  const auto until = Clock::now() + kPatience;
  pollfd answered{socket.get(), POLLIN, 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    const int ready = ::poll(&answered, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready > 0) break;
    if (ready == 0) return Status(Code::kTimeout, "the launcher does not answer");
    if (errno != EINTR) return failure("poll");
  }
  auto packet = RONDO_TRY(comm::receive_packet(socket.get()));
  if (!packet) return Status(Code::kSystem, "the launcher's answer was lost");
  auto job = RONDO_TRY(parse_job(packet->text));
  Answer answer{.job = job, .boards = {}};
  for (UniqueFd& fd : packet->fds) {
    answer.boards.push_back(RONDO_TRY(MappedBoard::open(std::move(fd))));
  }
  return answer;
}

}  // namespace rondo::status
