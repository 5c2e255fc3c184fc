// Softmax with half input and float output, which autocast needs on GPUs and the CPU's kernels refuse.
#pragma once

#include "direct_kernels.hpp"

namespace phalanx::devices::kernels {

using HostSoftmax = Tensor (*)(const Tensor&, std::int64_t, bool);
using HostSoftmaxBackward = Tensor (*)(const Tensor&, const Tensor&, std::int64_t, at::ScalarType);

template <HostSoftmax compute>
Tensor softmax(const Tensor& self, std::int64_t dim, bool is_half_to_float) {
  const Tensor given = is_half_to_float ? self.to(at::kFloat) : self;
  HostView view("aten::_softmax", HostView::Devices::kOne);
  RaceAccesses accesses;
  accesses.add(given, false);
  accesses.launch("aten::_softmax");
  return view.to_device(compute(view.to_host(given), dim, false), self.device());
}

template <HostSoftmaxBackward compute>
Tensor softmax_backward(const Tensor& grad, const Tensor& output, std::int64_t dim, at::ScalarType input_type) {
  HostView view("aten::_softmax_backward_data", HostView::Devices::kOne);
  RaceAccesses accesses;
  accesses.add(grad, false);
  accesses.add(output, false);
  accesses.launch("aten::_softmax_backward_data");
  const Tensor result = compute(view.to_host(grad), view.to_host(output), dim, grad.scalar_type());
  return view.to_device(result.to(input_type), grad.device());
}

inline void register_softmax(KernelSet& kernels) {
  kernels.add("_softmax", TORCH_FN(softmax<&at::_softmax>));
  kernels.add("_log_softmax", TORCH_FN(softmax<&at::_log_softmax>));
  kernels.add("_softmax_backward_data", TORCH_FN(softmax_backward<&at::_softmax_backward_data>));
  kernels.add("_log_softmax_backward_data", TORCH_FN(softmax_backward<&at::_log_softmax_backward_data>));
}

}  // namespace phalanx::devices::kernels
