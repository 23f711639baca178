// Packs and checks hellos and frames.
#include "comm/bootstrap/connection/wire.hpp"

#include <sodium.h>

#include <algorithm>
#include <cstring>

#include "comm/base/bytes.hpp"
#include "comm/base/printable.hpp"

namespace rondo::comm {
namespace {

Status not_a_frame(const std::string& what) {
  return Status(Code::kBootstrap, "received bytes that are no frame of rondo's bootstrap: " + what);
}

/// Over the purpose and two byte ranges of fixed sizes.
Digest hmac(const Digest& key, std::string_view purpose, const void* first, size_t first_bytes,
            const void* second, size_t second_bytes) {
  static_assert(sizeof(Digest) == crypto_auth_hmacsha256_BYTES);
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key.data(), key.size());
  const auto add = [&](const void* bytes, size_t count) {
    crypto_auth_hmacsha256_update(&state, static_cast<const unsigned char*>(bytes), count);
  };
  add(purpose.data(), purpose.size());
  add(first, first_bytes);
  add(second, second_bytes);
  Digest digest;
  crypto_auth_hmacsha256_final(&state, digest.data());
  return digest;
}

Digest proof_of(const Hello& hello, const Challenge& challenge, const Digest& key) {
  return hmac(key, "rondo: a rank", &challenge, sizeof challenge, &hello, offsetof(Hello, proof));
}

/// A rank without a launcher's variables may belong to the job of one that has them.
bool is_other_job(const Digest& a, const Digest& b) {
  return a != b && a != Digest{} && b != Digest{};
}

template <class Message>
std::optional<HelloVerdict> judge_beginning(const Message& message, uint64_t magic,
                                            size_t received) {
  if (std::memcmp(&message.magic, &magic, std::min(received, sizeof magic)) != 0) {
    return HelloVerdict::kGarbage;
  }
  const size_t version_end = offsetof(Message, version) + sizeof message.version;
  if (received >= version_end && message.version != kProtocolVersion) return HelloVerdict::kVersion;
  return std::nullopt;
}

}  // namespace

Digest key_of(std::string_view secret) {
  // Both sides come here first. It selects the functions for this CPU; the random numbers check for
  // themselves.
  static const int started = sodium_init();
  (void)started;
  Digest key{};
  crypto_generichash(key.data(), key.size(), reinterpret_cast<const unsigned char*>(secret.data()),
                     secret.size(), nullptr, 0);
  return key;
}

Digest derive_key(const Digest& key, std::string_view purpose) {
  return hmac(key, purpose, nullptr, 0, nullptr, 0);
}

std::string random_hex() {
  std::array<unsigned char, 16> bytes;
  randombytes_buf(bytes.data(), bytes.size());
  std::array<char, 33> text;
  return sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
}

Challenge make_challenge() {
  Challenge challenge{
      .magic = kChallengeMagic, .version = kProtocolVersion, .reserved = 0, .nonce = {}};
  randombytes_buf(challenge.nonce.data(), challenge.nonce.size());
  return challenge;
}

std::array<char, 64> pack_name(std::string_view name) {
  std::array<char, 64> packed{};
  name.copy(packed.data(), packed.size());
  return packed;
}

std::string_view unpack_name(const std::array<char, 64>& packed) {
  return {packed.data(), strnlen(packed.data(), packed.size())};
}

Digest pack_job(std::string_view id) { return id.empty() ? Digest{} : key_of(id); }

void prove(Hello& hello, const Challenge& challenge, const Digest& key) {
  randombytes_buf(hello.nonce.data(), hello.nonce.size());
  hello.proof = proof_of(hello, challenge, key);
}

Digest counter_proof(const Hello& hello, const Challenge& challenge, const Digest& key) {
  return hmac(key, "rondo: rank 0", &challenge, sizeof challenge, &hello, sizeof hello);
}

FrameKeys frame_keys(const Hello& hello, const Challenge& challenge, const Digest& key,
                     bool is_rank_0) {
  const auto derive = [&](std::string_view purpose) {
    return hmac(key, purpose, &challenge, sizeof challenge, &hello, sizeof hello);
  };
  const Digest to_rank_0 = derive("rondo: frames to rank 0");
  const Digest from_rank_0 = derive("rondo: frames from rank 0");
  if (is_rank_0) return {.send = from_rank_0, .receive = to_rank_0};
  return {.send = to_rank_0, .receive = from_rank_0};
}

bool equal(const Digest& a, const Digest& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

HelloVerdict judge(const Hello& hello, const Challenge& challenge, const Expected& expected) {
  if (hello.magic != kHelloMagic) return HelloVerdict::kGarbage;
  if (hello.version != kProtocolVersion) return HelloVerdict::kVersion;
  if (!equal(hello.proof, proof_of(hello, challenge, expected.key))) return HelloVerdict::kSecret;
  // identity_from() refuses a rank outside of its world, so no rondo sends this.
  if (hello.rank >= hello.world_size) return HelloVerdict::kGarbage;
  if (hello.name != expected.name || is_other_job(hello.job, expected.job)) {
    return HelloVerdict::kName;
  }
  if (hello.world_size != expected.world_size) return HelloVerdict::kWorldSize;
  return HelloVerdict::kAccept;
}

std::optional<HelloVerdict> judge_beginning(const Hello& hello, size_t received) {
  return judge_beginning(hello, kHelloMagic, received);
}

std::optional<HelloVerdict> judge_beginning(const Challenge& challenge, size_t received) {
  return judge_beginning(challenge, kChallengeMagic, received);
}

const char* to_string(FrameKind kind) {
  switch (kind) {
    case FrameKind::kWelcome:
      return "welcome";
    case FrameKind::kError:
      return "error";
    case FrameKind::kBarrier:
      return "barrier";
    case FrameKind::kGather:
      return "all_gather";
    case FrameKind::kProof:
      return "proof";
    case FrameKind::kOtherName:
      return "other_name";
    case FrameKind::kControl:
      return "control";
  }
  return "unknown";
}

Status FrameParser::check(const FrameHeader& header) const {
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
  return {};
}

Status FrameParser::tampered() const {
  return Status(Code::kBootstrap,
                "frame " + std::to_string(mac_->number()) +
                    " of the connection is not the one that the other side sent: its "
                    "authentication code is wrong, so it was altered, repeated, dropped or moved "
                    "on the way, by a program that interferes or a faulty device");
}

void FrameParser::feed(const char* bytes, size_t count) {
  buffer_.erase(0, start_);
  start_ = 0;
  buffer_.append(bytes, count);
}

void FrameParser::consume(size_t bytes) {
  constexpr size_t kKeptBytes =
      1 << 17;  // a larger buffer was for a large payload, which is seldom
  start_ += bytes;
  if (start_ < buffer_.size()) return;
  start_ = 0;
  buffer_.clear();
  if (buffer_.capacity() > kKeptBytes) buffer_ = {};
}

Result<std::optional<Frame>> FrameParser::next() {
  RONDO_TRY(failure_);
  auto frame = parse();
  failure_ = frame.status();
  return frame;
}

Result<std::optional<Frame>> FrameParser::parse() {
  const size_t tag_bytes = mac_ ? sizeof(Tag) : 0;
  const std::string_view bytes = unread();
  if (bytes.size() < sizeof(FrameHeader) + tag_bytes) return std::optional<Frame>();
  const auto header = base::ByteReader(bytes).get<FrameHeader>();
  if (mac_ && !FrameMac::equal(bytes.data() + sizeof header, mac_->of_header(header))) {
    return tampered();
  }
  RONDO_TRY(check(header));
  const std::string_view rest = bytes.substr(sizeof header + tag_bytes);
  const size_t rest_bytes = header.length + (header.length > 0 ? tag_bytes : 0);
  if (rest.size() < rest_bytes) return std::optional<Frame>();
  const std::string_view payload = rest.substr(0, header.length);
  if (mac_ && header.length > 0 &&
      !FrameMac::equal(payload.data() + payload.size(), mac_->of_payload(header, payload))) {
    return tampered();
  }
  Frame frame{.kind = header.kind,
              .fd_count = header.fd_count,
              .sequence = header.sequence,
              .payload = std::string(payload)};
  if (mac_) mac_->advance();
  consume(sizeof header + tag_bytes + rest_bytes);
  return std::optional<Frame>(std::move(frame));
}

constexpr size_t kMaxText = kMaxStatusBytes - sizeof(int32_t);

std::string pack_status(const Status& status) {
  base::ByteWriter packed;
  packed.put(static_cast<int32_t>(status.code()));
  return packed.take().append(base::whole_characters(status.message(), kMaxText));
}

Status unpack_status(std::string_view payload) {
  base::ByteReader reader(payload);
  const auto code = reader.get<int32_t>();
  if (code <= 0 || code > static_cast<int32_t>(Code::kDataError)) {
    return Status(Code::kBootstrap, "a rank failed and sent no reason that makes sense");
  }
  return Status(static_cast<Code>(code), base::printable(reader.left(), kMaxText));
}

}  // namespace rondo::comm
