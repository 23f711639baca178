// See device_executor.hpp.
#include "comm/device_executor.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "comm/base/refuse.hpp"
#include "comm/check_call.hpp"
#include "rondo/log.hpp"

namespace rondo::comm {
namespace {

PlanLimits device_limits(const device::DeviceRunner& runner, int rank, const Config& config,
                         const std::string& title) {
  const transport::cuda_ipc::SegmentSizes& shape = runner.shape();
  return {.ranks = static_cast<int>(shape.ranks),
          .rank = rank,
          .channels = runner.channels(),
          .depth = runner.depth(),
          .publish_depth = shape.publish_depth,
          .slot_bytes = shape.slot_bytes,
          .publish_slot_bytes = shape.publish_slot_bytes,
          .on_device = true,
          .ll_bytes = shape.ll_bytes,
          .profile = runner.profile(),
          .available = {.publish = shape.publish_depth > 0,
                        .references = runner.reaches_buffers(),
                        .signals = runner.hosts().hosts() == 1,
                        .copies = runner.can_register(),
                        .rank_order_only = config.reproducible},
          .algorithm = config.algorithm,
          .wrapping_averages = config.wrapping_averages,
          .hosts = runner.hosts(),
          .title = title};
}

}  // namespace

Result<std::shared_ptr<DeviceExecutor>> DeviceExecutor::create(const DeviceExecutorParts& parts,
                                                               device::OpenedDevice gpu,
                                                               HostLayers& layers) {
  const Config& config = parts.config;
  device::DeviceSettings setup = {.channels = config.channels,
                                  .max_channels = config.max_channels,
                                  .slots = static_cast<uint32_t>(config.slots),
                                  .slot_bytes = config.slot_bytes,
                                  .links = {},
                                  .facts = {},
                                  .reach = layers.device_reach};
  for (const RankFacts& each : parts.settled.ranks) setup.facts.push_back(each.gpu);
  if (parts.settled.links.named) setup.links = parts.settled.links.profile;
  auto runner = RONDO_TRY(device::DeviceRunner::create(parts.bootstrap, parts.board, parts.watch,
                                                       std::move(layers.device_control),
                                                       std::move(gpu), setup));
  const int64_t timeout_ns = std::chrono::nanoseconds(config.stall_timeout).count();
  runner->set_longest_wait(timeout_ns);
  log(LogLevel::kInfo, fmt::format("rank {} of {} on {}", parts.board.rank(), parts.board.ranks(),
                                   runner->describe()));
  const PlanLimits limits = device_limits(*runner, parts.board.rank(), config, parts.title);
  return std::shared_ptr<DeviceExecutor>(
      new DeviceExecutor(std::move(runner), parts.host, limits, timeout_ns));
}

Status DeviceExecutor::refusal(std::string_view call, const CallOptions& options,
                               bool asynchronous) const {
  if (!asynchronous) return runner_->refusal(options.stream);
  return {Code::kUnavailable,
          fmt::format("{}: a communicator on a device has no asynchronous calls: its blocking ones "
                      "return when the operation is on its stream",
                      call)};
}

Status DeviceExecutor::refusal(const engine::Transfer& message) const {
  if (message.tag == 0 && message.peer != kAnySource && !message.probes) return {};
  return {Code::kUnavailable,
          fmt::format("{}: messages on a device have no tags, any source or probes: use send() "
                      "and recv() without a tag, which match in the order of the calls",
                      word_for(message))};
}

Status DeviceExecutor::enqueue(const engine::Operation& operation) {
  return runner_->add(operation, host_.runner().record(*operation.prepared));
}

Status DeviceExecutor::run(engine::Operation& operation) {
  RONDO_TRY(error(false));
  RONDO_TRY(enqueue(operation));
  return runner_->run();
}

Status DeviceExecutor::run_group(Group& group, bool* begun) {
  RONDO_TRY(runner_->refusal(group.transfers));
  *begun = true;
  RONDO_TRY(runner_->make_room(group.operations));
  RONDO_TRY(runner_->add(group.transfers));
  for (const engine::Operation& operation : group.operations) RONDO_TRY(enqueue(operation));
  return runner_->run();
}

Status DeviceExecutor::withdraw() noexcept {
  abort();
  return host_.withdraw();
}

Status DeviceExecutor::can_shrink() const {
  return {Code::kUnavailable,
          "shrink: this communicator is on a device, whose kernels may still wait for ranks that "
          "have ended: end this process's part and start the job anew"};
}

template <class Word>
Result<std::vector<Word>> DeviceExecutor::exchange(const Word& own) {
  RONDO_TRY(error(false));
  std::vector<Word> all(static_cast<size_t>(size()));
  RONDO_TRY(host_.exchange(&own, all.data(), sizeof(Word), board::FingerprintKind::kRegister));
  return all;
}

Status DeviceExecutor::register_memory(void* pointer, size_t bytes) {
  if (runner_->hosts().hosts() > 1) {
    return {
        Code::kUnavailable,
        "register_device_memory: the ranks are on several hosts, so operations go through slots"};
  }
  if (!runner_->can_register()) {
    return {Code::kUnavailable,
            "register_device_memory: the ranks' GPUs have no access to each other: operations go "
            "through slots in host memory"};
  }
  device::Registrations& registrations = runner_->registrations();
  // Every rank gets as far as its peers do: what one has to say, the others wait for.
  const auto offers = RONDO_TRY(exchange(registrations.offer(pointer, bytes)));
  RONDO_TRY(device::first_error(offers));
  const uint32_t rounds = registrations.piece_rounds(offers);
  Status own = registrations.map(offers), all;
  for (uint32_t round = 0; all.ok() && round <= rounds; ++round) {
    if (own.ok()) own = registrations.send_pieces(round);
    const auto outcomes = exchange(device::RegistrationOutcome::of(own));
    all = outcomes.ok() ? device::first_error(*outcomes) : outcomes.status();
    // What the others have sent is here by now. In the last round nobody sends.
    if (round < rounds) own = registrations.map_pieces(round, all.ok());
  }
  registrations.settle(all.ok());
  RONDO_TRY(all);
  if (!plans().limits().available.references) {
    // From here on, on every rank alike, operations may be direct.
    PlanLimits limits = plans().limits();
    limits.available.references = true;
    replace_plans(limits);
  }
  return {};
}

Status DeviceExecutor::unregister_memory(void* pointer) {
  return runner_->registrations().remove(pointer);
}

}  // namespace rondo::comm
