// rondo-perf as its users run it: ranks as processes and as threads, exit codes, what it prints and
// writes.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "rondo/types.hpp"
#include "tests/bench/perf_program.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/rank_group.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/harness/terminal.hpp"

using namespace rondo;

namespace {

using perf_program::contains, perf_program::count, perf_program::run, perf_program::run_this;
using perf_program::Ran, perf_program::TemporaryJson;

const std::string kShort = " -b 8 -e 64K -f 32 -n 4 -w 1";

}  // namespace

TEST_CASE("every collective runs on processes and on threads, and finds nothing wrong") {
  for (const char* collective :
       {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "sendrecv"}) {
    for (const char* ranks :
         {" --ranks 1", " --ranks 2", " --ranks 3 --threads", " --ranks 2 --memory library"}) {
      const Ran ran = run(collective + std::string(ranks) + kShort);
      INFO(collective << ranks << "\n" << ran.output);
      CHECK(ran.exit_code == 0);
      CHECK(contains(ran.output, "# Out of bounds values : 0 OK"));
      CHECK(contains(ran.output, "# Avg bus bandwidth"));
    }
  }
}

TEST_CASE("a barrier is timed") {
  const Ran ran = run("barrier --ranks 2 -n 10");
  INFO(ran.output);
  CHECK(ran.exit_code == 0);
  CHECK(contains(ran.output, "N/A"));
}

TEST_CASE("every collective has every type and operator that it can have, checked exactly") {
  const TemporaryJson json;
  for (int c = 0; c < kCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (collective == Collective::kBarrier) continue;
    size_t combinations = 0;
    for (int type = 0; type < kDataTypes; ++type) {
      for (int op = 0; op < kReduceOps; ++op) {
        const bool has =
            supports(collective, static_cast<DataType>(type), static_cast<ReduceOp>(op));
        combinations += has ? 1 : 0;
      }
    }
    for (const char* ranks : {" -t 2", " -t 3"}) {
      const Ran ran = run(std::string(name(collective)) + ranks +
                          " -b 744 -e 744 -n 1 -w 0 -d all -o all --json '" + json.path() + "'");
      INFO(ran.output);
      CHECK(ran.exit_code == 0);
      const auto document = json.read();
      std::set<std::pair<std::string, std::string>> seen;
      for (const auto& row : document["results"]) {
        seen.emplace(row["type"], row["redop"]);
        CHECK(row["out_of_place"]["nwrong"] == 0);
        // No library does an all_to_all_v in place.
        if (collective != Collective::kAllToAllV) CHECK(row["in_place"]["nwrong"] == 0);
        CHECK(row["count"] > 0);
      }
      const bool reduces = form_of(collective).reduces;
      CHECK(seen.size() == (reduces ? combinations : static_cast<size_t>(kDataTypes)));
      CHECK(document["results"].size() == seen.size());
    }
  }
}

TEST_CASE("sendrecv goes round the ring, is no collective, and never in place") {
  const TemporaryJson json;
  const Ran ran = run("sendrecv -t 3 -b 0 -e 3M -i 1M -n 2 -d all --json '" + json.path() + "'");
  INFO(ran.output);
  REQUIRE(ran.exit_code == 0);
  CHECK(contains(ran.output, "rondo-perf: sendrecv on rondo"));
  const auto document = json.read();
  CHECK(document["config"]["collective"] == "sendrecv");
  CHECK(document["results"].size() == 4 * static_cast<size_t>(kDataTypes));
  for (const auto& row : document["results"]) {
    CHECK(row["out_of_place"]["nwrong"] == 0);
    CHECK(row["in_place"].is_null());
    CHECK(row["algorithm"].is_null());
    CHECK(row["out_of_place"]["alg_bw"] == row["out_of_place"]["bus_bw"]);
  }
  const struct {
    const char* arguments;
    const char* why;
  } kRefused[] = {{"--algorithm ring", "no algorithm"},
                  {"--sweep", "no algorithms to choose from"}};
  for (const auto& refused : kRefused) {
    const Ran said = run(std::string("sendrecv -t 2 -b 8 -e 8 ") + refused.arguments);
    INFO(said.output);
    CHECK(said.exit_code != 0);
    CHECK(contains(said.output, refused.why));
  }
}

TEST_CASE("a type without the operator is refused by name") {
  for (int t = 0; t < kDataTypes; ++t) {
    for (int o = 0; o < kReduceOps; ++o) {
      const auto type = static_cast<DataType>(t);
      const auto op = static_cast<ReduceOp>(o);
      if (supports(type, op)) continue;
      const Ran ran =
          run("reduce -b 64 -e 64 -d " + std::string(name(type)) + " -o " + std::string(name(op)));
      INFO(ran.output);
      CHECK(ran.exit_code == 1);
      CHECK(contains(ran.output,
                     "there is no " + std::string(name(op)) + " of " + std::string(name(type))));
    }
  }
}

TEST_CASE("by nccl-tests' names the program knows its collective") {
  const auto folder = std::filesystem::path(RONDO_PERF).parent_path();
  for (const char* called :
       {"all_reduce_perf", "all_gather_perf", "reduce_perf", "reduce_scatter_perf",
        "broadcast_perf", "alltoall_perf", "gather_perf", "scatter_perf", "sendrecv_perf"}) {
    const std::string program = (folder / called).string();
    for (const char* how : {"-g 2", "-t 2", "--ranks 2"}) {
      const Ran ran = run_this(program, std::string(how) + " -b 8 -e 1K -f 8 -n 2 -w 1 -c 1");
      INFO(called << " " << how << "\n" << ran.output);
      CHECK(ran.exit_code == 0);
      CHECK(contains(ran.output, "# ranks: 2"));
      CHECK(contains(ran.output, "# Out of bounds values : 0 OK"));
    }
    const Ran launched =
        run_this(RONDO_RUN, "-n 2 --no-prefix -- '" + program + "' -b 8 -e 8 -n 2");
    INFO(launched.output);
    CHECK(launched.exit_code == 0);
    CHECK(contains(launched.output, "# ranks: 2"));
  }
  const Ran all_to_all = run_this((folder / "alltoall_perf").string(), "-g 2 -b 8 -e 8 -n 2");
  CHECK(contains(all_to_all.output, "all_to_all on rondo"));
}

TEST_CASE("buffers may start anywhere, and cycles repeat the rows") {
  const TemporaryJson json;
  const Ran ran = run("all_gather -t 3 -b 1K -e 64K -f 8 -n 2 -u 3 -N 2 -c 2 -d int8 --json '" +
                      json.path() + "'");
  INFO(ran.output);
  CHECK(ran.exit_code == 0);
  CHECK(json.read()["results"].size() == 2 * 3);
}

TEST_CASE("statistics over single operations are in the JSON, and in the table when asked for") {
  const TemporaryJson json;
  const Ran ran = run("all_reduce --ranks 2 -b 8 -e 8 -n 50 --stats --json '" + json.path() + "'");
  INFO(ran.output);
  REQUIRE(ran.exit_code == 0);
  CHECK(contains(ran.output, "50 operations: min "));
  const auto document = json.read();
  for (const char* half : {"out_of_place", "in_place"}) {
    const auto& times = document["results"][0][half];
    CHECK(times["time_min"] > 0);
    CHECK(times["time_min"] <= times["time_median"]);
    CHECK(times["time_median"] <= times["time_p95"]);
    CHECK(times["time_p95"] <= times["time_p99"]);
    CHECK(times["time_p99"] <= times["time_max"]);
    CHECK(times["time_samples"] == 50);
  }
  CHECK_FALSE(contains(run("all_reduce -b 8 -e 8 -n 5").output, "operations: min"));
}

TEST_CASE("a communicator of eight ranks costs less than 16 MiB a rank") {
  const TemporaryJson json;
  for (const char* how : {"--ranks 8", "--ranks 8 --pace 10GB/s,500us", "-t 8"}) {
    const Ran ran =
        run(std::string("all_reduce ") + how + " -b 64K -e 64K -n 1 --json '" + json.path() + "'");
    INFO(how << "\n" << ran.output);
    REQUIRE(ran.exit_code == 0);
    CHECK(contains(ran.output, "# communicator, per rank: "));
    const auto use = json.read()["config"]["memory_per_rank"];
    const auto shared = use["shared_bytes"].get<size_t>(), own = use["private_bytes"].get<size_t>();
    INFO(shared << " " << own);
    CHECK(shared > 8 * 1024);  // more than the board
    CHECK(own > 0);
    CHECK(shared + own < size_t{16} << 20);
  }
}

TEST_CASE("the machine and the link profile are shown") {
  const Ran two = run("--topology --ranks 2");
  INFO(two.output);
  CHECK(two.exit_code == 0);
  for (const char* part : {"host: ",
                           "packages",
                           "NUMA",
                           "GPUs: ",
                           "allowed",
                           "control group",
                           "rank",
                           "link profile: shared memory",
                           "overhead_us",
                           "alpha_us",
                           "peer_us",
                           "slot_us_per_byte",
                           "one_way_us_per_byte",
                           "memory_cached_us_per_byte",
                           "memory_us_per_byte",
                           "reduce_us_per_byte",
                           "process_copy_us",
                           "process_copy_us_per_byte",
                           "parallel_ranks",
                           "llc_bytes",
                           "slot_bytes",
                           "slots",
                           "GB/s"}) {
    INFO(part);
    CHECK(contains(two.output, part));
  }
  const Ran many = run("all_reduce --topology --ranks 1000");
  CHECK(many.exit_code == 0);
  CHECK(contains(many.output, "more ranks than cores"));
  const Ran paced = run("--topology --pace 1GB/s,20us --ranks 1000");
  CHECK(contains(paced.output, "link profile: wire over"));
  CHECK(contains(paced.output, "more ranks than cores: 1000 on "));
  CHECK(run("--topology --json").exit_code == 2);
}

TEST_CASE("a bar is drawn on a terminal, through the launcher too, and nowhere else") {
  // Half a second at the least, on any machine.
  const std::string work = " -b 8 -e 64 -f 2 -N 10 -n 15 -w 0 --pace 1GB/s,200us >/dev/null 2>";
  for (const char* ranks : {"--ranks 2", "-t 2"}) {
    const testing::Terminal terminal;
    const std::string command = std::string("all_reduce ") + ranks + work;
    const Ran ran = run(command + terminal.path());
    const std::string shown = terminal.read();
    INFO(ranks << "\n" << ran.output << shown);
    CHECK(ran.exit_code == 0);
    CHECK(contains(shown, "[#"));
    CHECK(contains(shown, "of 40 rows"));
    // Each update replaced the one before: none came late, as the end of a line.
    CHECK_FALSE(contains(shown, "\n"));
    const TemporaryJson file;
    CHECK(run(command + "'" + file.path() + "'").exit_code == 0);
    CHECK(std::filesystem::file_size(file.path()) == 0);
  }
}

TEST_CASE("without a check nothing is claimed") {
  const Ran ran = run("all_reduce --ranks 2 -c 0" + kShort);
  INFO(ran.output);
  CHECK(ran.exit_code == 0);
  CHECK(contains(ran.output, "N/A"));
}

TEST_CASE(
    "a calibration writes a profile that predicts what was measured, and a sweep goes by it") {
  if (std::thread::hardware_concurrency() < 2) return;  // refused there, as it should be
  const auto directory =
      std::filesystem::temp_directory_path() / ("rondo-perf-links-" + std::to_string(getpid()));
  std::filesystem::create_directory(directory);
  // Without a FILE: into the default place, where programs find it by themselves.
  setenv("XDG_CONFIG_HOME", directory.c_str(), 1);
  setenv("RONDO_LINKS", "", 1);
  const std::string sweep_file = (directory / "sweep.json").string();
  const Ran calibrated = run("--calibrate --ranks 2 -b 64 -e 1M -f 4 -n 3");
  INFO(calibrated.output);
  REQUIRE(calibrated.exit_code == 0);
  const std::string words = "timings of 2 ranks in 3 rounds fitted, written to ";
  const size_t name = calibrated.output.find(words);
  REQUIRE(name != std::string::npos);
  const size_t begin = name + words.size();
  const std::string links =
      calibrated.output.substr(begin, calibrated.output.find('\n', begin) - begin);
  CHECK(contains(links, directory.string() + "/rondo/links-"));
  CHECK(contains(calibrated.output, "# within 15 %"));
  auto profile = nlohmann::json::parse(std::ifstream(links));
  REQUIRE(profile["corrections"].size() == 1);
  CHECK(profile["corrections"][0]["hosts"] == std::vector<int>{0, 0});
  // Every algorithm of every collective, of which those without direct ones on both memories.
  CHECK(profile["corrections"][0]["tables"].size() > 50);

  const Ran found = run("all_reduce --ranks 2 -b 64 -e 64 -n 3");
  CHECK(contains(found.output, "# links: " + links));
  const Ran around = run("all_reduce --ranks 2 -b 64 -e 64 -n 3 --links built-in");
  CHECK(contains(around.output, "# links: built-in"));
  const Ran of_itself =
      run("all_reduce --sweep --ranks 2 -b 64 -e 64 -n 3 --json '" + sweep_file + "'");
  CHECK(contains(of_itself.output, "links: " + links));
  CHECK(nlohmann::json::parse(std::ifstream(sweep_file))["links"] == links);

  // A profile in which the star is a thousand times as fast as it is: the choice follows.
  for (auto& table : profile["corrections"][0]["tables"]) {
    if (table["algorithm"] != "star") continue;
    for (auto& factor : table["factor"]) factor = factor.get<double>() / 1000;
  }
  std::ofstream(links) << profile;
  const Ran swept = run("all_reduce --sweep --ranks 2 -b 64 -e 64K -f 32 -n 3 --links '" + links +
                        "' --json '" + sweep_file + "'");
  INFO(swept.output);
  REQUIRE(swept.exit_code == 0);
  CHECK(contains(swept.output, "# chosen within 5 % of the best"));
  const auto sweep = nlohmann::json::parse(std::ifstream(sweep_file));
  REQUIRE(sweep["results"].size() == 3);
  for (const auto& row : sweep["results"]) {
    CHECK(row["chosen"] == "star");
    CHECK(row["algorithms"].size() == 5);  // plain memory: no direct ones
    CHECK(row["loss"].get<double>() >= 0);
    CHECK((row["best"] == "star") == (row["loss"] == 0));
  }
  // And what is measured without a sweep goes by it too.
  const Ran measured = run("all_reduce --wide --ranks 2 -b 64 -e 64 -n 2 --links '" + links + "'");
  CHECK(contains(measured.output, "star"));
  unsetenv("XDG_CONFIG_HOME");
  setenv("RONDO_LINKS", "built-in", 1);
  std::filesystem::remove_all(directory);
}

TEST_CASE("a sweep has a table for every type, operator and root") {
  const TemporaryJson json;
  const auto sweep = [&](const std::string& arguments) {
    const Ran ran = run(arguments + " --sweep -t 2 -b 64 -e 64 -n 1 --json '" + json.path() + "'");
    INFO(ran.output);
    REQUIRE(ran.exit_code == 0);
    return ran.output;
  };
  const std::string reduced = sweep("reduce -d all -o all -r 1");
  std::set<std::pair<std::string, std::string>> seen;
  const auto document = json.read();
  for (const auto& row : document["results"]) {
    seen.emplace(row["type"], row["redop"]);
    CHECK(row["root"] == 1);
  }
  size_t combinations = 0;
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      if (!supports(static_cast<DataType>(type), static_cast<ReduceOp>(op))) continue;
      ++combinations;
      const std::string title = "reduce of " +
                                std::string(kDataTypeNames[static_cast<size_t>(type)]) + ", " +
                                std::string(kReduceOpNames[static_cast<size_t>(op)]) + ", root 1,";
      INFO(title);
      CHECK(contains(reduced, title));
    }
  }
  CHECK(seen.size() == combinations);
  CHECK(document["results"].size() == combinations);
  CHECK(count(reduced, "# chosen within 5 % of the best") == combinations);

  const std::string rooted = sweep("broadcast -r all");
  CHECK(contains(rooted, "broadcast of float, root 0,"));
  CHECK(contains(rooted, "broadcast of float, root 1,"));
  CHECK(json.read()["results"].size() == 2);

  const Ran absent = run("reduce --sweep -t 2 -b 64 -e 64 -n 1 -d float -o bxor");
  CHECK(absent.exit_code == 1);
  CHECK(contains(absent.output, "there is no bxor of float"));
}

TEST_CASE("a calibration is refused where it would say nothing") {
  const std::string too_many = std::to_string(std::thread::hardware_concurrency() + 1);
  for (const std::string& arguments :
       {std::string("--ranks 1"), "--ranks " + too_many, std::string("--ranks 2 --threads"),
        std::string("--ranks 2 --pace 1GB/s")}) {
    const Ran ran = run("--calibrate /nonexistent/x.json -e 64 " + arguments);
    INFO(arguments << "\n" << ran.output);
    CHECK(ran.exit_code != 0);
    CHECK(contains(ran.output, "a CPU for each"));
  }
}

TEST_CASE("a calibration overwrites nothing but a link profile") {
  if (std::thread::hardware_concurrency() < 2) return;  // refused there
  const TemporaryJson file;
  for (const std::string& text : {std::string("notes of a day"), std::string("{\"loss\": 1}")}) {
    std::ofstream(file.path()) << text;
    const Ran ran = run("--calibrate " + file.path() + " --ranks 2 -b 64 -e 64 -n 1");
    INFO(ran.output);
    CHECK(ran.exit_code != 0);
    CHECK(contains(ran.output, file.path() + "' is there and no link profile"));
    CHECK(contains(ran.output, "remove it, or name another file"));
    std::ostringstream left;
    left << std::ifstream(file.path()).rdbuf();
    CHECK(left.str() == text);
  }
}

TEST_CASE("more memory than the machine has is refused before it is touched") {
  const auto bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
                     static_cast<size_t>(sysconf(_SC_PAGESIZE)) / 4 * 3;
  const std::string size = std::to_string(bytes);
  for (const std::string& words : {std::string("all_reduce"), std::string("all_reduce --sweep")}) {
    const Ran ran = run(words + " --ranks 2 -n 1 -b " + size + " -e " + size);
    INFO(ran.output);
    CHECK(ran.exit_code != 0);
    CHECK(contains(ran.output, "buffers of " + size + " bytes: choose a smaller maximum with -e"));
  }
}

TEST_CASE("mistakes are named and end with a code other than 0") {
  const struct {
    const char* arguments;
    const char* named;
  } kMistakes[] = {
      {"", "COLLECTIVE"},
      {"all_reduze", "all_reduze"},
      {"all_reduce --algorithm fastest", "two-shot-direct"},  // the valid names are listed
      {"all_reduce --device cuda --pace 1GB/s", "cuda"},
      {"all_reduce -d complex64", "no complex types"},
      {"all_reduce -o user", "no user-defined operators"},
      {"all_reduce -o premulsum", "called mulsum"},
      {"all_reduce -d fp8_e4m3", "f8e4m3 and f8e5m2"},
      {"all_reduce -t 1024 -g 1024", "1048576 ranks"},
      {"all_reduce -b 8X", "8X"},
      {"all_reduce -b 0 -e 1G -i 1", "more than 100000 sizes"},
      {"all_reduce -T nan", "-T"},
      {"all_reduce --json -", "/dev/stdout"},
      {"--calibrate - --ranks 2", "is not a file"},
      {"all_reduce -b 8 -e 8 -n 1 >/dev/full", "cannot write the table"},
      {"all_reduce --ranks 2 -b 8 -e 8 -n 1 >/dev/full", "cannot write"},
      {"--topology >/dev/full", "cannot write"},
      {"--help >/dev/full", "cannot write to stdout"},
      {"broadcast --ranks 2 -b 8 -e 8 -r 2", "root 2"},
      {"all_reduce --ranks 2 -b 8 -e 8 -n 1 --json /nonexistent/x.json", "/nonexistent/x.json"},
      {"all_reduce --ranks 2 -b 8 -e 8 -n 1 --pace fast", "fast"},
      {"all_reduce --ranks 2 -b 8 -e 8 -n 1 --links /nonexistent/links", "/nonexistent/links"},
      {"--calibrate x.json --sweep --ranks 2", "--sweep comes after it"},
      {"--calibrate /nonexistent/x.json --ranks 2 -b 64 -e 64 -n 1", "/nonexistent/x.json"},
      {"barrier --calibrate /dev/null --ranks 2 -n 1", "leave out the collective's name"},
  };
  for (const auto& mistake : kMistakes) {
    const Ran ran = run(mistake.arguments);
    INFO(mistake.arguments << "\n" << ran.output);
    CHECK(ran.exit_code != 0);
    CHECK(contains(ran.output, mistake.named));
    CHECK_FALSE(contains(ran.output, "destroy a communicator only"));  // blames the other ranks
  }
  const Ran sweep = run("all_reduce --sweep --ranks 2 -b 64 -e 64 --json /nonexistent/x.json");
  CHECK(contains(sweep.output, "cannot write --json '/nonexistent/x.json'"));
  CHECK_FALSE(contains(sweep.output, "# "));  // before anything is timed
  const auto off = testing::run_program({RONDO_PERF, "all_reduce", "--memory", "library"},
                                        {"RONDO_ARENA_BYTES=0"});
  CHECK(contains(off.err, "no library memory for two buffers"));
}

TEST_CASE("without a GPU --device cuda says so once and fails") {
  const Ran ran = run("all_reduce --device cuda --ranks 4 --threads -b 8 -e 8 -n 1");
  INFO(ran.output);
  if (ran.exit_code == 0) return;  // there is one
  CHECK(contains(ran.output, "--device cuda"));
  CHECK(count(ran.output, "\n") == 1);
}

TEST_CASE("a launcher's ranks are not started twice") {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "3", 1);
  const Ran twice = run("all_reduce --ranks 2 -b 8 -e 8 -n 1");
  unsetenv("WORLD_SIZE");
  const Ran half = run("all_reduce -b 8 -e 8 -n 1");
  unsetenv("RANK");
  INFO(twice.output << half.output);
  CHECK(twice.exit_code != 0);
  CHECK(contains(twice.output, "already started 3 ranks"));
  CHECK(half.exit_code != 0);
  CHECK(contains(half.output, "WORLD_SIZE"));
}

TEST_CASE("a launcher's only rank may start others, as processes and as threads") {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  const Ran processes = run("all_reduce --ranks 2 -b 8 -e 8 -n 1");
  const Ran threads = run("all_reduce --threads --ranks 2 -b 8 -e 8 -n 1");
  unsetenv("WORLD_SIZE");
  unsetenv("RANK");
  for (const Ran& ran : {processes, threads}) {
    INFO(ran.output);
    CHECK(ran.exit_code == 0);
    CHECK(contains(ran.output, "ranks: 2"));
  }
}

TEST_CASE("arenas that no process has addresses for are one warning, and everything works") {
  const auto ran = testing::run_program(
      {RONDO_PERF, "all_reduce", "--ranks", "3", "-b", "64", "-e", "64", "-n", "2"},
      {"RONDO_ARENA_BYTES=32T"});
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code == 0);
  const size_t first = ran.err.find("library memory goes through slots");
  REQUIRE(first != std::string::npos);
  CHECK(ran.err.find("library memory goes through slots", first + 1) == std::string::npos);
  CHECK(contains(ran.err, "set RONDO_ARENA_BYTES to 21845G or less"));
}

TEST_CASE("where no thread can be started there is a sentence, and nothing is left behind") {
  if (testing::kSanitized) return;  // sanitizers need terabytes of address space
  // A stack has 1 GiB, so that some limits have room for no thread, some for a few, one for all.
  for (const int limit_gib : {1, 2, 3, 5, 7, 30}) {
    const testing::TempDirectory place;
    const auto ran = testing::run_program(
        {"sh", "-c", "ulimit -s 1048576 && ulimit -v $LIMIT && exec \"$@\"", "sh", RONDO_PERF,
         "all_reduce", "-b", "8", "-e", "8", "-n", "2", "--threads", "--ranks", "8"},
        {"TMPDIR=" + place.path(), "LIMIT=" + std::to_string(limit_gib << 20),
         "RONDO_ARENA_BYTES=0"});
    INFO(limit_gib << " GiB: " << ran.out << ran.err);
    CHECK(ran.exit_code == (limit_gib < 30 ? 1 : 0));
    CHECK((ran.exit_code == 0 || contains(ran.err, "resource exhausted: cannot start a thread")));
    CHECK(std::filesystem::is_empty(place.path()));
  }
}
