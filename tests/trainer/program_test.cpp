// rondo-train as a program, with ranks as processes: N ranks follow one, runs repeat bit for bit,
// communication starts during backward, and whatever is wrong ends every rank with a reason.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "tests/harness/sanitized.hpp"
#include "tests/trainer/training_rig.hpp"

namespace rondo::trainer::program_test {

using namespace testing;  // NOLINT: the trainer's
using rondo::testing::run_program;
using rondo::testing::TempDirectory;

namespace {

const Words kTrain = {RONDO_TRAIN}, kLauncher = {RONDO_RUN};

/// N ranks with batch 4 against one rank with batch 4 N.
void check_equivalence(const Workplace& place, int ranks, const Words& flags, double tolerance) {
  const json one = place.train(flags + "--batch" + 4 * ranks);
  check_same_losses(one, place.train(flags + "--batch 4 --ranks"_words + ranks), tolerance);
  // It learns, so the updates were part of the comparison.
  CHECK(losses_of(one).back() < losses_of(one).front());
}

}  // namespace

// Ranks other than 0 start from zeros, so these also fail from the first step on without the
// broadcast.
TEST_CASE("N ranks follow one rank with N times the batch: fp32, 20 steps, 1e-5") {
  const Workplace place;
  for (const int ranks : {2, 3, 4}) {
    check_equivalence(place, ranks, "--width 128 --bucket-cap-mb 0.05 --steps 20"_words, 1e-5);
  }
}

TEST_CASE("N ranks follow one rank with N times the batch: fp64, 200 steps, 1e-9", "[again]") {
  const Workplace place;
  for (const int ranks : {2, 3, 4}) {
    check_equivalence(place, ranks,
                      "--width 32 --dtype fp64 --bucket-cap-mb 0.01 --steps 200"_words, 1e-9);
  }
}

TEST_CASE("accumulated micro-batches follow one large batch") {
  const Workplace place;
  const Words common = "--width 32 --dtype fp64 --steps 20"_words;
  const json parts = place.train(common + "--batch 2 --accum 3 --ranks 2"_words);
  CHECK(parts["summary"]["global_batch"] == 12);
  check_same_losses(place.train(common + "--batch 12"_words), parts, 1e-10);
}

TEST_CASE("three ranks give the same bits on every run, overlapped or not") {
  const Workplace place;
  const Words flags = "--ranks 3 --width 64 --steps 15 --bucket-cap-mb 0.01"_words;
  const json first = place.train(flags);
  for (const Words& more : {Words{}, Words{"--no-overlap"}}) {
    const json again = place.train(flags + more);
    CHECK(losses_of(again) == losses_of(first));
    CHECK(hash_of(again) == hash_of(first));
  }
  CHECK(losses_of(place.train(flags + "--seed 1"_words)) != losses_of(first));
}

TEST_CASE("the first bucket is under way before backward's last layer begins") {
  const Workplace place;
  const std::string file = place.file("trace.json");
  for (const bool overlap : {true, false}) {
    const Words flags = "--ranks 2 --steps 3 --width 64 --bucket-cap-mb 0.01 --trace"_words + file;
    place.train(overlap ? flags : flags + "--no-overlap");
    const json trace = read_json(file);
    for (int step = 1; step <= 3; ++step) {
      const auto span = [&](const std::string& row, const std::string& name) {
        return span_of(trace, name, step, row);
      };
      const Span first = span("bucket 0", "queued");
      const Span last_layer = span("compute", "backward embedding");
      const Span optimizer = span("compute", "optimizer");
      CHECK(span("bucket 0", "all-reduce bucket 0").end <= optimizer.begin);
      // Without overlap updates wait, too.
      const Span update = span("compute", "optimizer bucket 0");
      const std::string needed = overlap ? "bucket 0" : "bucket 1";
      CHECK(span(needed, "all-reduce " + needed).end <= update.begin);
      CHECK(update.end <= optimizer.begin);
      CHECK((overlap ? first.begin < last_layer.begin : first.begin >= last_layer.end));
    }
  }
}

TEST_CASE("an algorithm that these ranks cannot have is refused, not replaced") {
  const Workplace place;
  for (const Words& flags : {Words{"hierarchical"}, Words{"ring", "--reproducible"}}) {
    check_refused("--ranks 2 --steps 1 --data"_words + place.data() + "--algorithm" + flags,
                  {"--algorithm " + flags[0] + " is not possible for 2 ranks"});
  }
}

TEST_CASE("a ring sends what the formula says, to the last byte") {
  const Workplace place;
  const json summary = place.train(
      "--ranks 4 --steps 2 --batch 2 --algorithm ring --bucket-cap-mb 0.5"_words)["summary"];
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
  const Words words = "--ranks 3 --steps 4 --batch 2 --data"_words + place.data() + "--log-every";
  std::vector<json> lines;
  std::istringstream text(run_ok(words + 2).out);
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  REQUIRE(lines.size() == 3);
  CHECK(json({lines[0]["step"], lines[1]["step"]}) == json({2, 4}));
  for (const char* field : {"epoch", "loss", "lr", "samples_per_s", "step_ms", "compute_ms",
                            "comm_ms", "exposed_comm_ms", "other_wait_ms", "data_wait_ms"})
    CHECK(lines[0].contains(field));
  CHECK(json::parse(run_ok(words + 0).out).contains("summary"));
  const ProgramResult written = run_ok(words + 2 + "--json" + place.file("j"));
  CHECK_THAT(written.out, !contains("{"));  // stdout is for people, if there is a file
  CHECK_THAT(written.out, contains("loss"));
  const json document = read_json(place.file("j"));
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
      const ProgramResult result = run_program(
          Words{"sh", "-c", "ulimit -v " + std::to_string(kib) + " && exec \"$@\"", "sh"} + kTrain +
              "--ranks 2 --steps 2 --width 32 --data"_words + place.data() + "--compute-threads" +
              threads,
          kNoLauncher);
      INFO(kib << " KiB, " << threads << " threads: " << result.err);
      CHECK(!result.timed_out);
      CHECK_THAT(result.err, !contains("terminate called"));
      const bool lacks = result.err.find("matrix products with --compute-threads " + threads +
                                         " need") != std::string::npos;
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
  const json document = place.train_on("--steps 1 --width 16 --data"_words + place.data(),
                                       kNoLauncher + "OPENBLAS_CORETYPE=HASWELL");
  CHECK(document["config"]["matmul_core"] == "Haswell");
}

TEST_CASE("--json holds an error where there is no summary, whichever rank failed") {
  const Workplace place;
  const std::string file = place.file("json"), other_run = R"({"summary": "of another run"})";
  const auto error_of = [&](const Words& flags, bool begins = false) {
    const Words words = flags + "--width 16 --steps 50 --json"_words + file;
    std::ofstream(file) << other_run;
    if (!begins) {
      check_refused(words, {});
      CHECK(read_text(file) == other_run);
      std::filesystem::remove(file);
    }
    check_refused(words, {});
    const json document = read_json(file);
    CHECK(document["program"] == "rondo-train");
    CHECK(!document.contains("summary"));
    CHECK(document["config"]["width"] == 16);
    return document.value("error", "");
  };
  // Rank 0's own: before the meeting, behind it, and in a step.
  const Words data = {"--data", place.data()};
  CHECK_THAT(error_of({"--data", "/missing"}), contains("/missing"));
  CHECK_THAT(error_of(data + "--checkpoint-dir /proc/none"_words), contains("/proc/none"));
  CHECK_THAT(error_of(data + "--lr 1e5"_words, true), contains("the loss became"));
  // Another rank's, which may have rank 0 stopped before it hears of it.
  std::filesystem::copy_file(place.data(), place.file("own0"));
  CHECK(!error_of("--ranks 2 --data"_words + place.file("own{rank}")).empty());
}

TEST_CASE("--json keeps the steps of a run that something outside has ended") {
  const Workplace place;
  const std::string file = place.file("json");
  const Words alone = kTrain + "--width 16 --steps 1000000 --log-every 0 --data"_words +
                      place.data() + "--json" + file;
  // Kills the process that `victim` names when the run has made three steps.
  const auto check = [&](const Words& words, const std::function<pid_t(pid_t)>& victim) {
    std::filesystem::remove(file);
    check_failed(run_program(words, kNoLauncher, std::chrono::seconds{120},
                             [&](pid_t pid) {
                               if (await_step(file, 3)) kill(victim(pid), SIGKILL);
                             }),
                 {});
    const json document = read_json(file);
    REQUIRE(document["steps"].size() >= 3);
    for (size_t s = 0; s < document["steps"].size(); ++s) {
      REQUIRE(document["steps"][s]["step"] == s + 1);
    }
    CHECK(!document["error"].get<std::string>().empty());
    CHECK(document["config"]["width"] == 16);
    CHECK(!document.contains("summary"));
  };
  check(alone, [](pid_t pid) { return pid; });
  // Another rank's end, after which the launcher stops rank 0.
  const std::string pid = place.file("pid");
  const std::string rank = "if [ $RANK = 1 ]; then echo $$ >'" + pid + "'; fi; exec \"$@\"";
  check(kLauncher + "-n 2 -- sh -c"_words + rank + "sh" + alone,
        [&](pid_t) { return std::stoi(read_text(pid)); });
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
    CHECK_THAT(shell(same, " >'" + file + "'").err, contains("is where stdout goes"));
  }
  const std::string pipe = place.file("pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  for (const char* flag : {"--json '", "--trace '", "--scaling 1 --json '"}) {
    INFO(flag);
    check_failed(shell(flag + pipe + "'", ""), {"nobody reads"});
  }
}

TEST_CASE("bad data ends every rank with a reason") {
  const TempDirectory folder, empty;
  const std::string file = folder.path() + "/short", one_sample = folder.path() + "/one",
                    missing = folder.path() + "/missing";
  write_file(file, "sixteen bytes...");
  write_file(one_sample, "seventeen bytes..");
  for (const int ranks : {1, 2}) {
    const Words on = "--ranks"_words + ranks + "--data";
    check_refused(on + missing, {missing, "No such file"});
    check_refused(on + file, {file, "holds 16 bytes", "17"});
    check_refused(on + "/proc/self/mem", {"cannot be read"});
    check_refused(on + "/dev/null", {"/dev/null", "neither"});
    check_refused(on + one_sample + "--drop-last", {"1 samples", "--drop-last"});
  }
  check_refused({"--data", empty.path()}, {empty.path(), "holds 0 bytes"});
}

// An installed program's prefix holds what other packages put there.
TEST_CASE("without --data an installed program trains on the text installed with it, and says so") {
  const TempDirectory folder;
  const std::filesystem::path prefix = folder.path();
  const std::string program = prefix / "bin/rondo-train", text = prefix / "share/rondo/licence.txt";
  write_file(prefix / "include/rondo/rondo.hpp", "a header");
  write_file(prefix / "share/of-another-program", "not to be read");
  write_file(text, std::string(1000, 'x'));
  std::filesystem::create_directory(prefix / "bin");
  std::filesystem::copy_file(RONDO_TRAIN, program);
  const Words words =
      Words{program} + "--steps 1 --width 16 --json"_words + (folder.path() + "/json");
  const ProgramResult result = run_program(words, kNoLauncher);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(
      result.err.starts_with("rondo-train: no --data: trains on rondo's licence, " + text + "\n"));
  const json config = read_json(folder.path() + "/json")["config"];
  CHECK(config["data"] == text);
  CHECK(config["data_bytes"] == 1000);

  std::filesystem::remove(text);
  const ProgramResult without = run_program(words, kNoLauncher);
  check_failed(without, {"no --data given, and the default, " + text});
  CHECK(without.out.empty());
}

TEST_CASE("the least data that can be trained on is one sample") {
  const TempDirectory folder;
  const std::string file = folder.path() + "/one";
  write_file(file, "seventeen bytes..");
  run_ok("--batch 1 --steps 2 --width 16 --data"_words + file);
  // Two ranks must share it: nothing that one could do better.
  CHECK_THAT(run_ok("--ranks 2 --epochs 2 --width 16 --data"_words + file).err,
             !contains("the same data"));
}

TEST_CASE("bad flags and files end the program with a reason") {
  const Workplace place;
  const std::string nowhere = place.file("no/folder");
  const Words step = "--steps 1 --data"_words + place.data();
  check_refused("--workers-of-the-world"_words, {"--workers-of-the-world"});
  check_refused(step + "--json" + nowhere, {"no/folder", "--json"});
  check_refused(step + "--trace" + nowhere, {"no/folder", "trace"});
  check_refused(step + "--pace fast"_words, {"fast"});
  // One rank only finds out; all of them end.
  check_refused(step + "--ranks 2 --json"_words + nowhere, {"no/folder"});
  const ProgramResult help = run_program({"sh", "-c", "'" RONDO_TRAIN "' --help >/dev/full"});
  CHECK(help.exit_code == 1);
  CHECK_THAT(help.err, contains("cannot write to stdout"));
}

TEST_CASE("a diverging loss ends every rank and names the learning rate") {
  const Workplace place;
  const Words words = "--lr 1e5 --width 32 --steps 200 --data"_words + place.data();
  check_refused("--ranks 2"_words + words, {"the loss became", "--lr"});
  // What the arithmetic makes of it has a sign that nobody asked for.
  CHECK_THAT(run(words).err, !contains("-nan"));
}

TEST_CASE("ranks that were started with different options or data say so") {
  const Workplace place;
  const auto run_shell = [&](const std::string& flags) {
    const std::string command = "exec '" RONDO_TRAIN "' --steps 2 --width 32 " + flags;
    return run_program(kLauncher + "-n 3 -- sh -c"_words + command, kNoLauncher);
  };
  const ProgramResult options = run_shell("--data " + place.data() + " --seed $((RANK / 2))");
  check_failed(options, {"rank 2 runs with seed=1 (rank 0: seed=0)"});
  CHECK_THAT(options.err, !contains("rank 1 runs"));

  write_file(place.file("other"), "data that nobody else has, long enough to train on");
  std::filesystem::copy_file(place.data(), place.file("same"));
  check_failed(run_shell("--batch 2 --data $(test $RANK = 1 && echo " + place.file("other") +
                         " || echo " + place.file("same") + ")"),
               {"rank 1 runs with data="});
}

TEST_CASE("ps shows the program by its name, also after it has started itself anew") {
  const Workplace place;
  std::vector<std::string> names;
  std::thread watch;
  // Without the variable the program executes itself on CPUs with AVX-512.
  const ProgramResult result = run_program(
      kTrain + "--steps 20 --width 32 --data"_words + place.data(),
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
  const Words words =
      kLauncher + "-n 2 --"_words + kTrain + "--ranks 3 --data"_words + place.data();
  check_failed(run_program(words, kNoLauncher),
               {"--ranks 3 contradicts the launcher, which has started 2"});
}

}  // namespace rondo::trainer::program_test
