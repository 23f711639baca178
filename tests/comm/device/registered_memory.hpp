// Ranks that count as processes of their own (FakeGpu::ranks_of_a_process), with device memory that
// they register.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/comm/device/calls.hpp"

namespace rondo::device::test {

constexpr size_t kSlab = size_t{1} << 20;
constexpr size_t kBefore = 4096;  // of an allocation, before what is registered of it

inline std::shared_ptr<FakeGpu> make_gpu(int ranks_of_a_process = 1, int devices = 2) {
  auto gpu = std::make_shared<FakeGpu>(devices);
  gpu->imports_elsewhere = true;
  gpu->ranks_of_a_process = ranks_of_a_process;
  return gpu;
}

inline Setup processes(int ranks_of_a_process = 1, int devices = 2) {
  return {.gpu = make_gpu(ranks_of_a_process, devices), .config = roomy_config()};
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
  /// `pieces`: by rank, empty: memory of device_alloc(); otherwise of physical allocations of these
  /// sizes, kBefore + kSlab together, as cuMemMap() puts them side by side.
  Slabs(World& world, FakeGpu& gpu, std::vector<Sizes> pieces = {})
      : world_(world), gpu_(gpu), pieces_(std::move(pieces)), used_(Sizes(world.size())) {
    pieces_.resize(used_.size());
    for (int rank = 0; rank < world.size(); ++rank) {
      const int device = rank % static_cast<int>(gpu.devices.size());
      base_.push_back(pieces_[rank].empty()
                          ? static_cast<std::byte*>(device_alloc(kBefore + kSlab, device).value())
                          : gpu.create_mapped(pieces_[rank], device));
      if (gpu.ranks_of_a_process == 1) {
        gpu.belongs_to(static_cast<uint32_t>(rank), base_.back(), kBefore + kSlab);
      }
    }
  }
  ~Slabs() {
    for (int rank = 0; rank < world_.size() && world_.all_created(); ++rank) {
      while (world_[rank].unregister_device_memory(begin(rank)).ok()) continue;
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

  std::byte* begin(int rank) const { return base_[rank] + kBefore; }
  int32_t* ints(int rank) const { return reinterpret_cast<int32_t*>(begin(rank)); }
  /// Each rank's at another offset.
  std::byte* take(int rank, size_t bytes) {
    const size_t at = used_[rank] + 8 * static_cast<size_t>(rank);
    used_[rank] = (at + bytes + 63) / 64 * 64;
    REQUIRE(used_[rank] <= kSlab);
    return begin(rank) + at;
  }
  void clear() { used_.assign(used_.size(), 0); }
  /// As if all of it were freed and allocated again, at the same addresses.
  void renew() {
    for (std::byte* const each : base_) gpu_.renew(each);
  }

 private:
  World& world_;
  FakeGpu& gpu_;
  std::vector<Sizes> pieces_;
  std::vector<std::byte*> base_;
  Sizes used_;
};

/// On all ranks at once.
inline std::vector<Status> on_all(World& world, const std::function<Status(int rank)>& call) {
  std::vector<Status> statuses(world.size());
  on_threads(world.size(), [&](int rank) { statuses[rank] = call(rank); });
  return statuses;
}

inline std::vector<Status> register_all(World& world, const Slabs& slabs, size_t bytes = kSlab) {
  return on_all(world, [&](int rank) {
    return world[rank].register_device_memory(slabs.begin(rank), bytes);
  });
}
/// The same, but for one rank, which registers something else.
inline std::vector<Status> register_all_but(int other, void* memory, size_t bytes, World& world,
                                            const Slabs& slabs) {
  return on_all(world, [&](int rank) {
    return rank == other ? world[rank].register_device_memory(memory, bytes)
                         : world[rank].register_device_memory(slabs.begin(rank), kSlab);
  });
}

inline void require_registered(World& world, const Slabs& slabs, size_t bytes = kSlab) {
  for (const Status& status : register_all(world, slabs, bytes)) must(status);
}

inline void require_unregistered(World& world, const Slabs& slabs) {
  for (int rank = 0; rank < world.size(); ++rank) {
    must(world[rank].unregister_device_memory(slabs.begin(rank)));
  }
}

/// Ranks with slabs, which are not registered yet.
struct SlabRig : Rig {
  explicit SlabRig(int ranks, const Setup& setup = processes(),
                   const std::vector<Slabs::Sizes>& pieces = {})
      : Rig(ranks, setup), slabs(*this, *gpu, pieces) {}
  Slabs slabs;
};

/// The same, registered.
struct RegisteredRig : SlabRig {
  explicit RegisteredRig(int ranks, const Setup& setup = processes(),
                         const std::vector<Slabs::Sizes>& pieces = {})
      : SlabRig(ranks, setup, pieces) {
    require_registered(*this, slabs);
  }
};

using AllPlaced = OfAll<Placed>;

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

/// As they were before the calls.
inline void put_all(AllPlaced& found) {
  for (auto& ranks : found) {
    for (Placed& each : ranks) each.put();
  }
}

/// Enqueues all calls on all ranks; then compares with the host's results.
inline void compare(World& world, Slabs& slabs, const std::vector<Call>& calls) {
  slabs.clear();
  compare(world, calls, place(slabs, calls, world.size()));
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

/// An all-reduce by a direct algorithm, whatever the communicator would choose.
inline Call forced_direct(size_t count = 1000) {
  return {
      .collective = Collective::kAllReduce, .count = count, .algorithm = Algorithm::kTwoShotDirect};
}

// Whether the last operations of that buffer were direct.
inline bool was_told(FakeGpu& gpu, const void* memory) {
  return gpu.told().count(static_cast<const std::byte*>(memory)) > 0;
}

/// Whether `call` goes directly from and to the slabs; its results are right in any case.
inline bool goes_directly(SlabRig& world, const Call& call) {
  world.gpu->forget_told();
  compare(world, world.slabs, {call});
  return was_told(*world.gpu, world.slabs.begin(0));
}

}  // namespace rondo::device::test
