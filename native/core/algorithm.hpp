// Which way an all_reduce goes, by bytes and ranks. docs/internals/collectives.md lists the thresholds of the others.
#pragma once

#include <cstddef>

#include "layout.hpp"
#include "platform.hpp"

namespace phalanx {

enum class Algorithm {
  kOneShot,   // every rank publishes its data with its arrival; one synchronisation
  kPipeline,  // chunks through the stage buffers, which stay in the cache
};

struct AlgorithmRow {
  Operation operation;
  int max_ranks;
  std::size_t one_shot_bytes;  // what one rank publishes, at most kSlotBytes
};

// First row that fits. One-shot reductions are repeated on every rank: with many ranks they pay off for less.
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

// Results above this size would not stay in the cache: write them around it.
inline constexpr std::size_t kStreamingBytes = 8u << 20;
// Results in memory that was read or written shortly before may still be in a large cache, and are better written there.
inline bool is_out_of_cache(std::size_t bytes, int num_ranks) noexcept {
  return bytes >= kStreamingBytes && bytes * std::size_t(num_ranks) >= shared_cache_bytes() / 2 * 3;
}

}  // namespace phalanx
