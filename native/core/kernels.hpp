// Arithmetic over several ranks' buffers, and copies that bypass the cache: the inner loops of the engine.
#pragma once

#include <cstddef>

#include "types.hpp"

namespace phalanx {

struct Reduction {
  DType dtype;
  ReduceOp op;
  int num_ranks;          // divisor of avg
  const double* factors;  // premul_sum: one per source, else null
};

// destination[i] = sources[0][i] op sources[1][i] op ..., always in this order, so every rank gets the same bits.
// Half and float8 types are added in float32 and rounded once. The destination may be one of the sources.
void reduce(const Reduction& how, std::byte* destination, const std::byte* const* sources, int num_sources,
            std::size_t count);

// Copies past the cache: for results that are too large to stay in it anyway.
void copy_streaming(std::byte* destination, const std::byte* source, std::size_t bytes);

}  // namespace phalanx
