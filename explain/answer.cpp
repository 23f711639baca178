// See answer.hpp. A new question is a function in answers/answers.hpp, its file, and a row here.
#include "explain/answer.hpp"

#include "explain/answers/answers.hpp"

namespace rondo::explain {
namespace {

// Of a request: a profile, or a file of results, fits.
constexpr size_t kMostBytes = size_t{8} << 20;

struct AnswerRow {
  std::string_view name;
  Result<Json> (*answer)(const PageRequest&);
};
constexpr AnswerRow kAnswers[] = {
    {"about", about},
    {"bill", bill},
    {"profile", profile},
    {"predict", predict},
    {"schedule", schedule_steps},
    {"verify", verify_schedule},
    {"replay", replay},
    {"scaling", scaling},
};

Result<Json> answer_of(std::string_view text) {
  if (text.size() > kMostBytes) {
    return Status(Code::kInvalidArgument, "the request is longer than 8 MiB");
  }
  const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) {
    return Status(Code::kInvalidArgument, "the request is not an object of JSON");
  }
  const PageRequest request(document);
  const std::string name = RONDO_TRY(request.text("question", 64));
  for (const AnswerRow& row : kAnswers) {
    if (row.name == name) return row.answer(request);
  }
  return request.refuse("question", "is '" + name + "', which has no answer here");
}

}  // namespace

std::string answer(std::string_view request_json) {
  const Result<Json> found = answer_of(request_json);
  const Json document = found.ok() ? *found : Json{{"error", found.status().message()}};
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace rondo::explain
