// LSTM and GRU cells, which torch fuses only on GPUs, composed from other operations.
#pragma once

#include <ATen/ATen.h>

#include "kernel_set.hpp"

namespace phalanx::devices::kernels {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

inline bool is_given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }
inline Tensor plus(const Tensor& gates, const OptionalTensor& bias) { return is_given(bias) ? gates + *bias : gates; }

inline std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cell,
                                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto parts = plus(plus(input_gates + hidden_gates, input_bias), hidden_bias).chunk(4, 1);
  const Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid(), candidate = parts[2].tanh(), out = parts[3].sigmoid();
  const Tensor new_cell = forget * cell + in * candidate;
  return {out * new_cell.tanh(), new_cell, at::cat({in, forget, candidate, out}, 1)};
}

inline std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hidden, const OptionalTensor& grad_cell,
                                                             const Tensor& cell, const Tensor& new_cell,
                                                             const Tensor& workspace, bool has_bias) {
  if (!is_given(grad_hidden) && !is_given(grad_cell)) return {};
  const auto parts = workspace.chunk(4, 1);
  const Tensor in = parts[0], forget = parts[1], candidate = parts[2], out = parts[3], squashed = new_cell.tanh();
  Tensor grad = is_given(grad_cell) ? *grad_cell : at::zeros_like(new_cell);
  Tensor grad_out = at::zeros_like(out);
  if (is_given(grad_hidden)) {
    grad_out = *grad_hidden * squashed * out * (1 - out);
    grad = grad + *grad_hidden * out * (1 - squashed * squashed);
  }
  const Tensor grad_gates = at::cat({grad * candidate * in * (1 - in), grad * cell * forget * (1 - forget),
                                     grad * in * (1 - candidate * candidate), grad_out}, 1);
  return {grad_gates, grad * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

inline std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hidden,
                                           const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto from_input = plus(input_gates, input_bias).chunk(3, 1), from_hidden = plus(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (from_input[0] + from_hidden[0]).sigmoid(), update = (from_input[1] + from_hidden[1]).sigmoid();
  const Tensor candidate = (from_input[2] + reset * from_hidden[2]).tanh();
  return {(hidden - candidate) * update + candidate,
          at::cat({reset, update, candidate, hidden.expand_as(candidate), from_hidden[2]}, 1)};
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hidden, const Tensor& workspace,
                                                                           bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const Tensor reset = parts[0], update = parts[1], candidate = parts[2], hidden = parts[3], from_hidden = parts[4];
  const Tensor grad_update = grad_hidden * (hidden - candidate) * update * (1 - update);
  const Tensor grad_candidate = grad_hidden * (1 - update) * (1 - candidate * candidate);
  const Tensor grad_reset = grad_candidate * from_hidden * reset * (1 - reset);
  const Tensor grad_input = at::cat({grad_reset, grad_update, grad_candidate}, 1);
  const Tensor grad_recurrent = at::cat({grad_reset, grad_update, grad_candidate * reset}, 1);
  return {grad_input, grad_recurrent, grad_hidden * update, has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_recurrent.sum(0) : Tensor()};
}

inline void register_recurrent(KernelSet& kernels) {
  kernels.add("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  kernels.add("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  kernels.add("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  kernels.add("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace phalanx::devices::kernels
