// The bytes that travel during bootstrap: the hello that opens a connection and the frames after
// it. Pure functions over bytes that may be garbage; no sockets here. Ranks of one host share one
// byte order, so structs go as they are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::comm {

//  Hello, 64 bytes
//   0  magic          8   kHelloMagic
//   8  version        4   kProtocolVersion
//  12  rank           4
//  16  world_size     4
//  20  pid            4   as the sender sees itself
//  24  limit_ms       4   how long the sender waits in all
//  28  left_ms        4   how much of that is left
//  32  secret_digest 32   BLAKE2b of the job's secret, also of an empty one
struct Hello {
  uint64_t magic;
  uint32_t version;
  uint32_t rank;
  uint32_t world_size;
  uint32_t pid;
  uint32_t limit_ms;
  uint32_t left_ms;
  std::array<unsigned char, 32> secret_digest;
};
static_assert(sizeof(Hello) == 64 && offsetof(Hello, secret_digest) == 32);

inline constexpr uint64_t kHelloMagic = 0x6f6c6c65486f6452;  // "RdoHello"
inline constexpr uint32_t kProtocolVersion = 1;

enum class HelloVerdict {
  kAccept,
  kGarbage,    // not rondo, or a rank that no rondo would send: dropped without a word
  kVersion,    // another release of rondo: refused with a reason
  kSecret,     // another job, or an intruder: refused with a reason
  kWorldSize,  // this job, but it contradicts us: everybody must hear of it
};

std::array<unsigned char, 32> digest_of(std::string_view secret);

/// Compares with what rank 0 of this job expects; the secret in constant time.
HelloVerdict judge(const Hello& hello, uint32_t world_size,
                   const std::array<unsigned char, 32>& digest);

enum class Kind : uint16_t {
  kWelcome = 1,  // rank 0: all have come; payload: pids by rank
  kError = 2,    // payload: code, text
  kBarrier = 3,
  kGather = 4,  // to rank 0: one blob; from rank 0: all of them
  kBroadcastFd = 5,
  kGatherFds = 6,  // to rank 0: 0 or 1 descriptors; from rank 0: payload: one byte per rank of a
                   // batch, 1: descriptor present
};
inline constexpr uint16_t kLastKind = 6;

/// "all_gather", for messages.
const char* to_string(Kind kind);

//  FrameHeader, 16 bytes, before each payload
//   0  magic     4
//   4  kind      2
//   6  fd_count  2   descriptors that were attached to the header's first byte
//   8  sequence  4   number of the operation, from 1; 0: errors
//  12  length    4   payload bytes
struct FrameHeader {
  uint32_t magic;
  Kind kind;
  uint16_t fd_count;
  uint32_t sequence;
  uint32_t length;
};
static_assert(sizeof(FrameHeader) == 16 && offsetof(FrameHeader, length) == 12);

inline constexpr uint32_t kFrameMagic = 0x4d465264;  // "dRFM"
inline constexpr size_t kMaxFdsPerFrame = 250;       // the kernel's limit per message is 253

struct Frame {
  Kind kind = Kind::kError;
  uint16_t fd_count = 0;
  uint32_t sequence = 0;
  std::string payload;
};

/// Cuts a byte stream into frames. A header is judged as soon as it is there, so that a wrong
/// length reserves nothing.
class FrameParser {
 public:
  explicit FrameParser(size_t max_payload_bytes) : max_payload_bytes_(max_payload_bytes) {}
  void feed(const char* bytes, size_t count) { buffer_.append(bytes, count); }
  /// The next whole frame, nothing while it is incomplete, or an error for what is no frame.
  Result<std::optional<Frame>> next();

 private:
  size_t max_payload_bytes_;
  std::string buffer_;
};

std::string pack_status(const Status& status);
/// Never ok; a payload that makes no sense gives a kBootstrap status that says so.
Status unpack_status(std::string_view payload);

std::string pack_blobs(const std::vector<std::string>& blobs);
std::optional<std::vector<std::string>> unpack_blobs(std::string_view payload, size_t count);

}  // namespace rondo::comm
