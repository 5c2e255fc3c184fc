// How an operation over hosts travels, by its size: docs/internals/hosts.md explains the two ways.
#pragma once

#include <cstddef>

#include "../layout.hpp"

namespace phalanx {

inline constexpr std::size_t kMostBundledBytes = 64 * 1024;  // behind a card
inline constexpr std::size_t kHostChunkBytes = 4u << 20;     // of a pipelined operation
inline constexpr std::size_t kHostChunks = 3;                // of these are under way

struct HostPlanRow {
  Operation operation;
  int max_hosts;
  std::size_t bundled_bytes;  // what one leader gives; up to this it travels behind the cards
};

// The first row that fits counts. With more than two hosts, an all_reduce that is exchanged as a whole sends more bytes than one
// that is added in parts, so it must save a step that takes longer than that.
inline constexpr HostPlanRow kHostPlans[] = {
    {Operation::kAllReduce, 2, kMostBundledBytes},
    {Operation::kAllReduce, kMaxRanks, 16 * 1024},
};

inline bool is_bundled(Operation operation, std::size_t bytes, int num_hosts) noexcept {
  for (const HostPlanRow& row : kHostPlans) {
    if (row.operation == operation && num_hosts <= row.max_hosts) return bytes <= row.bundled_bytes;
  }
  return bytes <= kMostBundledBytes;
}

}  // namespace phalanx
