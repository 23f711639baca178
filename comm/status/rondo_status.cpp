// rondo-status: what the ranks of a running job do, and which rank waits for which. Reads shared
// memory; asks nothing of the ranks, which may hang.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/base/counted.hpp"
#include "comm/base/flush_stdout.hpp"
#include "comm/board/board.hpp"
#include "comm/status/find.hpp"
#include "comm/status/snapshot.hpp"
#include "rondo/rondo.h"
#include "rondo/types.hpp"

namespace {

using namespace rondo;          // NOLINT: this file is the program
using namespace rondo::status;  // NOLINT
using Json = nlohmann::ordered_json;

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
int fail(const std::string& why) {
  std::fprintf(stderr, "rondo-status: %s\n", why.c_str());
  return 1;
}

/// "-": to stdout.
int write_json(const std::string& path, const Json& json) {
  const std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (path == "-") {
    print(text);
    return 0;
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? 0 : fail("cannot write --json '" + path + "': " + std::strerror(errno));
}

Json to_json(const board::Message& message) {
  // Null: any.
  return {{"direction", message.probes  ? "probe"
                        : message.sends ? "send"
                                        : "recv"},
          {"peer", message.peer == kAnySource ? Json() : Json(message.peer)},
          {"tag", message.tag == kAnyTag ? Json() : Json(message.tag)},
          {"type", name(message.type)},
          {"count", message.count},
          {"bytes", message.count * size_of(message.type)},
          {"moved_bytes", message.moved_bytes},
          {"seconds", message.seconds()},
          {"behind", message.behind}};
}

Json to_json(const RankSnapshot& rank) {
  Json json = {{"rank", rank.rank},
               {"host", rank.host},
               {"pid", rank.pid},
               {"does", to_string(rank.doing)},
               {"pid_is_of_another_namespace", rank.foreign_pid},
               {"process", rank.process},
               {"begun", rank.begun},
               {"ended", rank.ended},
               {"operation", rank.operation.empty() ? Json() : Json(rank.operation)}};
  if (rank.age_seconds) json["age_seconds"] = *rank.age_seconds;
  if (rank.elsewhere >= 0) json["waits_elsewhere_for"] = rank.elsewhere;
  if (rank.doing == Doing::kWaiting) {
    json["waits_for"] = rank.peer == kAnySource ? Json() : Json(rank.peer);
    json["seconds"] = rank.seconds;
    json["algorithm"] = name(rank.algorithm);
  }
  if (rank.step) {
    json["step"] = *rank.step;
    json["steps"] = rank.steps;
    json["action"] = rank.action;
    json["round"] = rank.round;
  }
  json["messages"] = Json::array();
  for (const board::Message& message : rank.messages) {
    json["messages"].push_back(to_json(message));
  }
  return json;
}

Json to_json(const Snapshot& snapshot) {
  Json ranks = Json::array();
  for (const RankSnapshot& rank : snapshot.ranks) ranks.push_back(to_json(rank));
  return {{"communicator", snapshot.communicator},
          {"hosts", snapshot.hosts},
          {"ranks", std::move(ranks)},
          {"chains", waiting_chains(snapshot)},
          {"error", snapshot.error.empty() ? Json(nullptr) : Json(snapshot.error)}};
}

Json to_json(const Job& job) {
  return {
      {"pid", job.pid}, {"ranks", job.ranks}, {"started", job.started_s}, {"command", job.command}};
}

/// Seconds as "1 h 02 min" and the like.
std::string age_of(const Job& job) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t s = std::chrono::duration_cast<std::chrono::seconds>(now).count() - job.started_s;
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
}

std::vector<Answer> answers_of(int pid) {
  std::vector<Answer> answers;
  for (const std::string& directory : launcher_directories(pid)) {
    // What does not answer has ended, or is another's; a launcher that hangs is found by its pid.
    if (auto answer = ask(directory); answer.ok()) answers.push_back(std::move(*answer));
  }
  return answers;
}

int list_jobs(const std::string& json_file) {
  const std::vector<Answer> answers = answers_of(0);
  if (!json_file.empty()) {
    Json jobs = Json::array();
    for (const Answer& answer : answers) jobs.push_back(to_json(answer.job));
    return write_json(json_file, {{"jobs", std::move(jobs)}});
  }
  if (answers.empty()) {
    print("no job of this user was started by rondo-run; for others: rondo-status PID\n");
    return 0;
  }
  print(fmt::format("{:>8}  {:>5}  {:>13}  {:>13}  {}\n", "pid", "ranks", "communicators", "since",
                    "command"));
  for (const auto& [job, boards] : answers) {
    print(fmt::format("{:>8}  {:>5}  {:>13}  {:>13}  {}\n", job.pid, job.ranks, boards.size(),
                      age_of(job), job.command));
  }
  return 0;
}

/// The job of `pid`, from its launcher if that answers.
Result<Answer> find_job(int pid) {
  std::vector<Answer> answers = answers_of(pid);
  if (!answers.empty()) return std::move(answers.front());
  return Answer{.job = {}, .boards = RONDO_TRY(boards_of_process(pid))};
}

/// The last operations of every rank of every communicator.
int show_records(const Answer& answer) {
  for (const MappedBoard& board : answer.boards) {
    print(fmt::format("flight recorder of communicator \"{}\"\n{}", board.name(),
                      board.view().to_string()));
  }
  if (answer.boards.empty()) print("flight recorder: there is no communicator\n");
  return 0;
}

int show_job(const Answer& answer, const std::string& json_file) {
  const bool known = answer.job.pid != 0;
  Json communicators = Json::array();
  std::string text;
  if (known) {
    text = fmt::format("job {}: {}, for {}: {}\n", answer.job.pid,
                       comm::counted(answer.job.ranks, "rank"), age_of(answer.job),
                       answer.job.command);
  }
  if (answer.boards.empty()) text += "no communicator yet, or none any more\n";
  for (const MappedBoard& board : answer.boards) {
    const Snapshot snapshot = take(board);
    if (!json_file.empty()) {
      communicators.push_back(to_json(snapshot));
    } else {
      text += to_text(snapshot);
    }
  }
  if (!json_file.empty()) {
    return write_json(json_file, {{"job", known ? to_json(answer.job) : Json(nullptr)},
                                  {"communicators", std::move(communicators)}});
  }
  print(text);
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app(
      "rondo-status [PID] [--json FILE | --records]\n"
      "What the ranks of a running job do, and which rank waits for which. Without PID: this "
      "user's "
      "jobs.");
  app.set_version_flag("--version", "rondo-status " RONDO_VERSION);
  int pid = 0;
  std::string json_file;
  bool as_records = false;
  auto* process =
      app.add_option("PID", pid,
                     "of a rondo-run, of any rank, or of another launcher whose ranks use rondo")
          ->check(CLI::Range(1, 1 << 30));
  auto* json = app.add_option(
      "--json", json_file, "write JSON to this file instead of text to stdout; -: JSON to stdout");
  app.add_flag("--records", as_records, "the flight recorders: the last operations of every rank")
      ->needs(process)
      ->excludes(json);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (pid == 0) return list_jobs(json_file);
  const Result<Answer> answer = find_job(pid);
  if (!answer.ok()) return fail(answer.status().message());
  return as_records ? show_records(*answer) : show_job(*answer, json_file);
}

}  // namespace

int main(int argc, char** argv) {
  comm::open_standard_streams();
  const int code = run(argc, argv);
  const Status printed = comm::flush_stdout();
  return printed.ok() || code != 0 ? code : fail(printed.message());
}
