// See frames.hpp.
#include "comm/launch/frames.hpp"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "rondo/rondo.h"

/// Absent: null.
template <class T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& to, const std::optional<T>& value) {
    if (value) to = *value;
  }
  static void from_json(const json& from, std::optional<T>& value) {
    if (!from.is_null()) value = from.get<T>();
  }
};

namespace rondo::run {
namespace {

using nlohmann::json;

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

std::string as_bytes(std::string_view text) {
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

void make_characters(json& value) {
  if (value.is_string()) value = as_characters(value.get_ref<const std::string&>());
  if (!value.is_structured()) return;
  for (json& part : value) make_characters(part);
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

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Preparation, directory, environment, reserve_for, only_this_host,
                                   lost_after_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Readiness, problem, address, master_port, rendezvous_port)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobPart, first_rank, world_size, host, hosts, master_address,
                                   master_port, rendezvous_port, secret)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobOptions, ranks, command, restart_count, bind, elastic,
                                   stdout_is_terminal, stderr_is_terminal, part)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFailure, rank, killed, status)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobResult, exit_code, rank_failed, succeeded)

template <class Message>
std::string encode(const Message& message) {
  json all = message;
  make_characters(all);
  return all.dump();
}

template <class Message>
Message decode(std::string_view text) {
  const auto make_bytes = [](int /*depth*/, json::parse_event_t /*event*/, json& parsed) {
    if (parsed.is_string()) parsed = as_bytes(parsed.get_ref<const std::string&>());
    return true;
  };
  const json all = json::parse(text, make_bytes);
  return all.template get<Message>();
}

template std::string encode(const Preparation&);
template std::string encode(const Readiness&);
template std::string encode(const JobOptions&);
template std::string encode(const RankFailure&);
template std::string encode(const JobResult&);
template Preparation decode(std::string_view);
template Readiness decode(std::string_view);
template JobOptions decode(std::string_view);
template RankFailure decode(std::string_view);
template JobResult decode(std::string_view);

}  // namespace rondo::run
