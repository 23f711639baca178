// See operation.hpp.
#include "explain/operation.hpp"

#include <algorithm>

#include "comm/tuner/profile_file.hpp"

namespace rondo::explain {

schedule::SharedHosts hosts_of(int ranks, int per_host) {
  if (per_host >= ranks) return nullptr;
  std::vector<int> labels;
  labels.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) labels.push_back(rank / per_host);
  return std::make_shared<const base::HostMap>(labels);
}

Result<tuner::LinkProfile> links_of(const PageRequest& request, int ranks, int per_host) {
  tuner::LinkProfile links = tuner::shared_memory_profile();
  if (request.has("profile")) {
    const std::string text = RONDO_TRY(request.text("profile", tuner::kMaxProfileBytes));
    links = RONDO_TRY(tuner::parse_profile(text, "the profile"));
  }
  if (request.has("latency_us")) {
    links.wire_alpha_us = RONDO_TRY(request.number("latency_us", 0, 1e7));
    links.corrections.clear();
  }
  if (request.has("bytes_per_second")) {
    links.wire_us_per_byte = 1e6 / RONDO_TRY(request.number("bytes_per_second", 1e3, 1e15));
    links.wire_both_us_per_byte = 0;
    links.corrections.clear();
  }
  const int here = std::min(ranks, per_host);
  tuner::RanksOnHost where{.ranks = here, .ranks_elsewhere = ranks - here, .cores = here};
  where.cores = static_cast<int>(RONDO_TRY(request.whole("cores", 1, kMostPricedRanks, here)));
  if (request.has("pace_bytes_per_second")) {
    where.wire.emplace();
    where.wire->bytes_per_second = RONDO_TRY(request.number("pace_bytes_per_second", 1e3, 1e15));
    where.wire->latency_seconds = RONDO_TRY(request.number("pace_latency_us", 0, 1e7, 0.0)) * 1e-6;
  }
  return tuner::profile_of(where, links);
}

uint64_t argument_bytes(Collective collective, int ranks, uint64_t size) {
  const internal::Form form = internal::form_of(collective);
  const bool blocks = form.in == internal::Holds::kEach || form.out == internal::Holds::kEach;
  return blocks ? size / static_cast<uint64_t>(ranks) : size;
}

tuner::Available available_of(bool library_memory) {
  return {.publish = true,
          .references = library_memory,
          .signals = true,
          .process_copy = true,
          .offers = true};
}

Result<plan::PlanRequest> operation_of(const PageRequest& request, int most_ranks) {
  plan::PlanRequest r;
  r.collective = RONDO_TRY(request.one_of<Collective>("collective", kCollectiveNames));
  r.algorithm = RONDO_TRY(
      request.one_of<Algorithm>("algorithm", kAlgorithmNames, std::optional(Algorithm::kAuto)));
  r.type = RONDO_TRY(
      request.one_of<DataType>("type", kDataTypeNames, std::optional(DataType::kFloat32)));
  r.ranks = static_cast<int>(RONDO_TRY(request.whole("ranks", 1, most_ranks)));
  const auto per_host =
      static_cast<int>(RONDO_TRY(request.whole("per_host", 1, most_ranks, most_ranks)));
  r.root = static_cast<int>(RONDO_TRY(request.whole("root", 0, most_ranks - 1, 0)));
  if (internal::is_rooted(r.collective) && r.root >= r.ranks) {
    return request.refuse("root", "is " + std::to_string(r.root) + ", and must be below " +
                                      std::to_string(r.ranks) + ", the number of ranks");
  }
  r.size_bytes =
      static_cast<uint64_t>(RONDO_TRY(request.whole("size_bytes", 0, int64_t{1} << 40, 0)));
  r.hosts = hosts_of(r.ranks, per_host);
  r.available = available_of(RONDO_TRY(request.truth("library_memory", false)));
  r.links = RONDO_TRY(links_of(request, r.ranks, per_host));
  return r;
}

}  // namespace rondo::explain
