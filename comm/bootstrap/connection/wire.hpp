// The bytes of the bootstrap: the handshake that opens a connection and the frames after it. Pure
// functions over untrusted bytes; no sockets here. All hosts that rondo runs on are little-endian,
// so structs are sent as they are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap/connection/frame_mac.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

// The handshake: rank 0 sends a Challenge, the other rank answers with a Hello, and rank 0 with a
// frame of kind kProof. Each side's proof is an HMAC-SHA256 under the job's secret over all bytes
// before it, both nonces included: so nothing can be replayed, neither side shows the secret, and
// rank, world size, name and job cannot be changed on the way. The keys of the frames that follow on
// a TCP connection are derived from the same bytes.

//  Challenge, 48 bytes
//   0  magic     8   kChallengeMagic
//   8  version   4   kProtocolVersion
//  12  reserved  4   0
//  16  nonce    32
struct Challenge {
  uint64_t magic;
  uint32_t version;
  uint32_t reserved;
  Digest nonce;
};
static_assert(sizeof(Challenge) == 48 && offsetof(Challenge, nonce) == 16);

//  Hello, 200 bytes
//   0  magic          8   kHelloMagic
//   8  version        4   kProtocolVersion
//  12  rank           4
//  16  world_size     4
//  20  pid            4   in the sender's PID namespace
//  24  pid_namespace  8   of the sender (inode)
//  32  limit_ms       4   how long the sender waits in all
//  36  left_ms        4   how much of that is left
//  40  name          64   of the communicator, filled up with zeros
// 104  job           32   hash of the job's id; zeros: the launcher gives none
// 136  nonce         32
// 168  proof         32
struct Hello {
  uint64_t magic;
  uint32_t version;
  uint32_t rank;
  uint32_t world_size;
  uint32_t pid;
  uint64_t pid_namespace;
  uint32_t limit_ms;
  uint32_t left_ms;
  std::array<char, 64> name;
  Digest job;
  Digest nonce;
  Digest proof;
};
static_assert(sizeof(Hello) == 200 && offsetof(Hello, name) == 40 && offsetof(Hello, proof) == 168);

inline constexpr uint64_t kChallengeMagic = 0x65676e6c68436f52;  // "RoChlnge"
inline constexpr uint64_t kHelloMagic = 0x6f6c6c65486f6452;      // "RdoHello"
inline constexpr uint32_t kProtocolVersion = 6;

/// The key of the proofs; also for a job without a secret.
Digest key_of(std::string_view secret);
/// A key that only those who have `key` can derive.
Digest derive_key(const Digest& key, std::string_view purpose);

Challenge make_challenge();
std::array<char, 64> pack_name(std::string_view name);
std::string_view unpack_name(const std::array<char, 64>& packed);
/// Of an empty id: zeros.
Digest pack_job(std::string_view id);
/// Fills in the nonce and the proof. REQUIRES: the rest of the hello is complete.
void prove(Hello& hello, const Challenge& challenge, const Digest& key);
/// Rank 0's proof, after a hello that it accepts.
Digest counter_proof(const Hello& hello, const Challenge& challenge, const Digest& key);
/// The keys of the frames after rank 0's proof. REQUIRES: both sides have proved the secret.
FrameKeys frame_keys(const Hello& hello, const Challenge& challenge, const Digest& key,
                     bool is_rank_0);
/// In constant time.
bool equal(const Digest& a, const Digest& b);

enum class HelloVerdict {
  kAccept,
  kGarbage,    // not rondo, or a rank that no rondo sends: dropped without an answer
  kVersion,    // another release of rondo: refused with a reason
  kSecret,     // another secret, an intruder, or a recorded hello: refused with a reason
  kName,       // another job or communicator with this secret: it may try again
  kWorldSize,  // this job with another world size: ends the meeting for all
};

/// What rank 0 expects of a hello.
struct Expected {
  uint32_t world_size;
  std::array<char, 64> name;
  Digest job;
  Digest key;
};
HelloVerdict judge(const Hello& hello, const Challenge& challenge, const Expected& expected);
/// Of a hello's first `received` bytes: kGarbage or kVersion if they suffice to see it.
std::optional<HelloVerdict> judge_beginning(const Hello& hello, size_t received);
/// Of a challenge's first `received` bytes: kGarbage or kVersion if they suffice to see it.
std::optional<HelloVerdict> judge_beginning(const Challenge& challenge, size_t received);

/// Identifies a process of the host; the payload of a welcome.
struct ProcessId {
  uint64_t pid_namespace;  // inode
  int32_t pid;
  int32_t reserved = 0;
};
static_assert(sizeof(ProcessId) == 16);

/// 32 random digits.
std::string random_hex();

enum class FrameKind : uint16_t {
  kWelcome = 1,  // rank 0: all have joined; payload: ProcessId by rank
  kError = 2,    // payload: code, text
  kBarrier = 3,  // as kGather, to wait for each other
  kGather = 4,  // to rank 0: a rank's bytes and descriptors; from rank 0: those of all ranks, whose
  // descriptors, as many as there are room for; more follow in frames without payload
  kProof = 5,      // rank 0: it accepts the hello; payload: its counter_proof()
  kOtherName = 6,  // rank 0, after its proof: it is collecting the ranks of the communicator that
                   // the payload names
  kControl = 7,    // between hosts, after the meeting; the payload is opaque here
};
inline constexpr uint16_t kLastKind = 7;

/// "all_gather", for messages.
const char* to_string(FrameKind kind);

// A frame is a header and a payload. After the proofs, on TCP, the header is followed by its code of
// 16 bytes (FrameMac), and a payload that is not empty by another.

//  FrameHeader, 16 bytes
//   0  magic     4
//   4  kind      2
//   6  fd_count  2   descriptors that were attached to the header's first byte
//   8  sequence  4   number of the operation, from 1; 0: errors
//  12  length    4   payload bytes
struct FrameHeader {
  uint32_t magic;
  FrameKind kind;
  uint16_t fd_count;
  uint32_t sequence;
  uint32_t length;
};
static_assert(sizeof(FrameHeader) == 16 && offsetof(FrameHeader, length) == 12);

inline constexpr uint32_t kFrameMagic = 0x4d465264;  // "dRFM"
inline constexpr size_t kMaxFdsPerFrame = 250;       // the kernel's limit per message is 253

struct Frame {
  FrameKind kind = FrameKind::kError;
  uint16_t fd_count = 0;
  uint32_t sequence = 0;
  std::string payload;
};

/// Cuts a byte stream into frames. A header is checked as soon as it is complete, so that a wrong
/// length reserves no memory. The first error sticks.
class FrameParser {
 public:
  explicit FrameParser(size_t max_payload_bytes) : max_payload_bytes_(max_payload_bytes) {}
  /// From the next header on.
  void allow(size_t max_payload_bytes) { max_payload_bytes_ = max_payload_bytes; }
  /// From the next header on, every frame has codes under `key`.
  void authenticate(const Digest& key) { mac_.emplace(key); }
  void feed(const char* bytes, size_t count);
  /// The next whole frame; nothing while it is incomplete; kBootstrap if the bytes are not a frame,
  /// or not the one that the other side sent next.
  Result<std::optional<Frame>> next();

 private:
  Status check(const FrameHeader& header) const;
  Result<std::optional<Frame>> parse();
  std::string_view unread() const { return std::string_view(buffer_).substr(start_); }
  void consume(size_t bytes);
  Status tampered() const;

  size_t max_payload_bytes_;
  std::optional<FrameMac> mac_;  // nothing: frames have no codes
  std::string buffer_;
  size_t start_ = 0;  // of what next() has not returned
  Status failure_;
};

/// The most bytes that a rank may give to an exchange at once.
inline constexpr size_t kMaxBlobBytes = size_t{1} << 20;
/// Of a status' payload.
inline constexpr size_t kMaxStatusBytes = 4100;
std::string pack_status(const Status& status);
/// Never ok: a payload that cannot be parsed gives kBootstrap.
Status unpack_status(std::string_view payload);

}  // namespace rondo::comm
