// Which recv a message is for: the part of MessageLanes that looks at tags and sources. Without
// them it compares one word a message.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/board/tags.hpp"
#include "comm/health/watch.hpp"
#include "comm/host/lanes.hpp"

namespace rondo::engine {

using board::count_of_word;
using board::tag_of_word;
using board::type_of_word;

namespace {

bool asks_for(const Transfer& t, int tag) { return t.tag == tag || t.tag == kAnyTag; }

Progress moved_or_blocked(bool moved) { return moved ? Progress::kProgressed : Progress::kBlocked; }

}  // namespace

// The next message of `peer` gets its recv, which becomes the first of its lane (kDone), or is set
// aside, and then the one after it is looked at. REQUIRES: no message of `peer` is being received.
Progress MessageLanes::meet(int peer) {
  bool moved = false;
  while (true) {
    if (early_[static_cast<size_t>(peer)].is_filling) {
      const Progress filled = fill(peer);
      if (filled == Progress::kFailed) return filled;
      if (filled == Progress::kBlocked) return moved_or_blocked(moved);
      moved = true;
      continue;
    }
    transport::Delivery next;
    if (!transport_.receiver(channel_, peer).try_peek(&next)) return moved_or_blocked(moved);
    const int tag = tag_of_word(next.tag);
    if (const Recipient posted = find_posted(peer, tag); posted.lane != nullptr) {
      if (accept(peer, next.tag, *posted.at) == Progress::kFailed) return Progress::kFailed;
      posted.at->matched = true;
      add(2 * static_cast<size_t>(peer) + 1, *posted.lane, posted.at, true);
      return Progress::kDone;
    }
    if (is_looked_for(peer, tag) || !has_room(peer, next.tag)) return moved_or_blocked(moved);
    set_aside(peer, next.tag);
  }
}

// The same for what this rank sends itself. A send keeps its buffer, so nothing is set aside.
Progress MessageLanes::meet_self() {
  const int self = board_.rank();
  Lane& sends = sends_to(self);
  if (is_streaming(self) || (!sends.empty() && sends.front().matched)) return Progress::kBlocked;
  for (auto send = sends.begin(); send != sends.end(); ++send) {
    const Recipient posted = find_posted(self, send->tag);
    if (posted.lane == nullptr) continue;
    if (accept(self, send->word(), *posted.at) == Progress::kFailed) return Progress::kFailed;
    send->matched = posted.at->matched = true;
    add(2 * static_cast<size_t>(self) + 1, *posted.lane, posted.at, true);
    sends.splice(sends.begin(), sends, send);
    return Progress::kDone;
  }
  return Progress::kBlocked;
}

// Before the lanes: while a recv asks for any source, or a probe looks, every peer that may be meant
// is looked at, each time another one first, so that none has to wait for ever.
Progress MessageLanes::meet_open() {
  const int ranks = board_.ranks(), first = last_source_ + 1;
  bool moved = false;
  for (int k = 0; k < ranks && may_be_aside_; ++k) {
    const Progress taken = take_from_aside((first + k) % ranks);
    if (taken == Progress::kFailed) return taken;
    moved = moved || taken != Progress::kBlocked;
  }
  may_be_aside_ = false;
  for (int k = 0; k < ranks && !open_.empty(); ++k) {
    const int peer = (first + k) % ranks;
    if (is_streaming(peer) || !is_awaited(peer)) continue;
    const Progress met = peer == board_.rank() ? meet_self() : meet(peer);
    if (met == Progress::kFailed) return met;
    moved = moved || met != Progress::kBlocked;
  }
  return moved_or_blocked(look() || moved);
}

// Only recvs that are new can ask for a message that is aside: older ones have been compared with it
// when it came.
Progress MessageLanes::take_from_aside(int peer) {
  Early& early = early_[static_cast<size_t>(peer)];
  bool moved = false;
  for (auto aside = early.messages.begin(); aside != early.messages.end();) {
    const Transfer& message = aside->transfer;
    const Recipient posted = find_posted(peer, message.tag);
    if (posted.lane == nullptr) {
      ++aside;
      continue;
    }
    if (accept(peer, message.word(), *posted.at) == Progress::kFailed) return Progress::kFailed;
    Transfer& recv = *posted.at;
    recv.moved = message.moved;
    recv.slots = message.slots;
    copy(aside->memory.get(), recv.buffer, message.moved, false);
    const size_t lane = 2 * static_cast<size_t>(peer) + 1;
    if (early.is_filling && aside == std::prev(early.messages.end())) {
      early.is_filling = false;  // the rest goes into the recv's buffer
      recv.matched = true;
      add(lane, *posted.lane, posted.at, true);
    } else {
      end(*posted.lane, posted.at);
      if (lanes_[lane].empty()) std::erase(active_, lane);
    }
    early.bytes -= message.bytes() + kAsideEach;
    --asides_;
    aside = early.messages.erase(aside);
    moved = true;
  }
  return moved_or_blocked(moved);
}

void MessageLanes::set_aside(int peer, uint64_t word) {
  Early& early = early_[static_cast<size_t>(peer)];
  Aside aside{.transfer = {.sends = false,
                           .peer = peer,
                           .buffer = nullptr,
                           .count = count_of_word(word),
                           .type = type_of_word(word),
                           .timeout_ns = 0,
                           .tag = tag_of_word(word),
                           .matched = true},
              .memory = nullptr};
  aside.memory = std::make_unique_for_overwrite<std::byte[]>(aside.transfer.bytes());
  aside.transfer.buffer = aside.memory.get();
  const uint64_t bytes = aside.transfer.bytes() + kAsideEach;
  early.messages.push_back(std::move(aside));
  early.bytes += bytes;
  early.is_filling = true;
  ++asides_;
}

Progress MessageLanes::fill(int peer) {
  Early& early = early_[static_cast<size_t>(peer)];
  const Progress filled = receive(early.messages.back().transfer);
  if (filled == Progress::kDone) early.is_filling = false;
  return filled;
}

// The recv is for this message from here on.
Progress MessageLanes::accept(int source, uint64_t word, Transfer& recv) {
  const uint64_t wanted = board::message_word(recv.type, recv.count, tag_of_word(word));
  const bool fits = type_of_word(word) == recv.type && count_of_word(word) <= recv.count;
  if (!fits && source == board_.rank()) {
    return fail(
        {Code::kMismatch, fmt::format("rank {} sends {} to itself but receives {}", source,
                                      board::describe_word(word), board::describe_word(wanted))});
  }
  if (!fits) return fail(board::unfit_message(source, word, board_.rank(), wanted));
  if (recv.peer == kAnySource) last_source_ = source;
  recv.peer = source;
  recv.tag = tag_of_word(word);
  recv.count = count_of_word(word);
  return Progress::kDone;
}

// Of all recvs that ask for such a message, the earliest.
MessageLanes::Recipient MessageLanes::find_posted(int source, int tag) {
  const auto asks = [tag](const Transfer& t) {
    return !t.probes && !t.matched && asks_for(t, tag);
  };
  Lane& own = recvs_from(source);
  const auto of_source = std::find_if(own.begin(), own.end(), asks);
  const auto of_any = std::find_if(open_.begin(), open_.end(), asks);
  const bool has_own = of_source != own.end(), has_any = of_any != open_.end();
  if (has_any && (!has_own || of_any->number < of_source->number)) return {&open_, of_any};
  return has_own ? Recipient{&own, of_source} : Recipient{nullptr, {}};
}

bool MessageLanes::is_awaited(int peer) {
  return !recvs_from(peer).empty() ||
         std::any_of(open_.begin(), open_.end(),
                     [peer](const Transfer& t) { return t.peer == peer || t.peer == kAnySource; });
}

bool MessageLanes::is_looked_for(int source, int tag) const {
  return std::any_of(open_.begin(), open_.end(), [=](const Transfer& t) {
    return t.probes && (t.peer == source || t.peer == kAnySource) && asks_for(t, tag);
  });
}

bool MessageLanes::has_room(int peer, uint64_t word) const {
  const uint64_t bytes = count_of_word(word) * size_of(type_of_word(word));
  return early_[static_cast<size_t>(peer)].bytes + bytes + kAsideEach <= kAsideBytes;
}

// Ends the probes that find a message, and those that look only once.
bool MessageLanes::look() {
  const int ranks = board_.ranks();
  bool ended = false;
  for (auto next = open_.begin(); next != open_.end();) {
    const auto probe = next++;
    if (!probe->probes) continue;
    const bool any = probe->peer == kAnySource;
    const int first = any ? last_source_ + 1 : probe->peer;
    std::optional<uint64_t> word;
    for (int k = 0; k < (any ? ranks : 1) && !word; ++k) {
      const int source = (first + k) % ranks;
      word = find_word(source, probe->tag);
      if (!word) continue;
      if (any) last_source_ = source;
      *probe->envelope = {.source = source,
                          .tag = tag_of_word(*word),
                          .count = count_of_word(*word),
                          .type = type_of_word(*word)};
    }
    if (!word && !probe->once) continue;
    end(open_, probe);
    ended = true;
  }
  return ended;
}

// The earliest such message that no recv has got.
std::optional<uint64_t> MessageLanes::find_word(int source, int tag) {
  const auto asks = [tag](int of_message) { return tag == kAnyTag || tag == of_message; };
  if (source == board_.rank()) {
    for (const Transfer& send : sends_to(source)) {
      if (send.matched || !asks(send.tag)) continue;
      if (find_posted(source, send.tag).lane == nullptr) return send.word();
    }
  }
  for (const Aside& aside : early_[static_cast<size_t>(source)].messages) {
    if (asks(aside.transfer.tag)) return aside.transfer.word();
  }
  const std::optional<uint64_t> next = next_word(source);
  return next && asks(tag_of_word(*next)) ? next : std::nullopt;
}

// Of a message of which nothing has been read yet.
std::optional<uint64_t> MessageLanes::next_word(int peer) {
  transport::Delivery next;
  const bool begun = is_streaming(peer) || early_[static_cast<size_t>(peer)].is_filling;
  if (peer == board_.rank() || begun) return std::nullopt;
  return transport_.receiver(channel_, peer).try_peek(&next) ? std::optional(next.tag)
                                                             : std::nullopt;
}

std::string MessageLanes::describe(const Transfer& transfer) {
  std::string text = transfer.to_string();
  if (transfer.sends || transfer.matched) return text;
  for (int peer = 0; peer < board_.ranks(); ++peer) {
    if (transfer.peer != kAnySource && transfer.peer != peer) continue;
    const std::optional<uint64_t> next = next_word(peer);
    if (!next || has_room(peer, *next) || find_posted(peer, tag_of_word(*next)).lane != nullptr) {
      continue;
    }
    text += fmt::format(
        ", held up by {} from rank {}, which must be received first (of messages received in "
        "another order than sent, {} MiB find room, of which {} bytes are taken),",
        board::describe_word(*next), peer, kAsideBytes >> 20,
        early_[static_cast<size_t>(peer)].bytes);
  }
  return text;
}

// As find_waiting_for(), of recvs from any source, and probes.
const Transfer* MessageLanes::find_open_waiting(const std::function<bool(int)>& is_such) const {
  const auto waits_for = [&](int peer) {
    return is_such(peer) && transport_.receiver(channel_, peer).ready_at_ns() == 0;
  };
  for (const Transfer& t : open_) {
    int candidates = 0, waiting = 0;
    for (int peer = 0; peer < board_.ranks(); ++peer) {
      if (peer == board_.rank() || (t.peer != kAnySource && t.peer != peer)) continue;
      ++candidates;
      waiting += waits_for(peer) ? 1 : 0;
    }
    if (candidates > 0 && waiting == candidates) return &t;
  }
  return nullptr;
}

}  // namespace rondo::engine
