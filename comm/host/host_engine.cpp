#include "comm/host/host_engine.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm/base/clock.hpp"

namespace rondo::engine {

using schedule::Location;
using schedule::OperandKind;

HostEngine::HostEngine(transport::Transport& transport, const board::Board& board,
                       const PeerBuffers& peers, int channel)
    : transport_(transport),
      board_(board),
      peers_(peers),
      channel_(channel),
      rank_(board.rank()),
      needs_progress_(transport.capabilities().needs_progress),
      delays_(transport.capabilities().delays) {
  const int ranks = board.ranks();
  const auto n = static_cast<size_t>(ranks);
  senders_.resize(n);
  receivers_.resize(n);
  subscriptions_.resize(n);
  refers_.resize(n);
  const bool publishes = transport.capabilities().publish && ranks > 1;
  if (publishes) {
    publisher_ = &transport.publisher(channel);
    refers_[static_cast<size_t>(rank_)] = publisher_->takes_references();
  }
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank_) continue;
    const auto p = static_cast<size_t>(peer);
    senders_[p] = &transport.sender(channel, peer);
    refers_[p] = senders_[p]->takes_references();
    receivers_[p] = &transport.receiver(channel, peer);
    if (publishes) subscriptions_[p] = &transport.subscription(channel, peer);
  }
  slot_stores_.resize(SlotStores::kKinds * n);
  located_.resize(2 * (n + 1));
  factors_.resize(n + 1);
}

void HostEngine::start(const Operation& operation) {
  operation_ = &operation;
  const schedule::Program& program = operation.plan->program;
  geometry_ = &program.channels[static_cast<size_t>(channel_)];
  program_ = {.instructions = program.instructions.data(),
              .operands = program.operands.data(),
              .instruction_count = static_cast<uint32_t>(program.instructions.size()),
              .operand_count = static_cast<uint32_t>(program.operands.size())};
  in_ = const_cast<std::byte*>(operation.in);
  out_ = operation.out;
  // A scaled input travels scaled, so it needs a slot; and readers of slots read mapped memory
  // only.
  const uint32_t kind = operation.in_reference.kind;
  may_refer_ = operation.sharing == Sharing::kReferences &&
               (kind == transport::Reference::kArena || kind == transport::Reference::kAddress) &&
               !operation.prepared->in_place && !operation.prepared->scaled;
  cursor_ = {};
  published_ = 0;
  computed_ = false;
  arrives_ns_ = 0;
  budget_ =
      moves_in_turn(operation.plan->direct, geometry_->slice * operation.prepared->element_bytes);
  referred_.clear();
}

// Flattened: a small operation is a few dozen loads and stores, and calls between the functions
// below would be half of its time. What only large operations do stays out of line, to save
// registers.
[[gnu::flatten]] Progress HostEngine::advance() {
  // Before it forgets for which peer it waited: that is asked when a link fails.
  if (needs_progress_ && !push()) return Progress::kFailed;
  awaited_ = nullptr;
  ready_at_ns_ = 0;
  blocked_on_.store(-1, std::memory_order_relaxed);
  const Progress walked = engine::advance(program_, *geometry_, cursor_, *this, budget_);
  if (walked != Progress::kDone) return walked;
  if (arrives_ns_ != 0 && await_carried() != Progress::kDone) return Progress::kBlocked;
  if (!referred_.empty() && drain_references() != Progress::kDone) return Progress::kBlocked;
  return needs_progress_ ? flush() : Progress::kDone;
}

[[gnu::noinline]] bool HostEngine::push() {
  link_error_ = transport_.progress(channel_);
  return link_error_.ok();
}

// Between operations nobody calls progress(), so an operation ends when its links owe nothing.
[[gnu::noinline]] Progress HostEngine::flush() {
  for (int peer = 0; peer < board_.ranks(); ++peer) {
    if (peer == rank_) continue;
    const auto p = static_cast<size_t>(peer);
    const bool subscribed = subscriptions_[p] != nullptr && !subscriptions_[p]->flushed();
    if (subscribed || !senders_[p]->flushed() || !receivers_[p]->flushed()) return blocked(peer);
  }
  return publisher_ == nullptr || publisher_->flushed() ? Progress::kDone : blocked(any_reader());
}

[[gnu::noinline]] void HostEngine::carry(const SliceMove& move, size_t bytes) {
  const schedule::Instruction& instruction = *move.instruction;
  const uint32_t operands = instruction.sources + instruction.destinations;
  for (uint32_t i = 0; i < operands; ++i) {
    const Location& operand = move.operands[i];
    const bool reads = i < instruction.sources && operand.place == OperandKind::kPeerIn;
    const bool writes = i >= instruction.sources && operand.place == OperandKind::kPeerOut;
    if ((!reads && !writes) || operand.peer == rank_) continue;
    arrives_ns_ =
        std::max(arrives_ns_, transport_.carry(channel_, reads ? operand.peer : rank_, bytes));
    if (reads) carried_from_ = operand.peer;
  }
}

[[gnu::noinline]] Progress HostEngine::await_carried() {
  if (base::now_ns() < arrives_ns_) {
    ready_at_ns_ = arrives_ns_;
    return blocked(carried_from_);
  }
  arrives_ns_ = 0;
  return Progress::kDone;
}

[[gnu::noinline]] Progress HostEngine::drain_references() {
  while (!referred_.empty()) {
    if (!referred_.back().sender->drained()) return blocked(referred_.back().peer);
    referred_.pop_back();
  }
  return Progress::kDone;
}

Progress HostEngine::receive(transport::Receiver& receiver, int peer, size_t bytes,
                             std::byte** where) {
  transport::Delivery delivery;
  if (!receiver.try_peek(&delivery)) return blocked(peer, &receiver);
  // A slot of another operation, or of another size, means that the ranks disagree; it is never
  // touched.
  if (delivery.tag != operation_->tag || delivery.bytes != bytes || delivery.data == nullptr) {
    return failed(peer, delivery.tag != operation_->tag);
  }
  // Operands are one list for sources and destinations; a source is only ever read.
  *where = const_cast<std::byte*>(delivery.data);
  return Progress::kDone;
}

Progress HostEngine::acquire(transport::Sender& sender, int reader, size_t bytes,
                             std::byte** where) {
  *where = sender.try_acquire(bytes);
  return *where != nullptr ? Progress::kDone : blocked(reader);
}

Progress HostEngine::locate(const SliceMove& move, size_t bytes) {
  const uint64_t element = operation_->prepared->element_bytes;
  const uint32_t sources = move.instruction->sources;
  const uint32_t operands = sources + move.instruction->destinations;
  std::byte** const located = located_.data();
  Progress got = Progress::kDone;
  bool takes = false, hands_over = false;
  uint64_t fetched = 0;
  for (uint32_t i = 0; i < operands; ++i) {
    const Location& operand = move.operands[i];
    const uint64_t offset = (operand.offset + move.offset) * element;
    const auto peer = static_cast<size_t>(operand.peer);
    switch (operand.place) {
      case OperandKind::kIn:
        located[i] = in_ + offset;
        break;
      case OperandKind::kOut:
        located[i] = out_ + offset;
        break;
      case OperandKind::kPeerIn:
        located[i] = peers_.in[peer] + offset;
        if (i < sources && operand.peer != rank_) fetched += bytes;
        break;
      case OperandKind::kPeerOut:
        located[i] = peers_.out[peer] + offset;
        hands_over = true;
        break;
      case OperandKind::kSlot:
        got = i < sources ? receive(*receivers_[peer], operand.peer, bytes, &located[i])
                          : acquire(*senders_[peer], operand.peer, bytes, &located[i]);
        if (got != Progress::kDone) return got;
        (i < sources ? takes : hands_over) = true;
        break;
      case OperandKind::kPublished:
        got = i < sources ? receive(*subscriptions_[peer], operand.peer, bytes, &located[i])
                          : acquire(*publisher_, any_reader(), bytes, &located[i]);
        if (got != Progress::kDone) return got;
        (i < sources ? takes : hands_over) = true;
        break;
      case OperandKind::kIdentity:  // copied onto itself
        located[i] = fill_out(move, bytes);
        break;
    }
  }
  takes_ = takes;
  hands_over_ = hands_over;
  fetched_ = fetched;
  return Progress::kDone;
}

[[gnu::noinline]] std::byte* HostEngine::fill_out(const SliceMove& move, size_t bytes) const {
  const size_t element = operation_->prepared->element_bytes;
  const uint64_t identity = operation_->prepared->identity;
  std::byte* const out = out_ + (move.operands[1].offset + move.offset) * element;
  std::memcpy(out, &identity, element);
  for (size_t done = element; done < bytes; done *= 2) {
    std::memcpy(out + done, out, std::min(done, bytes - done));
  }
  return out;
}

bool HostEngine::can_refer(const SliceMove& move, size_t bytes) const {
  const schedule::Instruction& instruction = *move.instruction;
  if (!may_refer_ || instruction.sources != 1 || instruction.destinations != 1 ||
      bytes < kReferenceBytes || (instruction.finishes && operation_->prepared->divisor > 1)) {
    return false;
  }
  const Location& to = move.operands[1];
  const bool slot = to.place == OperandKind::kSlot, published = to.place == OperandKind::kPublished;
  return move.operands[0].place == OperandKind::kIn && (slot || published) &&
         refers_[reader_of(to)];
}

[[gnu::noinline]] Progress HostEngine::send_reference(const SliceMove& move, size_t bytes) {
  const Location& from = move.operands[0];
  const Location& to = move.operands[1];
  transport::Reference reference = operation_->in_reference;
  reference.offset += (from.offset + move.offset) * operation_->prepared->element_bytes;
  const bool publishes = to.place == OperandKind::kPublished;
  transport::Sender* sender = publishes ? publisher_ : senders_[static_cast<size_t>(to.peer)];
  const int reader = publishes ? any_reader() : to.peer;
  if (!sender->try_publish_reference(reference, bytes, operation_->tag)) return blocked(reader);
  const auto known = [sender](const Referred& r) { return r.sender == sender; };
  if (std::none_of(referred_.begin(), referred_.end(), known)) {
    referred_.push_back({.sender = sender, .peer = reader});
  }
  const int ranks = board_.ranks();
  sent(bytes * static_cast<uint64_t>(publishes ? ranks - 1 : 1));
  for (int peer = publishes ? 0 : to.peer; peer < (publishes ? ranks : to.peer + 1); ++peer)
    board_.ring(peer);
  return Progress::kDone;
}

Progress HostEngine::publish(const SliceMove& move, size_t bytes) {
  const Location* operands = move.operands + move.instruction->sources;
  for (; published_ < move.instruction->destinations; ++published_) {
    const Location& operand = operands[published_];
    if (operand.place == OperandKind::kSlot) {
      if (!senders_[static_cast<size_t>(operand.peer)]->try_publish(bytes, operation_->tag)) {
        return blocked(operand.peer);
      }
      sent(bytes);
      board_.ring(operand.peer);
    } else if (operand.place == OperandKind::kPublished) {
      if (!publisher_->try_publish(bytes, operation_->tag)) return blocked(any_reader());
      const int ranks = board_.ranks();
      sent(bytes * static_cast<uint64_t>(ranks - 1));
      for (int peer = 0; peer < ranks; ++peer) board_.ring(peer);
    } else if (operand.place == OperandKind::kPeerOut && operand.peer != rank_) {
      sent(bytes);
    }
  }
  return Progress::kDone;
}

void HostEngine::release(const SliceMove& move) {
  for (uint32_t i = 0; i < move.instruction->sources; ++i) {
    const Location& operand = move.operands[i];
    if (operand.place == OperandKind::kSlot) {
      receivers_[static_cast<size_t>(operand.peer)]->release();
      board_.ring(operand.peer);
    } else if (operand.place == OperandKind::kPublished) {
      subscriptions_[static_cast<size_t>(operand.peer)]->release();
      board_.ring(operand.peer);
    }
  }
}

[[gnu::noinline]] bool HostEngine::find_factors(const SliceMove& move) {
  bool scales = false;
  for (uint32_t i = 0; i < move.instruction->sources; ++i) {
    const Location& operand = move.operands[i];
    const bool input = operand.place == OperandKind::kIn || operand.place == OperandKind::kPeerIn;
    factors_[i] = !input ? 1
                  : operand.place == OperandKind::kIn
                      ? operation_->factor
                      : peers_.factors[static_cast<size_t>(operand.peer)];
    scales = scales || input;
  }
  return scales;
}

// Out of the way of small moves.
[[gnu::noinline]] void HostEngine::compute_large(const SliceMove& move,
                                                 kernels::Move& kernel_move) {
  const schedule::Instruction& instruction = *move.instruction;
  const Prepared& prepared = *operation_->prepared;
  const size_t bytes = move.length * prepared.element_bytes;
  // Results lead a move's destinations; slots follow.
  const Location* const destinations = move.operands + instruction.sources;
  const uint32_t all = instruction.destinations;
  const auto is_shared_slot = [&](const Location& to) {
    // Links that take references are memory that both ends have mapped.
    return in_slot(to) && refers_[reader_of(to)] != 0;
  };
  uint32_t slots = 0;
  while (slots < all && is_shared_slot(destinations[all - 1 - slots])) ++slots;
  if (slots == 0) return prepared.function(kernel_move);
  SlotStores& stores =
      slot_stores_[SlotStores::kKinds * reader_of(destinations[all - 1]) +
                   SlotStores::kind(instruction.sources, kernel_move.destination_count, bytes)];
  const SlotStores::StoreTurn turn = stores.next(bytes);
  if (turn.around) {
    // What goes around the caches comes first.
    std::byte** const to = located_.data() + instruction.sources;
    const uint32_t kept = kernel_move.destination_count;
    std::rotate(to, to + kept - slots, to + kept);
    kernel_move.nontemporal += slots;
  }
  stores.make(turn, bytes, [&] { prepared.function(kernel_move); });
}

void HostEngine::compute(const SliceMove& move) {
  const schedule::Instruction& instruction = *move.instruction;
  const Prepared& prepared = *operation_->prepared;
  const uint32_t divisor = instruction.finishes ? prepared.divisor : 1;
  std::byte** const from = located_.data();
  std::byte** const to = from + instruction.sources;
  uint32_t destinations = instruction.destinations;
  uint32_t nontemporal = 0;
  if (prepared.nontemporal) {
    // Results lead a move's destinations; slots follow.
    const Location* results = move.operands + instruction.sources;
    while (nontemporal < destinations && (results[nontemporal].place == OperandKind::kOut ||
                                          results[nontemporal].place == OperandKind::kPeerOut)) {
      ++nontemporal;
    }
  } else if (prepared.in_place && instruction.sources == 1 && divisor == 1 && !prepared.scaled) {
    // A copy of In onto itself is no access at all (schedule.hpp).
    uint32_t kept = 0;
    for (uint32_t i = 0; i < destinations; ++i) {
      if (to[i] != from[0]) to[kept++] = to[i];
    }
    if (kept == 0) return;
    destinations = kept;
  }
  const bool scales = prepared.scaled && find_factors(move);
  kernels::Move kernel_move = {.sources = from,
                               .destinations = to,
                               .source_count = instruction.sources,
                               .destination_count = destinations,
                               .count = move.length,
                               .divisor = divisor,
                               .nontemporal = nontemporal,
                               .factors = scales ? factors_.data() : nullptr};
  if (move.length * prepared.element_bytes >= SlotStores::kSmallest) {
    return compute_large(move, kernel_move);
  }
  prepared.function(kernel_move);
}

[[gnu::noinline]] Progress HostEngine::copy_between_processes(const SliceMove& move, size_t bytes) {
  const schedule::Instruction& instruction = *move.instruction;
  RONDO_CHECK(instruction.sources == 1, "%d sources, some in other processes", instruction.sources);
  const auto is_elsewhere = [this](const Location& operand) {
    const auto peer = static_cast<size_t>(operand.peer);
    return (operand.place == OperandKind::kPeerIn && peers_.in_elsewhere[peer]) ||
           (operand.place == OperandKind::kPeerOut && peers_.out_elsewhere[peer]);
  };
  // Where the peer's process has ended (ESRCH), this rank waits until the watch finds that.
  const auto failure = [this](int peer, int error) {
    if (error == ESRCH) return blocked(peer);
    copy_error_ = error;
    return failed(peer, false);
  };
  const auto address = [](const std::byte* p) { return reinterpret_cast<uint64_t>(p); };
  const Location& source = move.operands[0];
  std::byte* const from = located_[0];
  for (uint32_t i = 1; i <= instruction.destinations; ++i) {
    const Location& destination = move.operands[i];
    std::byte* const to = located_[i];
    int error = 0;
    if (is_elsewhere(source)) {
      RONDO_CHECK(!is_elsewhere(destination), "from rank %d to rank %d", source.peer,
                  destination.peer);
      error = transport_.copy_from(source.peer, address(from), to, bytes);
    } else if (is_elsewhere(destination)) {
      error = transport_.copy_to(destination.peer, address(to), from, bytes);
    } else if (to != from) {
      operation_->prepared->function({.sources = located_.data(),
                                      .destinations = &located_[i],
                                      .source_count = 1,
                                      .destination_count = 1,
                                      .count = move.length,
                                      .divisor = 1,
                                      .nontemporal = operation_->prepared->nontemporal ? 1U : 0U,
                                      .factors = nullptr});
    }
    if (error != 0) return failure(is_elsewhere(source) ? source.peer : destination.peer, error);
  }
  return Progress::kDone;
}

Progress HostEngine::try_move(const SliceMove& move) {
  const size_t bytes = move.length * operation_->prepared->element_bytes;
  if (!computed_) {
    if (can_refer(move, bytes)) return send_reference(move, bytes);
    const Progress found = locate(move, bytes);
    if (found != Progress::kDone) return found;
    if (operation_->sharing == Sharing::kCopied) {
      const Progress copied = copy_between_processes(move, bytes);
      if (copied != Progress::kDone) return copied;
    } else {
      compute(move);
    }
    if (delays_) carry(move, bytes);
    if (fetched_ > 0) sent(fetched_);
    if (hands_over_) {
      computed_ = true;
      published_ = 0;
    }
  }
  if (hands_over_) {
    const Progress done = publish(move, bytes);
    if (done != Progress::kDone) return done;
    computed_ = false;
  }
  if (takes_) release(move);
  return Progress::kDone;
}

Progress HostEngine::try_wait(const schedule::Instruction& instruction) {
  const int peer = instruction.peer;
  if (instruction.flag == schedule::Flag::kPosted) {
    return board_.has_posted(peer, operation_->sequence) ? Progress::kDone : blocked(peer);
  }
  if (arrives_ns_ != 0 && await_carried() != Progress::kDone) return Progress::kBlocked;
  const uint64_t seen = transport_.seen(channel_, peer);
  const uint64_t own = signal_value();
  if (board::signals_of(seen) < signals_) {
    if (delays_) ready_at_ns_ = transport_.signal_ready_at_ns(channel_, peer);
    return blocked(peer);
  }
  // The same signal of another operation. A peer that is already past it has made this comparison.
  if (board::signals_of(seen) == signals_ && seen != own) return failed(peer, true);
  return Progress::kDone;
}

void HostEngine::signal() {
  ++signals_;
  transport_.signal(channel_, signal_value());
  const int ranks = board_.ranks();
  for (int peer = 0; peer < ranks; ++peer) board_.ring(peer);
}

}  // namespace rondo::engine
