// rondo-perf as its users run it: ranks as processes and as threads, exit codes, what it prints and
// writes.
#include <unistd.h>

#include <algorithm>
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

using namespace perf_program;  // NOLINT: this file is about it

/// How many types and operators a collective has together.
size_t combinations_of(Collective collective) {
  size_t combinations = 0;
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      combinations +=
          supports(collective, static_cast<DataType>(type), static_cast<ReduceOp>(op)) ? 1 : 0;
    }
  }
  return combinations;
}

}  // namespace

TEST_CASE("ranks are processes or threads, in either memory, and find nothing wrong") {
  for (const char* words :
       {"all_reduce --ranks 1", "reduce_scatter --ranks 2", "all_gather --ranks 3 --threads",
        "sendrecv --ranks 2", "broadcast --ranks 2 --memory library"}) {
    INFO(words);
    const std::string output = output_of(words + std::string(" -b 8 -e 64K -f 32 -n 4 -w 1"));
    CHECK(contains(output, "# Out of bounds values : 0 OK"));
    CHECK(contains(output, "# Avg bus bandwidth"));
  }
}

TEST_CASE("where nothing is checked nothing is claimed") {
  CHECK(contains(output_of("barrier --ranks 2 -n 10"), "N/A"));
  CHECK(contains(output_of("all_reduce --ranks 2 -c 0 -b 8 -e 8 -n 4"), "N/A"));
}

TEST_CASE("every collective has every type and operator that it can have, checked exactly") {
  for (int c = 0; c < kCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (collective == Collective::kBarrier) continue;
    for (const char* ranks : {" -t 2", " -t 3"}) {
      const MeasuredRun ran(std::string(name(collective)) + ranks +
                            " -b 744 -e 744 -n 1 -w 0 -d all -o all");
      INFO(ran.output);
      std::set<std::pair<std::string, std::string>> seen;
      for (const auto& row : ran.results) {
        seen.emplace(row["type"], row["redop"]);
        CHECK(row["out_of_place"]["nwrong"] == 0);
        // No library does an all_to_all_v in place.
        if (collective != Collective::kAllToAllV) CHECK(row["in_place"]["nwrong"] == 0);
        CHECK(row["count"] > 0);
      }
      CHECK(seen.size() == (internal::form_of(collective).reduces
                                ? combinations_of(collective)
                                : static_cast<size_t>(kDataTypes)));
      CHECK(ran.results.size() == seen.size());
    }
  }
}

TEST_CASE("sendrecv goes round the ring, is no collective, and never in place") {
  CHECK(contains(output_of("sendrecv -t 3 -b 3M -e 3M -n 2"), "# Out of bounds values : 0 OK"));
  const MeasuredRun ran("sendrecv -t 3 -b 0 -e 3K -i 1K -n 2 -d all");
  CHECK(contains(ran.output, "rondo-perf: sendrecv on rondo"));
  CHECK(ran.document["config"]["collective"] == "sendrecv");
  CHECK(ran.results.size() == 4 * static_cast<size_t>(kDataTypes));
  for (const auto& row : ran.results) {
    CHECK(row["out_of_place"]["nwrong"] == 0);
    CHECK(row["in_place"].is_null());
    CHECK(row["algorithm"].is_null());
    CHECK(row["out_of_place"]["alg_bw"] == row["out_of_place"]["bus_bw"]);
  }
  check_refused("sendrecv -t 2 -b 8 -e 8 --algorithm ring", "no algorithm");
  check_refused("sendrecv -t 2 -b 8 -e 8 --sweep", "no algorithms to choose from");
}

TEST_CASE("by nccl-tests' names the program knows its collective") {
  const auto folder = std::filesystem::path(RONDO_PERF).parent_path();
  const auto check = [&](const std::string& program, const std::string& arguments) {
    const Ran ran = run_this(program, arguments + " -b 8 -e 1K -f 8 -n 2 -w 1 -c 1");
    INFO(program << " " << arguments << "\n" << ran.output);
    CHECK(ran.exit_code == 0);
    CHECK(contains(ran.output, "# ranks: 2"));
    CHECK(contains(ran.output, "# Out of bounds values : 0 OK"));
    return ran.output;
  };
  const std::pair<const char*, const char*> programs[] = {
      {"all_reduce", "all_reduce"}, {"all_gather", "all_gather"},
      {"reduce", "reduce"},         {"reduce_scatter", "reduce_scatter"},
      {"broadcast", "broadcast"},   {"alltoall", "all_to_all"},
      {"gather", "gather"},         {"scatter", "scatter"},
      {"sendrecv", "sendrecv"}};
  for (const auto& [called, collective] : programs) {
    const std::string output = check(folder / (std::string(called) + "_perf"), "-t 2");
    CHECK(contains(output, std::string(": ") + collective + " on rondo"));
  }
  // The ranks of each of these have to be told.
  for (const std::string called : {"alltoall_perf", "sendrecv_perf"}) {
    for (const char* how : {"-g 2", "--ranks 2"}) check(folder / called, how);
    check(RONDO_RUN, "-n 2 --no-prefix -- '" + (folder / called).string() + "'");
  }
}

TEST_CASE("buffers may start anywhere, and cycles repeat the rows") {
  const MeasuredRun ran("all_gather -t 3 -b 1K -e 64K -f 8 -n 2 -u 3 -N 2 -c 2 -d int8");
  CHECK(ran.results.size() == 2 * 3);
}

TEST_CASE("statistics over single operations are in the JSON, and in the table when asked for") {
  const MeasuredRun ran("all_reduce --ranks 2 -b 8 -e 8 -n 50 --stats");
  CHECK(contains(ran.output, "50 operations: min "));
  for (const char* half : {"out_of_place", "in_place"}) {
    const auto& times = ran.results[0][half];
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
  for (const std::string how : {"--ranks 8", "--ranks 8 --pace 10GB/s,500us", "-t 8"}) {
    const MeasuredRun ran("all_reduce " + how + " -b 64K -e 64K -n 1");
    CHECK(contains(ran.output, "# communicator, per rank: "));
    const auto use = ran.document["config"]["memory_per_rank"];
    const auto shared = use["shared_bytes"].get<size_t>(), own = use["private_bytes"].get<size_t>();
    INFO(how << ": " << shared << " " << own);
    CHECK(shared > 8 * 1024);  // more than the board
    CHECK(own > 0);
    CHECK(shared + own < size_t{16} << 20);
  }
}

TEST_CASE("the machine and the link profile are shown") {
  const std::string two = output_of("--topology --ranks 2");
  for (const std::string part : {"host: ",
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
    CHECK(contains(two, part));
  }
  CHECK(contains(output_of("all_reduce --topology --ranks 1000"), "more ranks than cores"));
  const std::string paced = output_of("--topology --pace 1GB/s,20us --ranks 1000");
  CHECK(contains(paced, "link profile: wire over"));
  CHECK(contains(paced, "more ranks than cores: 1000 on "));
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

TEST_CASE(
    "a calibration writes a profile that predicts what was measured, and a sweep goes by it") {
  if (std::thread::hardware_concurrency() < 2) return;  // refused there, as it should be
  // Without a FILE: into the default place, where programs find it by themselves.
  const testing::TempDirectory directory;
  const Environment place = {"XDG_CONFIG_HOME=" + directory.path(), "RONDO_LINKS="};
  const std::string calibrated = output_of("--calibrate --ranks 2 -b 1K -e 256K -f 4 -n 3", place);
  INFO(calibrated);
  const std::string words = "timings of 2 ranks in 3 rounds fitted, written to ";
  REQUIRE(contains(calibrated, words));
  const size_t begin = calibrated.find(words) + words.size();
  const std::string links = calibrated.substr(begin, calibrated.find('\n', begin) - begin);
  CHECK(contains(links, directory.path() + "/rondo/links-"));
  CHECK(contains(calibrated, "# within 15 %"));
  auto profile = nlohmann::json::parse(std::ifstream(links));
  REQUIRE(profile["corrections"].size() == 1);
  CHECK(profile["corrections"][0]["hosts"] == std::vector<int>{0, 0});
  // Every algorithm of every collective, of which those without direct ones on both memories.
  CHECK(profile["corrections"][0]["tables"].size() > 50);

  const std::string once = "all_reduce --ranks 2 -b 64 -e 64 -n 3";
  CHECK(contains(output_of(once, place), "# links: " + links));
  CHECK(contains(output_of(once + " --links built-in", place), "# links: built-in"));
  const MeasuredRun of_itself(once + " --sweep", place);
  CHECK(contains(of_itself.output, "links: " + links));
  CHECK(of_itself.document["links"] == links);

  // A profile in which the star is a thousand times as fast as it is: the choice follows.
  for (auto& table : profile["corrections"][0]["tables"]) {
    if (table["algorithm"] != "star") continue;
    for (auto& factor : table["factor"]) factor = factor.get<double>() / 1000;
  }
  std::ofstream(links) << profile;
  const std::string by_links = " --links '" + links + "'";
  const MeasuredRun swept("all_reduce --sweep --ranks 2 -b 64 -e 64K -f 32 -n 3" + by_links);
  CHECK(contains(swept.output, "# chosen within 5 % of the best"));
  REQUIRE(swept.results.size() == 3);
  for (const auto& row : swept.results) {
    CHECK(row["chosen"] == "star");
    CHECK(row["algorithms"].size() == 5);  // plain memory: no direct ones
    CHECK(row["loss"].get<double>() >= 0);
    CHECK((row["best"] == "star") == (row["loss"] == 0));
  }
  // And what is measured without a sweep goes by it too.
  CHECK(contains(output_of(once + " --wide" + by_links), "star"));
}

TEST_CASE("a sweep has a table for every type, operator and root") {
  const std::string how = " --sweep -t 2 -b 64 -e 64 -n 1";
  const MeasuredRun reduced("reduce -d all -o all -r 1" + how);
  std::set<std::pair<std::string, std::string>> seen;
  for (const auto& row : reduced.results) {
    const std::string type = row["type"], op = row["redop"],
                      title = "reduce of " + type + ", " + op + ", root 1,";
    INFO(title);
    seen.emplace(type, op);
    CHECK(row["root"] == 1);
    CHECK(contains(reduced.output, title));
  }
  const size_t combinations = combinations_of(Collective::kReduce);
  CHECK(seen.size() == combinations);
  CHECK(reduced.results.size() == combinations);
  CHECK(count(reduced.output, "# chosen within 5 % of the best") == combinations);

  const MeasuredRun rooted("broadcast -r all" + how);
  CHECK(contains(rooted.output, "broadcast of float, root 0,"));
  CHECK(contains(rooted.output, "broadcast of float, root 1,"));
  CHECK(rooted.results.size() == 2);
  check_refused("reduce -d float -o bxor" + how, "there is no bxor of float");
}

TEST_CASE("a calibration is refused where it would say nothing") {
  const std::string too_many = std::to_string(std::thread::hardware_concurrency() + 1);
  for (const std::string& arguments :
       {std::string("1"), too_many, std::string("2 --threads"), std::string("2 --pace 1GB/s")}) {
    check_refused("--calibrate /nonexistent/x.json -e 64 --ranks " + arguments, "a CPU for each");
  }
}

TEST_CASE("a calibration overwrites nothing but a link profile") {
  if (std::thread::hardware_concurrency() < 2) return;  // refused there
  const TemporaryJson file;
  for (const char* text : {"notes of a day", "{\"loss\": 1}"}) {
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
  for (const std::string words : {"all_reduce", "all_reduce --sweep"}) {
    check_refused(words + " --ranks 2 -n 1 -b " + size + " -e " + size,
                  "buffers of " + size + " bytes: choose a smaller maximum with -e");
  }
}

TEST_CASE("mistakes are named and end with a code other than 0") {
  const std::pair<const char*, const char*> mistakes[] = {
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
      {"reduce -b 64 -e 64 -d float -o bxor", "there is no bxor of float"},
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
      {"barrier --calibrate /dev/null --ranks 2 -b 64 -e 64 -n 1",
       "leave out the collective's name"},
  };
  for (const auto& [arguments, named] : mistakes) check_refused(arguments, named);
  const Ran sweep = run("all_reduce --sweep --ranks 2 -b 64 -e 64 --json /nonexistent/x.json");
  CHECK(contains(sweep.output, "cannot write --json '/nonexistent/x.json'"));
  CHECK_FALSE(contains(sweep.output, "# "));  // before anything is timed
  check_refused("all_reduce --memory library", "no library memory for two buffers",
                {"RONDO_ARENA_BYTES=0"});
}

TEST_CASE("without a GPU --device cuda says so once and fails") {
  const Ran ran = run("all_reduce --device cuda --ranks 4 --threads -b 8 -e 8 -n 1");
  INFO(ran.output);
  if (ran.exit_code == 0) return;  // there is one
  CHECK(contains(ran.output, "--device cuda"));
  CHECK(count(ran.output, "\n") == 1);
}

TEST_CASE("a launcher's ranks are not started twice; its only rank may start others") {
  const std::string short_run = "all_reduce -b 8 -e 8 -n 1";
  check_refused(short_run, "WORLD_SIZE", {"RANK=0"});
  check_refused(short_run + " --ranks 2", "already started 3 ranks", {"RANK=0", "WORLD_SIZE=3"});
  for (const char* how : {" --ranks 2", " --threads --ranks 2"}) {
    CHECK(contains(output_of(short_run + how, {"RANK=0", "WORLD_SIZE=1"}), "ranks: 2"));
  }
}

TEST_CASE("arenas that no process has addresses for are one warning, and everything works") {
  const std::string output =
      output_of("all_reduce --ranks 3 -b 64 -e 64 -n 2", {"RONDO_ARENA_BYTES=32T"});
  INFO(output);
  CHECK(count(output, "library memory goes through slots") == 1);
  CHECK(contains(output, "set RONDO_ARENA_BYTES to 21845G or less"));
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
