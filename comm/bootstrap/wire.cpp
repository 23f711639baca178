// Packing and judging of hellos and frames.
#include "comm/bootstrap/wire.hpp"

#include <sodium.h>

#include <algorithm>
#include <cstring>

namespace rondo::comm {
namespace {

Status not_a_frame(const std::string& what) {
  return Status(Code::kBootstrap, "received bytes that are no frame of rondo's bootstrap: " + what);
}

}  // namespace

std::array<unsigned char, 32> digest_of(std::string_view secret) {
  std::array<unsigned char, 32> digest{};
  crypto_generichash(digest.data(), digest.size(),
                     reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), nullptr,
                     0);
  return digest;
}

HelloVerdict judge(const Hello& hello, uint32_t world_size,
                   const std::array<unsigned char, 32>& digest) {
  if (hello.magic != kHelloMagic) return HelloVerdict::kGarbage;
  if (hello.version != kProtocolVersion) return HelloVerdict::kVersion;
  if (sodium_memcmp(hello.secret_digest.data(), digest.data(), digest.size()) != 0) {
    return HelloVerdict::kSecret;
  }
  // identity_from() lets no rank out of its own world, so this is not a rank that is merely
  // misconfigured.
  if (hello.rank >= hello.world_size) return HelloVerdict::kGarbage;
  if (hello.world_size != world_size) return HelloVerdict::kWorldSize;
  return HelloVerdict::kAccept;
}

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::kWelcome:
      return "welcome";
    case Kind::kError:
      return "error";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kGather:
      return "all_gather";
    case Kind::kBroadcastFd:
      return "broadcast_fd";
    case Kind::kGatherFds:
      return "all_gather_fds";
  }
  return "unknown";
}

Result<std::optional<Frame>> FrameParser::next() {
  FrameHeader header;
  if (buffer_.size() < sizeof header) return std::optional<Frame>();
  std::memcpy(&header, buffer_.data(), sizeof header);
  const auto kind = static_cast<uint16_t>(header.kind);
  if (header.magic != kFrameMagic) return not_a_frame("wrong magic");
  if (kind == 0 || kind > kLastKind) return not_a_frame("kind " + std::to_string(kind));
  if (header.fd_count > kMaxFdsPerFrame) {
    return not_a_frame(std::to_string(header.fd_count) + " descriptors");
  }
  if (header.length > max_payload_bytes_) {
    return not_a_frame("a payload of " + std::to_string(header.length) + " bytes, at most " +
                       std::to_string(max_payload_bytes_) + " are allowed");
  }
  if (buffer_.size() < sizeof header + header.length) return std::optional<Frame>();
  Frame frame{.kind = header.kind,
              .fd_count = header.fd_count,
              .sequence = header.sequence,
              .payload = buffer_.substr(sizeof header, header.length)};
  buffer_.erase(0, sizeof header + header.length);
  return std::optional<Frame>(std::move(frame));
}

std::string pack_status(const Status& status) {
  constexpr size_t kMaxText = 4096;
  const auto code = static_cast<int32_t>(status.code());
  std::string packed(reinterpret_cast<const char*>(&code), sizeof code);
  return packed + status.message().substr(0, kMaxText);
}

Status unpack_status(std::string_view payload) {
  int32_t code = 0;
  if (payload.size() >= sizeof code) std::memcpy(&code, payload.data(), sizeof code);
  if (code <= 0 || code > static_cast<int32_t>(Code::kDataError)) {
    return Status(Code::kBootstrap, "a rank failed and sent no reason that makes sense");
  }
  return Status(static_cast<Code>(code), std::string(payload.substr(sizeof code)));
}

std::string pack_blobs(const std::vector<std::string>& blobs) {
  std::string packed;
  for (const std::string& blob : blobs) {
    const auto length = static_cast<uint32_t>(blob.size());
    packed.append(reinterpret_cast<const char*>(&length), sizeof length).append(blob);
  }
  return packed;
}

std::optional<std::vector<std::string>> unpack_blobs(std::string_view payload, size_t count) {
  std::vector<std::string> blobs;
  for (size_t i = 0; i < count; ++i) {
    uint32_t length = 0;
    if (payload.size() < sizeof length) return std::nullopt;
    std::memcpy(&length, payload.data(), sizeof length);
    payload.remove_prefix(sizeof length);
    if (payload.size() < length) return std::nullopt;
    blobs.emplace_back(payload.substr(0, length));
    payload.remove_prefix(length);
  }
  if (!payload.empty()) return std::nullopt;
  return blobs;
}

}  // namespace rondo::comm
