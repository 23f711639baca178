// See frames.hpp.
#include "comm/launch/frames.hpp"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "rondo/rondo.h"

namespace rondo::run {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kMagic = "rondo-run frames, version ";
constexpr size_t kHeader = 5;
constexpr size_t kLongestGreeting = 256;

/// Each byte as the character of that number.
std::string as_characters(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0 | byte >> 6);
      text += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return text;
}

std::string as_bytes(const Json& value) {
  const std::string text = value.get<std::string>();
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80 || i + 1 == text.size()) {
      bytes += text[i];
    } else {
      const auto next = static_cast<unsigned char>(text[++i]);
      bytes += static_cast<char>((byte & 0x03) << 6 | (next & 0x3F));
    }
  }
  return bytes;
}

Json list_of(const std::vector<std::string>& texts) {
  Json list = Json::array();
  for (const std::string& text : texts) list.push_back(as_characters(text));
  return list;
}

std::vector<std::string> texts_of(const Json& list) {
  std::vector<std::string> texts;
  for (const Json& each : list) texts.push_back(as_bytes(each));
  return texts;
}

}  // namespace

std::string greeting() { return std::string(kMagic) + RONDO_VERSION "\n"; }

std::string pack(RunMessage kind, std::string_view payload) {
  std::string frame(1, static_cast<char>(kind));
  for (unsigned shift = 0; shift < 32; shift += 8) {
    frame += static_cast<char>(static_cast<uint32_t>(payload.size()) >> shift);
  }
  return frame.append(payload);
}

void FrameReader::feed(std::string_view bytes) {
  // So each byte is moved once or twice.
  if (begin_ > buffer_.size() / 2) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_.append(bytes);
}

void FrameReader::finish() {
  if (!version_) noise_ += take(rest().size());
}

std::string FrameReader::take_noise() { return std::exchange(noise_, {}); }

std::string FrameReader::take(size_t bytes) {
  std::string taken(rest().substr(0, bytes));
  begin_ += taken.size();
  return taken;
}

void FrameReader::look_for_greeting() {
  while (!version_) {
    const size_t magic = rest().find(kMagic);
    if (magic == std::string_view::npos) {
      // The end may be the beginning of the greeting.
      const size_t kept = std::min(rest().size(), kMagic.size() - 1);
      noise_ += take(rest().size() - kept);
      return;
    }
    noise_ += take(magic);
    const size_t end = rest().substr(0, kLongestGreeting).find('\n');
    if (end == std::string_view::npos) {
      if (rest().size() < kLongestGreeting) return;
      noise_ += take(kMagic.size());  // it only looks like one
      continue;
    }
    std::string line = take(end + 1);
    line.erase(line.find_last_not_of("\r\n") + 1);
    version_ = line.substr(kMagic.size());
  }
}

std::optional<ReceivedFrame> FrameReader::next() {
  look_for_greeting();
  const std::string_view bytes = rest();
  if (!version_ || bytes.size() < kHeader) return std::nullopt;
  uint32_t size = 0;
  for (unsigned i = 0; i < 4; ++i) {
    size |= uint32_t{static_cast<unsigned char>(bytes[i + 1])} << (8 * i);
  }
  if (size > kMostFrameBytes) {
    throw std::length_error("a frame of " + std::to_string(size) + " bytes");
  }
  if (bytes.size() - kHeader < size) return std::nullopt;
  const auto kind = static_cast<RunMessage>(bytes[0]);
  begin_ += kHeader;
  return ReceivedFrame{.kind = kind, .payload = take(size)};
}

std::string to_json(const Preparation& preparation) {
  Json variables = Json::object();
  for (const auto& [name, value] : preparation.environment) {
    variables[as_characters(name)] = as_characters(value);
  }
  return Json{{"directory", as_characters(preparation.directory)},
              {"environment", variables},
              {"reserve_for", list_of(preparation.reserve_for)},
              {"only_this_host", preparation.only_this_host},
              {"lost_after_s", preparation.lost_after_s}}
      .dump();
}

Preparation parse_preparation(std::string_view text) {
  const Json json = Json::parse(text);
  Preparation preparation{.directory = as_bytes(json.at("directory")),
                          .environment = {},
                          .reserve_for = texts_of(json.at("reserve_for")),
                          .only_this_host = json.at("only_this_host").get<bool>(),
                          .lost_after_s = json.at("lost_after_s").get<double>()};
  for (const auto& [name, value] : json.at("environment").items()) {
    preparation.environment[as_bytes(name)] = as_bytes(value);
  }
  return preparation;
}

std::string to_json(const Readiness& readiness) {
  return Json{{"problem", as_characters(readiness.problem)},
              {"address", readiness.address},
              {"master_port", readiness.master_port},
              {"rendezvous_port", readiness.rendezvous_port}}
      .dump();
}

Readiness parse_readiness(std::string_view text) {
  const Json json = Json::parse(text);
  return {.problem = as_bytes(json.at("problem")),
          .address = json.at("address").get<std::string>(),
          .master_port = json.at("master_port").get<int>(),
          .rendezvous_port = json.at("rendezvous_port").get<int>()};
}

std::string to_json(const JobOptions& options) {
  Json json{{"ranks", options.ranks},
            {"command", list_of(options.command)},
            {"restart_count", options.restart_count},
            {"bind", options.bind},
            {"elastic", options.elastic},
            {"stdout_is_terminal", options.stdout_is_terminal},
            {"stderr_is_terminal", options.stderr_is_terminal}};
  if (options.part) {
    json["part"] = {{"first_rank", options.part->first_rank},
                    {"world_size", options.part->world_size},
                    {"host", options.part->host},
                    {"hosts", options.part->hosts},
                    {"master_address", options.part->master_address},
                    {"master_port", options.part->master_port},
                    {"rendezvous_port", options.part->rendezvous_port},
                    {"secret", options.part->secret}};
  }
  return json.dump();
}

JobOptions parse_job(std::string_view text) {
  const Json json = Json::parse(text);
  JobOptions options{.ranks = json.at("ranks").get<int>(),
                     .command = texts_of(json.at("command")),
                     .restart_count = json.at("restart_count").get<int>(),
                     .bind = json.at("bind").get<bool>(),
                     .elastic = json.at("elastic").get<bool>(),
                     .stdout_is_terminal = json.at("stdout_is_terminal").get<bool>(),
                     .stderr_is_terminal = json.at("stderr_is_terminal").get<bool>(),
                     .deadline = {},
                     .part = {}};
  if (!json.contains("part")) return options;
  const Json& part = json.at("part");
  options.part = JobPart{.first_rank = part.at("first_rank").get<int>(),
                         .world_size = part.at("world_size").get<int>(),
                         .host = part.at("host").get<int>(),
                         .hosts = part.at("hosts").get<int>(),
                         .master_address = part.at("master_address").get<std::string>(),
                         .master_port = part.at("master_port").get<int>(),
                         .rendezvous_port = part.at("rendezvous_port").get<int>(),
                         .secret = part.at("secret").get<std::string>()};
  return options;
}

std::string to_json(const RankFailure& failure) {
  return Json{{"rank", failure.rank}, {"killed", failure.killed}, {"status", failure.status}}
      .dump();
}

RankFailure parse_failure(std::string_view text) {
  const Json json = Json::parse(text);
  return {.rank = json.at("rank").get<int>(),
          .killed = json.at("killed").get<bool>(),
          .status = json.at("status").get<int>()};
}

std::string to_json(const JobResult& result) {
  return Json{{"exit_code", result.exit_code},
              {"rank_failed", result.rank_failed},
              {"succeeded", result.succeeded}}
      .dump();
}

JobResult parse_result(std::string_view text) {
  const Json json = Json::parse(text);
  return {.exit_code = json.at("exit_code").get<int>(),
          .rank_failed = json.at("rank_failed").get<bool>(),
          .succeeded = json.at("succeeded").get<int>()};
}

}  // namespace rondo::run
