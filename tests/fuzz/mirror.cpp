// What another host's agent sends: rows and errors. Input: option, host, bytes. What arrives is read
// as the watch and rondo-status read it.
#include "comm/board/mirror.hpp"

#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/fuzz/fuzz.hpp"

namespace rondo::fuzz {
namespace {

using board::Board;
using board::Mirror;

constexpr int kRanks = 3;

/// Ranks 0 and 2 on host 0, rank 1 on host 1; each host's board as one of its ranks sees it.
struct TwoHosts {
  static std::byte* make() {
    const size_t bytes = (Board::bytes_needed(kRanks) + 127) / 128 * 128;
    void* const base = std::aligned_alloc(128, bytes);
    std::memset(base, 0, bytes);
    return static_cast<std::byte*>(base);
  }
  static board::Places places() {
    return {.hosts = base::HostMap(std::vector<int>{0, 1, 0}), .names = {"a", "b"}};
  }
  struct Free {
    void operator()(std::byte* base) const { std::free(base); }
  };
  std::unique_ptr<std::byte, Free> at_a{make()}, at_b{make()};
  Board a{at_a.get(), kRanks, 0, "world", places()};
  Board other{at_a.get(), kRanks, 2, "world", places()};
  Board b{at_b.get(), kRanks, 1, "world", places()};
};

}  // namespace

void run(std::string_view input) {
  Reader reader(input);
  const auto option = reader.take<uint8_t>();
  const auto host = reader.take<int8_t>();
  TwoHosts two;
  const Mirror mirror(two.a);
  if (option % 2 != 0) {
    const auto error = mirror.unpack_error(reader.rest());
    if (!error.ok()) return;
    must(error->finder < kRanks, "an error is a rank's");
    must(error->status.code() <= Code::kDataError, "a code has a name");
    for (const char c : error->status.message()) {
      must(static_cast<unsigned char>(c) >= ' ' && c != 0x7f, "a text moves no cursor");
    }
    return mirror.decide(*error);
  }
  const Status understood = mirror.unpack_rows(reader.rest(), host);
  must(!understood.ok() || host == 1, "only rows of the other host are taken");
  must(!two.a.to_string().empty(), "a board has a text");
}

std::vector<std::string> seeds() {
  TwoHosts two;
  for (uint64_t at = 1; at <= 5; ++at) {
    two.b.post(at,
               {.collective = at == 5 ? Collective::kAllToAllV : Collective::kAllReduce,
                .type = DataType::kBFloat16,
                .op = ReduceOp::kMax,
                .algorithm = Algorithm::kRing,
                .root = 2,
                .count = at,
                .layout = at * 77},
               {}, {}, 0.5);
  }
  two.b.show_message(0, {.sends = false,
                         .peer = kAnySource,
                         .type = DataType::kInt64,
                         .count = 12,
                         .tag = 5,
                         .moved_bytes = 40,
                         .since_ns = 7,
                         .behind = 3});
  two.b.show_messages(1);
  // As the bytes of a row that were found to do harm: an age, and a number of operations.
  std::string age = Mirror(two.b).pack_rows(1, 1), posted = age;
  const int64_t oldest = INT64_MIN;
  std::memcpy(age.data() + 48, &oldest, sizeof oldest);
  std::memset(posted.data() + 8, 0xff, 8);
  const std::string error = Mirror::pack_error({1, {Code::kMismatch, "rank 1 called"}});
  const std::string rows{'\0', '\1'};
  return {rows + Mirror(two.b).pack_rows(1, 64),
          rows + Mirror(two.b).pack_rows(1, 1),
          rows + age,
          rows + posted,
          std::string(2, '\1') + error,
          std::string(2, '\1') + Mirror::pack_error({1, {static_cast<Code>(99), "a code"}}),
          std::string(2, '\1') + Mirror::pack_error({1, {Code::kMismatch, "\x1b[2J"}})};
}

}  // namespace rondo::fuzz
