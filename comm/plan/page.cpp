// See page.hpp.
#include "comm/plan/page.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

namespace rondo::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBlock =
    R"(<script type="application/json" id="data-here">null</script>)";
constexpr std::string_view kBlockBegins = R"(<script type="application/json" id="data-here">)";
constexpr std::string_view kBlockEnds = "</script>";
constexpr size_t kMostFileBytes = size_t{8} << 20;  // as the page itself reads

/// ASCII, and without a character with which HTML could begin: "<!--" and "</script" are impossible.
std::string as_block(const Json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    switch (c) {
      case '<':
        text += "\\u003c";
        break;
      case '>':
        text += "\\u003e";
        break;
      case '&':
        text += "\\u0026";
        break;
      default:
        text += c;
    }
  }
  return text;
}

/// Which of rondo's programs wrote it; empty: none. scripts/compare writes a list.
std::string program_of(const Json& document) {
  if (document.is_array() && !document.empty() && document[0].is_object() &&
      document[0].contains("merged")) {
    return "compare";
  }
  if (!document.is_object() || !document.contains("program")) return "";
  const Json& program = document["program"];
  const bool known = program == "rondo-perf" || program == "rondo-train";
  return known ? program.get<std::string>() : "";
}

Result<Json> read_document(const std::string& path) {
  std::error_code unreadable;
  const auto bytes = std::filesystem::file_size(path, unreadable);
  std::ifstream file(path, std::ios::binary);
  if (unreadable || !file) {
    return Status(Code::kInvalidArgument,
                  "cannot read '" + path + "': " +
                      (unreadable ? unreadable.message() : std::string(std::strerror(errno))));
  }
  if (bytes > kMostFileBytes) {
    return Status(Code::kInvalidArgument,
                  "'" + path + "' is larger than the 8 MiB that the page reads");
  }
  Json document = Json::parse(std::string(std::istreambuf_iterator<char>(file), {}), nullptr,
                              /*allow_exceptions=*/false);
  if (program_of(document).empty()) {
    return Status(Code::kInvalidArgument,
                  "'" + path +
                      "' is not what rondo-perf --json, scripts/compare --json or rondo-train "
                      "--json writes");
  }
  return document;
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

}  // namespace

Result<std::string> find_page() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const char* place : {"../share/rondo/explain.html", "../../explain.html"}) {
    const auto path = (program.parent_path() / place).lexically_normal();
    if (!error && std::filesystem::is_regular_file(path, error)) return path.string();
    error.clear();
  }
  return Status(Code::kUnavailable,
                "the page is not built: run scripts/page in rondo's sources, then this again (an "
                "installation has the page if it was built before)");
}

Result<std::string> with_data(std::string_view page, const PageData& data) {
  Json here = {{"profile", nullptr}, {"measured", Json::array()}, {"trained", Json::array()}};
  if (!data.profile.empty()) here["profile"] = data.profile;
  for (const std::string& path : data.measured) {
    Json document = RONDO_TRY(read_document(path));
    if (program_of(document) == "rondo-train") {
      here["trained"].push_back({{"name", file_name(path)}, {"document", std::move(document)}});
    } else {
      here["measured"].push_back(std::move(document));
    }
  }
  const size_t at = page.find(kBlock);
  if (at == std::string_view::npos) {
    return Status(Code::kDataError, "the page has no place for data: build it anew (scripts/page)");
  }
  std::string text(page.substr(0, at));
  text += kBlockBegins;
  text += as_block(here);
  text += kBlockEnds;
  text += page.substr(at + kBlock.size());
  return text;
}

}  // namespace rondo::plan
