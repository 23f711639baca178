// The launcher's server: what it takes from ranks, what it answers, and that strangers' nonsense
// costs it nothing.
#include "comm/status/socket.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "transport/memory/segment.hpp"

namespace rondo::status {
namespace {

using board::Board;
using testing::TempDirectory;

/// A server that is served until the test ends.
class RunningServer {
 public:
  explicit RunningServer(const std::string& directory) {
    auto opened = StatusServer::open(
        directory, {.pid = getpid(), .ranks = 2, .started_s = 99, .command = "a\nb"});
    REQUIRE(opened.ok());
    server_ = std::make_unique<StatusServer>(std::move(*opened));
    setenv(kSocketVariable, server_->path().c_str(), 1);
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pollfd ready{server_->fd(), POLLIN, 0};
        if (poll(&ready, 1, 10) > 0) server_->serve();
      }
    });
  }
  ~RunningServer() { unsetenv(kSocketVariable); }

 private:
  std::unique_ptr<StatusServer> server_;
  std::jthread thread_;
};

struct World {
  World()
      : segment(*transport::Segment::create(kBoardName, 1 << 16)),
        board(segment.base(), 1, 0, "w") {}
  transport::Segment segment;
  Board board;
};

transport::UniqueFd connected_to(const std::string& path) {
  transport::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  REQUIRE(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

void send_to(const std::string& path, const std::string& text) {
  const transport::UniqueFd fd = connected_to(path);
  if (!text.empty()) REQUIRE(send(fd.get(), text.data(), text.size(), 0) > 0);
}

}  // namespace

TEST_CASE("who asks gets the job and the boards that ranks have announced") {
  const TempDirectory place;
  RunningServer server(place.path());
  World one, two;
  announce_board(one.segment.fd());
  announce_board(two.segment.fd());
  auto answer = ask(place.path());
  REQUIRE(answer.ok());
  CHECK(answer->job.pid == getpid());
  CHECK(answer->job.ranks == 2);
  CHECK(answer->job.started_s == 99);
  CHECK(answer->job.command == "a b");
  REQUIRE(answer->boards.size() == 2);
  CHECK(answer->boards[0].id() == one.segment.id());
  CHECK(answer->boards[1].name() == "w");
}

TEST_CASE("a communicator that all ranks have left is forgotten") {
  const TempDirectory place;
  RunningServer server(place.path());
  World one, two;
  announce_board(one.segment.fd());
  announce_board(two.segment.fd());
  one.board.state(0).life = static_cast<uint32_t>(board::Life::kGone);
  auto answer = ask(place.path());
  REQUIRE(answer.ok());
  REQUIRE(answer->boards.size() == 1);
  CHECK(answer->boards[0].id() == two.segment.id());
}

TEST_CASE("nonsense and silence do not keep the server from answering") {
  const TempDirectory place;
  RunningServer server(place.path());
  const std::string socket_path = place.path() + "/status";
  for (const char* text : {"", "board", "hello", "boards? and more"}) send_to(socket_path, text);
  send_to(socket_path, std::string(100'000, 'x'));
  announce_board(open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<transport::UniqueFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connected_to(socket_path));
  auto answer = ask(place.path());
  REQUIRE(answer.ok());
  CHECK(answer->boards.empty());
}

TEST_CASE("without a launcher nobody is told, and asking says so") {
  unsetenv(kSocketVariable);
  World world;
  announce_board(world.segment.fd());
  const TempDirectory place;
  CHECK(ask(place.path()).status().code() == Code::kUnavailable);
  setenv(kSocketVariable, (place.path() + "/none").c_str(), 1);
  announce_board(world.segment.fd());
  unsetenv(kSocketVariable);
}

TEST_CASE("a directory that others may enter is not used") {
  const TempDirectory place;
  REQUIRE(chmod(place.path().c_str(), 0755) == 0);
  CHECK(StatusServer::open(place.path(), {}).status().code() == Code::kInvalidArgument);
  CHECK(ask(place.path()).status().code() == Code::kInvalidArgument);
}

TEST_CASE("a launcher that does not answer is given up") {
  const TempDirectory place;
  const auto server = StatusServer::open(place.path(), {});  // and never served
  REQUIRE(server.ok());
  CHECK(ask(place.path()).status().code() == Code::kTimeout);
}

}  // namespace rondo::status
