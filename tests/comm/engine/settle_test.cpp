// What ranks decide from each other's facts: all alike, and by rank 0's settings.
#include "comm/setup/settle.hpp"

#include <string>
#include <vector>

#include "tests/harness/catch.hpp"

namespace rondo::comm {
namespace {

/// Of ranks that say what this process would.
std::vector<FullFacts> facts_of(int ranks) {
  class Alone : public RankExchange {
   public:
    int rank() const override { return 0; }
    const base::HostMap& hosts() const override { return hosts_; }
    Result<std::vector<Parcel>> all_gather(std::string_view bytes, std::span<const int>) override {
      std::vector<Parcel> all(1);
      all[0].bytes = bytes;
      return all;
    }

   private:
    base::HostMap hosts_ = base::HostMap::one_host(1);
  } alone;
  Config config;
  config.channels = 3;
  const auto said = exchange_facts(alone, config, {}, nullptr);
  REQUIRE(said.ok());
  return std::vector<FullFacts>(static_cast<size_t>(ranks), unpack_facts((*said)[0].bytes).value());
}

Result<Agreement> settle_on(const base::HostMap& hosts, const std::vector<FullFacts>& facts,
                            int rank, Config& config) {
  std::vector<Parcel> said(facts.size());
  for (size_t r = 0; r < facts.size(); ++r) said[r].bytes = pack(facts[r]);
  return settle(said, hosts, rank, config);
}

void check_refused(const std::vector<FullFacts>& facts, Code code, const std::string& says) {
  for (int rank = 0; rank < static_cast<int>(facts.size()); ++rank) {
    Config config;
    const auto settled = settle_on(base::HostMap::one_host(3), facts, rank, config);
    CHECK(settled.status().code() == code);
    INFO(settled.status().message());
    CHECK(settled.status().message().find(says) != std::string::npos);
  }
}

TEST_CASE("ranks of another version, or with a device on some only, do not settle") {
  std::vector<FullFacts> facts = facts_of(3);
  facts[2].rank.device = 1;
  check_refused(facts, Code::kInvalidArgument, "Config::device is -1 on rank 0 and 1 on rank 2");
  ++facts[1].rank.version;
  check_refused(facts, Code::kBootstrap, "rank 1 runs another version of rondo");
  std::vector<Parcel> said(2);
  said[0].bytes = pack(facts[0]);
  Config config;
  for (const size_t cut : {size_t{0}, size_t{1}, sizeof(RankFacts), said[0].bytes.size() - 1}) {
    said[1].bytes = said[0].bytes.substr(0, cut);
    CHECK(settle(said, base::HostMap::one_host(2), 0, config).status().code() == Code::kBootstrap);
  }
}

TEST_CASE("rank 0's settings hold for all, and the busiest host decides the profile") {
  const base::HostMap hosts(std::vector<int>{0, 1, 1, 1});
  std::vector<FullFacts> facts = facts_of(4);
  facts[0].rank.slots = 7;
  facts[1].rank.granted_cpus = 1;  // of its host's first rank
  facts[3].rank.channels = 9;
  facts[3].links = "not read";
  for (int rank = 0; rank < 4; ++rank) {
    Config config;
    const auto settled = settle_on(hosts, facts, rank, config);
    REQUIRE(settled.ok());
    CHECK(config.channels == 3);
    CHECK(config.slots == 7);
    CHECK(settled->sizes.depth == 7);
    CHECK(settled->token() == facts[0].rank.token);
    CHECK(settled->sizes.local_ranks == (rank == 0 ? 1 : 3));
    if (rank > 0) CHECK(settled->sizes.cpus == 1);
    CHECK(settled->sizes.fifos.ring_bytes == 0);  // three ranks take turns on a CPU
  }
}

}  // namespace
}  // namespace rondo::comm
