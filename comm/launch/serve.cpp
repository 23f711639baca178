// See serve.hpp.
#include "comm/launch/serve.hpp"

#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <sstream>

#include "comm/base/printable.hpp"
#include "comm/base/variables.hpp"
#include "comm/bootstrap/connection/tcp.hpp"
#include "comm/launch/frames.hpp"
#include "comm/launch/signals.hpp"

namespace rondo::run {
namespace {

using Clock = JobClock;

/// The rondo-run at the other end of stdin and stdout.
class RemoteConsole final : public Console {
 public:
  RemoteConsole() { stdout_.push(greeting()); }

  void print(int rank, int fd, std::string_view line) override {
    send(RunMessage::kLine, fmt::format("{}{} ", fd, rank).append(line));
  }
  void close(int rank, int fd) override {
    send(RunMessage::kClosed, fmt::format("{}{} ", fd, rank));
  }
  void report(const RankFailure& failure) override { send(RunMessage::kFailure, encode(failure)); }
  bool is_full(int) const override { return stdout_.is_full(); }

  void watch(std::vector<pollfd>& watched) const override {
    watched.push_back({has_ended_ ? -1 : STDIN_FILENO, POLLIN, 0});
    watched.push_back({stdout_.has_work() ? STDOUT_FILENO : -1, POLLOUT, 0});
  }
  void serve(std::span<const pollfd> watched) override {
    if (watched[0].revents != 0) receive();
    if (watched[1].revents != 0) stdout_.write_some();
  }

  std::optional<Time> next() const override { return std::min(signs_.next_sign(), lost_at()); }
  void turn(Time now) override {
    if (signs_.takes_sign(now)) send(RunMessage::kAlive);
    if (now >= lost_at() && !has_ended_) end("has been silent for too long");
  }

  std::optional<Order> next_order() override {
    while (auto frame = next_frame()) {
      if (frame->kind == RunMessage::kStop) return Order{.what = Order::What::kStop};
      if (frame->kind == RunMessage::kSignal) {
        const auto signal = comm::parse_number("", frame->payload);
        if (!signal.ok() || *signal < 1 || *signal > SIGRTMAX) {
          end(fmt::format("sends \"{}\" as the number of a signal",
                          base::printable(frame->payload, 32)));
          continue;
        }
        other_end_rests_ = use_of(*signal) == SignalUse::kPause;
        return Order{.what = Order::What::kSignal, .signal = *signal};
      }
      if (frame->kind == RunMessage::kStart || frame->kind == RunMessage::kPrepare) {
        requests_.push_back(std::move(*frame));
      }
    }
    if (!std::exchange(end_is_new_, false)) return std::nullopt;
    return Order{.what = Order::What::kKill};
  }

  void finish() override {}
  bool has_work() const override { return stdout_.has_work(); }

  void send(RunMessage kind, std::string_view payload = {}) { stdout_.push(pack(kind, payload)); }
  void set_lost_after(double seconds) { signs_ = SignsOfLife(seconds); }

  /// Waits for a request of this kind. Nothing: the other end is gone, or stops the job.
  std::optional<std::string> await(RunMessage kind) {
    while (true) {
      const auto order = next_order();
      if (!requests_.empty() && requests_.front().kind == kind) {
        std::string payload = std::move(requests_.front().payload);
        requests_.pop_front();
        return payload;
      }
      if (order && !leaves_job(*order)) return std::nullopt;
      std::vector<pollfd> watched;
      watch(watched);
      if (poll_until(watched, *next()) > 0) serve(watched);
      turn(Clock::now());
    }
  }

 private:
  /// Never while the other end is stopped, with all ranks.
  Time lost_at() const { return other_end_rests_ ? Time::max() : signs_.lost_at(); }

  /// Whether this signal does not concern a job that has no ranks yet.
  static bool leaves_job(const Order& order) {
    return order.what == Order::What::kSignal && use_of(order.signal) != SignalUse::kEnd;
  }

  /// nullopt if no frame is complete, or the other end has ended. An invalid frame ends it, too.
  std::optional<ReceivedFrame> next_frame() {
    if (has_ended_) return std::nullopt;
    try {
      return reader_.next();
    } catch (const std::exception& error) {
      end(fmt::format("sends an invalid frame: {}", error.what()));
      return std::nullopt;
    }
  }

  void receive() {
    signs_.heard(Clock::now());
    if (!read_some(STDIN_FILENO, [this](std::string_view bytes) { reader_.feed(bytes); })) {
      end("is gone");
    }
  }

  void end(std::string_view why) {
    has_ended_ = end_is_new_ = true;
    spdlog::error("the rondo-run that has started this one {}; killing all ranks", why);
  }

  Sink stdout_{STDOUT_FILENO};
  FrameReader reader_;
  std::deque<ReceivedFrame> requests_;
  bool has_ended_ = false, end_is_new_ = false;
  bool other_end_rests_ = false;  // it has said that it stops itself
  SignsOfLife signs_{60};
};

/// What this process logs is a message of the other end's.
class FrameSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit FrameSink(RemoteConsole& console) : console_(console) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    console_.send(RunMessage::kLog,
                  fmt::format("{}{}", static_cast<int>(message.level),
                              std::string_view(message.payload.data(), message.payload.size())));
  }
  void flush_() override {}

  RemoteConsole& console_;
};

/// How the other end's ssh has reached this host, if it has.
std::string ssh_address() {
  std::istringstream words(comm::variable("SSH_CONNECTION").value_or(""));
  std::string client, client_port, server;
  words >> client >> client_port >> server;
  return server;
}

/// The environment and directory of the ranks, and where rank 0 listens. The ports stay reserved
/// until the job is over.
class PreparedHost {
 public:
  Readiness prepare(const Preparation& preparation) {
    std::vector<std::string> names = preparation.reserve_for;
    if (!names.empty()) names.push_back(ssh_address());
    for (const auto& [name, value] : preparation.environment) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    if (chdir(preparation.directory.c_str()) != 0) {
      return {.problem = fmt::format(
                  "cannot enter the directory {}: {}; --chdir names one that every host has",
                  preparation.directory, std::strerror(errno))};
    }
    if (names.empty()) return {};
    if (preparation.only_this_host) return reserve({.name = "lo", .address = "127.0.0.1"});
    auto interface = comm::interface_for_others(names);
    if (!interface.ok()) return {.problem = interface.status().message()};
    if (comm::is_loopback(*interface)) return {.problem = comm::unreachable(*interface)};
    return reserve(*interface);
  }

 private:
  Readiness reserve(const comm::Interface& interface) {
    auto range = comm::port_range();
    if (!range.ok()) return {.problem = range.status().message()};
    Readiness readiness{.problem = {}, .address = interface.address};
    for (int* port : {&readiness.rendezvous_port, &readiness.master_port}) {
      auto reserved = comm::reserve_port(interface.address, *range);
      if (!reserved.ok()) return {.problem = reserved.status().message()};
      *port = reserved->port;
      ports_.push_back(std::move(*reserved));
    }
    return readiness;
  }

  std::vector<comm::TcpListener> ports_;
};

JobResult run_requested(RemoteConsole& console) {
  constexpr JobResult kNothing{.exit_code = kLauncherExit};
  const auto preparation = console.await(RunMessage::kPrepare);
  if (!preparation) return kNothing;
  const Preparation wanted = decode<Preparation>(*preparation);
  console.set_lost_after(wanted.lost_after_s);
  PreparedHost host;
  console.send(RunMessage::kReady, encode(host.prepare(wanted)));
  const auto job = console.await(RunMessage::kStart);
  return job ? run_job(decode<JobOptions>(*job), console) : kNothing;
}

}  // namespace

int serve() {
  RemoteConsole console;
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("serve", std::make_shared<FrameSink>(console)));
  JobResult result{.exit_code = kLauncherExit};
  try {
    result = run_requested(console);
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
  }
  console.send(RunMessage::kResult, encode(result));
  flush(console);
  return result.exit_code;
}

}  // namespace rondo::run
