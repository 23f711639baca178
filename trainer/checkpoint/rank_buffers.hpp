// Buffers that no broadcast makes equal (--no-broadcast-buffers), to and from a checkpoint: every
// rank's, in rank order, as the 64-bit words that hold its numbers, because JSON knows no NaN.
#pragma once

#include <spdlog/spdlog.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "rondo/ddp.hpp"

namespace rondo::trainer {

/// This rank's.
template <class T>
std::vector<uint64_t> buffer_words(DistributedDataParallel& ddp) {
  std::vector<uint64_t> words;
  for (size_t b = 0; b < ddp.buffers().size(); ++b) {
    const T* values = static_cast<const T*>(ddp.buffer(b));
    for (size_t i = 0; i < ddp.buffers()[b].count(); ++i) {
      words.push_back(std::bit_cast<uint64_t>(static_cast<double>(values[i])));
    }
  }
  return words;
}

/// Collective.
template <class T>
Result<std::vector<uint64_t>> gather_buffers(DistributedDataParallel& ddp) {
  const std::vector<uint64_t> mine = buffer_words<T>(ddp);
  std::vector<uint64_t> all(mine.size() * static_cast<size_t>(ddp.communicator().size()));
  RONDO_TRY(ddp.communicator().all_gather(mine.data(), all.data(), mine.size(), DataType::kUint64));
  return all;
}

/// This rank's of `all`, which rank 0 has. Collective. None, and rank 0 says so, where they are not
/// those of as many ranks.
template <class T>
Result<std::vector<uint64_t>> own_buffers(DistributedDataParallel& ddp, std::vector<uint64_t> all) {
  Communicator& ranks = ddp.communicator();
  const size_t each = buffer_words<T>(ddp).size();
  const size_t wanted = each * static_cast<size_t>(ranks.size());
  uint64_t found = all.size() == wanted ? 1 : 0;
  if (ranks.rank() == 0 && found == 0) {
    spdlog::warn("the checkpoint has no buffers of its own for each of {} ranks: all have rank 0's",
                 ranks.size());
  }
  RONDO_TRY(ranks.broadcast(&found, &found, 1, DataType::kUint64, 0));
  if (found == 0) return std::vector<uint64_t>();
  all.resize(wanted);
  RONDO_TRY(ranks.broadcast(all.data(), all.data(), wanted, DataType::kUint64, 0));
  const uint64_t* mine = all.data() + each * static_cast<size_t>(ranks.rank());
  return std::vector<uint64_t>(mine, mine + each);
}

/// What own_buffers() gave; nothing if that is nothing.
template <class T>
void set_buffers(const std::vector<uint64_t>& words, DistributedDataParallel& ddp) {
  auto word = words.begin();
  for (size_t b = 0; b < ddp.buffers().size() && word != words.end(); ++b) {
    T* values = static_cast<T*>(ddp.buffer(b));
    for (size_t i = 0; i < ddp.buffers()[b].count(); ++i) {
      values[i] = static_cast<T>(std::bit_cast<double>(*word++));
    }
  }
}

}  // namespace rondo::trainer
