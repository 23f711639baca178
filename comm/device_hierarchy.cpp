// See device_hierarchy.hpp.
#include "comm/device_hierarchy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/base/refuse.hpp"

namespace rondo::comm {
namespace {

// Shares begin at multiples of it, for moves of whole vectors.
constexpr size_t kShareBytes = 64;
// Of errors of the communicator, whose numbers they name ranks by, in its parts.
constexpr std::string_view kOfAll = "of the communicator as a whole: ";

bool are_consecutive(const base::HostMap& hosts) {
  for (int host = 0; host < hosts.hosts(); ++host) {
    const auto ranks = hosts.ranks_on(host);
    const int first = host * static_cast<int>(ranks.size());
    if (ranks.front() != first || ranks.back() - first + 1 != static_cast<int>(ranks.size())) {
      return false;
    }
  }
  return true;
}

// The average is taken between hosts, and factors are applied inside.
ReduceOp op_inside(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }
ReduceOp op_across(ReduceOp op) { return op == ReduceOp::kScaledSum ? ReduceOp::kSum : op; }

CallOptions options_of(const engine::Operation& operation) {
  CallOptions options;
  options.stream = operation.stream;
  options.timeout = std::chrono::milliseconds(operation.timeout_ns / 1'000'000);
  return options;
}

// Not an empty one.
void add_call(std::vector<Request>& calls, const Request& call) {
  if (call.count > 0) calls.push_back(call);
}

}  // namespace

bool DeviceHierarchy::fits(const base::HostMap& hosts) {
  const size_t each = hosts.hosts() < 2 ? 0 : hosts.ranks_on(0).size();
  for (int host = 0; host < hosts.hosts(); ++host) {
    if (hosts.ranks_on(host).size() != each) return false;
  }
  return each > 1;
}

DeviceHierarchy::DeviceHierarchy(Part inside, Part across, const base::HostMap& hosts, int rank,
                                 std::span<std::byte> scratch)
    : inside_(std::move(inside)),
      across_(std::move(across)),
      hosts_(hosts),
      host_(hosts.host_of(rank)),
      local_(hosts.local_rank(rank)),
      locals_(static_cast<int>(hosts.ranks_on(host_).size())),
      is_consecutive_(are_consecutive(hosts)),
      scratch_(scratch) {}

DeviceHierarchy::~DeviceHierarchy() = default;

bool DeviceHierarchy::takes(const engine::Prepared& prepared) const {
  switch (prepared.call.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
      break;
    case Collective::kAllGather:
      if (!is_consecutive_) return false;
      break;
    case Collective::kReduceScatter: {
      const size_t calls = pieces_of(prepared.call) * static_cast<size_t>(hosts_.hosts());
      if (calls == 0 || calls > kMostCalls) return false;
      break;
    }
    default:
      return false;
  }
  const Algorithm asked_for = prepared.call.algorithm;
  return asked_for == Algorithm::kAuto || asked_for == Algorithm::kHierarchical;
}

DeviceHierarchy::HostShare DeviceHierarchy::share_of(const board::Call& call) const {
  const size_t unit = std::max<size_t>(1, kShareBytes / size_of(call.type));
  const auto locals = static_cast<size_t>(locals_);
  const size_t part = call.count / locals / unit * unit;
  return {.part = part, .tail = call.count - part * locals};
}

size_t DeviceHierarchy::piece_of(const board::Call& call) const {
  const size_t unit = std::max<size_t>(1, kShareBytes / size_of(call.type));
  const size_t most = scratch_.size() / static_cast<size_t>(hosts_.hosts()) / size_of(call.type);
  return call.count <= most ? call.count : most / unit * unit;
}

size_t DeviceHierarchy::pieces_of(const board::Call& call) const {
  const size_t piece = piece_of(call);
  return piece == 0 ? 0 : (call.count + piece - 1) / piece;
}

size_t DeviceHierarchy::launches_of(const board::Call& call) const {
  constexpr size_t kAtOnce = engine::DeviceGroup::kMostOperations;
  const bool gathers = call.collective == Collective::kAllGather;
  // In place, a stage's two calls are not one launch.
  if (!gathers && call.collective != Collective::kReduceScatter) return 4;
  const size_t pieces = gathers ? 1 : pieces_of(call);
  // At least the two waits of its stream that the staged runner counts.
  return std::max<size_t>(2,
                          (static_cast<size_t>(hosts_.hosts()) + kAtOnce - 1) / kAtOnce * pieces);
}

Status DeviceHierarchy::refusal(const std::list<engine::Operation>& operations,
                                const std::list<engine::Transfer>& messages) const {
  std::set<void*> streams;  // of the messages, which together are a wait on each
  for (const engine::Transfer& message : messages) streams.insert(message.stream);
  size_t launches = streams.size();
  bool has_own = false;
  for (const engine::Operation& operation : operations) {
    const bool is_own = takes(*operation.prepared);
    has_own = has_own || is_own;
    launches += is_own ? launches_of(operation.prepared->call) : 1;
  }
  if (!has_own || launches <= kMostLaunches) return {};
  return refuse(fmt::format(
      "a group of {} operations and {} messages, which are up to {} launches: at most {} are "
      "possible, or its last ones could wait for its first, whose peers may come after it. "
      "Make several groups of them",
      operations.size(), messages.size(), launches, kMostLaunches));
}

Status DeviceHierarchy::make_room(const std::list<engine::Operation>& operations) {
  std::vector<Request> requests;
  std::list<std::vector<Stage>> all;  // whose layouts these have
  for (const engine::Operation& operation : operations) {
    if (!takes(*operation.prepared)) continue;
    for (const Stage& stage : all.emplace_back(stages_of(operation))) {
      if (!stage.is_across) requests.insert(requests.end(), stage.calls.begin(), stage.calls.end());
    }
  }
  if (requests.empty()) return {};
  const CallOptions options = options_of(operations.front());
  const device::DeviceRunner::Room room = RONDO_TRY(inside_->make_room(requests, options));
  const std::string place = fmt::format("rank {} on host {}", local_, host_);
  switch (room) {
    case device::DeviceRunner::Room::kEnough:
      return {};
    case device::DeviceRunner::Room::kInUse:
      return {
          Code::kTimeout,
          fmt::format("{}: earlier operations over the links inside its host did not end within "
                      "{} ms, and their programs leave no room for those of a group of {}",
                      place, options.timeout.count(), operations.size())};
    case device::DeviceRunner::Room::kTooLittle:
      break;
  }
  return {Code::kResourceExhausted,
          fmt::format("the programs of a group of {} operations over the links inside hosts do not "
                      "fit into the memory that {} has for programs: make several groups of them",
                      operations.size(), place)};
}

Status DeviceHierarchy::put(const engine::Operation& operation) {
  CallOptions options = options_of(operation);
  for (const Stage& stage : stages_of(operation)) {
    if (stage.calls.empty()) continue;
    Communicator::Impl& part = stage.is_across ? *across_ : *inside_;
    RONDO_TRY(part.group_start());
    for (const Request& call : stage.calls) {
      options.factor = call.op == ReduceOp::kScaledSum ? operation.factor : 1;
      if (Status status = part.submit(call, options); !status.ok()) {
        (void)part.group_abandon(status.message());
        return status;
      }
    }
    RONDO_TRY(part.group_end());
  }
  return {};
}

std::vector<DeviceHierarchy::Stage> DeviceHierarchy::stages_of(
    const engine::Operation& operation) const {
  const board::Call& call = operation.prepared->call;
  if (call.collective == Collective::kAllGather) return all_gather(operation);
  if (call.collective == Collective::kReduceScatter) return reduce_scatter(operation);
  const HostShare share = share_of(call);
  const size_t element = size_of(call.type);
  std::byte* const out = operation.out;
  std::byte* const own = out + share.part * static_cast<size_t>(local_) * element;
  std::byte* const tail = out + share.part * static_cast<size_t>(locals_) * element;
  const bool reduces = call.collective == Collective::kAllReduce;
  const int root_host = reduces ? host_ : hosts_.host_of(call.root);
  const int root = reduces ? 0 : hosts_.local_rank(call.root);
  std::vector<Request> first, across, last;
  if (host_ == root_host) {
    const std::byte* const in = reduces || local_ == root ? operation.in : out;
    const ReduceOp op = op_inside(call.op);
    add_call(first, {.collective = reduces ? Collective::kReduceScatter : Collective::kScatter,
                     .in = in,
                     .out = own,
                     .count = share.part,
                     .type = call.type,
                     .op = op,
                     .root = root});
    add_call(first, {.collective = reduces ? Collective::kReduce : Collective::kBroadcast,
                     .in = in + (tail - out),
                     .out = tail,
                     .count = share.tail,
                     .type = call.type,
                     .op = op,
                     .root = reduces ? locals_ - 1 : root});
  }
  add_call(across, {.collective = call.collective,
                    .in = own,
                    .out = own,
                    .count = share.part + (local_ == locals_ - 1 ? share.tail : 0),
                    .type = call.type,
                    .op = op_across(call.op),
                    .root = reduces ? 0 : root_host});
  add_call(last, {.collective = Collective::kAllGather,
                  .in = own,
                  .out = out,
                  .count = share.part,
                  .type = call.type});
  add_call(last, {.collective = Collective::kBroadcast,
                  .in = tail,
                  .out = tail,
                  .count = share.tail,
                  .type = call.type,
                  .root = locals_ - 1});
  return {{false, first}, {true, across}, {false, last}};
}

// Broadcasts between hosts, because blocks of ranks with the same place do not follow each other in
// Out.
std::vector<DeviceHierarchy::Stage> DeviceHierarchy::all_gather(
    const engine::Operation& operation) const {
  const board::Call& call = operation.prepared->call;
  const size_t block = call.count * size_of(call.type);
  const auto locals = static_cast<size_t>(locals_);
  std::vector<Request> across, last;
  for (int host = 0; host < hosts_.hosts(); ++host) {
    std::byte* const blocks = operation.out + static_cast<size_t>(host) * locals * block;
    std::byte* const same_place = blocks + static_cast<size_t>(local_) * block;
    add_call(across, {.collective = Collective::kBroadcast,
                      .in = host == host_ ? operation.in : same_place,
                      .out = same_place,
                      .count = call.count,
                      .type = call.type,
                      .root = host});
    add_call(last, {.collective = Collective::kAllGather,
                    .in = same_place,
                    .out = blocks,
                    .count = call.count,
                    .type = call.type});
  }
  return {{true, across}, {false, last}};
}

// The sums inside lie in the scratch memory, since Out holds those of one host. Pieces and operations
// take it one after the other, as the staged runner orders a carrier's calls.
std::vector<DeviceHierarchy::Stage> DeviceHierarchy::reduce_scatter(
    const engine::Operation& operation) const {
  const board::Call& call = operation.prepared->call;
  const size_t piece = piece_of(call);
  std::vector<Stage> stages;
  for (size_t begin = 0; begin < call.count; begin += piece) {
    const size_t count = std::min(piece, call.count - begin);
    stages.push_back(sums_inside(operation, begin, count));
    stages.push_back({true,
                      {{.collective = Collective::kReduceScatter,
                        .in = scratch_.data(),
                        .out = operation.out + begin * size_of(call.type),
                        .count = count,
                        .type = call.type,
                        .op = op_across(call.op)}}});
  }
  return stages;
}

DeviceHierarchy::Stage DeviceHierarchy::sums_inside(const engine::Operation& operation,
                                                    size_t begin, size_t count) const {
  const board::Call& call = operation.prepared->call;
  const size_t element = size_of(call.type);
  const bool has_gaps = count < call.count || !is_consecutive_;  // between a call's blocks
  Stage stage = {.is_across = false, .calls = {}};
  for (int host = 0; host < hosts_.hosts(); ++host) {
    std::vector<size_t> offsets;
    for (const int rank : hosts_.ranks_on(host)) {
      offsets.push_back(static_cast<size_t>(rank) * call.count + begin);
    }
    Request sum = {.collective = Collective::kReduceScatter,
                   .in = operation.in + offsets.front() * element,
                   .out = scratch_.data() + static_cast<size_t>(host) * count * element,
                   .count = count,
                   .type = call.type,
                   .op = op_inside(call.op)};
    if (has_gaps) {
      // Its programs are made anew for each call (Plans::find()).
      const std::vector<size_t> counts(offsets.size(), count);
      sum.collective = Collective::kReduceScatterV;
      sum.in = operation.in;
      sum.count = 0;
      stage.layouts.push_back(
          std::make_shared<const schedule::BlockLayout>(make_layout(counts, offsets, {}, {})));
      sum.layout = stage.layouts.back().get();
    }
    stage.calls.push_back(sum);
  }
  return stage;
}

Status DeviceHierarchy::look() {
  const auto look_at = [](const Part& part, const std::vector<int>& members) -> Status {
    const Status status = part->status();
    if (status.ok()) return {};
    // Before the communicator's own error has come, on another way.
    if (status.message().starts_with(kOfAll)) {
      return {status.code(), status.message().substr(kOfAll.size())};
    }
    return {status.code(), fmt::format("by hierarchical, among {}, which are 0 to {} there: {}",
                                       name_ranks(members), members.size() - 1, status.message())};
  };
  const auto here = hosts_.ranks_on(host_);
  RONDO_TRY(look_at(inside_, {here.begin(), here.end()}));
  std::vector<int> peers;
  for (int host = 0; host < hosts_.hosts(); ++host) {
    peers.push_back(hosts_.ranks_on(host)[static_cast<size_t>(local_)]);
  }
  return look_at(across_, peers);
}

void DeviceHierarchy::abort(const Status& why) {
  (void)base::guarded([&] {
    const Status of_all(why.code(), std::string(kOfAll) + why.message());
    inside_->fail(of_all);
    across_->fail(of_all);
    return Status();
  });
}

device::StreamCarrier::AwaitedRank DeviceHierarchy::awaited() const {
  const auto [host, since_ns] = across_->awaited();
  if (host < 0) return {.rank = -1, .since_ns = base::now_ns()};
  return {.rank = hosts_.ranks_on(host)[static_cast<size_t>(local_)], .since_ns = since_ns};
}

uint64_t DeviceHierarchy::bytes_sent() const {
  return inside_->stats().bytes_sent + across_->stats().bytes_sent;
}

Plan DeviceHierarchy::plan(const board::Call& call, bool direct) const {
  Plan sum = {.algorithm = Algorithm::kHierarchical,
              .channels = inside_->device_channels(),
              .predicted_us = 0,
              .bytes_sent_per_rank = 0};
  const auto add = [&](const Part& part, Collective collective, size_t count, ReduceOp op,
                       size_t times) {
    if (count == 0) return;
    const Plan plan = part->plan(collective, count, call.type, direct, Algorithm::kAuto, op);
    sum.predicted_us += plan.predicted_us * static_cast<double>(times);
    sum.bytes_sent_per_rank += plan.bytes_sent_per_rank * times;
  };
  const auto [part, tail] = share_of(call);
  const bool reduces = call.collective == Collective::kAllReduce;
  const auto hosts = static_cast<size_t>(hosts_.hosts());
  if (call.collective == Collective::kAllGather) {
    add(across_, Collective::kBroadcast, call.count, call.op, hosts);
    add(inside_, Collective::kAllGather, call.count, call.op, hosts);
    return sum;
  }
  if (call.collective == Collective::kReduceScatter) {
    const size_t piece = piece_of(call);
    const auto add_pieces = [&](size_t count, size_t times) {
      add(inside_, call.collective, count, op_inside(call.op), times * hosts);
      add(across_, call.collective, count, op_across(call.op), times);
    };
    add_pieces(piece, call.count / piece);
    add_pieces(call.count % piece, 1);
    return sum;
  }
  add(inside_, reduces ? Collective::kReduceScatter : Collective::kScatter, part,
      op_inside(call.op), 1);
  add(inside_, reduces ? Collective::kReduce : Collective::kBroadcast, tail, op_inside(call.op), 1);
  add(across_, call.collective, part + tail, op_across(call.op), 1);
  add(inside_, Collective::kAllGather, part, call.op, 1);
  add(inside_, Collective::kBroadcast, tail, call.op, 1);
  return sum;
}

}  // namespace rondo::comm
