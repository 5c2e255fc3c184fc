// One request of a caller: what is journaled, and what all ranks must agree on.
#pragma once

#include <cstdint>

#include "layout.hpp"
#include "types.hpp"

namespace phalanx {

inline constexpr std::uint64_t kOnDevice = 1ull << 31;  // in a signature

struct Call {
  Operation operation = Operation::kNone;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;        // or the peer, in send and recv
  std::uint64_t count = 0;      // elements per rank; for uneven lists a digest of the sizes
  double factor = 1.0;          // premul_sum
  std::int64_t start_ns = 0;    // monotonic
  std::int64_t deadline_ns = 0;
  std::int64_t paused_ns = 0;   // paused_ns_so_far() when it started: see Deadline
  std::uint32_t location = 0;   // index into this rank's location table
  bool is_async = false;
  bool may_do_more = false;     // it has a short timeout, after which the caller may have something else to do
  bool is_on_device = false;    // its tensors are on a GPU
  bool is_uneven = false;       // this rank may give or get more than size_bytes says
  std::uint64_t tag = 0;        // of a message
  std::uint64_t size_bytes = 0; // what this rank gives or gets; for the journal, and to guess how long it takes
  std::uint32_t num_dims = 0;
  std::uint64_t shape[kShapeDims] = {};

  std::uint64_t signature() const noexcept {
    return std::uint64_t(operation) | std::uint64_t(dtype) << 8 | std::uint64_t(op) << 16 | (is_on_device ? kOnDevice : 0) |
           std::uint64_t(std::uint32_t(root)) << 32;
  }
};

inline Operation operation_of(std::uint64_t signature) noexcept { return Operation(signature & 0xff); }

}  // namespace phalanx
