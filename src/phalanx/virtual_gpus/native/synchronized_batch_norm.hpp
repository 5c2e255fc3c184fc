// The parts of SyncBatchNorm that torch has only for GPUs, composed from other operations.
//
// The names are torch's: "invstd" is the inverse standard deviation; "dy" and "xmu" (x - mean) are for the backward
// pass.
#pragma once

#include <ATen/ATen.h>
#include "recurrent_cells.hpp"

namespace phalanx::devices::kernels {

// Accumulate half types in float.
inline Tensor accumulated(const Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

// All dimensions except that of the channels.
inline std::vector<std::int64_t> reduced_dims(const Tensor& tensor) {
  std::vector<std::int64_t> dims;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (dim != 1) dims.push_back(dim);
  return dims;
}

// One value per channel, in a shape that broadcasts to the tensor's.
inline Tensor per_channel(const Tensor& values, const Tensor& like) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(like.dim()), 1);
  sizes[1] = -1;
  return values.view(sizes);
}

inline std::tuple<Tensor, Tensor> batch_norm_stats(const Tensor& input, double eps) {
  const Tensor x = accumulated(input);
  const auto dims = reduced_dims(x);
  const Tensor mean = x.mean(dims);
  const Tensor variance = (x - per_channel(mean, x)).pow(2).mean(dims);
  return {mean, (variance + eps).rsqrt()};
}

inline std::tuple<Tensor, Tensor> batch_norm_gather_stats_with_counts(const Tensor&, const Tensor& means, const Tensor& invstds,
                                                                      const OptionalTensor& running_mean,
                                                                      const OptionalTensor& running_var, double momentum,
                                                                      double eps, const Tensor& counts) {
  const Tensor mean_of_ranks = accumulated(means), invstd_of_ranks = accumulated(invstds);
  const Tensor weights = counts.to(mean_of_ranks.scalar_type()).view({-1, 1});
  const Tensor total = weights.sum();
  const Tensor mean = (mean_of_ranks * weights).sum(0) / total;
  const Tensor variances = invstd_of_ranks.pow(-2) - eps;
  // A rank without elements has an infinite variance, which must not be multiplied by its weight of zero.
  const Tensor spread = at::where(weights > 0, (variances + (mean_of_ranks - mean).pow(2)) * weights, at::zeros({}, weights.options()));
  const Tensor variance = spread.sum(0) / total;
  if (is_given(running_mean)) running_mean->mul_(1 - momentum).add_((mean * momentum).to(running_mean->scalar_type()));
  if (is_given(running_var)) {
    const Tensor unbiased = variance * total / (total - 1);
    running_var->mul_(1 - momentum).add_((unbiased * momentum).to(running_var->scalar_type()));
  }
  return {mean, (variance + eps).rsqrt()};
}

inline std::tuple<Tensor, Tensor> batch_norm_gather_stats(const Tensor& input, const Tensor& means, const Tensor& invstds,
                                                          const OptionalTensor& running_mean, const OptionalTensor& running_var,
                                                          double momentum, double eps, std::int64_t count) {
  const Tensor counts = at::full({means.size(0)}, count, accumulated(means).options());
  return kernels::batch_norm_gather_stats_with_counts(input, means, invstds, running_mean, running_var, momentum, eps, counts);
}

inline Tensor laid_out_as(const Tensor& result, const Tensor& like) {
  return result.to(like.scalar_type()).contiguous(like.suggest_memory_format());
}

inline Tensor batch_norm_elemt(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias, const Tensor& mean,
                               const Tensor& invstd, double) {
  const Tensor x = accumulated(input);
  Tensor y = (x - per_channel(mean, x)) * per_channel(invstd, x);
  if (is_given(weight)) y = y * per_channel(weight->to(y.scalar_type()), y);
  if (is_given(bias)) y = y + per_channel(bias->to(y.scalar_type()), y);
  return laid_out_as(y, input);
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_backward_reduce(const Tensor& grad_out, const Tensor& input,
                                                                             const Tensor& mean, const Tensor& invstd,
                                                                             const OptionalTensor& weight, bool,
                                                                             bool wants_weight, bool wants_bias) {
  const Tensor dy = accumulated(grad_out), x = accumulated(input);
  const auto dims = reduced_dims(dy);
  const Tensor sum_dy = dy.sum(dims), sum_dy_xmu = (dy * (x - per_channel(mean, x))).sum(dims);
  const auto type = is_given(weight) ? weight->scalar_type() : sum_dy.scalar_type();
  const Tensor grad_weight = wants_weight ? (sum_dy_xmu * invstd).to(type) : Tensor();
  const Tensor grad_bias = wants_bias ? sum_dy.to(type, /*non_blocking=*/false, /*copy=*/true) : Tensor();
  return {sum_dy, sum_dy_xmu, grad_weight, grad_bias};
}

inline Tensor batch_norm_backward_elemt(const Tensor& grad_out, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                                        const OptionalTensor& weight, const Tensor& sum_dy, const Tensor& sum_dy_xmu,
                                        const Tensor& counts) {
  const Tensor dy = accumulated(grad_out), x = accumulated(input);
  const Tensor total = counts.sum().to(dy.scalar_type());
  const Tensor mean_dy = per_channel(sum_dy, dy) / total;
  const Tensor slope = per_channel(invstd.pow(2) * sum_dy_xmu, dy) / total;
  Tensor grad = (dy - mean_dy - (x - per_channel(mean, x)) * slope) * per_channel(invstd, dy);
  if (is_given(weight)) grad = grad * per_channel(weight->to(grad.scalar_type()), grad);
  return laid_out_as(grad, input);
}

inline void register_batch_norm(KernelSet& kernels) {
  kernels.add("batch_norm_stats", TORCH_FN(batch_norm_stats));
  kernels.add("batch_norm_gather_stats", TORCH_FN(batch_norm_gather_stats));
  kernels.add("batch_norm_gather_stats_with_counts", TORCH_FN(batch_norm_gather_stats_with_counts));
  kernels.add("batch_norm_elemt", TORCH_FN(batch_norm_elemt));
  kernels.add("batch_norm_backward_reduce", TORCH_FN(batch_norm_backward_reduce));
  kernels.add("batch_norm_backward_elemt", TORCH_FN(batch_norm_backward_elemt));
}

}  // namespace phalanx::devices::kernels
