// How long two pinned threads need to exchange 8 bytes: through links, and through signals. The
// floor is what one cache line costs from core to core and back.
#include <benchmark/benchmark.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "transport/memory/segment.hpp"
#include "transport/shm/factory.hpp"

namespace rondo::transport {
namespace {

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof(set), &set);
}

void relax() { __builtin_ia32_pause(); }

/// Every exchange: both send, both wait for the other. The partner goes on until told to stop.
/// Reports the fastest batch, too: on a machine that does other things the mean is what those cost.
template <class Exchange>
void run(benchmark::State& state, Exchange exchange) {
  constexpr int kBatch = 50;
  std::atomic<bool> stop{false};
  std::thread partner([&] {
    pin(1);
    for (uint64_t turn = 1; exchange(1, turn, stop); ++turn) {
    }
  });
  pin(0);
  const std::atomic<bool> never{false};
  uint64_t turn = 0;
  auto fastest = std::chrono::steady_clock::duration::max();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kBatch; ++i) exchange(0, ++turn, never);
    fastest = std::min(fastest, std::chrono::steady_clock::now() - start);
  }
  stop = true;
  partner.join();
  const auto total = std::chrono::duration<double, std::nano>(fastest).count();
  state.SetItemsProcessed(state.iterations() * kBatch);
  state.counters["fastest_ns"] = total / kBatch;
}

/// Two ranks over fresh memory.
struct Ranks {
  Ranks() {
    const shm::FifoSizes shape{
        .ranks = 2, .slot_bytes = 64 << 10, .publish_depth = 8, .publish_slot_bytes = 4096};
    segment = Segment::create("exchange-bench", shm::bytes_needed(shape)).value();
    for (int rank = 0; rank < 2; ++rank) {
      ranks[rank] = shm::create(shape, rank, segment.base(), {}, true).value();
    }
  }
  Segment segment;
  std::unique_ptr<Transport> ranks[2];
};

bool exchange_through(Sender& sender, Receiver& receiver, uint64_t turn,
                      const std::atomic<bool>& stop) {
  std::byte* slot = nullptr;
  while ((slot = sender.try_acquire(sizeof(turn))) == nullptr) {
    if (stop.load()) return false;
    relax();
  }
  std::memcpy(slot, &turn, sizeof(turn));
  sender.try_publish(sizeof(turn), turn);
  Delivery delivery{};
  while (!receiver.try_peek(&delivery)) {
    if (stop.load()) return false;
    relax();
  }
  uint64_t got = 0;
  std::memcpy(&got, delivery.data, sizeof(got));
  receiver.release();
  return got == turn;
}

void inline_exchange(benchmark::State& state) {
  Ranks all;
  run(state, [&](int rank, uint64_t turn, const std::atomic<bool>& stop) {
    Transport& own = *all.ranks[rank];
    return exchange_through(own.sender(0, 1 - rank), own.receiver(0, 1 - rank), turn, stop);
  });
}
BENCHMARK(inline_exchange)->UseRealTime()->MinTime(0.2);

void published_exchange(benchmark::State& state) {
  Ranks all;
  run(state, [&](int rank, uint64_t turn, const std::atomic<bool>& stop) {
    Transport& own = *all.ranks[rank];
    return exchange_through(own.publisher(0), own.subscription(0, 1 - rank), turn, stop);
  });
}
BENCHMARK(published_exchange)->UseRealTime()->MinTime(0.2);

void signal_exchange(benchmark::State& state) {
  Ranks all;
  run(state, [&](int rank, uint64_t turn, const std::atomic<bool>& stop) {
    Transport& own = *all.ranks[rank];
    own.signal(0, turn);
    while (own.seen(0, 1 - rank) < turn) {
      if (stop.load()) return false;
      relax();
    }
    return true;
  });
}
BENCHMARK(signal_exchange)->UseRealTime()->MinTime(0.2);

/// The floor: two bare flags.
void flag_exchange(benchmark::State& state) {
  struct alignas(128) Flag {
    std::atomic<uint64_t> value{0};
  };
  Flag flags[2];
  run(state, [&](int rank, uint64_t turn, const std::atomic<bool>& stop) {
    flags[rank].value.store(turn, std::memory_order_release);  // pairs with the load below
    while (flags[1 - rank].value.load(std::memory_order_acquire) < turn) {  // and this with it
      if (stop.load()) return false;
      relax();
    }
    return true;
  });
}
BENCHMARK(flag_exchange)->UseRealTime()->MinTime(0.2);

}  // namespace
}  // namespace rondo::transport

BENCHMARK_MAIN();
