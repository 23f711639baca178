// See facts.hpp.
#include "comm/setup/facts.hpp"

#include <random>
#include <string>
#include <type_traits>

#include "comm/base/bytes.hpp"
#include "comm/topology/cpus.hpp"
#include "comm/tuner/default_profile.hpp"
#include "comm/tuner/profile_file.hpp"
#include "kernels/host/cpu_mask.hpp"
#include "transport/memory/arena.hpp"

namespace rondo::comm {
namespace {

constexpr uint32_t kVersion = 14;
static_assert(std::is_trivially_copyable_v<RankFacts>);

bool names_file(const std::string& links) { return !links.empty() && links != tuner::kBuiltIn; }

RankFacts settings_of(const Config& config, bool links_named) {
  RankFacts own{};
  own.version = kVersion;
  own.channels = config.channels;
  own.max_channels = config.max_channels;
  own.slots = static_cast<uint32_t>(config.slots);
  own.algorithm = static_cast<uint32_t>(config.algorithm);
  own.reproducible = config.reproducible ? 1 : 0;
  own.wrapping_averages = config.wrapping_averages ? 1 : 0;
  own.links_named = links_named ? 1 : 0;
  own.slot_bytes = config.slot_bytes;
  std::random_device random;
  own.token = static_cast<uint64_t>(random()) << 32 | random();
  config.pace.copy(own.pace, kPaceChars - 1);
  own.device = config.device;
  own.granted_cpus = topology::granted_cpus();
  own.probe = transport::shm::own_probe();
  return own;
}

}  // namespace

Result<std::vector<Parcel>> exchange_facts(RankExchange& ranks, const Config& config,
                                           const std::optional<AgreedLinks>& inherited,
                                           const device::DeviceFacts* gpu) {
  const auto arena =
      RONDO_TRY(transport::export_arena(static_cast<int>(ranks.local_ranks().size())));
  const bool has_arena = arena.fd >= 0;
  FullFacts own{
      .rank = settings_of(config, inherited ? inherited->named : names_file(config.links)),
      .cpu_mask = kernels::allowed_cpus(),
      .links = {}};
  own.rank.arena_bytes = has_arena ? arena.bytes : 0;
  if (gpu != nullptr) own.rank.gpu = *gpu;
  if (ranks.rank() == 0) {
    own.links =
        tuner::to_json_text(inherited ? inherited->profile : RONDO_TRY(host_profile(config.links)));
  }
  return ranks.all_gather(pack(own), {&arena.fd, has_arena ? size_t{1} : 0});
}

std::string pack(const FullFacts& facts) {
  base::ByteWriter packed;
  packed.put(facts.rank).put_text(facts.cpu_mask).put_text(facts.links);
  return packed.take();
}

std::optional<FullFacts> unpack_facts(std::string_view bytes) {
  base::ByteReader reader(bytes);
  FullFacts facts{.rank = reader.get<RankFacts>(), .cpu_mask = {}, .links = {}};
  facts.cpu_mask = reader.get_text();
  facts.links = reader.get_text();
  if (!reader.is_done() || facts.rank.version != kVersion) return std::nullopt;
  return facts;
}

}  // namespace rondo::comm
