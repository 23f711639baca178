// Brings a communicator up: settle its Config, meet the other ranks, and then the steps of setup/.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "comm/base/guarded.hpp"
#include "comm/base/limits.hpp"
#include "comm/base/refuse.hpp"
#include "comm/bootstrap/identity/environment.hpp"
#include "comm/bootstrap/identity/unique_id.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/device_executor.hpp"
#include "comm/launch/unknown_variables.hpp"
#include "comm/setup/complete.hpp"
#include "comm/status/socket.hpp"
#include "kernels/reduce.hpp"
#include "rondo/log.hpp"

namespace rondo {
namespace {

comm::PlanLimits host_limits(const comm::HostSizes& sizes, const base::HostMap& hosts, int rank,
                             const Config& config, const transport::Capabilities& can,
                             const std::string& title) {
  return {.ranks = sizes.ranks,
          .rank = rank,
          .channels = sizes.channels,
          .depth = sizes.depth,
          .publish_depth = sizes.fifos.publish_depth,
          .slot_bytes = sizes.slot_bytes,
          .publish_slot_bytes = sizes.fifos.publish_slot_bytes,
          .profile = sizes.profile,
          .available = {.publish = can.publish,
                        .references = can.references,
                        .signals = can.signals,
                        .process_copy = can.process_copy,
                        .offers = true,
                        .rank_order_only = config.reproducible},
          .algorithm = config.algorithm,
          .wrapping_averages = config.wrapping_averages,
          .hosts = hosts,
          .title = title};
}

/// Once per process.
void warn_of_rejected_instruction_set() {
  static std::atomic<bool> warned = false;
  const char* const rejected = kernels::rejected_instruction_set();
  if (rejected == nullptr || warned.exchange(true)) return;
  log(LogLevel::kWarn,
      fmt::format("RONDO_KERNELS is '{}', which is unknown or not on this CPU: using {}", rejected,
                  kernels::instruction_set()));
}

/// Once per process, and by rank 0: launchers give all ranks the same variables.
void warn_of_unknown_variables(int rank) {
  static std::atomic<bool> warned = false;
  if (rank != 0 || warned.exchange(true)) return;
  for (const std::string& unknown : comm::unknown_variables(environ)) {
    log(LogLevel::kWarn, unknown);
  }
}

}  // namespace

Result<comm::Identity> Communicator::Impl::prepare(Config& settled, bool agreed) {
  Status status = comm::complete(settled, agreed);
  comm::ChosenPlace place;
  if (settled.all_gather) {
    place = RONDO_TRY(comm::agree_on_unique_id(settled, std::move(status)));
  } else {
    RONDO_TRY(status);
  }
  auto identity = RONDO_TRY(comm::identity_from(settled));
  if (!place.rendezvous.empty()) {
    identity.rendezvous = place.rendezvous;
    identity.listening = place.listening;
    identity.is_kept_place = true;
  }
  if (identity.world_size > base::kMaxRanks) {
    return comm::refuse(
        fmt::format("{} ranks; at most {} are possible", identity.world_size, base::kMaxRanks));
  }
  warn_of_unknown_variables(identity.rank);
  return identity;
}

Result<std::unique_ptr<Communicator::Impl>> Communicator::Impl::create(const Config& config,
                                                                       const comm::Parent& parent) {
  Status failed = parent.refused;
  if (failed.ok()) {
    try {
      return come(config, parent, {});
    } catch (...) {
      failed = base::caught();
    }
  }
  // Members of a split look at the board of the communicator that they are made from.
  if (parent.failing) {
    parent.failing(failed);
    return failed;
  }
  // The others do not know of it yet: this rank comes to the meeting, to tell them. Where it cannot
  // call Config::all_gather a second time, they wait for it in vain.
  if (config.all_gather) return failed;
  auto told = base::guarded([&] { return come(config, parent, failed); });
  return told.ok() ? failed : told.status();
}

Result<std::unique_ptr<Communicator::Impl>> Communicator::Impl::come(const Config& config,
                                                                     const comm::Parent& parent,
                                                                     const Status& failed) {
  Config settled = config;
  auto identity = prepare(settled, parent.links.has_value());
  if (!identity.ok() && parent.failing) parent.failing(identity.status());
  if (!identity.ok()) return identity.status();
  if (!parent.place.empty()) {
    identity->rendezvous = parent.place;
    identity->listening = parent.listening;
    identity->is_kept_place = true;
  }
  if (parent.life_port) identity->own_port = *parent.life_port;
  auto bootstrap = comm::Bootstrap::meet(*identity, settled.name, settled.bootstrap_timeout,
                                         parent.interrupt, parent.failing);
  RONDO_TRY(bootstrap.status());
  std::unique_ptr<Impl> impl;
  Status status = failed;
  if (failed.ok()) {
    status = base::guarded([&] {
      impl.reset(new Impl(std::move(*bootstrap)));
      // Parts meet where this communicator has met, under names of their own.
      if (settled.unique_id.empty()) settled.rendezvous = identity->rendezvous;
      settled.all_gather = nullptr;
      impl->config_ = std::move(settled);
      impl->identity_ = std::move(*identity);
      return impl->set_up(parent);
    });
  }
  if (status.ok()) return impl;
  return base::guarded([&] {
    (impl ? impl->bootstrap_ : *bootstrap).fail(status);
    const bool may_exist = status.code() == Code::kPeerDied || status.code() == Code::kTimeout;
    if (may_exist && parent.undecided != nullptr && impl && impl->is_at_last_exchange_) {
      (void)impl->board_->propose({Code::kPeerDied, status.message()});
      // Ranks that have passed this exchange learn of the error, and that this rank lives.
      (void)base::guarded([&] { return impl->start_agent(); });
      impl->bootstrap_.close_sockets();
      *parent.undecided = std::move(impl);
    }
    return status;
  });
}

Status Communicator::Impl::set_up(const comm::Parent& parent) {
  std::optional<device::OpenedDevice> gpu;
  Status opened;
  if (config_.device >= 0) {
    auto device = device::open_device(config_.device, bootstrap_.size());
    opened = device.status();
    if (device.ok()) gpu = std::move(*device);
  }
  auto exchanged = RONDO_TRY(
      comm::exchange_facts(bootstrap_, config_, parent.links, gpu ? &gpu->facts : nullptr));
  const auto settled =
      RONDO_TRY(comm::settle(exchanged, bootstrap_.hosts(), bootstrap_.rank(), config_));
  RONDO_TRY(opened);  // only now: that other ranks want no device says more
  links_ = settled.links;
  token_ = settled.token();
  life_port_ = parent.life_port;
  if (life_port_ == nullptr && bootstrap_.listening() != nullptr) {
    const comm::RankHost& own = bootstrap_.places()[static_cast<size_t>(bootstrap_.rank())];
    life_port_ = std::make_shared<const comm::ListeningPort>(comm::ListeningPort{
        .socket = bootstrap_.listening(), .address = own.address, .port = own.port});
  }
  auto memory = RONDO_TRY(comm::reach_peers(bootstrap_, settled.ranks, exchanged));
  warn_of_rejected_instruction_set();
  title_ = parent.title.empty() ? config_.name : parent.title;
  Config shown = config_;
  shown.name = parent.members.empty() ? title_ : title_ + ", " + parent.members;
  auto layers = RONDO_TRY(
      comm::assemble(bootstrap_, shown, settled, std::move(memory), gpu ? &*gpu : nullptr));
  const comm::HostSizes& sizes = settled.sizes;
  board_segment_ = std::move(layers.board_segment);
  segment_ = std::move(layers.fifo_segment);
  transport_ = std::move(layers.transport);
  board_ = std::move(layers.board);
  if (parent.named) board_->begin_errors_with(title_ + ": ");
  watch_ = std::move(layers.watch);
  host_ = std::make_shared<comm::HostExecutor>(
      std::move(layers.runner), *board_,
      host_limits(sizes, bootstrap_.hosts(), rank(), config_, transport_->capabilities(), title_),
      std::chrono::nanoseconds(config_.stall_timeout).count());
  executor_ = host_;
  log(LogLevel::kInfo,
      fmt::format("{}: rank {} of {}: {} channels, {} slots of {} bytes, {} CPUs, links: {}",
                  title_, rank(), size(), sizes.channels, sizes.depth, sizes.slot_bytes, sizes.cpus,
                  sizes.profile.name));
  if (gpu) {
    executor_ = RONDO_TRY(comm::DeviceExecutor::create(
        {bootstrap_, *board_, *watch_, *host_, config_, settled, title_}, std::move(*gpu), layers));
  }
  is_at_last_exchange_ = true;
  // No rank begins an operation before every rank is on the board.
  RONDO_TRY(bootstrap_.barrier());
  RONDO_TRY(start_agent());
  bootstrap_.close_sockets();
  if (rank() == 0) {
    log(LogLevel::kInfo, fmt::format("{}: set up in {} rounds", title_, bootstrap_.rounds()));
  }
  // The others are through: no reason to fail.
  (void)base::guarded([&] {
    if (bootstrap_.is_first_on_host()) status::announce_board(board_segment_.fd());
    return Status();
  });
  return {};
}

Status Communicator::Impl::start_agent() {
  if (!board_->places().several() || !bootstrap_.is_first_on_host()) return {};
  agent_ = std::make_unique<comm::Agent>(
      *board_, bootstrap_.take_control(), [this](int first) { return bootstrap_.find_dead(first); },
      comm::reconnect_over_tcp(bootstrap_, identity_, token_), RONDO_TRY(comm::longest_silence()));
  return {};
}

std::future<Result<Communicator>> Communicator::create_async(const Config& config) {
  Status refused;
  try {
    return std::async(std::launch::async, [config] { return create(config); });
  } catch (const std::system_error& error) {
    refused = base::guarded([&] {
      return Status(
          Code::kResourceExhausted,
          fmt::format("no thread to create a communicator in the background: {}", error.what()));
    });
  } catch (...) {
    refused = base::caught();
  }
  auto told = base::guarded([&]() -> Result<Communicator> {
    auto made = Impl::create(config, {.refused = refused});
    return made.status();
  });
  std::promise<Result<Communicator>> promise;
  promise.set_value(std::move(told));
  return promise.get_future();
}

}  // namespace rondo
