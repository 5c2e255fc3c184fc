// What the race detector sees of torch: tensors as accesses, nodes of the backward pass, CPU operations on pinned
// memory.
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <optional>
#include <utility>

#include "face.hpp"
#include "races.hpp"

namespace phalanx::devices::races {

// The name of a dtype, such as "float32".
inline const char* name_of(c10::ScalarType type) {
  static auto& known = *new std::array<std::atomic<const std::string*>, 128>{};
  const auto at = static_cast<std::size_t>(type);
  if (at >= known.size()) return nullptr;
  if (known[at].load() == nullptr) known[at].store(names.get(c10::getDtypeNames(type).first));
  return known[at].load()->c_str();
}

// The access to a dense tensor. It refers to the tensor's sizes, so the tensor must outlive it.
inline Access access_of(const at::Tensor& tensor, bool is_write) {
  const void* block = tensor.storage().data();
  const auto item_bytes = static_cast<std::int64_t>(tensor.itemsize());
  const auto lo = reinterpret_cast<std::uintptr_t>(block) + static_cast<std::uintptr_t>(tensor.storage_offset() * item_bytes);
  Access access{block, lo, lo + static_cast<std::uintptr_t>(tensor.numel() > 0 ? item_bytes : 0), is_write};
  access.sizes = {tensor.sizes().data(), tensor.sizes().size()};
  access.strides = {tensor.strides().data(), tensor.strides().size()};
  access.item_bytes = static_cast<std::uint32_t>(item_bytes);
  access.dtype = name_of(tensor.scalar_type());
  return access;
}

inline bool forward_number(ForwardNumber& number) {
  if (!at::GradMode::is_enabled()) return false;
  number.thread = at::RecordFunction::currentThreadId();
  number.sequence = at::sequence_number::peek() - 1;  // the node is made before its operation runs
  return true;
}

inline bool backward_node(std::string& name, ForwardNumber& number) {
  const auto node = torch::autograd::get_current_node();
  if (!node) return false;
  name = node->name();
  number = {node->thread_id(), node->sequence_nr(), true};
  return true;
}

// Watches operations of the CPU while copies of pinned memory are under way. It ignores copies to or from a device,
// which are not the host's, operations that only read sizes, and composite operations, whose parts it sees.
class HostWatch {
 public:
  static void switched(bool is_on) {
    static auto& handle = *new std::optional<at::CallbackHandle>;
    if (is_on && !handle) {
      handle = at::addGlobalCallback(
          at::RecordFunctionCallback(&HostWatch::begin).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    } else if (!is_on && handle) {
      at::removeCallback(*handle);
      handle.reset();
    }
  }

 private:
  // torch would print an exception from here with its stack, and continue. So operations that can't be analysed are
  // ignored.
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    try {
      if (has_copies_in_flight()) look_at(function);
    } catch (const std::exception&) {
    }
    return nullptr;
  }

  static void look_at(const at::RecordFunction& function) {
    const auto name = function.operator_name();
    if (!name) return;
    const auto operation = c10::Dispatcher::singleton().findOp(*name);
    if (!operation || !touches_memory(*operation)) return;
    if (name->name == "aten::copy_" && std::exchange(own_copy_follows, false)) return;
    c10::SmallVector<Access, 4> accesses;
    const auto& arguments = operation->schema().arguments();
    std::vector<at::Tensor> kept;
    for (std::size_t at = 0; at < std::min(arguments.size(), function.inputs().size()); ++at) {
      const auto* alias = arguments[at].alias_info();
      if (is_look(*name) ? !is_of_python(function.inputs()[at]) : alias != nullptr && !alias->isWrite()) continue;
      if (!take(function.inputs()[at], alias != nullptr && alias->isWrite(), accesses, kept)) return;
    }
    if (!accesses.empty()) host_touches({accesses.data(), accesses.size()}, name->name.c_str());
  }

  // .tolist() begins with these. So does .numpy(), which reads nothing: it passes its own tensor, not the user's.
  static bool is_look(const c10::OperatorName& name) {
    return name.name == "aten::resolve_conj" || name.name == "aten::resolve_neg";
  }

  // True also if this torch can't tell.
  static bool is_of_python(const c10::IValue& value) {
    const auto has_object = [](const auto& slot) {
      if constexpr (requires { slot.load_pyobj(); }) return slot.load_pyobj() != nullptr;
      return true;
    };
    return value.isTensor() && value.toTensor().defined() && has_object(*value.toTensor().unsafeGetTensorImpl()->pyobj_slot());
  }

  static bool touches_memory(const c10::OperatorHandle& operation) {
    const auto& name = operation.operator_name();
    if (is_look(name) || name.name == "aten::copy_") return true;
    for (const char* only_asks : {"aten::resize_", "aten::set_", "aten::is_set_to", "aten::is_pinned"})
      if (name.name == only_asks) return false;
    return operation.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  }

  // Wrapper tensors (of vmap, of grad, fake ones) come again as the tensors in them. To ask them for memory throws or
  // runs Python code.
  static bool is_plain(const at::Tensor& tensor) {
    static constexpr c10::DispatchKeySet kWrappers{
        c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
        c10::DispatchKey::Functionalize};
    const auto* impl = tensor.unsafeGetTensorImpl();
    return !impl->key_set().has_any(kWrappers) && impl->has_storage() && !impl->has_symbolic_sizes_strides();
  }

  // Returns false if a tensor is on a device.
  static bool take(const c10::IValue& value, bool is_write, c10::SmallVector<Access, 4>& accesses,
                   std::vector<at::Tensor>& kept) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector())
        if (!take(c10::IValue(tensor), is_write, accesses, kept)) return false;
      return true;
    }
    if (!value.isTensor() || !value.toTensor().defined()) return true;
    const at::Tensor& tensor = value.toTensor();
    if (!is_plain(tensor)) return true;
    if (!tensor.device().is_cpu()) return false;
    if (tensor.layout() != at::kStrided || tensor.numel() == 0) return true;
    kept.push_back(tensor);
    accesses.push_back(access_of(kept.back(), is_write));
    return true;
  }
};

// Call it once, before the detector is switched on.
inline void connect_to_torch() {
  state.hooks = {&forward_number, &backward_node, &HostWatch::switched};
  state.device_type = face.is_cuda() ? "cuda" : "virtual";
}

}  // namespace phalanx::devices::races
