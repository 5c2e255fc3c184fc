// What one launch of a kernel does; kernels.cu has the same structures.
#pragma once

#include <cstdint>

namespace phalanx::cuda {

inline constexpr std::size_t kArgumentWords = 480;
inline constexpr unsigned kThreads = 512;

// Entries of `stride` words: [first, last) in elements (reductions) or bytes (copies), the addresses read, the addresses
// written (null: none), and for premul_sum a factor per address read.
struct KernelArguments {
  std::uint64_t num_sources;
  std::uint64_t num_targets;
  std::uint64_t stride;
  std::uint64_t spill;  // where the entries are on the device, when they do not fit below; else 0
  double divisor;       // avg
  std::uint64_t words[kArgumentWords];
};
static_assert(sizeof(KernelArguments) <= 4096);

enum class Kernel : unsigned { kCopy1, kCopyAny, kReduce2, kReduce4, kReduce8, kReduceAny, kStrided };

inline constexpr std::size_t kStridedDims = 8;

// A tensor in pieces, and its elements in one piece.
struct StridedArguments {
  std::uint64_t count, num_dims, item_bytes, is_pack;
  std::uint64_t flat, strided;
  std::int64_t sizes[kStridedDims], strides[kStridedDims];
};

}  // namespace phalanx::cuda
