// Tensors of one call that share memory: which of them need memory of their own while the call runs.
#pragma once

#include <span>

#include "per_rank.hpp"
#include "tensors.hpp"

namespace phalanx::python {

// What a call reads, or what it writes.
struct Side {
  std::span<const Tensor> tensors;
  const PerRank<std::size_t>* blocks = nullptr;  // one tensor that is cut into the blocks of all ranks
};

struct Apart {
  bool inputs = false, outputs = false;
};

// Inputs are copied aside when they lie under outputs. In place is no such case: a block that is replaced by the result at the same
// place, which belongs to the same rank. Outputs that lie under each other are filled aside and stored in their order, so
// that the last one wins.
Apart find_shared(const Side& inputs, const Side& outputs, int rank);

}  // namespace phalanx::python
