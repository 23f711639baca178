// FrameParser over a stream as a stranger sends it, without and with codes; and what the frames
// carry. Input: options, size of the pieces, stream.
#include "comm/bootstrap/connection/wire.hpp"
#include "comm/bootstrap/session/rank_exchange.hpp"
#include "tests/comm/bootstrap/frame_helpers.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace rondo::fuzz {
namespace {

void check_payload(const std::string& payload, size_t ranks) {
  const Status status = comm::unpack_status(payload);
  must(!status.ok(), "a payload is never a success");
  must(status.message().size() <= comm::kMaxStatusBytes, "a text is bounded");
  const auto parcels = comm::unpack_parcels(payload, ranks);
  if (parcels) must(comm::pack_parcels(*parcels) == payload, "parcels are all of the payload");
}

}  // namespace

void run(std::string_view input) {
  Reader reader(input);
  const auto options = reader.take<uint8_t>();
  const size_t piece = reader.take<uint8_t>() + size_t{1};
  const size_t most = options & 2 ? 100 : 1 << 20;
  comm::FrameParser parser(most);
  if (options & 1) parser.authenticate(comm::key_of("s3cret"));
  size_t fed = 0, taken = 0;
  while (!reader.is_empty()) {
    const std::string_view bytes = reader.take_bytes(piece);
    parser.feed(bytes.data(), bytes.size());
    fed += bytes.size();
    while (true) {
      auto frame = parser.next();
      if (!frame.ok()) {
        must(frame.status().code() == Code::kBootstrap, "wrong bytes are kBootstrap");
        must(!parser.next().ok(), "an error sticks");
        return;
      }
      if (!*frame) break;
      must((*frame)->payload.size() <= most, "a payload is within its limit");
      must((*frame)->fd_count <= comm::kMaxFdsPerFrame, "descriptors are within their limit");
      taken += sizeof(comm::FrameHeader) + (*frame)->payload.size();
      must(taken <= fed, "no more comes out than went in");
      check_payload((*frame)->payload, options >> 4);
    }
  }
}

std::vector<std::string> seeds() {
  const std::string error = comm::pack_status({Code::kTimeout, "rank 3 did not come"});
  std::vector<comm::Parcel> three(3);
  three[0].bytes = "one";
  three[2].bytes = std::string(50, 'x');
  const std::string parcels = comm::pack_parcels(three);
  std::vector<std::string> seeds;
  for (const char options : {'\x30', '\x32'}) {
    seeds.push_back(std::string{options, '\x09'} + frame_bytes(comm::FrameKind::kError, 0, error) +
                    frame_bytes(comm::FrameKind::kGather, 1, parcels) +
                    frame_bytes(comm::FrameKind::kControl, 7, "payload"));
  }
  comm::FrameMac mac(comm::key_of("s3cret"));
  std::string stream{'\x31', '\xff'};
  stream += frame_with_codes(mac, comm::FrameKind::kError, 0, error);
  stream += frame_with_codes(mac, comm::FrameKind::kBarrier, 1, "");
  stream += frame_with_codes(mac, comm::FrameKind::kGather, 2, parcels);
  seeds.push_back(stream);
  return seeds;
}

}  // namespace rondo::fuzz
