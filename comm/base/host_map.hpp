// Which rank is on which host. What counts as one host is decided elsewhere (bootstrap/identity/host.hpp):
// its ranks share memory.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

namespace rondo::base {

/// Hosts are numbered from 0 in the order of their lowest ranks, so rank 0 is on host 0, and a host's
/// ranks are in ascending order. A value: equal maps compare equal.
class HostMap {
 public:
  /// No ranks.
  HostMap() = default;
  /// `labels[rank]`: equal exactly for ranks of one host.
  explicit HostMap(const std::vector<int>& labels)
      : host_of_(labels.size()), local_(labels.size()) {
    std::map<int, int> numbers;
    for (size_t rank = 0; rank < labels.size(); ++rank) {
      const auto [at, is_new] = numbers.try_emplace(labels[rank], static_cast<int>(numbers.size()));
      if (is_new) members_.emplace_back();
      auto& members = members_[static_cast<size_t>(at->second)];
      host_of_[rank] = at->second;
      local_[rank] = static_cast<int>(members.size());
      members.push_back(static_cast<int>(rank));
    }
  }
  static HostMap one_host(int ranks) {
    return HostMap(std::vector<int>(static_cast<size_t>(ranks), 0));
  }
  /// `hosts` times `ranks_each` consecutive ranks.
  static HostMap equal(int hosts, int ranks_each) {
    std::vector<int> labels;
    labels.reserve(static_cast<size_t>(hosts) * static_cast<size_t>(ranks_each));
    for (int host = 0; host < hosts; ++host) {
      labels.insert(labels.end(), static_cast<size_t>(ranks_each), host);
    }
    return HostMap(labels);
  }

  int ranks() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(members_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  /// The rank's place among the ranks of its host, from 0.
  int local_rank(int rank) const { return local_[static_cast<size_t>(rank)]; }
  /// Ascending.
  std::span<const int> ranks_on(int host) const { return members_[static_cast<size_t>(host)]; }
  bool share_host(int a, int b) const { return host_of(a) == host_of(b); }

  friend bool operator==(const HostMap& a, const HostMap& b) { return a.host_of_ == b.host_of_; }

 private:
  std::vector<int> host_of_, local_;       // [rank]
  std::vector<std::vector<int>> members_;  // [host]
};

}  // namespace rondo::base
