// See host_list.hpp.
#include "comm/launch/host_list.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "comm/base/limits.hpp"
#include "comm/base/printable.hpp"
#include "comm/base/refuse.hpp"
#include "comm/base/variables.hpp"

namespace rondo::run {
namespace {

constexpr size_t kMostShown = 255;  // bytes of a word in a message

std::string printable(const std::string& word) { return base::printable(word, kMostShown); }
std::string shown(const std::string& word) { return "\"" + printable(word) + "\""; }

/// The number of ranks of one host; `who` is for the error.
Result<int> parse_ranks(const std::string& who, const std::string& text) {
  const auto number = comm::parse_number("", text);
  if (number.ok() && *number >= 1 && *number <= base::kMaxRanks) return number;
  return comm::refuse("the number of ranks of " + who + " is \"" + printable(text) +
                      "\": it must be from 1 to " + std::to_string(base::kMaxRanks));
}

/// "host:2", "[fd77::1]:2", "fd77::1", "host".
Result<JobHost> parse_host(const std::string& word) {
  JobHost host{.name = word, .without = 1};
  std::optional<std::string> number;
  const size_t colon = word.rfind(':');
  const bool is_v6 = std::count(word.begin(), word.end(), ':') > 1;
  const size_t close = word.find(']');
  if (word.starts_with('[')) {
    if (close == std::string::npos) return comm::refuse(shown(word) + " lacks a ]");
    host.name = word.substr(1, close - 1);
    if (close + 1 < word.size()) {
      if (word[close + 1] != ':') return comm::refuse(shown(word) + " is no host");
      number = word.substr(close + 2);
    }
  } else if (colon != std::string::npos && !is_v6) {
    host.name = word.substr(0, colon);
    number = word.substr(colon + 1);
  }
  // An agent must not take it for one of its own flags, nor a terminal for a command.
  if (host.name.empty() || host.name.starts_with('-') || printable(host.name) != host.name) {
    return comm::refuse(shown(word) + " names no host");
  }
  if (number) {
    host.ranks = RONDO_TRY(parse_ranks("host " + host.name, *number));
    host.without = 0;
  }
  return host;
}

void add(std::vector<JobHost>& hosts, const JobHost& host) {
  const auto same = std::find_if(hosts.begin(), hosts.end(),
                                 [&](const JobHost& each) { return each.name == host.name; });
  if (same == hosts.end()) {
    hosts.push_back(host);
  } else {
    same->ranks += host.ranks;
    same->without += host.without;
  }
}

/// What follows the host in a hostfile's line.
Status read_attribute(const std::string& word, JobHost& host) {
  if (word.starts_with("max_slots=") || word.starts_with("max-slots=")) return {};
  const size_t equals = word.find('=');
  if (equals != std::string::npos && word.substr(0, equals) != "slots") {
    return comm::refuse(shown(word) + " is unknown; give HOST, HOST:2, HOST 2 or HOST slots=2");
  }
  const std::string who = "host " + host.name;
  if (host.without == 0) {
    return comm::refuse("the number of ranks of " + who + " is given twice, at last as " +
                        shown(word));
  }
  host.ranks =
      RONDO_TRY(parse_ranks(who, equals == std::string::npos ? word : word.substr(equals + 1)));
  host.without = 0;
  return {};
}

}  // namespace

Result<std::vector<JobHost>> parse_hosts(const std::string& list) {
  std::vector<JobHost> hosts;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    add(hosts, RONDO_TRY(parse_host(word)));
  }
  if (hosts.empty()) return comm::refuse("it names no host");
  return hosts;
}

Result<std::vector<JobHost>> parse_hostfile(std::string_view text, const std::string& name) {
  std::vector<JobHost> hosts;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = name + ":" + std::to_string(++number) + ": ";
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) continue;
    auto host = parse_host(word);
    Status status = host.status();
    while (status.ok() && words >> word) status = read_attribute(word, *host);
    if (!status.ok()) return comm::refuse(where + status.message());
    add(hosts, *host);
  }
  if (hosts.empty()) return comm::refuse(name + " names no host");
  return hosts;
}

Result<std::vector<JobHost>> place_ranks(std::vector<JobHost> hosts, const JobRanks& ranks) {
  int slots = 0, shares = 0;
  for (const JobHost& host : hosts) {
    slots += host.ranks;
    shares += host.without;
  }
  if (ranks.total && shares == 0 && *ranks.total > slots) {
    return comm::refuse(
        fmt::format("-n is {}, but the hosts have {} ranks together: give them more, "
                    "or leave out their numbers",
                    *ranks.total, slots));
  }
  int left = ranks.total.value_or(slots);
  for (JobHost& host : hosts) left -= host.ranks = std::min(host.ranks, left);
  for (JobHost& host : hosts) {
    for (; host.without > 0; --host.without, --shares) {
      // The rest, shared by what is left of the list, rounded up.
      const int share = ranks.total ? (left + shares - 1) / shares : ranks.per_host.value_or(1);
      host.ranks += share;
      left -= share;
    }
  }
  std::erase_if(hosts, [](const JobHost& host) { return host.ranks == 0; });
  return hosts;
}

}  // namespace rondo::run
