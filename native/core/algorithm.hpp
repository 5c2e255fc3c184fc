// Which algorithm an all_reduce uses, by bytes and ranks. docs/internals/collectives.md lists the thresholds of the others.
#pragma once

#include <cstddef>

#include "layout.hpp"
#include "platform.hpp"

namespace phalanx {

enum class Algorithm {
  kOneShot,   // every rank publishes its data with its arrival; the ranks meet once
  kPipeline,  // chunks through the stage buffers, which stay in the cache
};

struct AlgorithmRow {
  Operation operation;
  int max_ranks;
  std::size_t one_shot_bytes;  // what one rank publishes, at most kSlotBytes
};

// The first row that fits counts. In one shot, every rank does the whole reduction: with many ranks that pays off only for less
// data.
inline constexpr AlgorithmRow kAlgorithms[] = {
    {Operation::kAllReduce, 4, 4096},
    {Operation::kAllReduce, 16, 2048},
    {Operation::kAllReduce, kMaxRanks, 512},
};

inline Algorithm choose_algorithm(Operation operation, std::size_t bytes, int num_ranks) noexcept {
  for (const AlgorithmRow& row : kAlgorithms) {
    if (row.operation == operation && num_ranks <= row.max_ranks)
      return bytes <= row.one_shot_bytes ? Algorithm::kOneShot : Algorithm::kPipeline;
  }
  return bytes <= kSlotBytes ? Algorithm::kOneShot : Algorithm::kPipeline;
}

// Results of this size and above would not stay in the cache, so they bypass it.
inline constexpr std::size_t kStreamingBytes = 8u << 20;
// But if a large cache may still hold the memory of a result, because it was just read or written, plain stores are faster.
inline bool is_out_of_cache(std::size_t bytes, int num_ranks) noexcept {
  return bytes >= kStreamingBytes && bytes * std::size_t(num_ranks) >= shared_cache_bytes() / 2 * 3;
}

}  // namespace phalanx
