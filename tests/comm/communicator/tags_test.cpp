// Messages with tags: which recv a message is for, probes, and waiting for several. Random
// exchanges are compared with the rule that defines them.
#include <signal.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <random>

#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

/// Message number `k` of rank `from` to rank `to`.
struct Sent {
  int tag = 0;
  std::vector<int32_t> data{};
};

/// A recv as it is called, and what it got.
struct Asked {
  int source = 0, tag = 0;
  std::vector<int32_t> data{};
  Envelope envelope{};
  bool accepts(int from, int of_message) const {
    return (source == kAnySource || source == from) && (tag == kAnyTag || tag == of_message);
  }
};

std::vector<Sent> messages_of(unsigned seed, int from, int to, int tags) {
  static constexpr std::array<size_t, 6> kMessageCounts{0, 1, 15, 300, 5000, 20000};
  std::mt19937 random(seed * 977 + static_cast<unsigned>(from * 31 + to));
  std::vector<Sent> all(1 + random() % 4);
  int32_t k = 0;
  for (Sent& sent : all) {
    sent.tag = static_cast<int>(random() % static_cast<unsigned>(tags)) * 1000;
    sent.data.assign(kMessageCounts[random() % kMessageCounts.size()], 0);
    std::iota(sent.data.begin(), sent.data.end(), from * 1000003 + to * 10007 + 101 * k++);
  }
  return all;
}

/// What the recvs of one rank may ask for, so that each gets a message whatever comes first.
enum class Ask : uint8_t { kBoth, kAnyTag, kMixedTags, kAnySource, kNeither };
constexpr Ask kAsks[] = {Ask::kBoth, Ask::kAnyTag, Ask::kMixedTags, Ask::kAnySource, Ask::kNeither};

/// Whether every one of one sender's messages finds a recv: each the earliest that accepts it.
bool all_match(int from, const std::vector<Sent>& messages, const std::vector<Asked>& recvs) {
  std::vector<bool> taken(recvs.size(), false);
  for (const Sent& sent : messages) {
    size_t i = 0;
    while (i < recvs.size() && (taken[i] || !recvs[i].accepts(from, sent.tag))) ++i;
    if (i == recvs.size()) return false;
    taken[i] = true;
  }
  return true;
}

std::vector<Asked> recvs_of(const std::vector<std::vector<Sent>>& incoming, Ask ask,
                            std::mt19937& random) {
  std::vector<Asked> all;
  for (int from = 0; from < static_cast<int>(incoming.size()); ++from) {
    const std::vector<Sent>& messages = incoming[static_cast<size_t>(from)];
    std::vector<Asked> own;
    for (const Sent& sent : messages) {
      const bool any_tag = ask == Ask::kAnyTag || ask == Ask::kNeither;
      const bool any_source = ask == Ask::kAnySource || ask == Ask::kNeither;
      own.push_back({any_source ? kAnySource : from, any_tag ? kAnyTag : sent.tag});
    }
    if (ask == Ask::kMixedTags) {
      const std::vector<Asked> plain = own;
      for (Asked& recv : own) recv.tag = random() % 3 == 0 ? kAnyTag : recv.tag;
      std::shuffle(own.begin(), own.end(), random);
      if (!all_match(from, messages, own)) own = plain;
    }
    all.insert(all.end(), own.begin(), own.end());
  }
  // kMixedTags: the order of recvs from one source decides whether all match.
  if (ask != Ask::kMixedTags) std::shuffle(all.begin(), all.end(), random);
  for (Asked& recv : all) recv.data.assign(20000, -1);
  return all;
}

/// The rule: every message is received once, whole; and of two of one sender, the one sent earlier
/// goes to the recv called earlier, if that accepts both.
void check_rule(const std::vector<std::vector<Sent>>& incoming, const std::vector<Asked>& recvs) {
  std::vector<std::vector<bool>> seen;
  for (const auto& messages : incoming) seen.emplace_back(messages.size(), false);
  std::vector<std::pair<int, size_t>> got;
  for (const Asked& recv : recvs) {
    const Envelope& e = recv.envelope;
    expect(recv.accepts(e.source, e.tag) && e.type == kInt, "a message that was not asked for");
    const auto& messages = incoming[static_cast<size_t>(e.source)];
    size_t k = 0;
    while (k < messages.size() &&
           (messages[k].tag != e.tag || seen[static_cast<size_t>(e.source)][k] ||
            messages[k].data.size() != e.count ||
            !std::equal(messages[k].data.begin(), messages[k].data.end(), recv.data.begin()))) {
      ++k;
    }
    expect(k < messages.size(), "a message that nobody sent, or one twice");
    expect(e.count == recv.data.size() || recv.data[e.count] == -1, "wrote behind the message");
    seen[static_cast<size_t>(e.source)][k] = true;
    got.emplace_back(e.source, k);
  }
  for (size_t i = 0; i < recvs.size(); ++i) {
    for (size_t j = i + 1; j < recvs.size(); ++j) {
      const auto [from, k] = got[j];
      const bool overtaken = got[i].first == from && k < got[i].second;
      const Sent& sent = incoming[static_cast<size_t>(from)][k];
      // Equal messages with equal tags cannot be told apart.
      const Sent& later = incoming[static_cast<size_t>(from)][got[i].second];
      expect(!overtaken || !recvs[i].accepts(from, sent.tag) ||
                 (sent.tag == later.tag && sent.data == later.data),
             "a message overtook another one");
    }
  }
}

enum class Means : uint8_t { kAsync, kBlocking, kGroup, kProbe };

void receive_all(Communicator& comm, std::vector<Asked>& recvs, Means means, std::mt19937& random) {
  std::vector<Work> works;
  std::vector<size_t> of_work;
  if (means == Means::kGroup) expect_ok(comm.group_start(), "group_start");
  for (size_t i = 0; i < recvs.size(); ++i) {
    Asked& r = recvs[i];
    if (means == Means::kAsync) {
      works.push_back(comm.recv_async(r.data.data(), r.data.size(), kInt, r.source, r.tag));
      of_work.push_back(i);
      continue;
    }
    if (means == Means::kProbe) {
      const auto found = comm.probe(r.source, r.tag);
      expect(found.ok(), found.status().to_string());
      const auto again = comm.try_probe(found->source, found->tag);
      expect(again.ok() && *again && (*again)->count == found->count, "a probe takes a message");
      expect_ok(
          comm.recv(r.data.data(), found->count, kInt, found->source, found->tag, &r.envelope),
          "recv");
      expect(r.envelope.count == found->count, "another message than the probe found");
      continue;
    }
    expect_ok(comm.recv(r.data.data(), r.data.size(), kInt, r.source, r.tag, &r.envelope), "recv");
  }
  if (means == Means::kGroup) expect_ok(comm.group_end(), "group_end");
  while (!works.empty()) {
    const size_t i = random() % 2 == 0 ? wait_any(works) : random() % works.size();
    expect_ok(works[i].wait(), "recv_async");
    recvs[of_work[i]].envelope = works[i].envelope();
    works.erase(works.begin() + static_cast<std::ptrdiff_t>(i));
    of_work.erase(of_work.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void exchange(Communicator& comm, unsigned seed) {
  const int n = comm.size(), r = comm.rank();
  std::mt19937 random(seed * 131 + static_cast<unsigned>(r));
  const Ask ask = kAsks[seed % std::size(kAsks)];
  const auto means = static_cast<Means>(random() % 4);
  std::vector<std::vector<Sent>> incoming, outgoing;
  for (int p = 0; p < n; ++p) {
    incoming.push_back(messages_of(seed, p, r, 3));
    outgoing.push_back(messages_of(seed, r, p, 3));
  }
  std::vector<Asked> recvs = recvs_of(incoming, ask, random);
  std::vector<Work> sends;
  std::vector<size_t> next(static_cast<size_t>(n), 0);
  for (size_t left = 1; left > 0;) {  // peers take turns at random
    const auto p = random() % static_cast<unsigned>(n);
    if (next[p] < outgoing[p].size()) {
      const Sent& sent = outgoing[p][next[p]++];
      sends.push_back(
          comm.send_async(sent.data.data(), sent.data.size(), kInt, static_cast<int>(p), sent.tag));
    }
    left = 0;
    for (size_t q = 0; q < next.size(); ++q) left += outgoing[q].size() - next[q];
  }
  receive_all(comm, recvs, means, random);
  expect_ok(wait_all(sends), "wait_all");
  check_rule(incoming, recvs);
  expect_ok(comm.barrier(), "barrier");  // else a recv from any source meets the next exchange
}

}  // namespace

TEST_CASE("whatever tags, sources and probes, each message goes to the earliest recv for it") {
  Config tiny = with(&Config::slot_bytes, 512);
  tiny.slots = 2;
  for (const auto& [config, first] : {std::pair{Config(), 0u}, {tiny, 10u}}) {
    run_exhaustively(sizes({1, 2, 3, 5, 7}), config, [first = first](Communicator& comm) {
      for (unsigned seed = first; seed < first + 10; ++seed) {
        try {
          exchange(comm, seed);
        } catch (const std::exception& e) {
          expect(false, "seed " + std::to_string(seed) + ": " + e.what());
        }
      }
    });
  }
}

TEST_CASE("a recv has room for more than is sent, and says what came") {
  run_each({2}, [](Communicator& comm) {
    const int other = 1 - comm.rank();
    std::vector<int32_t> out(3000, 7 + comm.rank()), in(4000, -1);
    Work sent = comm.send_async(out.data(), out.size(), kInt, other, 5);
    Envelope e;
    expect_ok(comm.recv(in.data(), in.size(), kInt, kAnySource, kAnyTag, &e), "recv");
    expect_eq(e.source, other, "source");
    expect_eq(e.tag, 5, "tag");
    expect_eq(e.count, out.size(), "count");
    expect(in[2999] == 7 + other && in[3000] == -1, "the last element and the one after it");
    expect_ok(sent.wait(), "send");
    expect_eq(sent.envelope().source, -1, "of a send");
    // Calls without a tag have tag 0, and their recvs want exactly what they say.
    sent = comm.send_async(out.data(), 10, kInt, other);
    expect_ok(comm.recv(in.data(), 20, kInt, other, 0, &e), "recv");
    expect_eq(e.count, size_t{10}, "count");
    expect_ok(sent.wait(), "send");
    sent = comm.send_async(out.data(), 10, kInt, other, 0);
    expect_ok(comm.recv(in.data(), 10, kInt, other), "recv");
    expect_ok(sent.wait(), "send");
  });
  const auto disagree = [](DataType type, size_t room, const std::string& words) {
    run_each({2}, [&](Communicator& comm) {
      std::vector<int64_t> data(100);
      const Status status = comm.rank() == 0 ? comm.send(data.data(), 10, kInt, 1, 3)
                                             : comm.recv(data.data(), room, type, 0, 3);
      expect_error(error_of_barriers(comm, status), Code::kMismatch, words);
    });
  };
  disagree(kInt, 9, "rank 0 sends 10 int32 with tag 3 to rank 1, whose recv has room for 9 int32");
  disagree(DataType::kInt64, 10, "whose recv has room for 10 int64: the types must be the same");
}

TEST_CASE("without a tag a recv has room for what comes, too, and may ask for any source") {
  run_each({2, 3}, [](Communicator& comm) {
    std::vector<int32_t> data(12, comm.rank() + 5);
    if (comm.rank() == 1) {
      for (const size_t sends : {10, 0}) expect_ok(comm.send(data.data(), sends, kInt, 0), "send");
    }
    if (comm.rank() != 0) return;
    Work first = comm.recv_async(data.data(), 12, kInt, kAnySource);
    expect_ok(first.wait(), "recv");
    expect(first.envelope().source == 1 && first.envelope().count == 10, "what came");
    expect(data[9] == 6 && data[10] == 5, "the front of the buffer");
    expect_ok(comm.recv(data.data(), 12, kInt, 1), "recv");
  });
}

TEST_CASE("a probe finds what a recv would get, and leaves it") {
  run_each({3}, [](Communicator& comm) {
    std::vector<int32_t> data(5000, comm.rank());
    if (comm.rank() == 0) {
      const auto none = comm.try_probe(kAnySource, 9);
      expect(none.ok() && !*none, "a message that nobody sends");
    }
    expect_ok(comm.barrier(), "barrier");
    if (comm.rank() == 1) {
      std::vector<Work> works;
      for (const int tag : {1, 2, 3}) {
        works.push_back(
            comm.send_async(data.data(), static_cast<size_t>(tag) * 1000, kInt, 0, tag));
      }
      expect_ok(wait_all(works), "send");
    }
    if (comm.rank() == 2) expect_ok(comm.send(data.data(), 5, kInt, 0, 2), "send");
    if (comm.rank() != 0) return expect_ok(comm.barrier(), "barrier");
    const auto third = comm.probe(kAnySource, 3);
    expect(third.ok() && third->source == 1 && third->count == 3000, "of tag 3");
    std::optional<Envelope> second;
    await("the message of rank 2",
          [&] { return (second = *comm.try_probe(2, kAnyTag)).has_value(); });
    expect(second->tag == 2 && second->count == 5 && second->type == kInt, "of rank 2");
    const auto first = comm.probe(1, kAnyTag);
    expect(first.ok() && first->tag == 1 && first->count == 1000, "the first of rank 1");
    Envelope e;
    expect_ok(comm.recv(data.data(), 3000, kInt, kAnySource, 3, &e), "recv");
    expect_eq(data[2999], 1, "tag 3");
    for (int k = 0; k < 2; ++k) {
      expect_ok(comm.recv(data.data(), 5000, kInt, kAnySource, 2, &e), "recv");
      expect_eq(e.count, e.source == 1 ? size_t{2000} : size_t{5}, "count of tag 2");
    }
    expect_ok(comm.recv(data.data(), 5000, kInt, kAnySource, kAnyTag, &e), "recv");
    expect_eq(e.tag, 1, "what is left");
    const auto none = comm.try_probe(kAnySource, kAnyTag);
    expect(none.ok() && !*none, "a message is left");
    // What this rank sends itself, too.
    Work own = comm.send_async(data.data(), 12, kInt, 0, 4);
    const auto found = comm.probe(0, 4);
    expect(found.ok() && found->source == 0 && found->count == 12, "of its own");
    expect_ok(comm.recv(data.data(), 12, kInt, 0, 4), "recv");
    expect_ok(own.wait(), "send");
    expect_ok(comm.barrier(), "barrier");
  });
}

TEST_CASE("recvs from one rank and from any get a rank's messages in the order of their calls") {
  for (const bool any_first : {false, true}) {
    run_ok(How::kThreads, 2, [any_first](Communicator& comm) {
      if (comm.rank() == 1) {
        int32_t go = 0;
        expect_ok(comm.recv(&go, 1, kInt, 0), "recv");  // both recvs are called
        for (const int32_t k : {1, 2}) expect_ok(comm.send(&k, 1, kInt, 0, 3), "send");
        return;
      }
      std::array<int32_t, 2> got{};
      std::vector<Work> works;
      works.push_back(comm.recv_async(&got[0], 1, kInt, any_first ? kAnySource : 1, 3));
      works.push_back(comm.recv_async(&got[1], 1, kInt, any_first ? 1 : kAnySource, 3));
      expect_ok(comm.send(got.data(), 1, kInt, 1), "send");
      expect_ok(wait_all(works), "recv_async");
      expect(got[0] == 1 && got[1] == 2, "a message overtook another one");
    });
  }
}

TEST_CASE("no sender waits for ever while a recv from any source has other messages", "[mapped]") {
  run_ok(How::kThreads, 3, with(&Config::slots, 8), [](Communicator& comm) {
    int32_t value = comm.rank();
    // All are there before the first is received.
    const int sends = comm.rank() == 1 ? 6 : comm.rank() == 2 ? 1 : 0;
    for (int k = 0; k < sends; ++k) expect_ok(comm.send(&value, 1, kInt, 0, 1), "send");
    expect_ok(comm.barrier(), "barrier");
    if (comm.rank() != 0) return;
    std::vector<int> sources;
    for (int k = 0; k < 7; ++k) {
      Envelope e;
      expect_ok(comm.recv(&value, 1, kInt, kAnySource, 1, &e), "recv");
      sources.push_back(e.source);
    }
    expect(sources[0] == 2 || sources[1] == 2, "rank 2 had to wait");
  });
}

TEST_CASE("messages are received in another order than sent as far as there is room aside") {
  for (const bool library : {false, true}) {
    run_ok(How::kThreads, 2, [&](Communicator& comm) {
      const size_t count = size_t{3} << 20;  // 12 MiB, of 16
      Buffer large(count * 4, library), small(4, library);
      auto* const numbers = reinterpret_cast<int32_t*>(large.data());
      for (int turn = 0; turn < 2; ++turn) {  // the room is free again
        if (comm.rank() == 0) {
          for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<int32_t>(i) + turn;
          std::vector<Work> works;
          works.push_back(comm.send_async(large.data(), count, kInt, 1, 1));
          works.push_back(comm.send_async(small.data(), 1, kInt, 1, 2));
          expect_ok(wait_all(works), "send");
        } else {
          expect_ok(comm.recv(small.data(), 1, kInt, 0, 2), "recv");
          expect_ok(comm.recv(large.data(), count, kInt, 0, 1), "recv");
          expect_eq(numbers[count - 1], static_cast<int32_t>(count) - 1 + turn, "the last");
          expect_eq(numbers[0], turn, "the first");
        }
      }
    });
  }
  // Without room it holds up the next one, unless its recv is posted.
  run_ok(How::kThreads, 2, [](Communicator& comm) {
    std::vector<int32_t> large(size_t{5} << 20), small(1);  // 20 MiB
    for (const bool posted : {true, false}) {
      std::vector<Work> works;
      Status status;
      if (comm.rank() == 0) {
        works.push_back(comm.send_async(large.data(), large.size(), kInt, 1, 1));
        works.push_back(comm.send_async(small.data(), 1, kInt, 1, 2));
      } else {
        if (posted) works.push_back(comm.recv_async(large.data(), large.size(), kInt, 0, 1));
        await("the large one", [&] { return posted || comm.try_probe(0, 1)->has_value(); });
        status = comm.recv(small.data(), 1, kInt, 0, 2, nullptr,
                           {.stall_timeout = std::chrono::milliseconds(posted ? 0 : 300)});
      }
      const Status all = wait_all(works);
      if (posted) expect_ok(status.ok() ? all : status, "in time");
      if (posted) continue;
      if (status.ok()) status = all;
      expect_error(status, Code::kTimeout, "tag 1", "tag 2");
    }
  });
}

TEST_CASE("calls with tags that make no sense are refused, and nothing is lost") {
  run_ok(How::kThreads, 2, [](Communicator& comm) {
    int32_t x = 0, y = 5;
    const int other = 1 - comm.rank();
    expect_refused(comm.send(&x, 1, kInt, other, -1), "send: tag -1 is not between 0 and 32767");
    expect_refused(comm.send(&x, 1, kInt, other, kMaxTag + 1), "tag 32768");
    expect_refused(comm.recv(&x, 1, kInt, other, -2), "recv: tag -2");
    expect_refused(comm.send(&x, 1, kInt, kAnySource, 1), "rank -2");
    expect_refused(comm.recv(&x, 1, kInt, -1, 1), "rank -1");
    expect_refused(comm.probe(2, 0).status(), "probe: rank 2 is none of 2 ranks");
    expect_refused(comm.probe(comm.rank(), 0).status(), "probe of itself waits for ever");
    expect_refused(comm.recv(&x, 1, kInt, comm.rank(), 1), "recv from itself waits for ever");
    expect_refused(comm.try_probe(0, kMaxTag + 1).status(), "probe: tag 32768");
    expect_ok(comm.group_start(), "group_start");
    expect_refused(comm.probe(other, 0).status(), "a group's calls begin at its end");
    expect_refused(comm.group_end(), "a group's calls begin at its end");
    const auto with_itself = [&](int sent, int source, int tag) {
      expect_ok(comm.group_start(), "group_start");
      expect_ok(comm.send(&y, 1, kInt, comm.rank(), sent), "send");
      expect_ok(comm.recv(&x, 1, kInt, source, tag), "recv");
      return comm.group_end();
    };
    expect_refused(with_itself(1, comm.rank(), 2), "none for send(int32, count 1, tag 1) to rank");
    expect_ok(with_itself(1, comm.rank(), 1), "group_end");
    expect_ok(with_itself(1, kAnySource, kAnyTag), "group_end");
    expect_eq(x, 5, "its own message");
    expect_ok(comm.barrier(), "barrier");
  });
}

TEST_CASE("wait_any names one that has ended, wait_all the first failure") {
  run_ok(How::kThreads, 2, [](Communicator& comm) {
    std::vector<int32_t> data(4), go(1);
    std::vector<Work> works;
    expect_eq(wait_any(works), size_t{0}, "without any");
    expect_ok(wait_all(works), "without any");
    if (comm.rank() == 1) {
      for (const int tag : {2, 0, 3, 1}) {
        expect_ok(comm.send(&tag, 1, kInt, 0, tag), "send");
        expect_ok(comm.recv(go.data(), 1, kInt, 0), "recv");
      }
      return;
    }
    for (int tag = 0; tag < 4; ++tag)
      works.push_back(comm.recv_async(&data[static_cast<size_t>(tag)], 1, kInt, 1, tag));
    for (const int tag : {2, 0, 3, 1}) {
      const size_t ended = wait_any(works);
      expect_eq(works[ended].envelope().tag, tag, "the one that was sent");
      works.erase(works.begin() + static_cast<std::ptrdiff_t>(ended));
      expect_ok(comm.send(go.data(), 1, kInt, 1), "send");
    }
    works.push_back(comm.recv_async(data.data(), 1, kInt, 7, 1));
    works.push_back(comm.recv_async(data.data(), 1, kInt, 8, 1));
    expect_eq(wait_any(works), size_t{0}, "one that was refused");
    expect_refused(wait_all(works), "rank 7");
  });
}

TEST_CASE("a probe of one's own messages leaves out what posted recvs will get") {
  run_ok(How::kThreads, 1, [](Communicator& comm) {
    std::vector<int32_t> large(size_t{4} << 20), first(large.size()), second(large.size());
    std::vector<Work> works;
    works.push_back(comm.recv_async(first.data(), first.size(), kInt, 0, 1));
    works.push_back(comm.recv_async(second.data(), second.size(), kInt, 0, 1));
    works.push_back(comm.send_async(large.data(), large.size(), kInt, 0, 1));
    works.push_back(comm.send_async(large.data(), 1, kInt, 0, 1));
    while (!works[1].test()) {
      const auto found = comm.try_probe(0, 1);
      expect(found.ok() && !found->has_value(), "a message that is another's");
    }
    expect_ok(wait_all(works), "all");
  });
}

TEST_CASE("the flight record and the deadline name whom a recv from any source may wait for") {
  run_ok(How::kThreads, 3, with(&Config::stall_timeout, 300ms), [](Communicator& comm) {
    if (comm.rank() == 2) return await("the error", [&] { return !comm.status().ok(); });
    int32_t value = 0;
    const Status status = comm.rank() == 0 ? comm.recv(&value, 1, kInt, kAnySource, 6)
                                           : comm.probe(kAnySource, kAnyTag).status();
    // Either rank's wait, which both are told of.
    const bool is_recv = status.message().find("recv(") != std::string::npos;
    expect_error(
        status, Code::kTimeout,
        is_recv ? "recv(int32, count 1, tag 6) from any rank" : "probe(any tag) from any rank",
        is_recv ? "waits for any rank: 1, 2: " : "waits for any rank: 0, 2: ");
    expect_contains(comm.flight_record(), "rank 2");
  });
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("a rank that dies ends recvs from any source, probes and wait_any") {
  for (const auto& [size, polls] : {std::pair{2, false}, {2, true}, {3, false}, {5, false}}) {
    WorldGang gang(size, [size = size, polls = polls](Communicator& comm, Link& link) {
      const int rank = comm.rank();
      int32_t value = 0, other = 0;
      link.announce("ready");
      Status status;
      if (rank == size - 1) link.await("never");
      if (rank == 0 && !polls) status = comm.recv(&value, 1, kInt, kAnySource, kAnyTag);
      if (rank == 1) status = comm.probe(kAnySource, 3).status();
      if (rank == 2) {
        std::vector<Work> works;
        works.push_back(comm.recv_async(&value, 1, kInt, kAnySource, 4));
        works.push_back(comm.recv_async(&other, 1, kInt, rank + 1, 5));
        status = works[wait_any(works)].status();
        expect(!wait_all(works).ok(), "all fail");
      }
      if (rank == 3 || (rank == 0 && polls)) {
        Result<std::optional<Envelope>> found = std::optional<Envelope>();
        await("the error", [&] { return !(found = comm.try_probe(kAnySource, 3)).ok(); });
        status = found.status();
      }
      expect_error(status, Code::kPeerDied, "rank " + std::to_string(size - 1));
    });
    gang.await_all("ready");
    gang.kill(size - 1, SIGKILL);
    gang.require_ok({size - 1});
  }
}
#endif

TEST_CASE("what was sent before its sender left is received; then nobody is left to wait for") {
  run_ok(How::kThreads, 3, [](Communicator& comm) {
    int32_t value = comm.rank();
    if (comm.rank() != 0) return expect_ok(comm.send(&value, 1, kInt, 0, comm.rank()), "send");
    for (const int tag : {2, 1}) {
      expect_ok(comm.recv(&value, 1, kInt, kAnySource, tag), "recv");
      expect_eq(value, tag, "value");
    }
    expect_error(comm.recv(&value, 1, kInt, kAnySource, kAnyTag), Code::kPeerDied,
                 "all other ranks left the communicator while rank 0 is in "
                 "recv(int32, count 1, any tag) from any rank");
  });
}

TEST_CASE("a recv from any rank that fails does not blame a rank that has left", "[one_host]") {
  run_ok(How::kThreads, 3, [](Communicator& comm) {
    std::optional<Communicator> same = std::move(*comm.duplicate());
    expect_ok(same->barrier(), "barrier");
    if (comm.rank() == 0) same.reset();
    expect_ok(comm.barrier(), "rank 0 has left");
    if (comm.rank() == 1) {
      float value;
      const Status status =
          same->recv(&value, 1, kFloat, kAnySource, kAnyTag, nullptr, {.stall_timeout = 300ms});
      expect_error(status, Code::kTimeout, "waits for any rank: 2: rank 2 (pid ");
    }
    expect_ok(comm.barrier(), "end");
  });
}

}  // namespace rondo::testing
