// The command line: what is accepted, what is refused, and which program has which flags.
#include "bench/harness/options.hpp"

#include <iterator>
#include <sstream>

#include "tests/harness/catch.hpp"

using namespace rondo;
using namespace rondo::bench;

namespace {

/// Of words that spaces divide, for a program that may have a collective in its name.
ParsedOptions parse(const std::string& text, bool is_rondo = true,
                    std::optional<Collective> collective = {}) {
  std::istringstream stream("program " + text);
  const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  return parse_options(
      {.name = "program", .description = "a test", .is_rondo = is_rondo, .collective = collective},
      static_cast<int>(arguments.size()), arguments.data());
}

PerfOptions accepted(const std::string& text, bool is_rondo = true) {
  INFO(text);
  const ParsedOptions parsed = parse(text, is_rondo);
  REQUIRE(parsed.options);
  return *parsed.options;
}

void check_mistake(const ParsedOptions& parsed) {
  CHECK_FALSE(parsed.options);
  CHECK(parsed.exit_code == 2);
}
void check_mistake(const std::string& text, bool is_rondo = true) {
  INFO(text);
  check_mistake(parse(text, is_rondo));
}

}  // namespace

TEST_CASE("flags and defaults are nccl-tests'") {
  const PerfOptions defaults = accepted("all_reduce");
  CHECK(defaults.sweep.min == size_t{32} << 20);
  CHECK(defaults.sweep.max == size_t{32} << 20);
  CHECK(defaults.checks == 1);
  CHECK_FALSE(defaults.library_memory);
  CHECK_FALSE(defaults.cuda);

  const PerfOptions given = accepted(
      "broadcast -b 8 -e 1M -f 2 -n 7 -w 3 -d bfloat16 -o max -r 1 -c 0 --ranks 4 --threads "
      "--algorithm one-shot --memory library --pace 1GB/s,20us --json x.json");
  CHECK(given.collective == Collective::kBroadcast);
  CHECK(given.sweep.min == 8);
  CHECK(given.sweep.max == size_t{1} << 20);
  CHECK(given.sweep.factor == 2);
  CHECK(given.iterations == 7);
  CHECK(given.warmup == 3);
  CHECK(given.types == std::vector<DataType>{DataType::kBFloat16});
  CHECK(given.ops == std::vector<ReduceOp>{ReduceOp::kMax});
  CHECK(given.root == 1);
  CHECK(given.checks == 0);
  CHECK(given.ranks == 4);
  CHECK(given.threads);
  CHECK(given.algorithm == Algorithm::kOneShot);
  CHECK(given.library_memory);
  CHECK(given.pace == "1GB/s,20us");
  CHECK(given.json_file == "x.json");
}

TEST_CASE("a calibration covers all collectives and sizes unless told otherwise") {
  const PerfOptions all = accepted("--calibrate x.json");
  CHECK(all.calibrate);
  CHECK(all.calibrate_file == "x.json");
  CHECK(all.every_collective);
  CHECK(all.sweep.min == 8);
  CHECK(all.sweep.max == size_t{64} << 20);
  CHECK(all.sweep.factor == 2);
  const PerfOptions unnamed = accepted("--calibrate --ranks 2");
  CHECK(unnamed.calibrate);
  CHECK(unnamed.calibrate_file.empty());
  const PerfOptions some = accepted("--calibrate x.json -e 1M -f 4");
  CHECK(some.sweep.max == size_t{1} << 20);
  CHECK(some.sweep.factor == 4);
  const PerfOptions one = accepted("broadcast --calibrate x");
  CHECK(one.calibrate);
  CHECK_FALSE(one.every_collective);
  CHECK(one.collective == Collective::kBroadcast);
  CHECK(accepted("all_reduce --sweep --links y").sweep_algorithms);
  check_mistake("nonsense --calibrate x");
  check_mistake("--calibrate x --sweep");
  check_mistake("--sweep");
  check_mistake("--calibrate x", false);  // MPI has no link profile
}

TEST_CASE("all means every type, operator and root") {
  const PerfOptions all = accepted("all_reduce -d all -o all -r all");
  CHECK(all.types.size() == static_cast<size_t>(kDataTypes));
  CHECK(all.ops.size() == static_cast<size_t>(kReduceOps));
  CHECK(all.all_roots);
}

TEST_CASE("mistakes end the program with code 2") {
  check_mistake("");
  check_mistake("all_reduze");
  for (const std::string flags : {"-b 1Q",
                                  "-b 2M -e 1M",
                                  "-b 0 -e 1M -f 2",
                                  "-b 0 -e 1M -i 0",
                                  "-f 1",
                                  "-f 2 -i 8",
                                  "-n -1",
                                  "-d float128",
                                  "-o xor",
                                  "-r x",
                                  "-c -1",
                                  "--ranks 0",
                                  "--algorithm fastest",
                                  "--memory huge",
                                  "--device opencl",
                                  "--device cuda --pace 1GB/s",
                                  "--device cuda --calibrate",
                                  "--device cuda --sweep",
                                  "--graph 20",
                                  "--no-such-flag"}) {
    check_mistake("all_reduce " + flags);
  }
}

TEST_CASE("Buffers on a GPU, and graphs of so many operations, are asked for by name") {
  const PerfOptions given = accepted("all_reduce --device cuda --graph 20 --channels 4");
  CHECK(given.cuda);
  CHECK(given.graph == 20);
  CHECK(given.channels == 4);
}

TEST_CASE("nccl-tests' further flags do what they say there") {
  const PerfOptions given = accepted(
      "all_reduce -t 2 -g 3 -c 4 -N 2 -u 1 -R 2 -T 7 -I 1 -a 1 -z 2 -m 1 -M 1 --output_file "
      "x.json");
  CHECK(given.ranks == 6);
  CHECK(given.threads);
  CHECK(given.checks == 4);
  CHECK(given.cycles == 2);
  CHECK(given.unalign == 1);
  CHECK(given.library_memory);
  CHECK(given.timeout_s == 7);
  CHECK(accepted("all_reduce --stall-timeout 7").timeout_s == 7);
  check_mistake("all_reduce --timeout 7");  // rondo-run's, of a whole job
  CHECK(given.stats);
  CHECK(given.across == AcrossRanks::kMean);
  CHECK(given.json_file == "x.json");
  const PerfOptions alone = accepted("all_reduce -t 1 -g 1 --stats");
  CHECK(alone.ranks == 0);
  CHECK_FALSE(alone.threads);
  CHECK(alone.across == AcrossRanks::kSlowest);
  CHECK(alone.stats);
  CHECK_FALSE(accepted("all_reduce -I 0").stats);
}

TEST_CASE("nccl-tests' flags that cannot be honoured are refused") {
  for (const std::string flags :
       {"-m 2", "-a 4", "-z 0", "-z 1", "-G 1", "-C 1", "-D 1", "-V 4", "-S 1", "-K 1", "-x 0",
        "-p 2", "-N 0", "-t 0", "-R 3", "-T 0", "--cudagraph 3", "-t 2 --ranks 3"}) {
    check_mistake("all_reduce " + flags);
  }
}

TEST_CASE("the table has two other forms, which other outputs do not have") {
  const PerfOptions csv = accepted("all_reduce --csv", false);
  CHECK(csv.csv);
  CHECK_FALSE(csv.wide);
  CHECK(accepted("all_reduce --wide", false).wide);
  for (const std::string other : {"--wide", "--stats", "--sweep", "--topology"}) {
    check_mistake("all_reduce --csv " + other);
  }
  check_mistake("all_reduce --wide --sweep");
  check_mistake("--calibrate --csv");
}

TEST_CASE("a program's name may say which collective it measures") {
  CHECK(collective_named("all_reduce_perf") == Collective::kAllReduce);
  CHECK(collective_named("alltoall_perf") == Collective::kAllToAll);
  CHECK_FALSE(collective_named("rondo-perf").has_value());
  const ParsedOptions parsed = parse("-b 8", true, Collective::kGather);
  REQUIRE(parsed.options);
  CHECK(parsed.options->collective == Collective::kGather);
  check_mistake(parse("scatter", true, Collective::kGather));
}

TEST_CASE("help is no mistake") {
  const ParsedOptions parsed = parse("--help");
  CHECK_FALSE(parsed.options);
  CHECK(parsed.exit_code == 0);
}

TEST_CASE("a peer has no flags that only rondo can honour") {
  accepted("all_reduce --ranks 2", false);
  for (const std::string flags : {"--algorithm auto", "--memory auto", "--pace auto",
                                  "--device auto", "-t auto", "-R auto", "-T auto", "--threads"}) {
    check_mistake("all_reduce " + flags, false);
  }
}
