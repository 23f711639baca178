// Walks of the device engine on the host: memory as GPUs would have it, and threads for blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tests/comm/device/device_calls.hpp"
#include "tests/comm/device/host_blocks.hpp"
#include "tests/harness/sanitized.hpp"

namespace rondo::engine::test {

using transport::cuda_ipc::kLine;

inline constexpr uint64_t kNever = ~uint64_t{0};

/// For tests that do everything with each of them.
inline std::vector<uint32_t> numbers_of_ranks() {
  if (testing::kSanitized) return {1, 2, 3};
  return {1, 2, 3, 4, 5, 7};
}

struct alignas(kLine) HostLine {
  std::byte bytes[kLine];
};

// The memory of all ranks, as their GPUs would have it.
class World {
 public:
  explicit World(const transport::cuda_ipc::SegmentSizes& shape)
      : shape_(shape), aborts_(shape.ranks), reports_(shape.ranks) {
    const size_t lines = transport::cuda_ipc::SegmentLayout(shape).bytes() / kLine;
    for (uint32_t r = 0; r < shape.ranks; ++r) {
      memory_.push_back(std::make_unique<HostLine[]>(lines));
      segments_.push_back(memory_.back()[0].bytes);
      reports_[r].resize(shape.channels);
    }
  }

  DeviceLinks links(uint32_t rank) {
    DeviceLinks links = {.shape = shape_,
                         .rank = rank,
                         .host_abort = &aborts_[rank],
                         .reports = reports_[rank].data(),
                         .segments = {}};
    std::copy(segments_.begin(), segments_.end(), links.segments);
    return links;
  }
  void abort(uint32_t rank) { HostAccess::store(&aborts_[rank], 1); }
  const DeviceReport& report(uint32_t rank, uint32_t channel) const {
    return reports_[rank][channel];
  }
  transport::cuda_ipc::StateLine& state(uint32_t rank, uint32_t channel) const {
    const size_t at = transport::cuda_ipc::SegmentLayout(shape_).state(channel);
    return *reinterpret_cast<transport::cuda_ipc::StateLine*>(segments_[rank] + at);
  }
  const transport::cuda_ipc::SegmentSizes& shape() const { return shape_; }

 private:
  transport::cuda_ipc::SegmentSizes shape_;
  std::vector<std::unique_ptr<HostLine[]>> memory_;
  std::vector<std::byte*> segments_;
  std::vector<uint64_t> aborts_;
  std::vector<std::vector<DeviceReport>> reports_;
};

/// body(rank, channel, block) on a thread, or `block_threads` of them, for each channel of each rank.
template <class Body>
void on_blocks(const std::vector<uint32_t>& ranks, uint32_t channels, uint32_t block_threads,
               const Body& body) {
  std::vector<std::unique_ptr<HostBlockMemory>> blocks;
  std::vector<std::thread> threads;
  for (const uint32_t rank : ranks) {
    for (uint32_t channel = 0; channel < channels; ++channel) {
      blocks.push_back(std::make_unique<HostBlockMemory>(block_threads));
      for (uint32_t t = 0; t < block_threads; ++t) {
        threads.emplace_back([&, rank, channel, t, memory = blocks.back().get()] {
          HostBlock block{*memory, t, block_threads};
          body(rank, channel, block);
        });
      }
    }
  }
  for (std::thread& thread : threads) thread.join();
}

/// All operations in a row on every rank of `ranks`, launches[operation][rank]; nobody waits between
/// two operations.
inline void walk(World& world, const std::vector<std::vector<Launch>>& launches,
                 const std::vector<uint32_t>& ranks, uint32_t block_threads) {
  on_blocks(ranks, world.shape().channels, block_threads,
            [&](uint32_t rank, uint32_t channel, HostBlock& block) {
              const DeviceLinks links = world.links(rank);
              for (const std::vector<Launch>& launch : launches) {
                if (channel >= launch[rank].channels) continue;
                const DeviceOperation& operation = launch[rank].operation;
                if (operation.protocol == Protocol::kLl && operation.staged == nullptr) {
                  DeviceEngine<HostBlock, HostAccess, true>(links, operation, channel, block).run();
                } else {
                  DeviceEngine<HostBlock, HostAccess>(links, operation, channel, block).run();
                }
              }
            });
}

/// No channel of any rank has given up, and no fence was missing anywhere so far.
inline bool all_well(const World& world) {
  if (unordered_stores != 0 || misplaced_moves != 0) return false;
  for (uint32_t r = 0; r < world.shape().ranks; ++r) {
    for (uint32_t c = 0; c < world.shape().channels; ++c) {
      if (world.report(r, c).ended != DeviceReport::kNot) return false;
    }
  }
  return true;
}

}  // namespace rondo::engine::test
