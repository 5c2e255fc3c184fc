// One kernel for every operation of torch: it runs the CPU kernel on the same memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string_view>

#include "generator.hpp"
#include "hidden_effects.hpp"
#include "host_view.hpp"
#include "race_accesses.hpp"

namespace phalanx::devices {

// What the kernel has to know about an operation, found out when it is registered.
struct OperationFacts {
  int generator_at = -1;        // which argument is a generator
  bool changes_arguments = false;
  bool is_view = false;         // touches no memory
  int cpu_tensor_at = -1;         // an argument that may be on the CPU: indices
  bool may_resize = false;        // has out= arguments
  bool asks_for_gradients = false;  // what it returns depends on whether an argument requires a gradient
  std::uint64_t written = 0;    // a bit for each argument that is written
  HiddenEffects hidden;

  static OperationFacts of(const c10::OperatorHandle& operation) {
    OperationFacts facts;
    facts.hidden = HiddenEffects(operation);
    const auto& schema = operation.schema();
    for (std::size_t at = 0; at < schema.arguments().size(); ++at) {
      const auto& argument = schema.arguments()[at];
      if (argument.type()->str().find("Generator") != std::string::npos) facts.generator_at = static_cast<int>(at);
      if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
        facts.changes_arguments = true;
        facts.may_resize = facts.may_resize || argument.kwarg_only();
        if (at < 64) facts.written |= std::uint64_t{1} << at;
      }
    }
    for (const auto& result : schema.returns())
      if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) facts.is_view = true;
    if (is_among(schema.name(), {"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_",
                                 "aten::_index_put_impl_", "aten::_unsafe_index_put", "aten::tensor_split"}))
      facts.cpu_tensor_at = 1;
    facts.asks_for_gradients = schema.name() == "aten::_sparse_mm_reduce_impl";
    return facts;
  }

  static bool is_among(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
};

class AnyOperation final : public c10::OperatorKernel {
 public:
  explicit AnyOperation(std::optional<OperationFacts> facts) : facts_(std::move(facts)) {}

  void operator()(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const OperationFacts facts = facts_ ? *facts_ : facts_of_unknown(operation);
    const auto& schema = operation.schema();
    const std::size_t count = schema.arguments().size(), base = stack->size() - count;
    HostView view(schema.name().c_str(), HostView::Devices::kOne, facts.may_resize);
    RaceAccesses accesses(facts.is_view);
    const bool is_waited_for = facts.hidden.is_waited_for(stack->data() + base);
    std::optional<Device> target;
    DispatchKey key = keys.has(face.compressed_key) ? DispatchKey::SparseCsrCPU
                      : keys.has(face.sparse_key)   ? DispatchKey::SparseCPU
                                                    : DispatchKey::CPU;
    for (std::size_t at = 0; at < count; ++at) {
      c10::IValue& value = (*stack)[base + at];
      const bool is_written = (facts.written >> std::min<std::size_t>(at, 63)) & 1;
      const bool requires_grad = facts.asks_for_gradients && value.isTensor() && value.toTensor().requires_grad();
      view.expect(static_cast<int>(at) == facts.cpu_tensor_at ? HostView::OnCpu::kAllowed
                  : is_written                               ? HostView::OnCpu::kNever
                                                             : HostView::OnCpu::kNumbers);
      take_argument(value, view, accesses, is_written || facts.hidden.is_written(at, stack->data() + base), target, key);
      if (requires_grad) value.toTensor().set_requires_grad(true);
    }
    if (facts.cpu_tensor_at == 1 && view.is_first_on_cpu())
      TORCH_CHECK(false, "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
    if (view.device() && view.has_cpu_tensor())
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", *view.device(),
                  " and cpu! (when checking argument in method ", schema.name(), ")");
    // If only a generator is on a device, an operation on CPU tensors comes here too.
    const Device device = target               ? *target
                          : view.device()      ? *view.device()
                          : view.is_all_on_cpu() ? Device(c10::kCPU)
                                               : face.device(current_device);
    accesses.launch(schema.name().c_str());
    run(operation, facts, device, view, stack->data() + base, key, stack);
    if (facts.changes_arguments) view.write_back();
    if (!face.owns(device)) return;
    for (std::size_t at = stack->size() - schema.returns().size(); at < stack->size(); ++at) give_result((*stack)[at], view, device);
    accesses.launch_results(*stack, schema.returns().size(), schema.name().c_str());
    if (is_waited_for) wait_for_current_stream(device.index());
  }

 private:
  // The fallback gets operations of any library; each is analysed once.
  static OperationFacts facts_of_unknown(const c10::OperatorHandle& operation) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        operation.hasComputedKernelForDispatchKey(DispatchKey::CPU) ||
            operation.hasComputedKernelForDispatchKey(DispatchKey::SparseCPU) ||
            operation.hasComputedKernelForDispatchKey(DispatchKey::SparseCsrCPU),
        operation.schema().name(), " has no kernel for the CPU, so a virtual device can't run it. ",
        "Give it one (torch.library, TORCH_LIBRARY_IMPL with key CPU), or compute that part from other operations.");
    thread_local std::unordered_map<const void*, OperationFacts> known;
    const auto [found, is_new] = known.try_emplace(&operation.schema());
    if (is_new) found->second = OperationFacts::of(operation);
    return found->second;
  }

  static void take_argument(c10::IValue& value, HostView& view, RaceAccesses& accesses, bool is_written,
                            std::optional<Device>& target, DispatchKey& key) {
    if (value.isTensor()) {
      const Tensor& tensor = value.toTensor();
      if (tensor.defined() && tensor.layout() == at::kSparse && key == DispatchKey::CPU) key = DispatchKey::SparseCPU;
      accesses.add(tensor, is_written);
      value = view.to_host(tensor);
    } else if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (Tensor& tensor : tensors) {
        accesses.add(tensor, is_written);
        tensor = view.to_host(tensor);
      }
      value = std::move(tensors);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> hosts;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorList().vec()) {
        if (tensor) accesses.add(*tensor, is_written);
        hosts.push_back(tensor ? std::optional<Tensor>(view.to_host(*tensor)) : std::nullopt);
      }
      value = std::move(hosts);
    } else if (value.isDevice()) {
      Device asked = value.toDevice();
      if (face.owns(asked)) {
        asked = face.device(checked_index(asked));
        value = Device(c10::kCPU);
      }
      target = asked;
    }
  }

  static void run(const c10::OperatorHandle& operation, const OperationFacts& facts, Device device, const HostView& view,
                  c10::IValue* arguments, DispatchKey key, torch::jit::Stack* stack) {
    if (facts.generator_at >= 0) give_generator(arguments[facts.generator_at], device, view.device());
    const AllocatingFor guard(face.owns(device) ? device.index() : -1);
    operation.redispatchBoxed(c10::DispatchKeySet(key), stack);
  }

  static void give_generator(c10::IValue& argument, Device device, const std::optional<Device>& of_tensors) {
    if (!face.owns(device)) {
      TORCH_CHECK(!argument.isGenerator() || !face.owns(argument.toGenerator().device()), "Expected a '", device.type(),
                  "' device type for generator but found '", face.type, "'");
      return;
    }
    const at::Generator given = argument.isGenerator() ? argument.toGenerator() : default_generator(device.index());
    if (!face.owns(given.device())) {
      TORCH_CHECK(!of_tensors, "Expected a '", of_tensors->type(), "' device type for generator but found '",
                  given.device().type(), "'");
      return;
    }
    TORCH_CHECK(!of_tensors || given.device() == *of_tensors, "Expected a '", *of_tensors, "' generator device but found '",
                given.device(), "'");
    argument = static_cast<DeviceGenerator*>(given.unsafeGetGeneratorImpl())->draw();
  }

  static void give_result(c10::IValue& value, HostView& view, Device device) {
    if (value.isTensor()) {
      value = view.to_device(value.toTensor(), device);
    } else if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (Tensor& tensor : tensors) tensor = view.to_device(tensor, device);
      value = std::move(tensors);
    }
  }

  std::optional<OperationFacts> facts_;
};

}  // namespace phalanx::devices
