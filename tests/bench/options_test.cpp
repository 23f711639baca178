// The command line: what is accepted, what is refused, and which program has which flags.
#include "bench/harness/options.hpp"

#include "tests/harness/catch.hpp"

using namespace rondo;
using namespace rondo::bench;

namespace {

ParsedOptions parse_words(std::vector<const char*> words, bool is_rondo = true) {
  words.insert(words.begin(), "program");
  return parse_options({.name = "program", .description = "a test", .is_rondo = is_rondo},
                       static_cast<int>(words.size()), words.data());
}

}  // namespace

TEST_CASE("flags and defaults are nccl-tests'") {
  const auto defaults = parse_words({"all_reduce"}).options;
  REQUIRE(defaults);
  CHECK(defaults->sweep.min == size_t{32} << 20);
  CHECK(defaults->sweep.max == size_t{32} << 20);
  CHECK(defaults->checks == 1);
  CHECK_FALSE(defaults->library_memory);

  const auto given =
      parse_words({"broadcast", "-b",      "8",      "-e",         "1M",          "-f",
                   "2",         "-n",      "7",      "-w",         "3",           "-d",
                   "bfloat16",  "-o",      "max",    "-r",         "1",           "-c",
                   "0",         "--ranks", "4",      "--threads",  "--algorithm", "one-shot",
                   "--memory",  "library", "--pace", "1GB/s,20us", "--json",      "x.json"})
          .options;
  REQUIRE(given);
  CHECK(given->collective == Collective::kBroadcast);
  CHECK(given->sweep.min == 8);
  CHECK(given->sweep.max == size_t{1} << 20);
  CHECK(given->sweep.factor == 2);
  CHECK(given->iterations == 7);
  CHECK(given->warmup == 3);
  CHECK(given->types == std::vector<DataType>{DataType::kBFloat16});
  CHECK(given->ops == std::vector<ReduceOp>{ReduceOp::kMax});
  CHECK(given->root == 1);
  CHECK(given->checks == 0);
  CHECK(given->ranks == 4);
  CHECK(given->threads);
  CHECK(given->algorithm == Algorithm::kOneShot);
  CHECK(given->library_memory);
  CHECK(given->pace == "1GB/s,20us");
  CHECK(given->json_file == "x.json");
}

TEST_CASE("a calibration covers all collectives and sizes unless told otherwise") {
  const auto all = parse_words({"--calibrate", "x.json"}).options;
  REQUIRE(all);
  CHECK(all->calibrate);
  CHECK(all->calibrate_file == "x.json");
  CHECK(all->sweep.min == 8);
  CHECK(all->sweep.max == size_t{64} << 20);
  CHECK(all->sweep.factor == 2);
  const auto unnamed = parse_words({"--calibrate", "--ranks", "2"}).options;
  REQUIRE(unnamed);
  CHECK(unnamed->calibrate);
  CHECK(unnamed->calibrate_file.empty());
  const auto some = parse_words({"--calibrate", "x.json", "-e", "1M", "-f", "4"}).options;
  REQUIRE(some);
  CHECK(some->sweep.max == size_t{1} << 20);
  CHECK(some->sweep.factor == 4);
  CHECK(parse_words({"all_reduce", "--sweep", "--links", "y"}).options->sweep_algorithms);
  CHECK(all->every_collective);
  const auto one = parse_words({"broadcast", "--calibrate", "x"}).options;
  REQUIRE(one);
  CHECK(one->calibrate);
  CHECK_FALSE(one->every_collective);
  CHECK(one->collective == Collective::kBroadcast);
  CHECK(parse_words({"nonsense", "--calibrate", "x"}).exit_code == 2);
  CHECK(parse_words({"--calibrate", "x", "--sweep"}).exit_code == 2);
  CHECK(parse_words({"--sweep"}).exit_code == 2);
  CHECK(parse_words({"--calibrate", "x"}, false).exit_code == 2);  // MPI has no link profile
}

TEST_CASE("all means every type, operator and root") {
  const auto all = parse_words({"all_reduce", "-d", "all", "-o", "all", "-r", "all"}).options;
  REQUIRE(all);
  CHECK(all->types.size() == static_cast<size_t>(kDataTypes));
  CHECK(all->ops.size() == static_cast<size_t>(kReduceOps));
  CHECK(all->all_roots);
}

TEST_CASE("mistakes end the program with code 2") {
  const std::vector<std::vector<const char*>> mistakes = {
      {},
      {"all_reduze"},
      {"all_reduce", "-b", "1Q"},
      {"all_reduce", "-b", "2M", "-e", "1M"},
      {"all_reduce", "-b", "0", "-e", "1M", "-f", "2"},
      {"all_reduce", "-b", "0", "-e", "1M", "-i", "0"},
      {"all_reduce", "-f", "1"},
      {"all_reduce", "-f", "2", "-i", "8"},
      {"all_reduce", "-n", "-1"},
      {"all_reduce", "-d", "float128"},
      {"all_reduce", "-o", "xor"},
      {"all_reduce", "-r", "x"},
      {"all_reduce", "-c", "-1"},
      {"all_reduce", "--ranks", "0"},
      {"all_reduce", "--algorithm", "fastest"},
      {"all_reduce", "--memory", "huge"},
      {"all_reduce", "--device", "opencl"},
      {"all_reduce", "--device", "cuda", "--pace", "1GB/s"},
      {"all_reduce", "--device", "cuda", "--calibrate"},
      {"all_reduce", "--device", "cuda", "--sweep"},
      {"all_reduce", "--graph", "20"},
      {"all_reduce", "--no-such-flag"},
  };
  for (const auto& words : mistakes) {
    INFO((words.empty() ? "" : words.back()));
    const ParsedOptions parsed = parse_words(words);
    CHECK_FALSE(parsed.options);
    CHECK(parsed.exit_code == 2);
  }
}

TEST_CASE("Buffers on a GPU, and graphs of so many operations, are asked for by name") {
  const ParsedOptions parsed =
      parse_words({"all_reduce", "--device", "cuda", "--graph", "20", "--channels", "4"});
  REQUIRE(parsed.options);
  CHECK(parsed.options->cuda);
  CHECK(parsed.options->graph == 20);
  CHECK(parsed.options->channels == 4);
  CHECK_FALSE(parse_words({"all_reduce"}).options->cuda);
}

TEST_CASE("nccl-tests' further flags do what they say there") {
  const auto given = parse_words({"all_reduce", "-t",
                                  "2",          "-g",
                                  "3",          "-c",
                                  "4",          "-N",
                                  "2",          "-u",
                                  "1",          "-R",
                                  "2",          "-T",
                                  "7",          "-I",
                                  "1",          "-a",
                                  "1",          "-z",
                                  "2",          "-m",
                                  "1",          "-M",
                                  "1",          "--output_file",
                                  "x.json"})
                         .options;
  REQUIRE(given);
  CHECK(given->ranks == 6);
  CHECK(given->threads);
  CHECK(given->checks == 4);
  CHECK(given->cycles == 2);
  CHECK(given->unalign == 1);
  CHECK(given->library_memory);
  CHECK(given->timeout_s == 7);
  CHECK(given->stats);
  CHECK(given->across == AcrossRanks::kMean);
  CHECK(given->json_file == "x.json");
  const auto alone = parse_words({"all_reduce", "-t", "1", "-g", "1", "--stats"}).options;
  REQUIRE(alone);
  CHECK(alone->ranks == 0);
  CHECK_FALSE(alone->threads);
  CHECK(alone->across == AcrossRanks::kSlowest);
  CHECK(alone->stats);
  CHECK_FALSE(parse_words({"all_reduce", "-I", "0"}).options->stats);
}

TEST_CASE("nccl-tests' flags that cannot be honoured are refused, with the reason") {
  const std::vector<std::vector<const char*>> refused = {
      {"-m", "2"}, {"-a", "4"}, {"-z", "0"}, {"-z", "1"}, {"-G", "1"},          {"-C", "1"},
      {"-D", "1"}, {"-V", "4"}, {"-S", "1"}, {"-K", "1"}, {"-x", "0"},          {"-p", "2"},
      {"-N", "0"}, {"-t", "0"}, {"-R", "3"}, {"-T", "0"}, {"--cudagraph", "3"},
  };
  for (const auto& words : refused) {
    INFO(words[0] << " " << words[1]);
    CHECK(parse_words({"all_reduce", words[0], words[1]}).exit_code == 2);
  }
  CHECK(parse_words({"all_reduce", "-t", "2", "--ranks", "3"}).exit_code == 2);
}

TEST_CASE("the table has two other forms, which other outputs do not have") {
  const auto csv = parse_words({"all_reduce", "--csv"}, false).options;
  const auto wide = parse_words({"all_reduce", "--wide"}, false).options;
  REQUIRE(csv);
  REQUIRE(wide);
  CHECK(csv->csv);
  CHECK_FALSE(csv->wide);
  CHECK(wide->wide);
  for (const char* other : {"--wide", "--stats", "--sweep", "--topology"}) {
    INFO(other);
    CHECK(parse_words({"all_reduce", "--csv", other}).exit_code == 2);
  }
  CHECK(parse_words({"all_reduce", "--wide", "--sweep"}).exit_code == 2);
  CHECK(parse_words({"--calibrate", "--csv"}).exit_code == 2);
}

TEST_CASE("a program's name may say which collective it measures") {
  CHECK(collective_named("all_reduce_perf") == Collective::kAllReduce);
  CHECK(collective_named("alltoall_perf") == Collective::kAllToAll);
  CHECK_FALSE(collective_named("rondo-perf").has_value());
  const PerfProgram program{.name = "gather_perf",
                            .description = "a test",
                            .is_rondo = true,
                            .collective = Collective::kGather};
  const char* words[] = {"gather_perf", "-b", "8"};
  const ParsedOptions parsed = parse_options(program, 3, words);
  REQUIRE(parsed.options);
  CHECK(parsed.options->collective == Collective::kGather);
  const char* twice[] = {"gather_perf", "scatter"};
  CHECK(parse_options(program, 2, twice).exit_code == 2);
}

TEST_CASE("help is no mistake") {
  const ParsedOptions parsed = parse_words({"--help"});
  CHECK_FALSE(parsed.options);
  CHECK(parsed.exit_code == 0);
}

TEST_CASE("a peer has no flags that only rondo can honour") {
  CHECK(parse_words({"all_reduce", "--ranks", "2"}, false).options);
  for (const char* flag : {"--algorithm", "--memory", "--pace", "--device", "-t", "-R", "-T"}) {
    CHECK(parse_words({"all_reduce", flag, "auto"}, false).exit_code == 2);
  }
  CHECK(parse_words({"all_reduce", "--threads"}, false).exit_code == 2);
}
