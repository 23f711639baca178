// rondo-plan as its users run it: text, JSON, SVG, link profiles, mistakes.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/host/cpu_mask.hpp"
#include "tests/comm/schedule/builtins.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::testing {
namespace {

using schedule::test::builtins;
using schedule::test::says;

/// With a core for every rank, whatever this machine has.
ProgramResult plan(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment = {"RONDO_LINKS=built-in"}) {
  std::vector<std::string> argv = {RONDO_PLAN};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run_program(argv, environment);
}

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("the text explains: candidates, choice, steps, bytes, proof") {
  const ProgramResult ran =
      plan({"all_reduce", "--ranks", "4", "--size", "1M", "--algorithm", "ring"});
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code == 0);
  CHECK_THAT(ran.out, says("all_reduce of 1048576 bytes: count 262144, float, sum, 4 ranks"));
  CHECK_THAT(ran.out, says("refused: peers' buffers are not mapped"));
  CHECK_THAT(ran.out, says("ring: asked for; two-shot would be chosen"));
  CHECK_THAT(ran.out, says("recv_reduce_copy_send"));
  CHECK_THAT(ran.out, says("slot from 3 + In -> slot to 1"));
  CHECK_THAT(ran.out, says("rank 2: sends 1572864 = 2(N-1)/N * S; fetches 0 = 0"));
  CHECK_THAT(ran.out, says("verified: 4 ranks"));
}

TEST_CASE("the candidates' table fits 80 columns, and its terms add up") {
  const ProgramResult ran =
      plan({"all_reduce", "--ranks", "4", "--size", "1M", "--links", "built-in"});
  INFO(ran.out << ran.err);
  CHECK_THAT(ran.out, says("refused: peers' buffers are not mapped: two-shot-direct, one-shot-"));
  CHECK_THAT(ran.out, !says("kernel"));  // copies nothing of a reduction
  std::istringstream text(ran.out.substr(ran.out.find("\ncandidate ") + 1));
  std::string row;
  std::getline(text, row);
  CHECK(row == "candidate               sum  overhead   latency     slots    memory    reduce");
  int candidates = 0;
  for (; std::getline(text, row) && row.rfind("refused", 0) != 0; ++candidates) {
    INFO(row);
    std::istringstream cells(row);
    std::string name;
    double total = 0, sum = 0, term = 0;
    cells >> name >> total;
    while (cells >> term) sum += term;
    CHECK(std::abs(sum - total) < 0.05);
  }
  CHECK(candidates == 7);
}

TEST_CASE("on plain memory the text says what library memory would take") {
  const std::string hint = "library memory (rondo::alloc, --memory library) would take ";
  const std::vector<std::string> megabyte = {"all_reduce", "--ranks", "2",       "--size",
                                             "1M",         "--links", "built-in"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), megabyte.begin(), megabyte.end());
    return plan(more);
  };
  const ProgramResult library = with({"--memory", "library"});
  const size_t at = library.out.find("; predicted ");
  REQUIRE(at != std::string::npos);
  const std::string time = library.out.substr(at + 12, library.out.find(" us", at) - at - 12);
  CHECK_THAT(with({}).out, says(hint + time + " us"));
  const auto json = nlohmann::json::parse(with({"--json", "-"}).out);
  CHECK(json["predicted_us"] > 2 * json["library_memory_us"].get<double>());
  // Where it is used already, and where ranks share no memory, there is nothing to say.
  CHECK_THAT(library.out, !says("would take " + time));
  CHECK_THAT(with({"--pace", "1GB/s,20us"}).out, !says(hint));
  CHECK(
      nlohmann::json::parse(with({"--pace", "1GB/s,20us", "--json", "-"}).out)["library_memory_us"]
          .is_null());
}

TEST_CASE("ranks on GPUs have a profile of their own, and memory within reach or not") {
  const auto with = [](std::vector<std::string> more) {
    const std::vector<std::string> first = {"all_reduce", "--ranks", "2", "--size", "8M"};
    more.insert(more.begin(), first.begin(), first.end());
    return plan(more);
  };
  const ProgramResult slots = with({"--gpus", "nvlink"});
  CHECK_THAT(slots.out, says("2 ranks on GPUs, through slots\nlinks: GPUs, NVLink; "));
  CHECK_THAT(slots.out, says("memory within reach (registered, or of ranks that are threads, "));
  const ProgramResult within = with({"--gpus", "nvlink", "--memory", "library"});
  CHECK_THAT(within.out, says("2 ranks on GPUs, within reach"));
  CHECK_THAT(within.out, says("\ntwo-shot-direct: the cheapest"));
  // Host memory is within nobody's reach, and what the processor's profile says of it is not asked.
  CHECK_THAT(with({"--gpus", "host-memory", "--memory", "library"}).out, says("through slots"));
  const auto by_copies = [](const char* memory) {
    return plan({"all_gather", "--ranks", "2", "--size", "256M", "--gpus", "one", "--memory",
                 memory, "--algorithm", "copy-engine"});
  };
  CHECK_THAT(by_copies("library").out, says("copy-engine: asked for") && !says("not possible"));
  CHECK_THAT(by_copies("plain").out, says("not possible here: only in memory within reach"));
  const auto json = nlohmann::json::parse(with({"--gpus", "one", "--json", "-"}).out);
  CHECK(json["gpus"] == "one GPU");
  CHECK(json["cores"].is_null());
  for (const char* other : {"--cores", "--pace"}) {
    const ProgramResult refused =
        with({"--gpus", "one", other, std::string(other) == "--pace" ? "1GB/s,20us" : "2"});
    CHECK(refused.exit_code == 2);
    CHECK_THAT(refused.err, says("--gpus") && says(other));
  }
  const ProgramResult hosts =
      plan({"all_reduce", "--hosts", "2x2", "--size", "8", "--gpus", "one"});
  CHECK(hosts.exit_code == 2);
  CHECK_THAT(hosts.err, says("leave out --hosts"));
}

TEST_CASE("direct algorithms are refused on library memory because they are dearer") {
  const ProgramResult ran = plan(
      {"all_reduce", "--ranks", "2", "--size", "8", "--memory", "library", "--links", "built-in"});
  INFO(ran.out << ran.err);
  CHECK_THAT(ran.out, says("refused: a staged algorithm is cheaper"));
  CHECK_THAT(ran.out, says("refused: not safe in place"));
  CHECK_THAT(ran.out, !says("not mapped"));
}

TEST_CASE("what is planned is what a communicator does: slots of many ranks, scaled sums") {
  const ProgramResult many = plan({"all_reduce", "--ranks", "16", "--size", "1m", "--rank", "0"});
  INFO(many.out << many.err);
  CHECK_THAT(many.out, says("4 slots of 65536 bytes"));
  const ProgramResult scaled =
      plan({"all_reduce", "--ranks", "2", "--size", "1K", "-o", "mulsum", "-d", "half"});
  INFO(scaled.out << scaled.err);
  CHECK_THAT(scaled.out, says("refused: scaled inputs would be rounded differently"));
  CHECK_THAT(scaled.out, says("ring: the cheapest that is possible"));
  const ProgramResult average =
      plan({"all_reduce", "--ranks", "4", "--size", "1G", "-o", "avg", "-d", "int32"});
  INFO(average.out << average.err);
  CHECK_THAT(average.out, says("refused: does not fold in rank order"));
  CHECK_THAT(average.out, says("two-shot: the cheapest that is possible"));
  const ProgramResult forced = plan({"all_reduce", "--ranks", "4", "--size", "1G", "-o", "avg",
                                     "-d", "int32", "--algorithm", "ring"});
  CHECK_THAT(forced.out, says("although it is not possible here: does not fold in rank order"));
  const ProgramResult pairs =
      plan({"all_to_all", "--ranks", "65536", "--size", "1G", "--rank", "0"});
  CHECK(pairs.exit_code == 2);
  CHECK_THAT(pairs.err, says("1 to 46340 ranks"));
}

TEST_CASE("the JSON of every algorithm says that bytes match and that it is verified") {
  const TempDirectory directory;
  const std::string file = directory.path() + "/plan.json";
  for (const auto& [collective, algorithm] : builtins()) {
    const ProgramResult ran =
        plan({std::string(name(collective)), "--ranks", "3", "--size", "12K", "--algorithm",
              std::string(name(algorithm)), "--memory", "library", "-r", "1", "--json", file});
    INFO(ran.out << ran.err);
    REQUIRE(ran.exit_code == 0);
    const auto json = nlohmann::json::parse(read(file));
    CHECK(json["algorithm"] == name(algorithm));
    CHECK(json["bytes_match"] == true);
    CHECK(json["verification"]["verified"] == true);
    CHECK(json["schedule"].size() == 3);
    CHECK(json["candidates"].size() >= (collective == Collective::kAllToAllV ? 1 : 2));
    for (const auto& b : json["bytes"]) CHECK(b["sent"] == b["sent_by_formula"]);
  }
}

TEST_CASE("between hosts the text has the wire, and fits 80 columns") {
  const ProgramResult ran = plan({"all_reduce", "--hosts", "2x4", "--size", "1M"});
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code == 0);
  CHECK_THAT(ran.out, says("8 ranks on 2 hosts of 4, a wire between hosts"));
  CHECK_THAT(ran.out, says("links: shared memory and a wire between hosts; "));
  CHECK_THAT(ran.out, says("between hosts: 10 us, 0.5 us for each message, 10 GB/s for the link"));
  CHECK_THAT(ran.out, says("refused: ranks on several hosts share no memory: "));
  CHECK_THAT(ran.out, says("hierarchical: the cheapest that is possible; "));
  CHECK_THAT(ran.out, says("host 1 (4 ranks): sends 1048576, receives 1048576"));
  CHECK_THAT(ran.out, says("the most, against the formula: 1048576 = 2(H-1)/H * S"));
  CHECK_THAT(ran.out, says("verified: 8 ranks"));
  std::istringstream text(ran.out.substr(ran.out.find("\ncandidate ") + 1));
  std::string row;
  std::getline(text, row);
  CHECK(row == "candidate              sum overhead  latency    slots   memory   reduce     wire");
  int candidates = 0;
  for (; std::getline(text, row) && row.rfind("refused", 0) != 0; ++candidates) {
    INFO(row);
    CHECK(row.size() <= 80);
    std::istringstream cells(row);
    std::string name;
    double total = 0, sum = 0, term = 0;
    cells >> name >> total;
    while (cells >> term) sum += term;
    CHECK(std::abs(sum - total) < 0.4);
  }
  CHECK(candidates == 6);
}

TEST_CASE("hosts of different sizes, in JSON and in a picture's words") {
  const ProgramResult ran = plan({"all_reduce", "--hosts", "3,2,3", "--size", "61440",
                                  "--algorithm", "hierarchical", "--json", "-"});
  INFO(ran.out << ran.err);
  REQUIRE(ran.exit_code == 0);
  const auto json = nlohmann::json::parse(ran.out);
  CHECK(json["ranks"] == 8);
  CHECK(json["hosts"] == nlohmann::json({3, 2, 3}));
  CHECK(json["bytes_match"] == true);
  CHECK(json["verification"]["verified"] == true);
  CHECK(json["wire"]["busiest"] == 2 * 2 * 61440 / 3);
  CHECK(json["wire"]["busiest_by_formula"] == 2 * 2 * 61440 / 3);
  CHECK(json["wire"]["busiest_formula"] == "2(H-1)/H * S");
  CHECK(json["wire"]["hosts"].size() == 3);
  CHECK(json["candidates"][0]["wire_us"].get<double>() >= 0);
  const auto one = nlohmann::json::parse(
      plan({"all_reduce", "--ranks", "2", "--size", "1K", "--json", "-"}).out);
  CHECK(one["wire"].is_null());
  CHECK(one["hosts"] == nlohmann::json({2}));
  const ProgramResult drawn = plan({"all_reduce", "--hosts", "1,3", "--size", "64K", "--svg", "-"});
  CHECK(drawn.exit_code == 0);
  CHECK_THAT(drawn.out, says("4 ranks on 2 hosts (1, 3)"));
}

TEST_CASE("of 16384 ranks on 2048 hosts one rank's plan is shown, and the wire by its formula") {
  const ProgramResult ran = plan({"all_reduce", "--hosts", "2048x8", "--size", "64M"});
  INFO(ran.err);
  CHECK(ran.exit_code == 0);
  CHECK_THAT(ran.out, says("16384 ranks on 2048 hosts of 8"));
  CHECK_THAT(ran.out, says("hierarchical: the cheapest that is possible"));
  CHECK_THAT(ran.out, says("each way: 2(H-1)/H * S = 134152192 by the formula (not counted"));
  CHECK_THAT(ran.out, says("not verified: the schedules of 16384 ranks"));
}

TEST_CASE("hosts that make no sense are refused") {
  const auto refused = [](std::vector<std::string> arguments, const std::string& words) {
    arguments.insert(arguments.begin(), {"all_reduce", "--size", "1K"});
    const ProgramResult ran = plan(arguments);
    INFO(arguments.back());
    CHECK(ran.exit_code == 2);
    CHECK_THAT(ran.err, says(words));
  };
  for (const char* hosts : {"4y8", "4x", "0x3", "3,,2", "2x2x2", "2x2,3", "x", ",", "-1", "2x 2",
                            "256x257", "99999999999x2"}) {
    refused({"--hosts", hosts}, "neither hosts x ranks on each, as in 4x8, nor");
  }
  refused({"--hosts", "2x2", "--ranks", "4"}, "excludes");
  refused({}, "--ranks or --hosts");
  refused({"--hosts", "2x2", "--memory", "library"}, "leave out --pace and --memory library");
  refused({"--hosts", "2x2", "--pace", "1GB/s,20us"}, "leave out --pace and --memory library");
  refused({"--ranks", "4", "--algorithm", "hierarchical"}, "all ranks are on one host");
  refused({"--hosts", "2x2", "--algorithm", "one-shot"}, "share no memory");
  CHECK(plan({"all_reduce", "--size", "1K", "--hosts", "1x4"}).exit_code == 0);
}

TEST_CASE("a dash is stdout, which then has nothing else") {
  const ProgramResult json = plan({"all_reduce", "--ranks", "2", "--size", "1K", "--json", "-"});
  INFO(json.out << json.err);
  CHECK(json.exit_code == 0);
  CHECK(nlohmann::json::parse(json.out)["collective"] == "all_reduce");
  const ProgramResult svg = plan({"all_reduce", "--ranks", "2", "--size", "1K", "--svg", "-"});
  CHECK(svg.exit_code == 0);
  CHECK_THAT(svg.out, says("<svg "));
  CHECK_THAT(svg.out, !says("verified"));
  const ProgramResult both =
      plan({"all_reduce", "--ranks", "2", "--size", "1K", "--svg", "-", "--json", "-"});
  CHECK(both.exit_code == 2);
  CHECK_THAT(both.err, says("one of them to a file"));
  const ProgramResult same = plan(
      {"all_reduce", "--ranks", "2", "--size", "1K", "--svg", "/dev/null", "--json", "/dev/null"});
  CHECK(same.exit_code == 2);
  CHECK_THAT(same.err, says("'/dev/null' has the JSON"));
}

TEST_CASE("what could not be printed is no success") {
  for (const char* arguments : {"all_reduce --ranks 2 --size 1K", "barrier --ranks 2 --json -",
                                "barrier --ranks 2 --svg -", "--help"}) {
    const std::string command = RONDO_PLAN " " + std::string(arguments) + " >/dev/full";
    const ProgramResult ran = run_program({"sh", "-c", command}, {"RONDO_LINKS"});
    INFO(arguments);
    CHECK(ran.exit_code == 1);
    CHECK(ran.err == "rondo-plan: cannot write to stdout: No space left on device\n");
  }
}

TEST_CASE("a barrier has no size, and one is no plural") {
  const ProgramResult ran = plan({"barrier", "--ranks", "3"});
  INFO(ran.out << ran.err);
  CHECK(ran.exit_code == 0);
  CHECK_THAT(ran.out, says("barrier, 3 ranks, plain memory\n"));
  const ProgramResult alone = plan({"all_reduce", "--ranks", "1", "--size", "4"});
  INFO(alone.out << alone.err);
  CHECK(alone.exit_code == 0);
  CHECK_THAT(alone.out, says("float, sum, 1 rank, plain memory"));
  CHECK_THAT(alone.out, says("verified: 1 rank, 1 move, 1 round"));
  CHECK_THAT(alone.out, says("rank 0: 1 step\n"));
}

TEST_CASE("what a plan costs does not grow with its rounds") {
  const ProgramResult ran =
      plan({"all_reduce", "--ranks", "4", "--size", "999999999G", "--algorithm", "ring"});
  INFO(ran.out.substr(0, 2000) << ran.err);
  CHECK(ran.exit_code == 0);
  CHECK_THAT(ran.out, says("carried out, the others being alike"));
}

TEST_CASE("4096 ranks: one rank's schedule") {
  const ProgramResult ran = plan(
      {"all_reduce", "--ranks", "4096", "--size", "1G", "--rank", "17", "--algorithm", "ring"});
  INFO(ran.err);
  CHECK(ran.exit_code == 0);
  CHECK_THAT(ran.out, says("rank 17: 8191 steps"));
  CHECK_THAT(ran.out, says("not verified: only one rank was asked for"));
  CHECK_THAT(ran.out, says("rank 17: sends 2146959360 = 2(N-1)/N * S"));
}

#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("the ring of 512 ranks is proved in a gigabyte of address space") {
  // In KiB; a process that wants more gets no memory.
  const std::string limited = "ulimit -v 1048576 && exec \"$@\"";
  const ProgramResult ran = run_program({"sh", "-c", limited, "sh", RONDO_PLAN, "all_reduce",
                                         "--ranks", "512", "--size", "1G", "--algorithm", "ring"},
                                        {"RONDO_LINKS"});
  INFO(ran.err);
  CHECK(ran.exit_code == 0);
  CHECK_THAT(ran.out, says("verified: 512 ranks"));
}

TEST_CASE("a proof that would take too much memory is left out, and said so") {
  const auto in_little_memory = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"sh", "-c", "ulimit -v 262144 && exec \"$@\"", "sh",
                                         RONDO_PLAN, "all_reduce", "--size", "1M"});
    return run_program(arguments, {"RONDO_LINKS=built-in"});
  };
  using Arguments = std::vector<std::string>;
  for (const Arguments& arguments : {Arguments{"--ranks", "65536"},
                                     {"--ranks", "65536", "--algorithm", "tree"},
                                     {"--ranks", "16384", "--algorithm", "star"},
                                     {"--ranks", "2048", "--algorithm", "ring"}}) {
    const ProgramResult ran = in_little_memory(arguments);
    INFO(arguments.back() << ": " << ran.err);
    CHECK(ran.exit_code == 0);
    CHECK_THAT(ran.out, says("not verified: the schedules of " + arguments[1] + " ranks"));
    CHECK_THAT(ran.out, says("more than 4 GiB"));
    CHECK_THAT(ran.out, says("--rank K"));
  }
  const ProgramResult one = in_little_memory({"--ranks", "65536", "--rank", "7"});
  INFO(one.err);
  CHECK(one.exit_code == 0);
}
#endif

TEST_CASE("the picture is written") {
  const TempDirectory directory;
  const std::string file = directory.path() + "/plan.svg";
  CHECK(plan({"all_reduce", "--ranks", "4", "--size", "64K", "--svg", file}).exit_code == 0);
  CHECK_THAT(read(file), says("all_reduce by two-shot, 4 ranks"));
  CHECK_THAT(read(file), says("S = 65,536 bytes"));
  CHECK_THAT(read(file), says("Each rank sends 98,304 bytes = 2(N-1)/N * S."));
  const ProgramResult many = plan({"all_reduce", "--ranks", "17", "--size", "64K", "--svg", file});
  CHECK(many.exit_code == 2);
  CHECK_THAT(many.err, says("16"));
}

TEST_CASE("one hop of the picture, with its bytes and those of the hops before it") {
  const std::vector<std::string> ring = {"all_reduce",  "--ranks", "4",     "--size", "64K",
                                         "--algorithm", "ring",    "--svg", "-",      "--svg-hop"};
  const auto hop = [&](const char* number) {
    std::vector<std::string> arguments = ring;
    arguments.push_back(number);
    return plan(arguments);
  };
  const ProgramResult second = hop("2");
  INFO(second.out << second.err);
  CHECK(second.exit_code == 0);
  CHECK_THAT(second.out, says("all_reduce by ring, 4 ranks: hop 2 of 6"));
  CHECK_THAT(second.out, says("In this hop each rank sends 1 chunk = 16,384 bytes, with the hops "
                              "before it 32,768 bytes."));
  CHECK_THAT(second.out, says("chunk 2 of 0+1+3"));
  CHECK_THAT(second.out, says("Of 0+1: the parts of ranks 0 and 1."));
  CHECK(hop("4").out.find("0+1") == std::string::npos);  // no box has such a label there
  CHECK_THAT(hop("6").out, says("with the hops before it 98,304 bytes."));
  const ProgramResult none = hop("7");
  CHECK(none.exit_code == 2);
  CHECK_THAT(none.err, says("--svg-hop 7: the picture has 6 hops"));
  CHECK(plan({"all_reduce", "--ranks", "4", "--size", "1", "--svg-hop", "1"}).exit_code == 2);
}

TEST_CASE("a wire, and a profile of one's own") {
  const ProgramResult wire =
      plan({"broadcast", "--ranks", "8", "--size", "64M", "--pace", "1GB/s,20us"});
  CHECK(wire.exit_code == 0);
  CHECK_THAT(wire.out, says("ring: the cheapest that is possible"));
  CHECK_THAT(wire.out, says("refused: no slots with several readers"));

  const TempDirectory directory;
  const std::string file = directory.path() + "/links.json";
  std::ofstream(file) << R"({"format": "rondo link profile", "version": 2, "name": "mine",
    "constants": {"overhead_us": 0, "alpha_us": 1, "peer_us": 100, "slot_us_per_byte": 0,
      "one_way_us_per_byte": 0, "memory_cached_us_per_byte": 0, "memory_us_per_byte": 0,
      "reduce_us_per_byte": 0, "process_copy_us": 0, "process_copy_us_per_byte": 0},
    "machine": {"parallel_ranks": 0, "llc_bytes": 1048576, "slot_bytes": 4096, "slots": 2},
    "corrections": {"ranks": 0, "tables": []}})";
  for (const bool by_flag : {true, false}) {
    const ProgramResult mine =
        by_flag ? plan({"all_reduce", "--ranks", "5", "--size", "64", "--links", file})
                : plan({"all_reduce", "--ranks", "5", "--size", "64"}, {"RONDO_LINKS=" + file});
    INFO(mine.out << mine.err);
    CHECK(mine.exit_code == 0);
    CHECK_THAT(mine.out, says("links: mine; 2 slots of 4096 bytes"));
    CHECK_THAT(mine.out, says("tree: the cheapest that is possible"));  // peers are dear here
  }
}

TEST_CASE("a plan for this machine has its cores, one by another profile a core per rank") {
  const TempDirectory empty;  // no calibrated profile
  const std::vector<std::string> this_machine = {"RONDO_LINKS", "XDG_CONFIG_HOME=" + empty.path()};
  const std::vector<std::string> megabyte = {"all_reduce", "--ranks",  "4",       "--size",
                                             "1M",         "--memory", "library", "--json"};
  const auto with = [&](std::vector<std::string> more, const std::vector<std::string>& where) {
    more.insert(more.begin(), megabyte.begin(), megabyte.end());
    const ProgramResult ran = plan(more, where);
    INFO(ran.err);
    REQUIRE(ran.exit_code == 0);
    return ran.out;
  };
  const TempDirectory directory;
  const std::string file = directory.path() + "/plan.json";
  const kernels::CpuMask allowed = kernels::allowed_cpus();
  kernels::CpuMask one;
  kernels::add_cpu(one, kernels::list_cpus(allowed).at(0));
  REQUIRE(kernels::bind_to_cpus(one));  // inherited by the programs
  const std::string here = with({file}, this_machine);
  const auto here_json = nlohmann::json::parse(read(file));
  const std::string named = with({file}, {"RONDO_LINKS=built-in"});
  const auto named_json = nlohmann::json::parse(read(file));
  REQUIRE(kernels::bind_to_cpus(allowed));
  CHECK_THAT(here, says("sum, 4 ranks on 1 core, library memory\nlinks: shared memory, more ranks "
                        "than cores: 4 on 1; 8 slots of "));
  CHECK(here_json["cores"] == 1);
  CHECK_THAT(named, says("sum, 4 ranks, library memory\nlinks: shared memory; 4 slots of "));
  CHECK(named_json["cores"].is_null());
  CHECK(here_json["predicted_us"] > 3 * named_json["predicted_us"].get<double>());

  const std::string given = with({file, "--cores", "1"}, {"RONDO_LINKS=built-in"});
  CHECK(given == here);
  CHECK(nlohmann::json::parse(read(file)) == here_json);
  CHECK_THAT(with({file, "--cores", "4"}, this_machine),
             says("4 ranks on 4 cores, library memory"));
  CHECK(nlohmann::json::parse(read(file))["predicted_us"] == named_json["predicted_us"]);
  CHECK_THAT(plan({"barrier", "--ranks", "3", "--cores", "2", "--pace", "1GB/s,20us"}).out,
             says("barrier, 3 ranks on 2 cores, a wire\nlinks: wire over shared memory, more ranks "
                  "than cores: 3 on 2; "));
}

TEST_CASE("a broken profile is refused by file and field") {
  const TempDirectory directory;
  const std::string file = directory.path() + "/links.json";
  std::ofstream(file) << R"({"format": "rondo link profile", "version": 7})";
  const ProgramResult ran = plan({"all_reduce", "--ranks", "4", "--size", "64", "--links", file});
  CHECK(ran.exit_code == 1);
  CHECK(ran.out.empty());
  CHECK_THAT(ran.err, says(file));
  CHECK_THAT(ran.err, says("version is 7"));
  CHECK(plan({"all_reduce", "--ranks", "4", "--size", "64", "--links", file + "x"}).exit_code == 1);
}

TEST_CASE("mistakes end with code 2 and a sentence") {
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes = {
      {{}, "COLLECTIVE"},
      {{"all_reduce", "--size", "1"}, "--ranks"},
      {{"all_reduce", "--ranks", "4"}, "--size"},
      {{"sum", "--ranks", "4", "--size", "1"}, "all_reduce, reduce_scatter"},
      {{"all_reduce", "--ranks", "0", "--size", "1"}, "0"},
      {{"all_reduce", "--ranks", "4", "--size", "1", "--cores", "0"}, "--cores"},
      {{"all_reduce", "--ranks", "4", "--size", "1X"}, "1X"},
      {{"all_reduce", "--ranks", "4", "--size", "-1"}, "-1"},
      {{"all_reduce", "--ranks", "4", "--size", "1KM"}, "1KM"},
      {{"all_reduce", "--ranks", "4", "--size", "99999999999G"}, "99999999999G"},
      {{"all_reduce", "--ranks", "4", "--size", "1", "--algorithm", "fast"},
       "'fast' is not one of"},
      {{"all_reduce", "--ranks", "4", "--size", "1", "--algorithm", "flat"},
       "no all_reduce by flat"},
      {{"all_reduce", "--ranks", "4", "--size", "1", "-d", "int"}, "'int' is not one of"},
      {{"all_reduce", "--ranks", "4", "--size", "1", "--rank", "4"},
       "rank 4 is not one of 4 ranks"},
      {{"broadcast", "--ranks", "4", "--size", "1", "-r", "9"}, "root 9 is not one of 4 ranks"},
      {{"all_reduce", "--ranks", "4", "--size", "1", "--pace", "fast"}, "fast"},
      {{"all_reduce", "--ranks", "4", "--size", "1", "--pace", "1GB/s", "--memory", "library"},
       "--memory library"},
  };
  for (const auto& [arguments, words] : mistakes) {
    const ProgramResult ran = plan(arguments);
    INFO(ran.out << ran.err);
    CHECK(ran.exit_code == 2);
    CHECK_THAT(ran.err, says(words));
  }
  CHECK(plan({"all_reduce", "--ranks", "2", "--size", "1", "--json", "/no/such/x"}).exit_code == 1);
  CHECK(plan({"--help"}).exit_code == 0);
}

}  // namespace rondo::testing
