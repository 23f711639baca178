// Ranks that count as processes of their own (FakeGpu::ranks_of_a_process), with device memory that
// they register.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/algorithms/algorithm.hpp"
#include "tests/comm/device/world.hpp"

namespace rondo::device::test {

constexpr size_t kSlab = size_t{1} << 20;
constexpr size_t kBefore = 4096;  // of an allocation, before what is registered of it

inline std::shared_ptr<FakeGpu> make_gpu(int ranks_of_a_process = 1, int devices = 2) {
  auto gpu = std::make_shared<FakeGpu>(devices);
  gpu->imports_elsewhere = true;
  gpu->ranks_of_a_process = ranks_of_a_process;
  return gpu;
}

inline Config roomy_config() {
  Config config = small_config();
  config.slot_bytes = 4096;
  return config;
}

/// A call's buffers at some place in device memory.
class Placed {
 public:
  Placed(const Call& call, int rank, int size, std::byte* at) : data_(call, rank, size), at_(at) {
    put();
  }
  void put() { std::memcpy(at_, data_.memory().data(), bytes()); }
  size_t bytes() const { return data_.memory().size(); }
  const void* in() const { return at_ + offset(data_.in()); }
  void* out() { return at_ + offset(data_.out()); }
  bool holds(const Buffers& wanted) const {
    return std::memcmp(at_, wanted.memory().data(), bytes()) == 0;
  }

 private:
  size_t offset(const void* place) const {
    return static_cast<size_t>(static_cast<const unsigned char*>(place) - data_.memory().data());
  }
  Buffers data_;
  std::byte* at_;
};

/// Device memory of every rank, of which calls get parts.
class Slabs {
 public:
  using Sizes = std::vector<size_t>;
  /// `pieces`: by rank, empty: memory of device_alloc(); else of physical allocations of these sizes,
  /// kBefore + kSlab together, as cuMemMap() puts them side by side.
  Slabs(World& world, FakeGpu& gpu, std::vector<Sizes> pieces = {})
      : world_(world), gpu_(gpu), pieces_(std::move(pieces)), used_(Sizes(world.size())) {
    pieces_.resize(used_.size());
    for (int rank = 0; rank < world.size(); ++rank) {
      const int device = rank % static_cast<int>(gpu.devices.size());
      const Sizes& own = pieces_[static_cast<size_t>(rank)];
      if (own.empty()) {
        auto made = device_alloc(kBefore + kSlab, device);
        REQUIRE(made.ok());
        base_.push_back(static_cast<std::byte*>(*made));
      } else {
        base_.push_back(gpu.create_mapped(own, device));
      }
      if (gpu.ranks_of_a_process == 1) {
        gpu.belongs_to(static_cast<uint32_t>(rank), base_.back(), kBefore + kSlab);
      }
    }
  }
  ~Slabs() {
    for (int rank = 0; rank < world_.size() && world_.all_created(); ++rank) {
      while (world_[rank].unregister_memory(begin(rank)).ok()) continue;
    }
    for (size_t rank = 0; rank < base_.size(); ++rank) {
      if (pieces_[rank].empty()) {
        CHECK(device_free(base_[rank]).ok());
      } else {
        gpu_.destroy_mapped(base_[rank]);
      }
    }
  }
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;

  std::byte* begin(int rank) const { return base_[static_cast<size_t>(rank)] + kBefore; }
  /// Each rank's at another offset.
  std::byte* take(int rank, size_t bytes) {
    size_t& used = used_[static_cast<size_t>(rank)];
    const size_t at = used + 8 * static_cast<size_t>(rank);
    used = (at + bytes + 63) / 64 * 64;
    REQUIRE(used <= kSlab);
    return begin(rank) + at;
  }
  void clear() { used_.assign(used_.size(), 0); }

 private:
  World& world_;
  FakeGpu& gpu_;
  std::vector<Sizes> pieces_;
  std::vector<std::byte*> base_;
  Sizes used_;
};

/// On all ranks at once.
inline std::vector<Status> on_all(World& world, const std::function<Status(int rank)>& call) {
  std::vector<Status> statuses(static_cast<size_t>(world.size()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] { statuses[static_cast<size_t>(rank)] = call(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

inline void require_registered(World& world, const Slabs& slabs) {
  for (const Status& status : on_all(world, [&](int rank) {
         return world[rank].register_memory(slabs.begin(rank), kSlab);
       })) {
    INFO(status.to_string());
    REQUIRE(status.ok());
  }
}

inline void require_unregistered(World& world, const Slabs& slabs) {
  for (int rank = 0; rank < world.size(); ++rank) {
    REQUIRE(world[rank].unregister_memory(slabs.begin(rank)).ok());
  }
}

using AllPlaced = std::vector<std::vector<Placed>>;  // [call][rank]

inline AllPlaced place(Slabs& slabs, const std::vector<Call>& calls, int size) {
  AllPlaced found(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    for (int rank = 0; rank < size; ++rank) {
      const size_t bytes = Buffers(calls[i], rank, size).memory().size();
      found[i].emplace_back(calls[i], rank, size, slabs.take(rank, bytes));
    }
  }
  return found;
}

inline void issue_all(World& world, const std::vector<Call>& calls, AllPlaced& found) {
  for (int rank = 0; rank < world.size(); ++rank) {
    for (size_t i = 0; i < calls.size(); ++i) {
      INFO(calls[i].to_string() << ", rank " << rank);
      const Status status =
          issue(world[rank], calls[i], found[i][static_cast<size_t>(rank)], world.on_stream(rank));
      INFO(status.to_string());
      REQUIRE(status.ok());
    }
  }
}

inline void check_all(World& world, const std::vector<Call>& calls, const AllPlaced& found,
                      const std::vector<std::vector<Buffers>>& wanted) {
  for (int rank = 0; rank < world.size(); ++rank) {
    INFO(world[rank].status().to_string());
    CHECK(world[rank].status().ok());
    for (size_t i = 0; i < calls.size(); ++i) {
      INFO(calls[i].to_string() << ", rank " << rank << " of " << world.size());
      const auto r = static_cast<size_t>(rank);
      CHECK(found[i][r].holds(wanted[i][r]));
    }
  }
}

/// Enqueues all calls on all ranks; then compares with the host's results.
inline void compare(World& world, Slabs& slabs, const std::vector<Call>& calls) {
  const auto wanted = on_host(calls, world.size());
  slabs.clear();
  AllPlaced found = place(slabs, calls, world.size());
  issue_all(world, calls, found);
  world.synchronize();
  check_all(world, calls, found, wanted);
}

inline bool is_direct(Algorithm algorithm) {
  return algorithms::traits_of(algorithm).needs.references;
}

/// An all-reduce for which the communicator itself chooses a direct algorithm.
inline Call chosen_direct(World& world) {
  for (size_t count = 64; count <= 16384; count *= 2) {
    const Algorithm chosen =
        world[0].plan(Collective::kAllReduce, count, DataType::kInt32, true).algorithm;
    if (is_direct(chosen)) return {.collective = Collective::kAllReduce, .count = count};
  }
  FAIL("no size is direct");
  return {};
}

// Whether the last operations of that buffer were direct.
inline bool was_told(FakeGpu& gpu, const void* memory) {
  return gpu.told().count(static_cast<const std::byte*>(memory)) > 0;
}

}  // namespace rondo::device::test
