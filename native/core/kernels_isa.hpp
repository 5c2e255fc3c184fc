// The same loops compiled for several instruction sets; kernels.cpp picks one at run time.
#pragma once

#include "kernels.hpp"

#define PHALANX_DECLARE_ISA(isa)                                                                       \
  namespace phalanx::isa {                                                                             \
  void reduce(const Reduction&, std::byte*, const std::byte* const*, int, std::size_t);                \
  }
PHALANX_DECLARE_ISA(baseline)
PHALANX_DECLARE_ISA(avx2)
PHALANX_DECLARE_ISA(avx512)
