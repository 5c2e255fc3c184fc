// The profiler's record of a collective, as torch's own backends make it: "record_param_comms", with the data it moved.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace phalanx::devices {

// Who takes part in a collective, and how.
struct CommsFacts {
  std::string group, description, collective;
  int rank = 0, size = 0, first_rank = 0, rank_stride = 0;
  std::int64_t sequence = 0;
  bool is_message = false, is_async = false;
};

// The record lasts from the constructor to the destructor, both on one thread.
class CommsRecord {
 public:
  CommsRecord(const CommsFacts& facts, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs)
      : info_(make_info(facts, inputs, outputs)),
        guard_(c10::DebugInfoKind::PARAM_COMMS_INFO, info_),
        function_(at::RecordScope::FUNCTION) {
    if (!function_.isActive()) return;
    const std::tuple<std::string, std::string> group(facts.group, facts.description);
    const std::vector<std::int64_t> no_splits;
    const std::vector<c10::IValue> values = {c10::IValue(inputs),
                                             std::tuple<std::int64_t, bool>(facts.sequence, facts.is_message),
                                             group,
                                             facts.rank,
                                             facts.collective,
                                             no_splits,
                                             no_splits,
                                             facts.first_rank,
                                             facts.rank_stride,
                                             facts.size,
                                             facts.is_async};
    if (function_.needsInputs())
      function_.before(at::kParamCommsCallName, c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
    else
      function_.before(at::kParamCommsCallName);
    if (function_.needsOutputs()) function_.setOutputs(std::vector<c10::IValue>{c10::IValue(outputs)});
  }

 private:
  using Info = torch::ParamCommsDebugInfo;

  static std::shared_ptr<Info> make_info(const CommsFacts& facts, const std::vector<at::Tensor>& inputs,
                                         const std::vector<at::Tensor>& outputs) {
    const auto count = [](const std::vector<at::Tensor>& tensors) {
      std::int64_t total = 0;
      for (const at::Tensor& tensor : tensors) total += tensor.numel();
      return total;
    };
    const at::ScalarType type = !inputs.empty()    ? inputs[0].scalar_type()
                                : !outputs.empty() ? outputs[0].scalar_type()
                                                   : at::kByte;
    return make<Info>(facts, count(inputs), count(outputs), type);
  }

  // Only later versions of torch have the sequence number, and whether it is asynchronous.
  template <typename Made>
  static std::shared_ptr<Made> make(const CommsFacts& facts, std::int64_t num_in, std::int64_t num_out, at::ScalarType type) {
    using Group = std::tuple<std::string, std::string>;
    using Splits = std::vector<std::int64_t>;
    const Group group(facts.group, facts.description);
    std::shared_ptr<Made> made;
    if constexpr (std::is_constructible_v<Made, Group, int, std::string, std::int64_t, std::int64_t, at::ScalarType, Splits,
                                          Splits, int, int, int, bool>)
      made = std::make_shared<Made>(group, facts.rank, std::string(facts.collective), num_in, num_out, type, Splits{}, Splits{},
                                    facts.first_rank, facts.rank_stride, facts.size, facts.is_async);
    else
      made = std::make_shared<Made>(group, facts.rank, std::string(facts.collective), num_in, num_out, type, Splits{}, Splits{},
                                    facts.first_rank, facts.rank_stride, facts.size);
    if constexpr (requires { made->setSequenceInfo(facts.sequence, facts.is_message); })
      made->setSequenceInfo(facts.sequence, facts.is_message);
    return made;
  }

  std::shared_ptr<Info> info_;
  c10::DebugInfoGuard guard_;
  at::RecordFunction function_;
};

}  // namespace phalanx::devices
