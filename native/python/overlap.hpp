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
  std::size_t equal_block = 0;                   // or into blocks of so many bytes each
};

struct Apart {
  bool inputs = false, outputs = false;
};

// The careful half of find_shared, for tensors that may share memory.
Apart find_shared_blocks(const Side& inputs, const Side& outputs, int rank);

// Inputs are copied aside when they lie under outputs. In place is no such case: a block that is replaced by the result at the same
// place, which belongs to the same rank. Outputs that lie under each other are filled aside and stored in their order, so
// that the last one wins.
inline Apart find_shared(const Side& inputs, const Side& outputs, int rank) {
  if (outputs.tensors.empty()) return {};
  const std::size_t item = item_bytes(outputs.tensors[0].view.dtype);  // all have the same type
  const auto is_apart = [item](const Tensor& a, const Tensor& b) {
    const std::byte *of_a = a.view.data, *of_b = b.view.data;
    return of_a + a.view.count * item <= of_b || of_b + b.view.count * item <= of_a;
  };
  for (std::size_t i = 0; i < outputs.tensors.size(); ++i) {
    const Tensor& output = outputs.tensors[i];
    for (const Tensor& input : inputs.tensors) {
      if (!is_apart(input, output)) return find_shared_blocks(inputs, outputs, rank);
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (!is_apart(outputs.tensors[j], output)) return find_shared_blocks(inputs, outputs, rank);
    }
  }
  return {};
}

}  // namespace phalanx::python
