// What kernels report, in the words that the host's watch has for the same: device_runner.hpp,
// explain_reports().
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "comm/device/device_runner.hpp"

namespace rondo::device {
namespace {

using engine::DeviceReport;

struct FoundReport {
  int rank;
  const DeviceReport* report;
};

// The report of a rank that explains most (Ended counts upwards); null: none.
const DeviceReport* of_rank(const ProcessMemory& memory, int rank, uint32_t channels) {
  const DeviceReport* best = nullptr;
  for (uint32_t channel = 0; channel < channels; ++channel) {
    const DeviceReport* report = memory.report(rank, static_cast<int>(channel));
    if (report == nullptr) continue;
    if (best == nullptr || report->ended > best->ended) best = report;
  }
  return best;
}

const char* word(DeviceReport::Awaited awaited) {
  static constexpr const char* kWords[] = {"something", "data",          "a free slot",
                                           "a signal",  "the beginning", "registered memory",
                                           "the place", "a registration"};
  return kWords[awaited < std::size(kWords) ? awaited : DeviceReport::kNothing];
}

std::string operation(const board::Board& board, int rank, uint64_t sequence) {
  const auto posted = board.read(rank, sequence);
  return fmt::format("{} (operation {})", posted ? posted->call.to_string() : "a collective",
                     sequence);
}

std::string describe(const DeviceReport& report) {
  if (report.peer < 0) return "a group of messages";
  const engine::DeviceMessage& message = report.message;
  return board::Message{.sends = message.sends != 0,
                        .peer = static_cast<int>(message.peer),
                        .type = static_cast<DataType>(message.type),
                        .count = message.count}
      .to_string();
}

Status message_mismatch(const FoundReport& found) {
  return board::uneven_message(found.report->peer, found.report->found, found.rank,
                               found.report->message.tag());
}

Status message_timeout(const FoundReport& found) {
  const DeviceReport& report = *found.report;
  return {Code::kTimeout,
          fmt::format("{} has not moved within its timeout on rank {}: rank {} has not called the "
                      "matching {}, or its kernel waits for earlier work on its stream, for room "
                      "on its GPU, or is stopped",
                      describe(report), found.rank, report.peer,
                      report.message.sends ? "recv" : "send")};
}

// The kernels have ended, and this thread serves this communicator only: it may wait.
void await_row(const board::Watch& watch, const DeviceReport& report) {
  board::NewsWait news;
  board::NewsWait::await([&] { return watch.has_row(report.peer, report.sequence, news); });
}

// A rank that has ended the waits of kernels may still look for the cause: twice as long as it does.
void await_cause(const board::Board& board) {
  for (int times = 0; times < 2; ++times) {
    board::NewsWait news;
    board::NewsWait::await([&] {
      (void)news.is_due();
      return board.has_error() || news.is_over();
    });
  }
}

// By copies, for which ranks know of peers' buffers only that they lie where their own do.
Status place_mismatch(const board::Board& board, const FoundReport& found) {
  const DeviceReport& report = *found.report;
  const auto words = [](uint64_t place) {
    return fmt::format("at offset {}{}", static_cast<int64_t>(place) >> 1,
                       (place & 1) != 0 ? ", in place" : "");
  };
  return {
      Code::kMismatch,
      fmt::format(
          "{}: rank {}'s buffer lies {} of its registration, rank {}'s {}{}: by copy-engine "
          "every rank passes memory of the same registration, at the same offset, and all "
          "ranks are in place or none; or leave the algorithm to rondo",
          operation(board, found.rank, report.sequence), found.rank, words(report.place),
          report.peer, words(report.found), report.place == report.found ? " of another one" : "")};
}

// What the ranks do: as the board says, and of ranks of this host whose kernels have reported, as these
// do. A rank of another host copies its kernel's report into its row (DeviceRunner::check).
std::vector<board::Observation> observe(const ProcessMemory& memory, uint32_t channels,
                                        const board::Board& board) {
  std::vector<board::Observation> ranks = board.observe_all();
  for (int rank = 0; rank < memory.ranks(); ++rank) {
    const DeviceReport* report = of_rank(memory, rank, channels);
    if (report != nullptr) ranks[static_cast<size_t>(rank)].waiting_for = report->peer;
  }
  return ranks;
}

// Describes the rank that delays a rank waiting for `peer`.
std::string culprit(std::span<const board::Observation> ranks, const board::Watch& watch, int peer,
                    uint64_t sequence) {
  const auto late = std::ranges::find_if(
      ranks, [sequence](const board::Observation& rank) { return rank.posted < sequence; });
  if (late != ranks.end()) return watch.describe_late(static_cast<int>(late - ranks.begin()));
  const std::vector<int> path = board::follow(
      peer, ranks.size(), [&](int rank) { return ranks[static_cast<size_t>(rank)].waiting_for; });
  return fmt::format(
      "rank {} has called it, but its kernel makes no progress: it waits for "
      "earlier work on its stream, for room on its GPU, or is stopped",
      path.empty() ? peer : path.back());
}

Status timeout(const ProcessMemory& memory, uint32_t channels, const board::Board& board,
               board::Watch& watch, const FoundReport& found) {
  const DeviceReport& report = *found.report;
  await_row(watch, report);
  RONDO_TRY(watch.find_disagreement(report.sequence));
  return {
      Code::kTimeout,
      fmt::format("{} has not moved within its timeout on rank {}, whose kernel waits for {} of "
                  "rank {} in step {} of round {}: {}",
                  operation(board, found.rank, report.sequence), found.rank, word(report.awaited),
                  report.peer, report.step, report.round,
                  culprit(observe(memory, channels, board), watch, report.peer, report.sequence))};
}

}  // namespace

Status explain_reports(const ProcessMemory& memory, uint32_t channels, const board::Board& board,
                       board::Watch& watch) {
  FoundReport found = {.rank = -1, .report = nullptr};
  for (int rank = 0; rank < memory.ranks(); ++rank) {
    const DeviceReport* report = of_rank(memory, rank, channels);
    if (report == nullptr) continue;
    if (found.report == nullptr || report->ended > found.report->ended) {
      found = {.rank = rank, .report = report};
    }
  }
  if (found.report == nullptr) return {};
  const bool message = found.report->sequence == 0;
  switch (found.report->ended) {
    case DeviceReport::kMismatch: {
      if (message) return message_mismatch(found);
      if (found.report->awaited == DeviceReport::kMapping) {
        return {
            Code::kMismatch,
            fmt::format("{}: rank {} uses a registration there that has ended on rank {}: all "
                        "ranks call unregister_device_memory() at the same place among their calls",
                        operation(board, found.rank, found.report->sequence), found.report->peer,
                        found.rank)};
      }
      if (found.report->awaited == DeviceReport::kPlace) return place_mismatch(board, found);
      if (found.report->awaited == DeviceReport::kEnded) {
        return {Code::kMismatch,
                fmt::format(
                    "{}: rank {} replays a graph with a call by copy-engine, whose registration "
                    "has ended: capture it again after unregister_device_memory()",
                    operation(board, found.rank, found.report->sequence), found.rank)};
      }
      const auto call = board.read(found.rank, found.report->sequence);
      await_row(watch, *found.report);
      return watch.mismatch(found.rank, found.report->peer, found.report->sequence,
                            call ? call->call.to_string() : "a collective");
    }
    case DeviceReport::kTimeout:
      if (message) return message_timeout(found);
      return timeout(memory, channels, board, watch, found);
    default:
      await_cause(board);
      return {Code::kAborted,
              fmt::format("rank {}'s kernel was aborted in {}", found.rank,
                          message ? describe(*found.report)
                                  : operation(board, found.rank, found.report->sequence))};
  }
}

}  // namespace rondo::device
