// rondo-plan as its users run it: text, JSON, SVG, link profiles, mistakes.
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/host/cpu_mask.hpp"
#include "tests/comm/plan/text.hpp"
#include "tests/comm/schedule/builtins.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::plan::test {
namespace {

using nlohmann::json;
using schedule::test::builtins;
using schedule::test::says;
using testing::ProgramResult;
using testing::run_program;
using testing::TempDirectory;
using Words = std::vector<std::string>;

Words words_of(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

/// With a core for every rank, whatever this machine has.
ProgramResult plan(Words arguments, const Words& environment = {"RONDO_LINKS=built-in"}) {
  arguments.insert(arguments.begin(), RONDO_PLAN);
  return run_program(arguments, environment);
}

/// What a run without a mistake prints.
std::string planned(const std::string& arguments,
                    const Words& environment = {"RONDO_LINKS=built-in"}) {
  const ProgramResult ran = plan(words_of(arguments), environment);
  INFO(arguments << ": " << ran.err);
  CHECK(ran.exit_code == 0);
  return ran.out;
}
json planned_json(const std::string& arguments) {
  return json::parse(planned(arguments + " --json -"));
}

void check_refused(const Words& arguments, const std::string& words) {
  const ProgramResult ran = plan(arguments);
  INFO((arguments.empty() ? "" : arguments.back()) << ran.out);
  CHECK(ran.exit_code == 2);
  CHECK_THAT(ran.err, says(words));
}
void check_refused(const std::string& arguments, const std::string& words) {
  check_refused(words_of(arguments), words);
}

void check_says(const std::string& text, const Words& parts) {
  for (const std::string& part : parts) CHECK_THAT(text, says(part));
}

/// The table of candidates: its header, and rows whose terms add up.
void check_table(const std::string& text, const std::string& header, int candidates,
                 double rounding) {
  std::istringstream lines(text.substr(text.find("\ncandidate ") + 1));
  std::string row;
  std::getline(lines, row);
  CHECK(row == header);
  int found = 0;
  for (; std::getline(lines, row) && row.rfind("refused", 0) != 0; ++found) {
    INFO(row);
    CHECK(row.size() <= 80);
    std::istringstream cells(row);
    std::string name;
    double total = 0, sum = 0, term = 0;
    cells >> name >> total;
    while (cells >> term) sum += term;
    CHECK(std::abs(sum - total) < rounding);
  }
  CHECK(found == candidates);
}

}  // namespace

TEST_CASE("the text explains: candidates, choice, steps, bytes, proof") {
  check_says(planned("all_reduce --ranks 4 --size 1M --algorithm ring"),
             {"all_reduce of 1048576 bytes: count 262144, float, sum, 4 ranks",
              "refused: peers' buffers are not mapped", "ring: asked for; two-shot would be chosen",
              "recv_reduce_copy_send", "slot from 3 + In -> slot to 1",
              "rank 2: sends 1572864 = 2(N-1)/N * S; fetches 0 = 0", "verified: 4 ranks"});
}

TEST_CASE("the candidates' table fits 80 columns, and its terms add up") {
  const std::string text = planned("all_reduce --ranks 4 --size 1M --links built-in");
  CHECK_THAT(text, says("refused: peers' buffers are not mapped: two-shot-direct, one-shot-"));
  CHECK_THAT(text, !says("kernel"));  // copies nothing of a reduction
  check_table(text, "candidate               sum  overhead   latency     slots    memory    reduce",
              7, 0.05);
}

TEST_CASE("on plain memory the text says what library memory would take") {
  const std::string hint = "library memory (rondo::alloc, --memory library) would take ";
  const std::string megabyte = "all_reduce --ranks 2 --size 1M --links built-in ";
  const std::string library = planned(megabyte + "--memory library");
  const size_t at = library.find("; predicted ");
  REQUIRE(at != std::string::npos);
  const std::string time = library.substr(at + 12, library.find(" us", at) - at - 12);
  CHECK_THAT(planned(megabyte), says(hint + time + " us"));
  const json plain = planned_json(megabyte);
  CHECK(plain["predicted_us"] > 2 * plain["library_memory_us"].get<double>());
  // Where it is used already there is nothing to say.
  CHECK_THAT(library, !says("would take " + time));
  // A pace delays bytes in buffers as it delays those in slots.
  const json paced = planned_json(megabyte + "--pace 1GB/s,20us");
  CHECK(paced["library_memory_us"] > 1048.576);
  CHECK(paced["library_memory_us"] < paced["predicted_us"]);
}

TEST_CASE("ranks on GPUs have a profile of their own, and memory within reach or not") {
  const std::string two = "all_reduce --ranks 2 --size 8M --gpus ";
  check_says(planned(two + "nvlink"),
             {"2 ranks on GPUs, through slots\nlinks: GPUs, NVLink; ",
              "memory within reach (registered, or of ranks that are threads, "});
  check_says(planned(two + "nvlink --memory library"),
             {"2 ranks on GPUs, within reach", "\ntwo-shot-direct: the cheapest"});
  // Host memory is within nobody's reach, and what the processor's profile says of it is not asked.
  CHECK_THAT(planned(two + "host-memory --memory library"), says("through slots"));
  const std::string by_copies =
      "all_gather --ranks 2 --size 256M --gpus one --algorithm copy-engine --memory ";
  CHECK_THAT(planned(by_copies + "library"),
             says("copy-engine: asked for") && !says("not possible"));
  CHECK_THAT(planned(by_copies + "plain"), says("not possible here: only in memory within reach"));
  const json one = planned_json(two + "one");
  CHECK(one["gpus"] == "one GPU");
  CHECK(one["cores"].is_null());
  check_refused(two + "one --cores 2", "--gpus");
  check_refused(two + "one --cores 2", "--cores");
  check_refused(two + "one --pace 1GB/s,20us", "--pace");
  check_refused("all_reduce --ranks 2x2 --size 8 --gpus one", "give --ranks one number");
}

TEST_CASE("direct algorithms are refused on library memory because they are dearer") {
  const std::string text =
      planned("all_reduce --ranks 2 --size 8 --memory library --links built-in");
  check_says(text, {"refused: a staged algorithm is cheaper", "refused: not safe in place"});
  CHECK_THAT(text, !says("not mapped"));
}

TEST_CASE("what is planned is what a communicator does: slots of many ranks, scaled sums") {
  CHECK_THAT(planned("all_reduce --ranks 16 --size 1m --rank 0"), says("4 slots of 65536 bytes"));
  check_says(planned("all_reduce --ranks 2 --size 1K -o mulsum -d half"),
             {"refused: scaled inputs would be rounded differently",
              "ring: the cheapest that is possible"});
  const std::string average = "all_reduce --ranks 4 --size 1G -o avg -d int32";
  check_says(planned(average),
             {"refused: does not fold in rank order", "two-shot: the cheapest that is possible"});
  CHECK_THAT(planned(average + " --algorithm ring"),
             says("although it is not possible here: does not fold in rank order"));
  check_refused("all_to_all --ranks 65536 --size 1G --rank 0", "1 to 46340 ranks");
}

TEST_CASE("the JSON of every algorithm says that bytes match and that it is verified") {
  for (const auto& [collective, algorithm] : builtins()) {
    const json plan = planned_json(std::string(name(collective)) +
                                   " --ranks 3 --size 12K --memory library -r 1 --algorithm " +
                                   std::string(name(algorithm)));
    CHECK(plan["algorithm"] == name(algorithm));
    CHECK(plan["bytes_match"] == true);
    CHECK(plan["verification"]["verified"] == true);
    CHECK(plan["schedule"].size() == 3);
    CHECK(plan["candidates"].size() >= (collective == Collective::kAllToAllV ? 1 : 2));
    for (const auto& b : plan["bytes"]) CHECK(b["sent"] == b["sent_by_formula"]);
  }
}

TEST_CASE("between hosts the text has the wire, and fits 80 columns") {
  const std::string text = planned("all_reduce --ranks 2x4 --size 1M");
  check_says(text, {"8 ranks on 2 hosts of 4, a wire between hosts",
                    "links: shared memory and a wire between hosts; ",
                    "between hosts: 10 us, 0.5 us for each message, 10 GB/s for the link",
                    "refused: ranks on several hosts share no memory: ",
                    "hierarchical: the cheapest that is possible; ",
                    "host 1 (4 ranks): sends 1048576, receives 1048576",
                    "the most, against the formula: 1048576 = 2(H-1)/H * S", "verified: 8 ranks"});
  check_table(text,
              "candidate              sum overhead  latency    slots   memory   reduce     wire", 6,
              0.4);
}

TEST_CASE("hosts of different sizes, in JSON and in a picture's words") {
  const json plan = planned_json("all_reduce --ranks 3,2,3 --size 61440 --algorithm hierarchical");
  CHECK(plan["ranks"] == 8);
  CHECK(plan["hosts"] == json({3, 2, 3}));
  CHECK(plan["bytes_match"] == true);
  CHECK(plan["verification"]["verified"] == true);
  CHECK(plan["wire"]["busiest"] == 2 * 2 * 61440 / 3);
  CHECK(plan["wire"]["busiest_by_formula"] == 2 * 2 * 61440 / 3);
  CHECK(plan["wire"]["busiest_formula"] == "2(H-1)/H * S");
  CHECK(plan["wire"]["hosts"].size() == 3);
  CHECK(plan["candidates"][0]["wire_us"].get<double>() >= 0);
  const json one = planned_json("all_reduce --ranks 2 --size 1K");
  CHECK(one["wire"].is_null());
  CHECK(one["hosts"] == json({2}));
  CHECK_THAT(planned("all_reduce --ranks 1,3 --size 64K --svg -"),
             says("4 ranks on 2 hosts (1, 3)"));
}

TEST_CASE("of very many ranks one rank's plan is shown, and the wire by its formula") {
  check_says(planned("all_reduce --ranks 2048x8 --size 64M"),
             {"16384 ranks on 2048 hosts of 8", "hierarchical: the cheapest that is possible",
              "each way: 2(H-1)/H * S = 134152192 by the formula (not counted",
              "not verified: the schedules of 16384 ranks"});
  check_says(planned("all_reduce --ranks 4096 --size 1G --rank 17 --algorithm ring"),
             {"rank 17: 8191 steps", "not verified: only one rank was asked for",
              "rank 17: sends 2146959360 = 2(N-1)/N * S"});
}

TEST_CASE("hosts that make no sense are refused") {
  for (const char* hosts : {"4y8", "4x", "0x3", "3,,2", "2x2x2", "2x2,3", "x", ",", "-1", "2x 2",
                            "256x257", "99999999999x2"}) {
    check_refused(Words{"all_reduce", "--size", "1K", "--ranks", hosts},
                  "nor hosts x ranks on each, as in 4x8, nor");
  }
  const std::string kilobyte = "all_reduce --size 1K ";
  const std::string no_library = "leave out --pace and --memory library";
  check_refused(kilobyte, "--ranks is required");
  check_refused(kilobyte + "--ranks 2x2 --memory library", no_library);
  check_refused(kilobyte + "--ranks 2x2 --pace 1GB/s,20us", no_library);
  check_refused(kilobyte + "--ranks 4 --algorithm hierarchical", "all ranks are on one host");
  check_refused(kilobyte + "--ranks 2x2 --algorithm one-shot", "share no memory");
  planned(kilobyte + "--ranks 1x4");
}

TEST_CASE("a dash is stdout, which then has nothing else") {
  const std::string kilobyte = "all_reduce --ranks 2 --size 1K ";
  CHECK(planned_json(kilobyte)["collective"] == "all_reduce");
  CHECK_THAT(planned(kilobyte + "--svg -"), says("<svg ") && !says("verified"));
  check_refused(kilobyte + "--svg - --json -", "one of them to a file");
  check_refused(kilobyte + "--svg /dev/null --json /dev/null", "'/dev/null' has the JSON");
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
  CHECK_THAT(planned("barrier --ranks 3"), says("barrier, 3 ranks, plain memory\n"));
  check_says(planned("all_reduce --ranks 1 --size 4"),
             {"float, sum, 1 rank, plain memory", "verified: 1 rank, 1 move, 1 round",
              "rank 0: 1 step\n"});
}

TEST_CASE("what a plan costs does not grow with its rounds") {
  CHECK_THAT(planned("all_reduce --ranks 4 --size 999999999G --algorithm ring"),
             says("carried out, the others being alike"));
}

#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
/// In so much address space; a process that wants more gets no memory.
std::string planned_within(int kibibytes, const std::string& arguments) {
  Words limited = {"sh", "-c", "ulimit -v " + std::to_string(kibibytes) + " && exec \"$@\"", "sh",
                   RONDO_PLAN};
  for (const std::string& word : words_of(arguments)) limited.push_back(word);
  const ProgramResult ran = run_program(limited, {"RONDO_LINKS=built-in"});
  INFO(arguments << ": " << ran.err);
  CHECK(ran.exit_code == 0);
  return ran.out;
}

TEST_CASE("the ring of 512 ranks is proved in a gigabyte of address space") {
  CHECK_THAT(planned_within(1 << 20, "all_reduce --ranks 512 --size 1G --algorithm ring"),
             says("verified: 512 ranks"));
}

TEST_CASE("a proof that would take too much memory is left out, and said so") {
  for (const std::string what :
       {"65536", "65536 --algorithm tree", "16384 --algorithm star", "2048 --algorithm ring"}) {
    check_says(planned_within(1 << 18, "all_reduce --size 1M --ranks " + what),
               {"not verified: the schedules of " + words_of(what)[0] + " ranks", "more than 4 GiB",
                "--rank K"});
  }
  planned_within(1 << 18, "all_reduce --size 1M --ranks 65536 --rank 7");
}
#endif

TEST_CASE("the picture is written") {
  const TempDirectory directory;
  const std::string file = directory.path() + "/plan.svg";
  planned("all_reduce --ranks 4 --size 64K --svg " + file);
  check_says(read(file), {"all_reduce by two-shot, 4 ranks", "S = 65,536 bytes",
                          "Each rank sends 98,304 bytes = 2(N-1)/N * S."});
  check_refused("all_reduce --ranks 17 --size 64K --svg " + file, "16");
}

TEST_CASE("one hop of the picture, with its bytes and those of the hops before it") {
  const std::string hop = "all_reduce --ranks 4 --size 64K --algorithm ring --svg - --svg-hop ";
  check_says(planned(hop + "2"), {"all_reduce by ring, 4 ranks: hop 2 of 6",
                                  "In this hop each rank sends 1 chunk = 16,384 bytes, with the "
                                  "hops before it 32,768 bytes.",
                                  "chunk 2 of 0+1+3", "Of 0+1: the parts of ranks 0 and 1."});
  CHECK_THAT(planned(hop + "4"), !says("0+1"));  // no box has such a label there
  CHECK_THAT(planned(hop + "6"), says("with the hops before it 98,304 bytes."));
  check_refused(hop + "7", "--svg-hop 7: the picture has 6 hops");
  check_refused("all_reduce --ranks 4 --size 1 --svg-hop 1", "--svg");
}

TEST_CASE("a wire, and a profile of one's own") {
  check_says(planned("broadcast --ranks 8 --size 64M --pace 1GB/s,20us"),
             {"ring: the cheapest that is possible", "refused: no slots with several readers"});
  // 2(N-1)/N * S = 100.66 MB leave each rank.
  check_says(planned("all_reduce --ranks 4 --size 64M --pace 1GB/s,20us --memory library"),
             {"two-shot-direct: the cheapest that is possible", " 100663.30\n"});

  const TempDirectory directory;
  const std::string file = directory.path() + "/links.json";
  std::ofstream(file) << R"({"format": "rondo link profile", "version": 2, "name": "mine",
    "constants": {"overhead_us": 0, "alpha_us": 1, "peer_us": 100, "slot_us_per_byte": 0,
      "one_way_us_per_byte": 0, "memory_cached_us_per_byte": 0, "memory_us_per_byte": 0,
      "reduce_us_per_byte": 0, "process_copy_us": 0, "process_copy_us_per_byte": 0},
    "machine": {"parallel_ranks": 0, "llc_bytes": 1048576, "slot_bytes": 4096, "slots": 2},
    "corrections": {"ranks": 0, "tables": []}})";
  const std::string five = "all_reduce --ranks 5 --size 64";
  for (const std::string& text :
       {planned(five + " --links " + file), planned(five, {"RONDO_LINKS=" + file})}) {
    check_says(text, {"links: mine; 2 slots of 4096 bytes",
                      "tree: the cheapest that is possible"});  // peers are dear here
  }
}

TEST_CASE("a plan for this machine has its cores, one by another profile a core per rank") {
  const TempDirectory directory;  // no calibrated profile
  const std::string file = directory.path() + "/plan.json";
  const Words this_machine = {"RONDO_LINKS", "XDG_CONFIG_HOME=" + directory.path()};
  const std::string megabyte = "all_reduce --ranks 4 --size 1M --memory library --json " + file;
  const kernels::CpuMask allowed = kernels::allowed_cpus();
  kernels::CpuMask one;
  kernels::add_cpu(one, kernels::list_cpus(allowed).at(0));
  REQUIRE(kernels::bind_to_cpus(one));  // inherited by the programs
  const std::string here = planned(megabyte, this_machine);
  const json here_json = json::parse(read(file));
  const std::string named = planned(megabyte);
  const json named_json = json::parse(read(file));
  REQUIRE(kernels::bind_to_cpus(allowed));
  CHECK_THAT(here, says("sum, 4 ranks on 1 core, library memory\nlinks: shared memory, more ranks "
                        "than cores: 4 on 1; 8 slots of "));
  CHECK(here_json["cores"] == 1);
  CHECK_THAT(named, says("sum, 4 ranks, library memory\nlinks: shared memory; 4 slots of "));
  CHECK(named_json["cores"].is_null());
  CHECK(here_json["predicted_us"] > 3 * named_json["predicted_us"].get<double>());

  CHECK(planned(megabyte + " --cores 1") == here);
  CHECK(json::parse(read(file)) == here_json);
  CHECK_THAT(planned(megabyte + " --cores 4", this_machine),
             says("4 ranks on 4 cores, library memory"));
  CHECK(json::parse(read(file))["predicted_us"] == named_json["predicted_us"]);
  CHECK_THAT(planned("barrier --ranks 3 --cores 2 --pace 1GB/s,20us"),
             says("barrier, 3 ranks on 2 cores, a wire\nlinks: wire over shared memory, more ranks "
                  "than cores: 3 on 2; "));
}

TEST_CASE("a broken profile is refused by file and field") {
  const TempDirectory directory;
  const std::string file = directory.path() + "/links.json";
  std::ofstream(file) << R"({"format": "rondo link profile", "version": 7})";
  const std::string with_links = "all_reduce --ranks 4 --size 64 --links ";
  const ProgramResult ran = plan(words_of(with_links + file));
  CHECK(ran.exit_code == 1);
  CHECK(ran.out.empty());
  CHECK_THAT(ran.err, says(file) && says("version is 7"));
  CHECK(plan(words_of(with_links + file + "x")).exit_code == 1);
}

TEST_CASE("mistakes end with code 2 and a sentence") {
  check_refused("", "COLLECTIVE");
  check_refused("all_reduce --size 1", "--ranks");
  check_refused("all_reduce --ranks 4", "--size");
  check_refused("sum --ranks 4 --size 1", "all_reduce, reduce_scatter");
  check_refused("all_reduce --ranks 0 --size 1", "0");
  for (const char* size : {"1X", "-1", "1KM", "99999999999G"}) {
    check_refused("all_reduce --ranks 4 --size " + std::string(size), size);
  }
  const std::string four = "all_reduce --ranks 4 --size 1 ";
  check_refused(four + "--cores 0", "--cores");
  check_refused(four + "--algorithm fast", "'fast' is not one of");
  check_refused(four + "--algorithm flat", "no all_reduce by flat");
  check_refused(four + "-d int", "'int' is not one of");
  check_refused(four + "-o bxor", "no bxor of float");
  check_refused(four + "--rank 4", "rank 4 is not one of 4 ranks");
  check_refused("broadcast --ranks 4 --size 1 -r 9", "root 9 is not one of 4 ranks");
  check_refused(four + "--pace fast", "fast");
  CHECK(plan(words_of(four + "--json /no/such/x")).exit_code == 1);
  planned("--help");
}

}  // namespace rondo::plan::test
