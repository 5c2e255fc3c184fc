// torch.autocast("virtual"): the same operations in the same types as torch does it for its own devices.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/library.h>

// The macros below name things of this namespace.
namespace at::autocast {

inline void register_for_own_devices(torch::Library& m) {
#define PHALANX_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(PHALANX_LOWER)
#define PHALANX_FLOAT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(PHALANX_FLOAT)
#define PHALANX_FLOAT_UNLESS_GIVEN(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(PHALANX_FLOAT_UNLESS_GIVEN)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define PHALANX_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(PHALANX_PROMOTE)
#undef PHALANX_LOWER
#undef PHALANX_FLOAT
#undef PHALANX_FLOAT_UNLESS_GIVEN
#undef PHALANX_PROMOTE
}

}  // namespace at::autocast
