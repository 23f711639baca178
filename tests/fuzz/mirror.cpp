// What another host's agent sends: rows and errors. Input: option, host, bytes. What arrives is read
// as the watch and rondo-status read it.
#include "comm/board/mirror.hpp"

#include <cstring>

#include "tests/comm/engine/board_memory.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace rondo::fuzz {

using board::Mirror;
using board::TwoHosts;

void run(std::string_view input) {
  Reader reader(input);
  const auto option = reader.take<uint8_t>();
  const auto host = reader.take<int8_t>();
  TwoHosts two;
  const Mirror mirror(two.a);
  if (option % 2 != 0) {
    const auto error = mirror.unpack_error(reader.rest());
    if (!error.ok()) return;
    must(error->finder < 3, "an error is a rank's");
    must(error->status.code() <= Code::kDataError, "a code has a name");
    for (const char c : error->status.message()) {
      must(static_cast<unsigned char>(c) >= ' ' && c != 0x7f, "a text moves no cursor");
    }
    return mirror.decide(*error);
  }
  const Status understood = mirror.unpack_rows(reader.rest(), host);
  must(!understood.ok() || host == 1, "only rows of the other host are taken");
  must(!two.a.to_string().empty(), "a board has a text");
  must(two.a.state(1).waiting_for.load() < 3, "a rank waits for a rank");
}

std::vector<std::string> seeds() {
  TwoHosts two;
  for (uint64_t at = 1; at <= 5; ++at) {
    const auto collective = at == 5 ? Collective::kAllToAllV : Collective::kAllReduce;
    two.b.post(at, board::odd_call(at, collective), {}, {}, 0.5);
  }
  two.b.show_message(0, board::awaited_message(7));
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
