// See host_list.hpp.
#include "comm/launch/host_list.hpp"

#include <algorithm>
#include <optional>
#include <sstream>

#include "comm/base/limits.hpp"
#include "comm/base/refuse.hpp"
#include "comm/bootstrap/launchers.hpp"

namespace rondo::run {
namespace {

/// "host:2", "[fd77::1]:2", "fd77::1", "host".
Result<JobHost> parse_host(const std::string& word, int ranks) {
  JobHost host{.name = word, .ranks = ranks};
  std::optional<std::string> number;
  const size_t colon = word.rfind(':');
  const bool is_v6 = std::count(word.begin(), word.end(), ':') > 1;
  const size_t close = word.find(']');
  if (word.starts_with('[')) {
    if (close == std::string::npos) return comm::refuse("\"" + word + "\" lacks a ]");
    host.name = word.substr(1, close - 1);
    if (close + 1 < word.size()) {
      if (word[close + 1] != ':') return comm::refuse("\"" + word + "\" is no host");
      number = word.substr(close + 2);
    }
  } else if (colon != std::string::npos && !is_v6) {
    host.name = word.substr(0, colon);
    number = word.substr(colon + 1);
  }
  if (number) {
    auto value = comm::parse_number("the number of ranks in \"" + word + "\"", *number);
    if (!value.ok()) return value.status();
    host.ranks = *value;
  }
  // An agent must not take it for one of its own flags.
  if (host.name.empty() || host.name.starts_with('-')) {
    return comm::refuse("\"" + word + "\" names no host");
  }
  return host;
}

Status check_ranks(const JobHost& host) {
  if (host.ranks >= 1 && host.ranks <= base::kMaxRanks) return {};
  return comm::refuse("host " + host.name + " gets " + std::to_string(host.ranks) +
                      " ranks: it must be from 1 to " + std::to_string(base::kMaxRanks));
}

void add(std::vector<JobHost>& hosts, const JobHost& host) {
  const auto same = std::find_if(hosts.begin(), hosts.end(),
                                 [&](const JobHost& each) { return each.name == host.name; });
  if (same == hosts.end()) {
    hosts.push_back(host);
  } else {
    same->ranks += host.ranks;
  }
}

/// What follows the host in a hostfile's line.
Status read_attribute(const std::string& word, JobHost& host) {
  if (word.starts_with("max_slots=") || word.starts_with("max-slots=")) return {};
  const size_t equals = word.find('=');
  if (equals != std::string::npos && word.substr(0, equals) != "slots") {
    return comm::refuse("\"" + word + "\" is unknown; give HOST, HOST:2, HOST 2 or HOST slots=2");
  }
  auto value = comm::parse_number("the number of ranks",
                                  equals == std::string::npos ? word : word.substr(equals + 1));
  if (value.ok()) host.ranks = *value;
  return value.status();
}

}  // namespace

Result<std::vector<JobHost>> parse_hosts(const std::string& list, int ranks_by_default) {
  std::vector<JobHost> hosts;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    auto host = parse_host(word, ranks_by_default);
    if (!host.ok()) return host.status();
    RONDO_TRY(check_ranks(*host));
    add(hosts, *host);
  }
  if (hosts.empty()) return comm::refuse("it names no host");
  return hosts;
}

Result<std::vector<JobHost>> parse_hostfile(std::string_view text, const std::string& name,
                                            int ranks_by_default) {
  std::vector<JobHost> hosts;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = name + ":" + std::to_string(++number) + ": ";
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) continue;
    auto host = parse_host(word, ranks_by_default);
    Status status = host.status();
    while (status.ok() && words >> word) status = read_attribute(word, *host);
    if (status.ok()) status = check_ranks(*host);
    if (!status.ok()) return comm::refuse(where + status.message());
    add(hosts, *host);
  }
  if (hosts.empty()) return comm::refuse(name + " names no host");
  return hosts;
}

}  // namespace rondo::run
