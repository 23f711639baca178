// Ids, and what the caller's all-gather returns. Input: option, then an id, or the blobs of 3 ranks.
#include "comm/bootstrap/identity/unique_id.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace rondo::fuzz {
namespace {

constexpr size_t kBlobBytes = 256;  // of unique_id.cpp, promised in communicator.hpp

std::string blob(std::string text) {
  text.resize(kBlobBytes);
  return text;
}

}  // namespace

void run(std::string_view input) {
  Reader reader(input);
  Config config;
  config.rank = 1;
  config.world_size = 3;
  if (reader.take<uint8_t>() % 2 == 0) {
    config.unique_id = std::string(reader.rest());
    comm::Identity identity;
    const Status status = comm::meet_by_unique_id(config, identity);
    if (!status.ok()) return;
    must(identity.rendezvous.find(config.unique_id) == std::string::npos, "an id is not shown");
    return must(identity.secret.ends_with(config.unique_id), "an id is a secret");
  }
  config.all_gather = [&](std::string_view) -> Result<std::vector<std::string>> {
    std::vector<std::string> blobs;
    while (!reader.is_empty() && blobs.size() < 5) {
      blobs.emplace_back(reader.take_bytes(kBlobBytes));
    }
    return blobs;
  };
  const auto place = comm::agree_on_unique_id(config, Status());
  if (place.ok()) must(!config.unique_id.empty(), "an agreement has an id");
}

std::vector<std::string> seeds() {
  const std::string id = make_unique_id().value();
  return {std::string(1, '\0') + id,
          "\1" + blob(id + " a 10.0.0.1 20000") + blob("ready a") + blob("ready b"),
          "\1" + blob(id + " a - 0") + blob("ready a") + blob("!rank 2 failed"),
          "\1" + blob(id + " a - 0") + blob("ready b")};
}

}  // namespace rondo::fuzz
