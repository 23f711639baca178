// Bringing a communicator up: meet, agree on rank 0's settings, map each other's memory, and build
// the layers on top of it.
#include <fmt/format.h>
#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <random>
#include <system_error>
#include <type_traits>

#include "comm/bootstrap/environment.hpp"
#include "comm/bootstrap/launchers.hpp"
#include "comm/bootstrap/unique_id.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/link_profile.hpp"
#include "comm/refuse.hpp"
#include "comm/share_segment.hpp"
#include "comm/status/socket.hpp"
#include "comm/tuner/profile_file.hpp"
#include "kernels/reduce.hpp"
#include "rondo/log.hpp"
#include "transport/pace/pace.hpp"
#include "transport/shm/arena.hpp"
#include "transport/shm/factory.hpp"
#include "transport/shm/process_copy.hpp"

namespace rondo {

using comm::refuse;
using comm::share_segment;

namespace {

constexpr uint32_t kVersion = 6;
constexpr size_t kPaceChars = 64;
// A paced slot carries its due time behind the payload (pace.hpp).
constexpr size_t kPaceTrailerBytes = 8;
constexpr int kMaxRanks = 1024;
constexpr std::chrono::milliseconds kDefaultTimeout{600'000};
constexpr int kMaxChannels = 64;
constexpr uint32_t kMaxSlots = 1024;
constexpr size_t kMaxSlotBytes = size_t{64} << 20;

// What every rank tells the others. Rank 0's settings hold for all.
struct Hello {
  uint32_t version;
  int32_t channels;
  uint32_t slots;
  uint32_t algorithm;
  uint32_t reproducible;
  uint64_t slot_bytes;
  uint64_t arena_bytes;  // 0: none
  char pace[kPaceChars];
  int32_t device;        // the rank's own; -1: none
  uint32_t links_given;  // rank 0's link profile is a file's
  int32_t granted_cpus;  // by the control group; ranks in different ones go by rank 0's
  transport::shm::Probe probe;
  cpu_set_t affinity;
};
static_assert(std::is_trivially_copyable_v<Hello>);

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
  if (config.timeout.count() < 0)
    return refuse(
        fmt::format("Config::timeout is {} ms; it must not be negative", config.timeout.count()));
  if (config.bootstrap_timeout.count() <= 0) {
    return refuse(fmt::format("Config::bootstrap_timeout is {} ms; it must be positive",
                              config.bootstrap_timeout.count()));
  }
  if (static_cast<int>(config.algorithm) >= kAlgorithms) {
    return refuse(
        fmt::format("Config::algorithm is {}, which is none", static_cast<int>(config.algorithm)));
  }
  if (config.device < -1) {
    return refuse(fmt::format("Config::device is {}; -1 (none) or a device's number are possible",
                              config.device));
  }
  if (config.device >= 0 && !pace.empty()) {
    return {Code::kUnavailable,
            "a pace is for the host's memory: there is none with Config::device"};
  }
  if (pace.size() >= kPaceChars) return refuse(fmt::format("the pace '{}' is too long", pace));
  if (!pace.empty()) {
    if (auto parsed = transport::parse_pace(pace); !parsed.ok()) return parsed.status();
  }
  return {};
}

// Fills in what the environment may say, and checks all that this rank can check alone.
Status settle(Config& config) {
  config.pace = comm::pace_of(config);
  config.links = comm::links_of(config);
  if (config.timeout.count() == 0) {
    config.timeout = kDefaultTimeout;
    if (const auto text = comm::variable("RONDO_TIMEOUT")) {
      auto seconds = parse_seconds(*text);
      if (!seconds.ok()) return seconds.status();
      config.timeout = *seconds;
    }
  }
  config.timeout = std::min(config.timeout, kLongestTimeout);
  config.bootstrap_timeout = std::min(config.bootstrap_timeout, kLongestTimeout);
  return check(config);
}

struct Introduced {
  std::vector<Hello> hellos;  // [rank]
  tuner::LinkProfile links;   // for a host with a core for every rank
};

/// Rank 0's link profile follows its Hello: `known`, or else what the file says.
Result<Introduced> exchange(comm::Bootstrap& bootstrap, const Hello& own,
                            const std::string& links_path,
                            const std::optional<tuner::LinkProfile>& known) {
  std::string said(reinterpret_cast<const char*>(&own), sizeof(own));
  if (bootstrap.rank() == 0) {
    auto links = known ? *known : comm::host_profile(links_path);
    if (!links.ok()) return links.status();
    said += tuner::to_json_text(*links);
  }
  auto blobs = bootstrap.all_gather(said);
  if (!blobs.ok()) return blobs.status();
  Introduced introduced{.hellos = std::vector<Hello>(blobs->size()), .links = {}};
  for (size_t r = 0; r < blobs->size(); ++r) {
    const std::string& blob = (*blobs)[r];
    Hello& hello = introduced.hellos[r];
    if (blob.size() >= sizeof(Hello)) std::memcpy(&hello, blob.data(), sizeof(Hello));
    if (blob.size() < sizeof(Hello) || hello.version != kVersion) {
      return Status(
          Code::kBootstrap,
          fmt::format("rank {} runs another version of rondo than rank {}", r, bootstrap.rank()));
    }
  }
  auto links = tuner::parse_profile(blobs->front().substr(sizeof(Hello)), "of rank 0");
  if (!links.ok()) return links.status();
  introduced.links = std::move(*links);
  return introduced;
}

// What of the others' memory every rank can reach: library memory, mapped here, and any memory, by
// the kernel's copies. Each is empty where some rank cannot reach another's. That is no error,
// buffers go through slots then; but ranks must not differ in it.
struct Reach {
  std::vector<transport::ArenaView> arenas;
  std::vector<pid_t> processes;
};

Result<Reach> find_reach(comm::Bootstrap& bootstrap, int own_fd, const std::vector<Hello>& hellos,
                         bool process_copy) {
  std::vector<transport::ArenaView> arenas(hellos.size());
  std::vector<pid_t> processes;
  bool mapped = true;
  auto fds = bootstrap.all_gather_fds(own_fd);
  if (!fds.ok()) return fds.status();
  for (size_t r = 0; r < hellos.size(); ++r) {
    processes.push_back(hellos[r].probe.pid);
    process_copy = process_copy && transport::shm::reaches(hellos[r].probe);
    if (static_cast<int>(r) == bootstrap.rank()) {
      arenas[r] = transport::own_arena();
    } else if ((*fds)[r].valid() && hellos[r].arena_bytes > 0) {
      auto view = transport::attach_arena(std::move((*fds)[r]), hellos[r].arena_bytes);
      if (view.ok()) {
        arenas[r] = std::move(*view);
      } else {
        mapped = false;
        log(LogLevel::kWarn, fmt::format("library memory goes through slots: rank {} cannot "
                                         "map that of rank {}: {}",
                                         bootstrap.rank(), r, view.status().to_string()));
      }
    }
  }
  auto all = bootstrap.all_gather(std::string{mapped ? '1' : '0', process_copy ? '1' : '0'});
  if (!all.ok()) return all.status();
  for (const std::string& answer : *all) {
    if (answer.at(0) != '1') arenas.clear();
    if (answer.at(1) != '1') processes.clear();
  }
  return Reach{.arenas = std::move(arenas), .processes = std::move(processes)};
}

// RONDO_CMA: whether the kernel may be asked to copy between ranks.
Result<bool> allows_process_copy() {
  const std::string text = comm::variable("RONDO_CMA").value_or("1");
  if (text == "1") return true;
  if (text == "0") return false;
  return refuse(fmt::format("RONDO_CMA is '{}': it must be 0 or 1", text));
}

Status check_devices(const std::vector<Hello>& hellos) {
  for (size_t r = 1; r < hellos.size(); ++r) {
    if ((hellos[r].device < 0) == (hellos[0].device < 0)) continue;
    return refuse(
        fmt::format("Config::device is {} on rank 0 and {} on rank {}: every rank has a "
                    "device, or none",
                    hellos[0].device, hellos[r].device, r));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Communicator::Impl>> Communicator::Impl::create(
    const Config& config, std::optional<tuner::LinkProfile> links) {
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
  impl->config_ = settled;
  // Those made from this one meet where it has met, under names of their own.
  if (settled.unique_id.empty()) impl->config_.rendezvous = identity->rendezvous;
  impl->config_.all_gather = nullptr;
  impl->links_ = std::move(links);
  if (status = impl->bring_up(settled); !status.ok()) {
    impl->bootstrap_.fail(status);
    return status;
  }
  return impl;
}

Status Communicator::Impl::bring_up(const Config& config) {
  auto arena = transport::export_arena();
  if (!arena.ok()) return arena.status();
  auto process_copy = allows_process_copy();
  if (!process_copy.ok()) return process_copy.status();
  Hello own{};
  own.version = kVersion;
  own.channels = config.channels;
  own.slots = static_cast<uint32_t>(config.slots);
  own.algorithm = static_cast<uint32_t>(config.algorithm);
  own.reproducible = config.reproducible ? 1 : 0;
  own.slot_bytes = config.slot_bytes;
  own.arena_bytes = arena->fd >= 0 ? arena->bytes : 0;
  own.device = config.device;
  own.links_given = config.links.empty() ? 0 : 1;
  config.pace.copy(own.pace, kPaceChars - 1);
  own.granted_cpus = engine::granted_cpus();
  sched_getaffinity(0, sizeof(own.affinity), &own.affinity);
  own.probe = transport::shm::own_probe();
  auto introduced = exchange(bootstrap_, own, config.links, links_);
  if (!introduced.ok()) return introduced.status();
  const std::vector<Hello>& hellos = introduced->hellos;
  const Hello& settings = hellos.front();
  const std::string pace = settings.pace;
  RONDO_RETURN_IF_ERROR(check_devices(hellos));
  // What rank 0 has decided holds also where a part is made of this communicator without it.
  config_.channels = settings.channels;
  config_.slots = static_cast<int>(settings.slots);
  config_.slot_bytes = settings.slot_bytes;
  config_.algorithm = static_cast<Algorithm>(settings.algorithm);
  config_.reproducible = settings.reproducible != 0;
  config_.pace = pace;
  links_ = introduced->links;

  const int ranks = bootstrap_.size(), rank = bootstrap_.rank();
  bool same_process = true;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (int r = 0; r < ranks; ++r) {
    same_process = same_process && bootstrap_.peers()[static_cast<size_t>(r)].same_process;
    CPU_OR(&cpus, &cpus, &hellos[static_cast<size_t>(r)].affinity);
  }
  // Threads of one process reach each other's memory without the kernel, a wire reaches none.
  auto reach =
      find_reach(bootstrap_, arena->fd, hellos, *process_copy && !same_process && pace.empty());
  if (!reach.ok()) return reach.status();
  if (const char* rejected = kernels::rejected_instruction_set(); rejected != nullptr) {
    log(LogLevel::kWarn,
        fmt::format("RONDO_KERNELS is '{}', which is unknown or not on this CPU: using {}",
                    rejected, kernels::instruction_set()));
  }
  const int channels = settings.channels > 0 ? settings.channels : 1;
  const int usable = std::clamp(CPU_COUNT(&cpus), 1, std::max(settings.granted_cpus, 1));
  const comm::Surroundings where{.ranks = ranks,
                                 .channels = channels,
                                 .cpus = usable,
                                 .links = introduced->links,
                                 .pace = pace};
  const tuner::LinkProfile profile = *comm::link_profile(where);  // rank 0 has checked the pace
  const uint32_t depth = settings.slots > 0 ? settings.slots : profile.slots;
  const size_t slot_bytes = settings.slot_bytes > 0 ? settings.slot_bytes : profile.slot_bytes;
  const transport::shm::Shape shape{
      .ranks = ranks,
      .channels = channels + 1,  // the last one is for point-to-point messages
      .depth = depth,
      // The pace keeps a message's due time in the slot, behind the payload.
      .slot_bytes = slot_bytes + (pace.empty() ? 0 : kPaceTrailerBytes),
      .publish_depth = depth,
      .publish_slot_bytes = slot_bytes};

  // Apart from each other, so that who keeps a board to look at keeps no slots.
  auto board = share_segment(bootstrap_, status::kBoardName, recorder::Board::bytes_needed(ranks));
  if (!board.ok()) return board.status();
  board_segment_ = std::move(*board);
  auto slots = share_segment(bootstrap_, "rondo", transport::shm::bytes_needed(shape));
  if (!slots.ok()) return slots.status();
  segment_ = std::move(*slots);

  board_ = std::make_unique<recorder::Board>(board_segment_.base(), ranks, rank, config.name);
  auto transport = transport::shm::create(shape, rank, segment_.base(), std::move(reach->arenas),
                                          same_process, std::move(reach->processes));
  if (!transport.ok()) return transport.status();
  transport_ = pace.empty() ? std::move(*transport)
                            : transport::pace(std::move(*transport), *transport::parse_pace(pace));
  watch_ = std::make_unique<recorder::Watch>(
      *board_, [this](int first) { return bootstrap_.find_dead(first); },
      [this](int64_t since_ns) { runner_->lanes().show(since_ns); });
  engine::register_for_wakeups();
  const transport::Capabilities can = transport_->capabilities();
  plans_ = std::make_unique<comm::Plans>(
      comm::PlanLimits{.ranks = ranks,
                       .rank = rank,
                       .channels = channels,
                       .depth = depth,
                       .publish_depth = shape.publish_depth,
                       .slot_bytes = slot_bytes,
                       .publish_slot_bytes = shape.publish_slot_bytes,
                       .profile = profile,
                       .available = {.publish = can.publish,
                                     .references = can.references,
                                     .signals = can.signals,
                                     .process_copy = can.process_copy,
                                     .offers = true,
                                     .rank_order_only = settings.reproducible != 0},
                       .algorithm = static_cast<Algorithm>(settings.algorithm)});
  const bool paced = !pace.empty();
  const engine::RunnerOptions options{
      .channels = channels,
      .blocking = engine::wait_policy(ranks * channels, usable, paced),
      // Beside every progress thread its rank computes.
      .progressing = engine::progressing_policy(ranks * channels, usable, paced),
      .cache_bytes = profile.llc_bytes / 2};
  try {
    runner_ = std::make_shared<engine::Runner>(*transport_, *board_, *watch_, options);
  } catch (const std::system_error& error) {
    return {Code::kResourceExhausted,
            fmt::format("no threads for {} channels: {}", channels, error.what())};
  }
  queue_ = std::make_shared<engine::Queue>(*runner_);
  timeout_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(config.timeout).count();
  log(LogLevel::kInfo,
      fmt::format("rank {} of {}: {} channels, {} slots of {} bytes, {} CPUs, links: {}", rank,
                  ranks, channels, depth, slot_bytes, usable, profile.name));
  if (config.device >= 0) {
    RONDO_RETURN_IF_ERROR(bring_up_device(config, settings.links_given != 0));
  }
  // Nobody starts before every rank is on the board.
  RONDO_RETURN_IF_ERROR(bootstrap_.barrier());
  bootstrap_.close_sockets();
  if (rank == 0) status::announce_board(board_segment_.fd());
  return {};
}

Status Communicator::Impl::bring_up_device(const Config& config, bool links_given) {
  auto control = share_segment(bootstrap_, "rondo-device", device::Premises::control_bytes(size()));
  if (!control.ok()) return control.status();
  device::Setup setup = {.device = config.device,
                         .channels = config_.channels,
                         .slots = static_cast<uint32_t>(config_.slots),
                         .slot_bytes = config_.slot_bytes,
                         .links = {}};
  if (links_given) {
    setup.links = links_;
    if (config_.links.empty()) config_.links = "rank 0's";  // for parts; it is not read again
  }
  auto made = device::Runner::create(bootstrap_, *board_, *watch_, std::move(*control), setup);
  if (!made.ok()) return made.status();
  device_ = std::move(*made);
  device_->set_longest_wait(timeout_ns_);
  const transport::cuda_ipc::Shape& shape = device_->shape();
  device_plans_ = std::make_unique<comm::Plans>(
      comm::PlanLimits{.ranks = size(),
                       .rank = rank(),
                       .channels = device_->channels(),
                       .depth = shape.depth,
                       .publish_depth = shape.publish_depth,
                       .slot_bytes = shape.slot_bytes,
                       .publish_slot_bytes = shape.publish_slot_bytes,
                       .ll_bytes = shape.ll_bytes,
                       .profile = device_->profile(),
                       .available = {.publish = shape.publish_depth > 0,
                                     .references = device_->reaches_buffers(),
                                     .signals = true,
                                     .rank_order_only = config_.reproducible},
                       .algorithm = config_.algorithm});
  log(LogLevel::kInfo, fmt::format("rank {} of {} on {}", rank(), size(), device_->describe()));
  return {};
}

std::future<Result<Communicator>> Communicator::create_async(const Config& config) {
  try {
    return std::async(std::launch::async, [config] { return create(config); });
  } catch (const std::system_error& error) {
    std::promise<Result<Communicator>> refused;
    refused.set_value(Status(
        Code::kResourceExhausted,
        fmt::format("no thread to create a communicator in the background: {}", error.what())));
    return refused.get_future();
  }
}

Result<std::optional<Config>> Communicator::Impl::split(int color, int key,
                                                        std::string_view called) {
  if (group_) return refuse(fmt::format("{} inside a group: call group_end first", called));
  struct Choice {
    int32_t color, key;
    uint32_t nonce;  // rank 0's keeps parts of communicators of the same name apart
  };
  const Choice own{.color = color, .key = key, .nonce = std::random_device{}()};
  std::vector<Choice> all(static_cast<size_t>(size()));
  static_assert(sizeof(Choice) == 3 * sizeof(int32_t));
  RONDO_RETURN_IF_ERROR(gather_for_split(reinterpret_cast<const int32_t*>(&own),
                                         reinterpret_cast<int32_t*>(all.data()), 3));
  const uint64_t number = ++splits_;
  // After the exchange: a rank that is refused keeps nobody waiting.
  if (color < kNoColor) {
    return refuse(fmt::format("split: color {} is negative; kNoColor is {}", color, kNoColor));
  }
  if (color == kNoColor) return std::optional<Config>();
  std::vector<int> members;
  for (int r = 0; r < size(); ++r) {
    if (all[static_cast<size_t>(r)].color == color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key;
  });
  Config config = config_;
  config.world_size = static_cast<int>(members.size());
  config.rank =
      static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  // Names are short: what grows with every split of a split is hashed.
  config.name = fmt::format("split-{:016x}-{:08x}-{}-{}", std::hash<std::string>{}(config_.name),
                            all[0].nonce, number, color);
  return std::optional<Config>(std::move(config));
}

Result<std::unique_ptr<Communicator::Impl>> Communicator::Impl::make_part(const Config& config) {
  return create(config, links_);
}

Result<std::optional<Communicator>> Communicator::split(int color, int key) {
  auto config = impl_->split(color, key, "split");
  if (!config.ok()) return config.status();
  if (!*config) return std::optional<Communicator>();
  auto made = impl_->make_part(**config);
  if (!made.ok()) return made.status();
  return std::optional<Communicator>(Communicator(std::move(*made)));
}

Result<Communicator> Communicator::duplicate() {
  auto config = impl_->split(0, 0, "duplicate");
  if (!config.ok()) return config.status();
  auto made = impl_->make_part(**config);
  if (!made.ok()) return made.status();
  return Communicator(std::move(*made));
}

}  // namespace rondo
