// rondo-plan --page: data of other people's files in the page, without which the page stays as it was built.
#include "comm/plan/page.hpp"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/comm/plan/text.hpp"
#include "tests/comm/schedule/builtins.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo::plan::test {
namespace {

using rondo::testing::ProgramResult;
using rondo::testing::run_program;
using rondo::testing::TempDirectory;
using schedule::test::says;

const std::string kBegins = R"(<script type="application/json" id="data-here">)";
const std::string kPage = "<!doctype html>" + kBegins + "null</script><script>page()</script>";

std::string written(const TempDirectory& folder, const std::string& name, const std::string& text) {
  const std::string path = folder.path() + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

/// What stands in the block.
std::string block_of(const std::string& page) {
  const size_t at = page.find(kBegins) + kBegins.size();
  return page.substr(at, page.find("</script>", at) - at);
}

std::string why_not(const std::string& path) {
  const auto page = with_data(kPage, {.profile = "", .measured = {path}});
  return page.ok() ? "" : page.status().message();
}

}  // namespace

TEST_CASE("page: strings of a file end no block and begin no element, and stay what they were") {
  const TempDirectory folder;
  const std::string evil = "</script><script>alert(1)</script><!-- &amp; \xe2\x80\xa8 ]]>";
  const nlohmann::json perf = {{"program", "rondo-perf"}, {"note", evil}, {evil, 1}};
  const nlohmann::json train = {{"program", "rondo-train"}, {"steps", {evil}}};
  const auto page = with_data(kPage, {.profile = evil,
                                      .measured = {written(folder, "perf.json", perf.dump()),
                                                   written(folder, "<b>.json", train.dump())}});
  REQUIRE(page.ok());
  CHECK(occurrences(*page, "</script") == occurrences(kPage, "</script"));
  CHECK(occurrences(*page, "<script") == occurrences(kPage, "<script"));
  CHECK(page->find("<!--") == page->npos);
  const std::string block = block_of(*page);
  CHECK(block.find_first_of("<>&") == block.npos);
  const auto here = nlohmann::json::parse(block);
  CHECK(here["profile"] == evil);
  CHECK(here["measured"] == nlohmann::json::array({perf}));
  CHECK(here["trained"][0]["name"] == "<b>.json");
  CHECK(here["trained"][0]["document"] == train);
}

TEST_CASE("page: files that it cannot use are named") {
  const TempDirectory folder;
  CHECK(why_not(written(folder, "compare.json", R"([{"ranks": 2, "merged": []}])")).empty());
  CHECK_THAT(why_not(folder.path() + "/absent.json"), says("absent.json"));
  for (const char* text : {"", "{", "[1]", "{\"program\": 1}", "{\"program\": \"iperf3\"}",
                           "{\"program\": \"rondo-perf\", \"x\": NaN}"}) {
    INFO(text);
    CHECK_THAT(why_not(written(folder, "bad.json", text)), says("is not what rondo-perf --json"));
  }
  const std::string large = written(folder, "large.json", "");
  std::filesystem::resize_file(large, (size_t{8} << 20) + 1);
  CHECK_THAT(why_not(large), says("larger than the 8 MiB"));
  CHECK_FALSE(with_data("<html></html>", {.profile = "", .measured = {}}).ok());
}

TEST_CASE("page: the program writes what is installed beside it, or says what to do") {
  const TempDirectory folder;
  const std::filesystem::path root = folder.path();
  std::filesystem::create_directories(root / "bin");
  const std::string program = (root / "bin/rondo-plan").string();
  std::filesystem::copy_file(RONDO_PLAN, program);
  const std::string out = (root / "out.html").string();
  const std::vector<std::string> environment = {"RONDO_LINKS=built-in"};
  const ProgramResult without = run_program({program, "--page", out}, environment);
  CHECK(without.exit_code == 2);
  CHECK_THAT(without.err, says("run scripts/page"));
  CHECK_FALSE(std::filesystem::exists(out));

  std::filesystem::create_directories(root / "share/rondo");
  std::ofstream(root / "share/rondo/explain.html") << kPage;
  const std::string perf = written(folder, "perf.json", R"({"program": "rondo-perf"})");
  const ProgramResult with = run_program({program, "--page", out, "--measured", perf}, environment);
  INFO(with.err);
  CHECK(with.exit_code == 0);
  CHECK_THAT(with.err, says("the page has the built-in one"));
  const auto here = nlohmann::json::parse(block_of(read(out)));
  CHECK(here["profile"].is_null());
  CHECK(here["measured"][0]["program"] == "rondo-perf");

  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--page"},
                                                {"all_reduce", "--page", out},
                                                {"--measured", perf},
                                                {}}) {
    std::vector<std::string> argv = {program};
    argv.insert(argv.end(), wrong.begin(), wrong.end());
    CHECK(run_program(argv, environment).exit_code == 2);
  }
}

}  // namespace rondo::plan::test
