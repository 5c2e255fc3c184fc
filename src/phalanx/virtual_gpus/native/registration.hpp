// Registers the devices with torch: hooks, guard, allocator and kernels. Once per process.
#pragma once

#include <ATen/native/transformers/attention.h>

#include <set>
#include <string>

#include "autocast.hpp"
#include "ddp_timer.hpp"
#include "direct_kernels.hpp"
#include "gpu_only.hpp"
#include "hooks.hpp"
#include "profiler_clock.hpp"
#include "recurrent_cells.hpp"
#include "softmax.hpp"
#include "synchronized_batch_norm.hpp"

namespace phalanx::devices {

// A registration lasts as long as its library object, so the object is never destroyed.
inline torch::Library& new_library(const char* name_space, DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
}

// Registers the shared kernel for all operations of "aten" that have a kernel for some key, except those registered
// already.
class EveryOperation {
 public:
  explicit EveryOperation(torch::Library& library) : library_(library) {}

  void add(const c10::OperatorName& name) {
    constexpr std::string_view prefix = "aten::";
    if (name.name.rfind(prefix, 0) != 0) return;
    const auto operation = c10::Dispatcher::singleton().findOp(name);
    if (!operation || !done_.insert(c10::toString(name)).second) return;
    const std::string full = c10::toString(name).substr(prefix.size());
    library_.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                    std::make_unique<AnyOperation>(OperationFacts::of(*operation))));
  }

  void add_all_of(DispatchKey key) {
    for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key)) add(name);
  }

  void leave_out(const std::set<std::string>& names) { done_.insert(names.begin(), names.end()); }

 private:
  torch::Library& library_;
  // Views that torch makes itself for all devices.
  std::set<std::string> done_ = {"aten::alias", "aten::detach"};
};

// Kinds of tensors that virtual devices do not support.
inline void refuse(const c10::OperatorHandle& operation, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, operation.schema().name(), ": virtual devices have no quantized tensors and no nested ones of ",
                              "strided layout; use the CPU for them, or layout=torch.jagged");
}

inline void add_fallback(DispatchKey key) {
  new_library("_", key).fallback(torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AnyOperation>(std::nullopt)));
}

// Attention is composed from other operations: torch must not choose the fused kernels of a GPU build.
inline std::int64_t choose_composed_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double,
                                              bool, std::optional<double>, bool) {
  return static_cast<std::int64_t>(at::SDPBackend::math);
}

inline void register_kernels() {
  add_fallback(face.key);
  add_fallback(face.sparse_key);
  add_fallback(face.compressed_key);
  for (const DispatchKey key : face.is_cuda() ? std::array{DispatchKey::QuantizedCUDA, DispatchKey::NestedTensorCUDA}
                                              : std::array{DispatchKey::QuantizedPrivateUse1, DispatchKey::NestedTensorPrivateUse1})
    new_library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
  torch::Library& dense = new_library("aten", face.key);
  KernelSet own(dense);
  kernels::register_direct(own);
  kernels::register_recurrent(own);
  kernels::register_batch_norm(own);
  kernels::register_softmax(own);
  kernels::register_gpu_only(own);
  EveryOperation all(dense);
  all.leave_out(own.names());
  all.add_all_of(DispatchKey::CPU);
  if (face.is_cuda()) all.add_all_of(DispatchKey::CUDA);  // in a GPU build: no call may reach a kernel for GPUs
  for (const char* name : {"aten::convolution", "aten::convolution_backward"}) all.add(c10::OperatorName(name, ""));

  torch::Library& sparse = new_library("aten", face.sparse_key);
  KernelSet own_sparse(sparse);
  kernels::register_direct_sparse(own_sparse);
  EveryOperation all_sparse(sparse);
  all_sparse.leave_out(own_sparse.names());
  all_sparse.add_all_of(DispatchKey::SparseCPU);
  EveryOperation all_compressed(new_library("aten", face.compressed_key));
  all_compressed.add_all_of(DispatchKey::SparseCsrCPU);
  if (face.is_cuda()) {
    all_compressed.add_all_of(DispatchKey::SparseCsrCUDA);
    all_sparse.add_all_of(DispatchKey::SparseCUDA);
    at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_composed_attention);
  } else {
    new_library("_", DispatchKey::AutocastPrivateUse1).fallback(torch::CppFunction::makeFallthrough());
    at::autocast::register_for_own_devices(new_library("aten", DispatchKey::AutocastPrivateUse1));
  }
}

// torch warns of every kernel that is replaced; in a GPU build that is most of them.
struct SilentWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

inline void install_hooks() {
  if (!face.is_cuda()) {
    at::RegisterPrivateUse1HooksInterface(new OwnHooks);
    return;
  }
  // torch keeps its hooks in a constant object that can't be replaced. Ours has the same layout, so it is written over
  // it.
  static_assert(sizeof(CudaHooks) == sizeof(at::CUDAHooksInterface));
  auto& hooks = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  new (&hooks) CudaHooks;
}

inline void set_up(bool is_cuda, int count, std::int64_t memory_bytes) {
  TORCH_CHECK(face.count == 0, "virtual devices have been set up before in this process");
  TORCH_CHECK(count >= 1 && count <= kMostDevices, "there can be 1 to ", kMostDevices, " virtual devices, not ", count);
  if (is_cuda) {
    // Python code has already checked for real GPUs: torch's own hooks would ask CUDA, which starts a thread.
    face = {DeviceType::CUDA, DispatchKey::CUDA, DispatchKey::SparseCUDA, DispatchKey::SparseCsrCUDA, 0};
  }
  face.count = count;
  for (int device = 0; device < count; ++device) memory[device].set_capacity(memory_bytes);
  install_hooks();
  c10::impl::DeviceGuardImplRegistrar(face.type, new Guard);
  c10::SetAllocator(face.type, &allocator, 10);
  check_host_allocations();
  SilentWarnings silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  register_kernels();
  register_ddp_timer();
  register_profiler_clock();
  races::connect_to_torch();
}

}  // namespace phalanx::devices
