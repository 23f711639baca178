// rondo-train as a program, with ranks as processes: N ranks follow one, runs repeat bit for bit,
// communication starts during backward, and whatever is wrong ends every rank with a reason.
#include <signal.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/harness/terminal.hpp"
#include "tests/trainer/workplace.hpp"

using nlohmann::json;
using namespace rondo::trainer::testing;
using rondo::testing::ProgramResult;
using rondo::testing::run_program;
using rondo::testing::TempDirectory;

namespace {

/// N ranks with batch B against one rank with batch N*B.
void check_equivalence(const Workplace& place, int ranks, const std::vector<std::string>& flags,
                       size_t steps, double tolerance) {
  constexpr int kBatch = 4;
  const auto with = [&](int n, int batch) {
    std::vector<std::string> words = flags;
    words.insert(words.end(), {"--steps", std::to_string(steps), "--ranks", std::to_string(n),
                               "--batch", std::to_string(batch)});
    return losses_of(place.train(words));
  };
  const std::vector<double> one = with(1, ranks * kBatch), many = with(ranks, kBatch);
  REQUIRE(one.size() == steps);
  REQUIRE(many.size() == steps);
  for (size_t s = 0; s < steps; ++s) {
    INFO("step " << s + 1 << ": one rank " << one[s] << ", " << ranks << " ranks " << many[s]);
    REQUIRE(std::abs(one[s] - many[s]) <= tolerance * std::abs(one[s]));
  }
  CHECK(one.back() < one.front());  // it learns, so the updates were part of the comparison
}

}  // namespace

// Ranks other than 0 start from zeros, so these also fail from the first step on without the
// broadcast.
TEST_CASE("N ranks follow one rank with N times the batch: fp32, 20 steps, 1e-5") {
  const Workplace place;
  for (const int ranks : {2, 3, 4}) {
    check_equivalence(place, ranks, {"--width", "128", "--bucket-cap-mb", "0.05"}, 20, 1e-5);
  }
}

TEST_CASE("N ranks follow one rank with N times the batch: fp64, 200 steps, 1e-9", "[again]") {
  const Workplace place;
  for (const int ranks : {2, 3, 4}) {
    check_equivalence(place, ranks, {"--width", "32", "--dtype", "fp64", "--bucket-cap-mb", "0.01"},
                      200, 1e-9);
  }
}

TEST_CASE("accumulated micro-batches follow one large batch") {
  const Workplace place;
  const std::vector<std::string> common = {"--width", "32", "--dtype", "fp64", "--steps", "20"};
  auto whole = common, parts = common;
  whole.insert(whole.end(), {"--batch", "12"});
  parts.insert(parts.end(), {"--batch", "2", "--accum", "3", "--ranks", "2"});
  const json a = place.train(whole), b = place.train(parts);
  CHECK(b["summary"]["global_batch"] == 12);
  const std::vector<double> one = losses_of(a), many = losses_of(b);
  REQUIRE(one.size() == many.size());
  for (size_t s = 0; s < one.size(); ++s) CHECK(many[s] == Approx(one[s]).epsilon(1e-10));
}

TEST_CASE("three ranks give the same bits on every run, overlapped or not") {
  const Workplace place;
  const std::vector<std::string> flags = {"--ranks", "3",  "--width",         "64",
                                          "--steps", "15", "--bucket-cap-mb", "0.01"};
  const json first = place.train(flags), second = place.train(flags);
  auto after = flags;
  after.push_back("--no-overlap");
  const json third = place.train(after);
  CHECK(losses_of(first).size() == 15);
  CHECK(losses_of(first) == losses_of(second));
  CHECK(losses_of(first) == losses_of(third));
  CHECK(first["summary"]["parameter_hash"] == second["summary"]["parameter_hash"]);
  CHECK(first["summary"]["parameter_hash"] == third["summary"]["parameter_hash"]);
  auto other = flags;
  other.insert(other.end(), {"--seed", "1"});
  CHECK(losses_of(place.train(other)) != losses_of(first));
}

namespace {

/// When something began and ended in one step of a trace.
struct Span {
  double begin = -1, end = -1;
};

Span find_span(const json& trace, const std::string& lane, const std::string& name, int step) {
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["name"] != name || event["args"]["step"] != step) continue;
    for (const json& row : trace["traceEvents"]) {
      if (row["name"] == "thread_name" && row["tid"] == event["tid"] &&
          row["args"]["name"] == lane) {
        return {.begin = event["ts"],
                .end = event["ts"].get<double>() + event["dur"].get<double>()};
      }
    }
  }
  FAIL("no span " << name << " of step " << step << " on row " << lane);
  return {};
}

}  // namespace

TEST_CASE("the first bucket is under way before backward's last layer begins") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  for (const bool overlap : {true, false}) {
    std::vector<std::string> words = {"--ranks",         "2",    "--steps", "3", "--width", "64",
                                      "--bucket-cap-mb", "0.01", "--trace", file};
    if (!overlap) words.push_back("--no-overlap");
    place.train(words);
    const json trace = json::parse(read_text(file));
    for (int step = 1; step <= 3; ++step) {
      const Span first = find_span(trace, "bucket 0", "queued", step);
      const Span reduced = find_span(trace, "bucket 0", "all-reduce bucket 0", step);
      const Span last_layer = find_span(trace, "compute", "backward embedding", step);
      const Span optimizer = find_span(trace, "compute", "optimizer", step);
      CHECK(reduced.end <= optimizer.begin);
      // Without overlap updates wait, too.
      const std::string needed = overlap ? "0" : "1";
      const Span update = find_span(trace, "compute", "optimizer bucket 0", step);
      const std::string row = "bucket " + needed;
      CHECK(find_span(trace, row, "all-reduce " + row, step).end <= update.begin);
      CHECK(update.end <= optimizer.begin);
      if (overlap) {
        CHECK(first.begin < last_layer.begin);
      } else {
        CHECK(first.begin >= last_layer.end);
      }
    }
  }
}

TEST_CASE("an algorithm that these ranks cannot have is refused, not replaced") {
  const Workplace place;
  for (const auto& flags : {std::vector<std::string>{"hierarchical"}, {"ring", "--reproducible"}}) {
    std::vector<std::string> words = {"--ranks", "2",          "--steps",    "1",
                                      "--data",  place.data(), "--algorithm"};
    words.insert(words.end(), flags.begin(), flags.end());
    const ProgramResult result = run(words);
    CHECK(result.exit_code == 1);
    CHECK(result.err.find("--algorithm " + flags[0] + " is not possible for 2 ranks") !=
          std::string::npos);
  }
}

TEST_CASE("a ring sends what the formula says, to the last byte") {
  const Workplace place;
  const ProgramResult result =
      run({"--ranks", "4", "--steps", "2", "--batch", "2", "--data", place.data(), "--algorithm",
           "ring", "--bucket-cap-mb", "0.5", "--log-every", "0", "--json", place.file("j")});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json summary = json::parse(read_text(place.file("j")))["summary"];
  for (const json& bucket : summary["buckets"]) CHECK(bucket["algorithm"] == "ring");
  const double gradients = 1.5 * 2659328, headers = 3 * 32;
  CHECK(summary["bytes_formula_parts"] ==
        json({{"gradients", gradients}, {"loss", 1.5 * 16}, {"norms", 0.0}, {"headers", headers}}));
  CHECK(summary["bytes_formula_per_step"] == 3989112.0);
  // The loss and whether to stop are in one chunk: ranks 1 and 2 send it on twice, 0 and 3 once.
  const uint64_t rest = 3988992 + 96;
  CHECK(summary["bytes_sent_per_step_by_rank"] ==
        json({rest + 16, rest + 32, rest + 32, rest + 16}));
}

TEST_CASE("rank 0 alone reports: a line per step, and a summary with measured beside computed") {
  const Workplace place;
  std::vector<std::string> words = {"--ranks", "3",      "--steps",    "4",           "--batch",
                                    "2",       "--data", place.data(), "--log-every", "2"};
  const ProgramResult result = run(words);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  std::vector<json> lines;
  std::istringstream text(result.out);
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  REQUIRE(lines.size() == 3);
  CHECK(json({lines[0]["step"], lines[1]["step"]}) == json({2, 4}));
  for (const char* field : {"epoch", "loss", "lr", "samples_per_s", "step_ms", "compute_ms",
                            "comm_ms", "exposed_comm_ms", "other_wait_ms", "data_wait_ms"})
    CHECK(lines[0].contains(field));
  words.insert(words.end(), {"--json", place.file("j")});
  const ProgramResult written = run(words);
  REQUIRE(written.exit_code == 0);
  CHECK(written.out.find('{') == std::string::npos);  // stdout is for people, if there is a file
  CHECK(written.out.find("loss") != std::string::npos);
  const json document = json::parse(read_text(place.file("j")));
  CHECK(document["steps"].size() == 4);  // also those that were not logged
  CHECK(document["config"]["batch"] == 2);
  CHECK(!document["config"]["matmul_core"].get<std::string>().empty());
  const json& summary = document["summary"];
  for (const auto& [key, value] : summary.items()) CHECK(lines[2]["summary"].contains(key));
  CHECK(summary["ranks"] == 3);
  CHECK(summary["parameters"] == 664832);
  CHECK(summary["gradient_bytes_per_step"] == 4 * 664832);
  // The loss travels too, and 32 bytes of headers from each rank to every other.
  CHECK(summary["bytes_formula_per_step"].get<double>() ==
        Approx(2.0 * 2 / 3 * (4 * 664832 + 16) + 2 * 32).epsilon(1e-12));
  REQUIRE(summary["bytes_sent_per_step_by_rank"].size() == 3);
  // However the sums are split, each rank sends something, and at most everything to everybody.
  for (const double bytes : summary["bytes_sent_per_step_by_rank"])
    CHECK((bytes > 0 && bytes <= 2.0 * (4 * 664832 + 16)));
  CHECK(summary["final_loss"] == document["steps"][3]["loss"]);
  CHECK(lines[2]["summary"]["final_loss"] == lines[1]["loss"]);
  CHECK(summary["buckets"].size() == 3);
  // Six for each weight of the matrices: forward, and two products of backward.
  const double operations = 6.0 * (2 * 512 * 512 + 512 * 256);
  CHECK(summary["gemm_operations_per_sample"] == operations);
  CHECK(summary["gemm_gflops_per_rank"].get<double>() ==
        Approx(operations * summary["samples_per_s"].get<double>() / 3 / 1e9));
}

// OpenBLAS repeats a failed allocation for ever.
TEST_CASE("too little address space is an error, not an endless wait") {
  if (rondo::testing::kSanitized) return;  // needs terabytes
  const Workplace place;
  for (const std::string threads : {"1", "3"}) {
    // Whether a run with this limit lacks memory for products; any other end is well too.
    const auto lacks_products = [&](int kib) {
      const ProgramResult result =
          run_program({"sh", "-c", "ulimit -v " + std::to_string(kib) + " && exec \"$@\"", "sh",
                       RONDO_TRAIN, "--ranks", "2", "--steps", "2", "--width", "32", "--data",
                       place.data(), "--threads", threads},
                      kNoLauncher);
      INFO(kib << " KiB, " << threads << " threads: " << result.err);
      CHECK(!result.timed_out);
      CHECK(result.err.find("terminate called") == std::string::npos);
      const bool lacks = result.err.find("matrix products with --threads " + threads + " need") !=
                         std::string::npos;
      CHECK((result.exit_code == 0 || !result.err.empty()));
      CHECK((result.exit_code != 0 || !lacks));
      return lacks;
    };
    int too_little = 150'000;
    int enough = 1'000'000;
    REQUIRE(lacks_products(too_little));
    REQUIRE(!lacks_products(enough));
    while (enough - too_little > 16) {
      const int middle = std::midpoint(too_little, enough);
      (lacks_products(middle) ? too_little : enough) = middle;
    }
    // What is the first to pass the check may be too little for all the rest.
    for (int more = 0; more <= 8'192; more += more < 512 ? 64 : 1'024)
      lacks_products(enough + more);
  }
}

TEST_CASE("OPENBLAS_CORETYPE chooses the code of matrix products, and the document names it") {
  const Workplace place;
  auto environment = kNoLauncher;
  environment.push_back("OPENBLAS_CORETYPE=HASWELL");
  const ProgramResult result = run_program({RONDO_TRAIN, "--steps", "1", "--width", "16", "--data",
                                            place.data(), "--json", place.file("json")},
                                           environment);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(json::parse(read_text(place.file("json")))["config"]["matmul_core"] == "Haswell");
}

TEST_CASE("--json holds an error where there is no summary, whichever rank failed") {
  const Workplace place;
  const std::string other_run = R"({"summary": "of another run"})";
  const auto error_of = [&](std::vector<std::string> words, bool begins = false) {
    words.insert(words.end(), {"--width", "16", "--steps", "50", "--json", place.file("json")});
    std::ofstream(place.file("json")) << other_run;
    if (!begins) {
      CHECK(run(words).exit_code != 0);
      CHECK(read_text(place.file("json")) == other_run);
      std::filesystem::remove(place.file("json"));
    }
    const ProgramResult result = run(words);
    INFO(result.err);
    CHECK(result.exit_code != 0);
    const json document = json::parse(read_text(place.file("json")));
    CHECK(document["program"] == "rondo-train");
    CHECK(!document.contains("summary"));
    CHECK(document["config"]["width"] == 16);
    return document.value("error", "");
  };
  // Rank 0's own: before the meeting, behind it, and in a step.
  CHECK(error_of({"--data", "/missing"}).find("/missing") != std::string::npos);
  CHECK(error_of({"--data", place.data(), "--checkpoint-dir", "/proc/none"}).find("/proc/none") !=
        std::string::npos);
  CHECK(error_of({"--data", place.data(), "--lr", "1e5"}, true).find("the loss became") !=
        std::string::npos);
  // Another rank's, which may have rank 0 stopped before it hears of it.
  std::filesystem::copy_file(place.data(), place.file("own0"));
  CHECK(!error_of({"--ranks", "2", "--data", place.file("own{rank}")}).empty());
}

namespace {

/// Blocks until the document at `path` holds that step; the test runner's time limit ends it
/// otherwise.
void await_step(const std::string& path, int step) {
  const std::string text = "\"step\":" + std::to_string(step) + ",";
  while (read_text(path).find(text) == std::string::npos) std::this_thread::yield();
}

}  // namespace

TEST_CASE("--json keeps the steps of a run that something outside has ended") {
  const Workplace place;
  const std::string file = place.file("json");
  const std::vector<std::string> flags = {"--width", "16",         "--steps",     "1000000",
                                          "--data",  place.data(), "--log-every", "0",
                                          "--json",  file};
  const auto check = [&](const ProgramResult& result) {
    INFO(result.err);
    CHECK(!result.timed_out);
    CHECK(result.exit_code != 0);
    const json document = json::parse(read_text(file));
    REQUIRE(document["steps"].size() >= 3);
    for (size_t s = 0; s < document["steps"].size(); ++s) {
      REQUIRE(document["steps"][s]["step"] == s + 1);
    }
    CHECK(!document["error"].get<std::string>().empty());
    CHECK(document["config"]["width"] == 16);
    CHECK(!document.contains("summary"));
  };
  std::vector<std::string> alone = {RONDO_TRAIN};
  alone.insert(alone.end(), flags.begin(), flags.end());
  check(run_program(alone, kNoLauncher, std::chrono::seconds{120}, [&](pid_t pid) {
    await_step(file, 3);
    kill(pid, SIGKILL);
  }));
  // Another rank's end, after which the launcher stops rank 0.
  const std::string rank =
      "if [ $RANK = 1 ]; then echo $$ >'" + place.file("pid") + "'; fi; exec \"$@\"";
  std::vector<std::string> two = {RONDO_RUN, "-n", "2", "--", "sh", "-c", rank, "sh"};
  two.insert(two.end(), alone.begin(), alone.end());
  std::filesystem::remove(file);
  check(run_program(two, kNoLauncher, std::chrono::seconds{120}, [&](pid_t) {
    await_step(file, 3);
    kill(std::stoi(read_text(place.file("pid"))), SIGKILL);
  }));
}

TEST_CASE("--json and --trace write to stdout beside its lines: to a pipe, to a file") {
  const Workplace place;
  const auto shell = [&](const std::string& flags, const std::string& rest) {
    return run_program(
        {"sh", "-c",
         "'" RONDO_TRAIN "' --width 16 --steps 2 --data '" + place.data() + "' " + flags + rest},
        kNoLauncher, std::chrono::seconds{120});
  };
  const std::string file = place.file("out");
  for (const char* ranks : {"", "--ranks 2 "}) {
    for (const char* flag : {"--json /dev/stdout", "--trace /dev/stdout"}) {
      INFO(ranks << flag);
      const ProgramResult result = shell(ranks + std::string(flag), " | cat >'" + file + "'");
      const std::string piped = read_text(file);
      REQUIRE(shell(ranks + std::string(flag), " >'" + file + "'").exit_code == 0);
      for (const std::string& text : {piped, read_text(file)}) {
        INFO(text << result.err);
        // Two steps, and then the document before or after the summary.
        const size_t steps_end = text.find('\n', text.find('\n') + 1) + 1;
        const size_t summary = text.find("{\"summary\"");
        REQUIRE(summary >= steps_end);
        const size_t summary_end = text.find('\n', summary) + 1;
        CHECK(json::parse(text.substr(summary, summary_end - summary)).contains("summary"));
        const json document =
            json::parse(text.substr(steps_end, summary - steps_end) + text.substr(summary_end));
        CHECK(document.contains(flag[2] == 'j' ? "summary" : "traceEvents"));
      }
    }
    const std::string same = ranks + ("--json '" + file + "'");
    CHECK(shell(same, " >'" + file + "'").err.find("is where stdout goes") != std::string::npos);
  }
  const std::string pipe = place.file("pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  for (const char* flag : {"--json '", "--trace '", "--scaling 1 --json '"}) {
    const ProgramResult waits = shell(flag + pipe + "'", "");
    INFO(flag << waits.err);
    CHECK(!waits.timed_out);
    CHECK(waits.err.find("nobody reads") != std::string::npos);
  }
}

TEST_CASE("a bar is drawn on a terminal, through the launcher too, and nowhere else") {
  const Workplace place;
  const std::string command = "'" RONDO_TRAIN "' --model mlp --steps 20 --batch 4 --ranks 2 " +
                              std::string("--log-every 0 --data '") + place.data() + "' 2>";
  const auto run_with_stderr = [&](const std::string& path) {
    return run_program({"sh", "-c", command + "'" + path + "'"}, kNoLauncher).exit_code;
  };
  const rondo::testing::Terminal terminal;
  CHECK(run_with_stderr(terminal.path()) == 0);
  const std::string shown = terminal.read();
  CHECK(shown.find("step 1 of 20, loss 5.") != std::string::npos);
  CHECK(shown.find("step 20 of 20, loss ") != std::string::npos);
  CHECK(run_with_stderr(place.file("err")) == 0);
  CHECK(read_text(place.file("err")).find(" of 20") == std::string::npos);
}

TEST_CASE("--log-every 0 leaves the summary") {
  const Workplace place;
  const ProgramResult result = run({"--steps", "3", "--batch", "2", "--width", "32", "--data",
                                    place.data(), "--log-every", "0"});
  REQUIRE(result.exit_code == 0);
  CHECK(json::parse(result.out).contains("summary"));
}

TEST_CASE("--epochs counts whole passes") {
  const TempDirectory folder;
  std::ofstream(folder.path() + "/data") << std::string(16 + 25, 'x');  // 25 samples
  const ProgramResult result = run({"--epochs", "2", "--batch", "4", "--width", "16", "--data",
                                    folder.path() + "/data", "--json", folder.path() + "/json"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(read_text(folder.path() + "/json"));
  REQUIRE(document["steps"].size() == 14);  // the last batch of each holds one sample
  CHECK(document["steps"][6]["epoch"] == 0);
  CHECK(document["steps"][7]["epoch"] == 1);
}

namespace {

/// A run that must fail with every one of `words` in its complaint, and without results.
void check_refused(const std::vector<std::string>& flags, const std::vector<std::string>& words) {
  const ProgramResult result = run(flags);
  INFO("out: " << result.out << " err: " << result.err);
  CHECK(!result.timed_out);
  CHECK(result.exit_code != 0);
  CHECK(result.out.find("summary") == std::string::npos);
  for (const std::string& word : words) {
    INFO("should mention: " << word);
    CHECK(result.err.find(word) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("bad data ends every rank with a reason") {
  const TempDirectory folder;
  const std::string file = folder.path() + "/short";
  std::ofstream(file) << "sixteen bytes...";
  for (const std::string ranks : {"1", "2"}) {
    check_refused({"--ranks", ranks, "--data", folder.path() + "/missing"},
                  {folder.path() + "/missing", "No such file"});
    check_refused({"--ranks", ranks, "--data", file}, {file, "holds 16 bytes", "17"});
    check_refused({"--ranks", ranks, "--data", "/proc/self/mem"}, {"cannot be read"});
    check_refused({"--ranks", ranks, "--data", "/dev/null"}, {"/dev/null", "neither"});
    const std::string one_sample = folder.path() + "/one";
    std::ofstream(one_sample) << "seventeen bytes..";
    check_refused({"--ranks", ranks, "--data", one_sample, "--drop-last"},
                  {"1 samples", "--drop-last"});
  }
  const TempDirectory empty;
  check_refused({"--data", empty.path()}, {empty.path(), "holds 0 bytes"});
}

// An installed program's prefix holds what other packages put there.
TEST_CASE("without --data an installed program trains on the text installed with it, and says so") {
  const TempDirectory folder;
  const std::filesystem::path prefix = folder.path();
  for (const char* name : {"bin", "share/rondo", "include/rondo"}) {
    std::filesystem::create_directories(prefix / name);
  }
  const std::string program = prefix / "bin/rondo-train", text = prefix / "share/rondo/licence.txt";
  std::filesystem::copy_file(RONDO_TRAIN, program);
  std::ofstream(prefix / "include/rondo/rondo.hpp") << "a header";
  std::ofstream(prefix / "share/of-another-program") << "not to be read";
  std::ofstream(text) << std::string(1000, 'x');
  const std::vector<std::string> words = {
      program, "--steps", "1", "--width", "16", "--json", folder.path() + "/json"};
  const ProgramResult result = run_program(words, kNoLauncher);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(
      result.err.starts_with("rondo-train: no --data: trains on rondo's licence, " + text + "\n"));
  const json config = json::parse(read_text(folder.path() + "/json"))["config"];
  CHECK(config["data"] == text);
  CHECK(config["data_bytes"] == 1000);

  std::filesystem::remove(text);
  const ProgramResult without = run_program(words, kNoLauncher);
  CHECK(without.exit_code != 0);
  CHECK(without.err.find("no --data given, and the default, " + text) != std::string::npos);
  CHECK(without.out.empty());
}

TEST_CASE("the least data that can be trained on is one sample") {
  const TempDirectory folder;
  const std::string file = folder.path() + "/one";
  std::ofstream(file) << "seventeen bytes..";
  CHECK(run({"--data", file, "--batch", "1", "--steps", "2", "--width", "16"}).exit_code == 0);
  // Two ranks must share it: nothing that one could do better.
  const ProgramResult shared =
      run({"--data", file, "--ranks", "2", "--epochs", "2", "--width", "16"});
  INFO(shared.err);
  CHECK(shared.exit_code == 0);
  CHECK(shared.err.find("the same data") == std::string::npos);
}

TEST_CASE("bad flags and files end the program with a reason") {
  const Workplace place;
  check_refused({"--dtype", "int3", "--data", place.data()}, {"--dtype", "int3", "is unknown"});
  check_refused({"--batch", "0", "--data", place.data()}, {"--batch"});
  check_refused({"--workers-of-the-world"}, {"--workers-of-the-world"});
  const ProgramResult help = run_program({"sh", "-c", "'" RONDO_TRAIN "' --help >/dev/full"});
  CHECK(help.exit_code == 1);
  CHECK(help.err.find("cannot write to stdout") != std::string::npos);
  check_refused({"--steps", "1", "--data", place.data(), "--json", place.file("no/folder")},
                {"no/folder", "--json"});
  check_refused({"--steps", "1", "--data", place.data(), "--trace", place.file("no/folder")},
                {"no/folder", "trace"});
  check_refused({"--steps", "1", "--data", place.data(), "--pace", "fast"}, {"fast"});
  // One rank only finds out; all of them end.
  check_refused(
      {"--ranks", "2", "--steps", "1", "--data", place.data(), "--json", place.file("no/folder")},
      {"no/folder"});
}

TEST_CASE("a diverging loss ends every rank and names the learning rate") {
  const Workplace place;
  check_refused(
      {"--ranks", "2", "--lr", "1e5", "--width", "32", "--steps", "200", "--data", place.data()},
      {"the loss became", "--lr"});
  // What the arithmetic makes of it has a sign that nobody asked for.
  const ProgramResult blown =
      run({"--lr", "1e5", "--width", "32", "--steps", "200", "--data", place.data()});
  CHECK(blown.err.find("-nan") == std::string::npos);
}

TEST_CASE("ranks that were started with different options or data say so") {
  const Workplace place;
  const auto run_shell = [&](const std::string& flags) {
    const std::string command =
        std::string("exec ") + RONDO_TRAIN + " --steps 2 --width 32 " + flags;
    return run_program({RONDO_RUN, "-n", "3", "--", "sh", "-c", command}, kNoLauncher,
                       std::chrono::seconds{60});
  };
  const ProgramResult options = run_shell("--data " + place.data() + " --seed $((RANK / 2))");
  INFO(options.err);
  CHECK(options.exit_code != 0);
  CHECK(options.err.find("rank 2 runs with seed=1 (rank 0: seed=0)") != std::string::npos);
  CHECK(options.err.find("rank 1 runs") == std::string::npos);

  std::ofstream(place.file("other")) << "data that nobody else has, long enough to train on";
  std::filesystem::copy_file(place.data(), place.file("same"));
  const ProgramResult data =
      run_shell("--batch 2 --data $(test $RANK = 1 && echo " + place.file("other") + " || echo " +
                place.file("same") + ")");
  INFO(data.err);
  CHECK(data.exit_code != 0);
  CHECK(data.err.find("rank 1 runs with data=") != std::string::npos);
}

TEST_CASE("ps shows the program by its name, also after it has started itself anew") {
  const Workplace place;
  std::vector<std::string> names;
  std::thread watch;
  // Without the variable the program executes itself on CPUs with AVX-512.
  const ProgramResult result = run_program(
      {RONDO_TRAIN, "--steps", "20", "--width", "32", "--data", place.data()},
      {"OPENBLAS_CORETYPE", "RANK", "WORLD_SIZE"}, std::chrono::seconds{60}, [&](pid_t pid) {
        watch = std::thread([&names, pid] {
          std::ifstream file;
          std::string name;
          do {
            file = std::ifstream("/proc/" + std::to_string(pid) + "/comm");
            if (std::getline(file, name)) names.push_back(name);
          } while (file);
        });
      });
  watch.join();
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(std::find(names.begin(), names.end(), "rondo-train") != names.end());
  CHECK(std::find(names.begin(), names.end(), "exe") == names.end());
}

TEST_CASE("--ranks against the launcher's number is a contradiction") {
  const Workplace place;
  const ProgramResult result =
      run_program({RONDO_RUN, "-n", "2", "--", RONDO_TRAIN, "--ranks", "3", "--data", place.data()},
                  kNoLauncher);
  CHECK(result.exit_code != 0);
  CHECK(result.err.find("--ranks 3 contradicts the launcher, which has started 2") !=
        std::string::npos);
}
