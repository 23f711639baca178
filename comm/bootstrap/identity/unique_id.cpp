// A unique id is "rondo2-", "ADDRESS:PORT-" unless its maker's host has no interface for others, and 64
// random hexadecimal digits. Without an address the ranks meet in a directory, whose name is a hash
// of the id, so that the file system does not show it.
#include "comm/bootstrap/identity/unique_id.hpp"

#include <netinet/in.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "comm/base/guarded.hpp"
#include "comm/base/refuse.hpp"
#include "comm/bootstrap/connection/closed_in_children.hpp"
#include "comm/bootstrap/connection/interface.hpp"
#include "comm/bootstrap/connection/tcp.hpp"
#include "comm/bootstrap/connection/wire.hpp"
#include "comm/bootstrap/identity/host.hpp"

namespace rondo {

using comm::refuse;
using transport::UniqueFd;

namespace {

constexpr std::string_view kPrefix = "rondo2-";
constexpr size_t kRandomBytes = 32, kBareIdChars = kPrefix.size() + 2 * kRandomBytes;
constexpr size_t kLongestPlace = INET6_ADDRSTRLEN + std::string_view("[]:65535-").size();
static_assert(kBareIdChars + kLongestPlace <= kUniqueIdChars);

// A rank's blob in Config::all_gather: words separated by spaces, filled up with zeros. From rank 0 the
// id, its host, and where it listens for other hosts, address and port ("-" and 0: nowhere); from
// the others kReady and their host; or kRefusal and this rank's error.
constexpr size_t kBlobBytes = 256;  // promised in communicator.hpp
constexpr std::string_view kReady = "ready";
constexpr char kRefusal = '!';

std::string hex(const unsigned char* bytes, size_t count) {
  std::string text(2 * count + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes, count);
  text.pop_back();
  return text;
}

/// "ADDRESS:PORT" of an id, empty: it has none; nothing: it is no id.
std::optional<std::string_view> place_in(std::string_view id) {
  if (id.size() < kBareIdChars || !id.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = id.substr(id.size() - 2 * kRandomBytes);
  std::string_view place = id.substr(kPrefix.size(), id.size() - kBareIdChars);
  if (digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  if (place.empty()) return place;
  if (!place.ends_with('-')) return std::nullopt;
  place.remove_suffix(1);
  const bool good = place.find_first_not_of("0123456789abcdef.:[]") == std::string_view::npos &&
                    comm::TcpPlace::parse(comm::kTcpScheme + std::string(place)).ok();
  return good ? std::optional(place) : std::nullopt;
}

/// `place`: "ADDRESS:PORT-", or empty.
Result<std::string> make_id(const std::string& place) {
  if (sodium_init() < 0) return Status(Code::kSystem, "libsodium cannot start: no randomness");
  std::array<unsigned char, kRandomBytes> bytes;
  randombytes_buf(bytes.data(), bytes.size());
  return std::string(kPrefix) + place + hex(bytes.data(), bytes.size());
}

/// Keeps the ports of the last ids of this process, so that no program gets one by chance before
/// rank 0 listens at it.
void keep_port(UniqueFd reserved) {
  constexpr size_t kMost = 16;
  static std::mutex mutex;
  static std::deque<UniqueFd> kept;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(reserved));
  if (kept.size() > kMost) kept.pop_front();
}

/// For both ways to meet without launcher variables.
Status check_given(const Config& config, const std::string& field) {
  if (!config.rendezvous.empty()) {
    return refuse(field + " and Config::rendezvous are both set: each says where to meet");
  }
  if (config.rank < 0 || config.rank >= config.world_size) {
    return refuse(field + " is set, but Config::rank is " + std::to_string(config.rank) +
                  " and Config::world_size " + std::to_string(config.world_size) +
                  ": set both, rank from 0 to world_size - 1; the environment is not read");
  }
  return {};
}

/// Calls the caller's function, which may throw.
Result<std::vector<std::string>> call(const AllGather& all_gather, const std::string& own) {
  try {
    return all_gather(own);
  } catch (const std::exception& error) {
    return Status(Code::kBootstrap, std::string("it threw: ") + error.what());
  } catch (...) {
    return Status(Code::kBootstrap, "it threw");
  }
}

std::string text_of(const std::string& blob) { return blob.substr(0, blob.find('\0')); }

/// Of a text that is whole and has so many.
std::optional<std::vector<std::string>> words_of(const std::string& text, size_t count) {
  std::istringstream stream(text);
  std::vector<std::string> words(std::istream_iterator<std::string>(stream), {});
  if (words.size() != count) return std::nullopt;
  return words;
}

/// Every rank's words.
Result<std::vector<std::vector<std::string>>> read_blobs(const std::vector<std::string>& blobs,
                                                         const Config& config,
                                                         const std::string& own) {
  const std::string who = "Config::all_gather on rank " + std::to_string(config.rank);
  const std::string rule = ": it must give every rank's blob, whole, in rank order";
  if (blobs.size() != static_cast<size_t>(config.world_size)) {
    return Status(Code::kBootstrap, who + " gave " + std::to_string(blobs.size()) + " blobs for " +
                                        std::to_string(config.world_size) + " ranks" + rule);
  }
  std::vector<std::vector<std::string>> all;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    const std::string text = text_of(blobs[rank]);
    if (!text.empty() && text[0] == kRefusal) {
      return Status(Code::kBootstrap,
                    "rank " + std::to_string(rank) + " cannot take part: " + text.substr(1));
    }
    auto words = words_of(text, rank == 0 ? 4 : 2);
    const bool good =
        words && (rank == 0 ? place_in((*words)[0]).has_value() : (*words)[0] == kReady);
    if (blobs[rank].size() != kBlobBytes || !good) {
      return Status(Code::kBootstrap, who + " gave " + std::to_string(blobs[rank].size()) +
                                          " bytes for rank " + std::to_string(rank) +
                                          " that rank did not give it" + rule);
    }
    all.push_back(std::move(*words));
  }
  if (blobs[static_cast<size_t>(config.rank)] != own) {
    return Status(Code::kBootstrap, who + " did not give back this rank's own blob" + rule);
  }
  return all;
}

/// This rank's host, as a word that says nothing else.
Result<std::string> host_word(int rank) {
  auto here = RONDO_TRY(comm::RankHost::here(rank));
  constexpr size_t kWordBytes = 12;
  const comm::Digest word = comm::derive_key(comm::key_of(here.boot_id), here.network);
  return hex(word.data(), kWordBytes);
}

/// Rank 0's blob. It listens for other hosts before it knows whether there are any.
Result<std::string> begin_place(const std::string& host, comm::ChosenPlace& place) {
  auto id = RONDO_TRY(make_id(""));
  const std::string begin = id + " " + host + " ";
  const auto interface = comm::interface_for_others({});
  if (!interface.ok()) return begin + "- 0";
  auto listener = RONDO_TRY(comm::listen_anywhere(interface->address));
  place.listening = comm::share_closed_in_children(std::move(listener.socket));
  return begin + interface->address + " " + std::to_string(listener.port);
}

/// `subject` is on another host than rank 0.
Status no_interface(const std::string& subject) {
  return {Code::kUnavailable,
          subject +
              " on another host than rank 0, whose host has no interface but loopback and "
              "those of containers: set RONDO_INTERFACE there"};
}

/// `words`: of all ranks.
Status choose_place(const std::vector<std::vector<std::string>>& words, comm::ChosenPlace& place) {
  const std::vector<std::string>& first = words.front();
  const auto on_first = [&](const std::vector<std::string>& of) { return of[1] == first[1]; };
  const auto other = std::ranges::find_if_not(words, on_first);
  if (other == words.end()) {
    place = {};
    return {};
  }
  if (first[2] == "-") {
    return no_interface("rank " + std::to_string(other - words.begin()) + " is");
  }
  place.rendezvous = comm::kTcpScheme + comm::bracketed(first[2]) + ":" + first[3];
  return {};
}

}  // namespace

Result<std::string> make_unique_id() {
  return base::guarded([]() -> Result<std::string> {
    const auto interface = comm::interface_for_others({});
    // Without another interface than loopback no other host has ranks.
    if (interface.status().code() == Code::kUnavailable) return make_id("");
    RONDO_TRY(interface.status());
    auto port = RONDO_TRY(comm::port_range());
    auto reserved = RONDO_TRY(comm::reserve_port(interface->address, port));
    keep_port(std::move(reserved.socket));
    return make_id(comm::bracketed(interface->address) + ":" + std::to_string(reserved.port) + "-");
  });
}

namespace comm {

Status meet_by_unique_id(const Config& config, Identity& identity) {
  RONDO_TRY(check_given(config, "Config::unique_id"));
  const auto place = place_in(config.unique_id);
  if (!place) {
    return refuse("Config::unique_id (" + std::to_string(config.unique_id.size()) +
                  " characters) is not what make_unique_id() gave: pass all of it on as it is");
  }
  identity.secret.append(config.unique_id);
  if (!place->empty()) {
    identity.rendezvous = kTcpScheme + std::string(*place);
    std::string address(place->substr(0, place->rfind(':')));
    std::erase_if(address, [](char c) { return c == '[' || c == ']'; });
    if (config.rank != 0 || is_this_host(address)) return {};
    return refuse("Config::unique_id was made on another host, at " + std::string(*place) +
                  ", where rank 0 cannot listen: call make_unique_id() on the host of rank 0");
  }
  constexpr size_t kNameBytes = 16;
  const Digest name = derive_key(key_of(config.unique_id), "directory");
  identity.rendezvous =
      "/tmp/rondo-" + std::to_string(geteuid()) + "/id-" + hex(name.data(), kNameBytes);
  return {};
}

Status meet_by_passed_id(const std::string& id, Identity& identity) {
  const auto place = place_in(id);
  if (!place) return {Code::kBootstrap, "the launcher passed on another text than rank 0's id"};
  if (place->empty()) return no_interface("ranks are");
  identity.secret.append(id);
  identity.rendezvous = kTcpScheme + std::string(*place);
  return {};
}

Result<ChosenPlace> agree_on_unique_id(Config& config, Status own) {
  if (own.ok()) own = check_given(config, "Config::all_gather");
  if (own.ok() && !config.unique_id.empty()) {
    own = refuse("Config::unique_id and Config::all_gather are both set: set one");
  }
  ChosenPlace place;
  std::string blob;
  if (own.ok()) {
    auto host = host_word(config.rank);
    auto made = !host.ok() || config.rank != 0 ? std::move(host) : begin_place(*host, place);
    own = made.status();
    if (made.ok()) blob = config.rank == 0 ? *made : std::string(kReady) + " " + *made;
  }
  if (!own.ok()) blob = kRefusal + own.to_string();
  blob.resize(kBlobBytes);
  auto blobs = call(config.all_gather, blob);
  RONDO_TRY(own);
  if (!blobs.ok()) {
    return Status(blobs.status().code(), "Config::all_gather failed on rank " +
                                             std::to_string(config.rank) + ": " +
                                             blobs.status().message());
  }
  auto words = RONDO_TRY(read_blobs(*blobs, config, blob));
  RONDO_TRY(choose_place(words, place));
  config.unique_id = words.front().front();
  return place;
}

}  // namespace comm
}  // namespace rondo
