// Effects of GPU operations that their schema does not show: the host waits, or they write statistics.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <string_view>

namespace phalanx::devices {

// Made when an operation is registered, and asked with the arguments of each call.
class HiddenEffects {
 public:
  HiddenEffects() = default;
  explicit HiddenEffects(const c10::OperatorHandle& operation) {
    const std::string_view name = operation.schema().name();
    if (is_among(name, {"aten::index", "aten::_unsafe_index"}))
      waits_ = Waits::kForIndices;
    else if (is_among(name, {"aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"}))
      waits_ = Waits::kForIndicesOfWrite;
    else if (name == "aten::repeat_interleave")
      waits_ = Waits::kForLength;
    else if (operation.hasTag(at::Tag::dynamic_output_shape) || operation.hasTag(at::Tag::data_dependent_output) ||
             is_among(name, {"aten::_linalg_check_errors", "aten::_to_sparse", "aten::_coalesce"}))
      waits_ = Waits::kAlways;
    if (is_among(name, {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"})) {
      first_statistic_ = 3;
      training_at_ = 5;
    } else if (name == "aten::batch_norm_update_stats") {
      first_statistic_ = 1;
    }
  }

  // Whether the host needs a value of the device to continue, so that it waits for the current stream.
  bool is_waited_for(const c10::IValue* arguments) const {
    switch (waits_) {
      case Waits::kNever: return false;
      case Waits::kAlways: return true;
      case Waits::kForIndices: return are_counted(arguments[1]);
      case Waits::kForIndicesOfWrite: return are_counted(arguments[1]) && !is_masked_fill(arguments);
      case Waits::kForLength: return arguments[1].isNone();
    }
    return false;
  }

  // True for the running mean and variance of a batch norm.
  bool is_written(std::size_t at, const c10::IValue* arguments) const {
    if (first_statistic_ < 0 || (static_cast<int>(at) != first_statistic_ && static_cast<int>(at) != first_statistic_ + 1))
      return false;
    return training_at_ < 0 || arguments[training_at_].toBool();
  }

 private:
  enum class Waits : std::uint8_t { kNever, kAlways, kForIndices, kForIndicesOfWrite, kForLength };

  static bool is_among(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  static bool is_mask(const at::Tensor& index) { return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte; }

  // The host counts the true elements of a mask; indices on the CPU are copied first.
  static bool are_counted(const c10::IValue& indices) {
    const auto is_one = [](const std::optional<at::Tensor>& index) {
      return index && index->defined() && (is_mask(*index) || index->device().is_cpu());
    };
    const auto all = indices.toOptionalTensorVector();
    return std::any_of(all.begin(), all.end(), is_one);
  }

  // x[mask] = 1 needs no count.
  static bool is_masked_fill(const c10::IValue* arguments) {
    const at::Tensor& values = arguments[2].toTensor();
    if (values.numel() != 1 || !values.device().is_cpu() || arguments[3].toBool()) return false;
    int num_masks = 0;
    for (const std::optional<at::Tensor>& index : arguments[1].toOptionalTensorVector()) {
      if (!index || !index->defined()) continue;
      if (!is_mask(*index) || index->device().is_cpu()) return false;
      ++num_masks;
    }
    return num_masks == 1;
  }

  Waits waits_ = Waits::kNever;
  int first_statistic_ = -1, training_at_ = -1;
};

}  // namespace phalanx::devices
