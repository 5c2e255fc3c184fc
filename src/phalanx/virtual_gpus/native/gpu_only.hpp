// Small operations that torch has only for GPUs, composed from other operations.
#pragma once

#include "recurrent_cells.hpp"

namespace phalanx::devices::kernels {

// There is neither cuDNN nor MIOpen.
inline bool never_ctc(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, std::int64_t) { return false; }
inline bool never_ctc_tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::int64_t) { return false; }

// Products of a half type whose result has another type: GPUs accumulate in that type.
inline Tensor mm(const Tensor& a, const Tensor& b, at::ScalarType type) { return at::mm(a.to(type), b.to(type)); }
inline Tensor bmm(const Tensor& a, const Tensor& b, at::ScalarType type) { return at::bmm(a.to(type), b.to(type)); }
inline Tensor addmm(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType type, const at::Scalar& beta,
                    const at::Scalar& alpha) {
  return at::addmm(self.to(type), a.to(type), b.to(type), beta, alpha);
}
inline Tensor baddbmm(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType type, const at::Scalar& beta,
                      const at::Scalar& alpha) {
  return at::baddbmm(self.to(type), a.to(type), b.to(type), beta, alpha);
}

// The CPU kernel would draw from the CPU's generator.
inline std::tuple<Tensor, Tensor> dropout(const Tensor& input, double probability, std::optional<bool> is_training) {
  if (!is_training.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  const double kept = 1 - probability;
  const Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(kept);
  return {input.mul(mask).mul_(kept == 0 ? 0.0 : 1 / kept), mask};
}

// Makes transformers take the path without nested tensors.
inline bool never_left_aligned(const Tensor&, const Tensor&) { return false; }

inline Tensor masked_scale(const Tensor& self, const Tensor& mask, double scale) { return self * mask * scale; }

// y = x * rstd * weight, with rstd = (mean(x^2) + eps)^(-1/2) over the normalized dimensions.
inline std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_out, const Tensor& input, at::IntArrayRef normalized_shape,
                                                    const Tensor& rstd, const OptionalTensor& weight,
                                                    std::array<bool, 2> wanted) {
  const auto num_normalized = static_cast<std::int64_t>(normalized_shape.size());
  std::vector<std::int64_t> normalized, others;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim)
    (dim < input.dim() - num_normalized ? others : normalized).push_back(dim);
  const Tensor x = input.to(rstd.scalar_type()), dy = grad_out.to(rstd.scalar_type()), scaled = x * rstd;
  Tensor grad_input, grad_weight;
  if (wanted[0]) {
    const Tensor weighted = is_given(weight) ? dy * weight->to(dy.scalar_type()) : dy;
    const Tensor along = (weighted * scaled).mean(normalized, /*keepdim=*/true);
    grad_input = ((weighted - scaled * along) * rstd).to(input.scalar_type());
  }
  if (wanted[1] && is_given(weight)) {
    const Tensor products = dy * scaled;
    grad_weight = (others.empty() ? products : products.sum(others)).to(weight->scalar_type());
  }
  return {grad_input, grad_weight};
}

inline void register_gpu_only(KernelSet& kernels) {
  kernels.add("_use_cudnn_ctc_loss", TORCH_FN(never_ctc));
  kernels.add("_use_cudnn_ctc_loss.Tensor", TORCH_FN(never_ctc_tensor));
  kernels.add("_use_miopen_ctc_loss", TORCH_FN(never_ctc));
  kernels.add("_use_miopen_ctc_loss.Tensor", TORCH_FN(never_ctc_tensor));
  kernels.add("mm.dtype", TORCH_FN(mm));
  kernels.add("bmm.dtype", TORCH_FN(bmm));
  kernels.add("addmm.dtype", TORCH_FN(addmm));
  kernels.add("baddbmm.dtype", TORCH_FN(baddbmm));
  kernels.add("native_dropout", TORCH_FN(dropout));
  kernels.add("_nested_tensor_from_mask_left_aligned", TORCH_FN(never_left_aligned));
  kernels.add("_masked_scale", TORCH_FN(masked_scale));
  kernels.add("_fused_rms_norm_backward", TORCH_FN(rms_norm_backward));
}

}  // namespace phalanx::devices::kernels
