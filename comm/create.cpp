// Bringing a communicator up: meet, agree on rank 0's settings, map each other's memory, and build
// the layers on top of it.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <type_traits>

#include "comm/bootstrap/environment.hpp"
#include "comm/bootstrap/unique_id.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/log.hpp"
#include "comm/topology/topology.hpp"
#include "kernels/reduce.hpp"
#include "transport/pace/pace.hpp"
#include "transport/shm/arena.hpp"
#include "transport/shm/factory.hpp"

namespace rondo {

namespace {

constexpr uint32_t kVersion = 1;
constexpr size_t kPaceChars = 64;
// A paced slot carries its due time behind the payload (pace.hpp).
constexpr size_t kPaceTrailerBytes = 8;
constexpr int kMaxRanks = 1024;
constexpr int kMaxChannels = 64;
constexpr uint32_t kMaxSlots = 1024;
constexpr size_t kMaxSlotBytes = size_t{64} << 20;

// What every rank tells the others. Rank 0's settings hold for all.
struct Hello {
  uint32_t version;
  int32_t channels;
  uint32_t slots;
  uint32_t algorithm;
  uint64_t slot_bytes;
  uint64_t llc_bytes;
  uint64_t arena_bytes;  // 0: none
  char pace[kPaceChars];
  int32_t granted_cpus;  // by the control group; ranks in different ones go by rank 0's
  cpu_set_t affinity;
};
static_assert(std::is_trivially_copyable_v<Hello>);

Status refuse(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

Result<std::chrono::milliseconds> parse_seconds(std::string_view text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  constexpr double kMost = 1e9;
  if (error != std::errc{} || end != text.data() + text.size() || !(seconds >= 1e-3) ||
      seconds > kMost) {
    return refuse(fmt::format(
        "RONDO_TIMEOUT is '{}': it must be a number of seconds from 0.001 to 1e9", text));
  }
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

Status check(const Config& config) {
  const std::string& pace = config.pace;
  if (config.world_size > kMaxRanks) {
    return refuse(
        fmt::format("Config::world_size is {}; at most {} ranks", config.world_size, kMaxRanks));
  }
  if (config.channels < 0 || config.channels > kMaxChannels) {
    return refuse(
        fmt::format("Config::channels is {}; 0 to {} are possible", config.channels, kMaxChannels));
  }
  if (config.slots < 0 || config.slots == 1 || config.slots > static_cast<int>(kMaxSlots)) {
    return refuse(fmt::format("Config::slots is {}; 0 (the default) or 2 to {} are possible",
                              config.slots, kMaxSlots));
  }
  if (config.slot_bytes > kMaxSlotBytes || (config.slot_bytes != 0 && config.slot_bytes < 8)) {
    return refuse(fmt::format("Config::slot_bytes is {}; 0 (the default) or 8 to {} are possible",
                              config.slot_bytes, kMaxSlotBytes));
  }
  if (config.timeout.count() <= 0)
    return refuse(
        fmt::format("Config::timeout is {} ms; it must be positive", config.timeout.count()));
  if (config.bootstrap_timeout.count() <= 0) {
    return refuse(fmt::format("Config::bootstrap_timeout is {} ms; it must be positive",
                              config.bootstrap_timeout.count()));
  }
  if (static_cast<int>(config.algorithm) >= kAlgorithms) {
    return refuse(
        fmt::format("Config::algorithm is {}, which is none", static_cast<int>(config.algorithm)));
  }
  if (pace.size() >= kPaceChars) return refuse(fmt::format("the pace '{}' is too long", pace));
  if (!pace.empty()) {
    if (auto parsed = transport::parse_pace(pace); !parsed.ok()) return parsed.status();
  }
  return {};
}

// Fills in what the environment may say, and checks all that this rank can check alone.
Status settle(Config& config) {
  const char* pace = std::getenv("RONDO_PACE");
  if (config.pace.empty() && pace != nullptr) config.pace = pace;
  if (config.timeout == Config{}.timeout) {
    if (const char* text = std::getenv("RONDO_TIMEOUT"); text != nullptr) {
      auto seconds = parse_seconds(text);
      if (!seconds.ok()) return seconds.status();
      config.timeout = *seconds;
    }
  }
  config.timeout = std::min(config.timeout, kLongestTimeout);
  config.bootstrap_timeout = std::min(config.bootstrap_timeout, kLongestTimeout);
  return check(config);
}

Result<std::vector<Hello>> exchange(comm::Bootstrap& bootstrap, const Hello& own) {
  auto blobs = bootstrap.all_gather({reinterpret_cast<const char*>(&own), sizeof(own)});
  if (!blobs.ok()) return blobs.status();
  std::vector<Hello> hellos(blobs->size());
  for (size_t r = 0; r < hellos.size(); ++r) {
    const std::string& blob = (*blobs)[r];
    if (blob.size() == sizeof(Hello)) std::memcpy(&hellos[r], blob.data(), sizeof(Hello));
    if (blob.size() != sizeof(Hello) || hellos[r].version != kVersion) {
      return Status(
          Code::kBootstrap,
          fmt::format("rank {} runs another version of rondo than rank {}", r, bootstrap.rank()));
    }
  }
  return hellos;
}

// Every rank's arena, as seen from here; none at all where some rank cannot map another's. That is no
// error, all buffers go through slots then; but ranks must not differ in it.
Result<std::vector<transport::ArenaView>> map_arenas(comm::Bootstrap& bootstrap, int own_fd,
                                                     const std::vector<Hello>& hellos) {
  std::vector<transport::ArenaView> arenas(hellos.size());
  bool mapped = true;
  auto fds = bootstrap.all_gather_fds(own_fd);
  if (!fds.ok()) return fds.status();
  for (size_t r = 0; r < hellos.size(); ++r) {
    if (static_cast<int>(r) == bootstrap.rank()) {
      arenas[r] = transport::own_arena();
    } else if ((*fds)[r].valid() && hellos[r].arena_bytes > 0) {
      auto view = transport::attach_arena(std::move((*fds)[r]), hellos[r].arena_bytes);
      if (view.ok()) {
        arenas[r] = std::move(*view);
      } else {
        mapped = false;
        comm::log(LogLevel::kWarn, fmt::format("library memory goes through slots: rank {} cannot "
                                               "map that of rank {}: {}",
                                               bootstrap.rank(), r, view.status().to_string()));
      }
    }
  }
  auto all = bootstrap.all_gather(mapped ? "1" : "0");
  if (!all.ok()) return all.status();
  for (const std::string& answer : *all) {
    if (answer != "1") arenas.clear();
  }
  return arenas;
}

size_t round_up(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

Result<std::unique_ptr<Communicator::Impl>> Communicator::Impl::create(const Config& config) {
  Config settled = config;
  Status status = settle(settled);
  if (settled.all_gather) status = comm::agree_on_unique_id(settled, std::move(status));
  RONDO_RETURN_IF_ERROR(status);
  auto identity = comm::identity_from(settled);
  if (!identity.ok()) return identity.status();
  if (identity->world_size > kMaxRanks) {
    return refuse(
        fmt::format("{} ranks; at most {} are possible", identity->world_size, kMaxRanks));
  }
  auto bootstrap = comm::Bootstrap::meet(*identity, settled.name, settled.bootstrap_timeout);
  if (!bootstrap.ok()) return bootstrap.status();
  std::unique_ptr<Impl> impl(new Impl(std::move(*bootstrap)));
  if (status = impl->bring_up(settled); !status.ok()) {
    impl->bootstrap_.fail(status);
    return status;
  }
  return impl;
}

Status Communicator::Impl::bring_up(const Config& config) {
  auto arena = transport::export_arena();
  if (!arena.ok()) return arena.status();
  Hello own{};
  own.version = kVersion;
  own.channels = config.channels;
  own.slots = static_cast<uint32_t>(config.slots);
  own.algorithm = static_cast<uint32_t>(config.algorithm);
  own.slot_bytes = config.slot_bytes;
  own.llc_bytes = topology::host().llc_bytes;
  own.arena_bytes = arena->fd >= 0 ? arena->bytes : 0;
  config.pace.copy(own.pace, kPaceChars - 1);
  own.granted_cpus = engine::granted_cpus();
  sched_getaffinity(0, sizeof(own.affinity), &own.affinity);
  auto hellos = exchange(bootstrap_, own);
  if (!hellos.ok()) return hellos.status();
  const Hello& settings = hellos->front();
  const std::string pace = settings.pace;

  auto arenas = map_arenas(bootstrap_, arena->fd, *hellos);
  if (!arenas.ok()) return arenas.status();

  const int ranks = bootstrap_.size(), rank = bootstrap_.rank();
  bool same_process = true;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (int r = 0; r < ranks; ++r) {
    same_process = same_process && bootstrap_.peers()[static_cast<size_t>(r)].same_process;
    CPU_OR(&cpus, &cpus, &(*hellos)[static_cast<size_t>(r)].affinity);
  }
  if (const char* rejected = kernels::rejected_instruction_set(); rejected != nullptr) {
    comm::log(LogLevel::kWarn,
              fmt::format("RONDO_KERNELS is '{}', which is unknown or not on this CPU: using {}",
                          rejected, kernels::instruction_set()));
  }
  const int channels = settings.channels > 0 ? settings.channels : 1;
  const int usable = std::clamp(CPU_COUNT(&cpus), 1, std::max(settings.granted_cpus, 1));
  const bool oversubscribed = ranks * channels > usable;

  tuner::LinkProfile profile =
      oversubscribed ? tuner::oversubscribed_profile(usable) : tuner::shared_memory_profile();
  transport::PaceOptions pacing{};
  if (!pace.empty()) {
    pacing = *transport::parse_pace(pace);  // rank 0 has checked it
    profile = tuner::wire_profile(pacing.bytes_per_second, pacing.latency_seconds);
  }
  profile.llc_bytes = settings.llc_bytes;
  const uint32_t depth = settings.slots > 0 ? settings.slots : profile.slots;
  const size_t slot_bytes = settings.slot_bytes > 0 ? settings.slot_bytes : profile.slot_bytes;
  const transport::shm::Shape shape{
      .ranks = ranks,
      .channels = channels,
      .depth = depth,
      // The pace keeps a message's due time in the slot, behind the payload.
      .slot_bytes = slot_bytes + (pace.empty() ? 0 : kPaceTrailerBytes),
      .publish_depth = depth,
      .publish_slot_bytes = slot_bytes};

  const size_t board_bytes = round_up(recorder::Board::bytes_needed(ranks));
  const size_t bytes = board_bytes + round_up(transport::shm::bytes_needed(shape));
  Result<transport::Segment> segment = transport::Segment{};
  if (rank == 0) {
    segment = transport::Segment::create("rondo", bytes);
    if (!segment.ok()) return segment.status();
  }
  auto fd = bootstrap_.broadcast_fd(rank == 0 ? segment->fd() : -1);
  if (!fd.ok()) return fd.status();
  if (rank != 0) {
    segment = transport::Segment::map(std::move(*fd), bytes);
    if (!segment.ok()) return segment.status();
  }
  segment_ = std::move(*segment);

  board_ = std::make_unique<recorder::Board>(segment_.base(), ranks, rank);
  auto transport = transport::shm::create(shape, rank, segment_.base() + board_bytes,
                                          std::move(*arenas), same_process);
  if (!transport.ok()) return transport.status();
  transport_ =
      pace.empty() ? std::move(*transport) : transport::pace(std::move(*transport), pacing);
  watch_ = std::make_unique<recorder::Watch>(
      *board_, [this](int first) { return bootstrap_.find_dead(first); });
  engine::register_for_wakeups();
  const transport::Capabilities can = transport_->capabilities();
  plans_ = std::make_unique<comm::Plans>(comm::PlanLimits{
      .ranks = ranks,
      .rank = rank,
      .channels = channels,
      .depth = depth,
      .publish_depth = shape.publish_depth,
      .slot_bytes = slot_bytes,
      .publish_slot_bytes = shape.publish_slot_bytes,
      .profile = profile,
      .available = {.publish = can.publish, .references = can.references, .signals = can.signals},
      .algorithm = static_cast<Algorithm>(settings.algorithm)});
  const bool paced = !pace.empty();
  const engine::RunnerOptions options{
      .channels = channels,
      .blocking = engine::wait_policy(ranks * channels, usable, paced),
      // Beside every progress thread its rank computes.
      .progressing = engine::wait_policy(2 * ranks * channels, usable, paced)};
  try {
    runner_ = std::make_shared<engine::Runner>(*transport_, *board_, *watch_, options);
  } catch (const std::system_error& error) {
    return {Code::kResourceExhausted,
            fmt::format("no threads for {} channels: {}", channels, error.what())};
  }
  queue_ = std::make_shared<engine::Queue>(*runner_);
  timeout_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(config.timeout).count();
  comm::log(
      LogLevel::kInfo,
      fmt::format("rank {} of {}: {} channels, {} slots of {} bytes, {} CPUs{}", rank, ranks,
                  channels, depth, slot_bytes, usable, oversubscribed ? ", oversubscribed" : ""));
  // Nobody starts before every rank is on the board.
  RONDO_RETURN_IF_ERROR(bootstrap_.barrier());
  bootstrap_.close_sockets();
  return {};
}

}  // namespace rondo
