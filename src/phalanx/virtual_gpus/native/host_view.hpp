// The arguments of one operation as CPU tensors over the same memory, and its results as device tensors.
//
// Nothing is copied. A result that is one of the arguments (in place, out=) becomes that argument again; one that shares
// an argument's memory becomes a view of it; any other is memory the CPU kernel has allocated, now owned by the device.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/util/SmallVector.h>

#include "memory.hpp"

namespace phalanx::devices {

using at::Tensor;

inline at::SparseTensorImpl* sparse_parts(const Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

inline Tensor make_sparse(const Tensor& like, const Tensor& indices, const Tensor& values, DispatchKey key) {
  c10::DeviceGuard guard(values.device());  // the constructor makes empty parts on the current device
  Tensor made = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), like.dtype());
  auto *parts = sparse_parts(made), *model = sparse_parts(like);
  parts->resize_(model->sparse_dim(), model->dense_dim(), like.sizes());
  parts->set_indices_and_values_unsafe(indices, values);
  parts->set_coalesced(model->coalesced());
  return made;
}

inline bool is_compressed(const Tensor& tensor) {
  const at::Layout layout = tensor.layout();
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr || layout == at::kSparseBsc;
}

inline at::SparseCsrTensorImpl* compressed_parts(const Tensor& tensor) {
  return static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}

// The same sparse tensor, made from parts on another device.
template <typename Move>
Tensor make_compressed(const Tensor& like, DispatchKey key, Device device, Move move) {
  auto* parts = compressed_parts(like);
  Tensor made = at::detail::make_tensor<at::SparseCsrTensorImpl>(c10::DispatchKeySet(key), device, like.layout(), like.dtype());
  compressed_parts(made)->set_member_tensors(move(parts->compressed_indices()), move(parts->plain_indices()),
                                             move(parts->values()), like.sizes());
  return made;
}

// The same tensor over another storage.
inline Tensor rebased(const Tensor& tensor, StoragePtr storage, DispatchKey key) {
  Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(key), tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) made._set_conj(true);
  if (tensor.is_neg()) made._set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

class HostView {
 public:
  // Whether an operation may take tensors of several devices.
  enum class Devices { kOne, kAny };

  // Which CPU tensors an operation may take beside device tensors: any, those without dimensions, none.
  enum class OnCpu { kAllowed, kNumbers, kNever };

  // If arguments may be resized, the operation gets its own storages over their memory. So if it fails half-way, the
  // arguments are unchanged.
  HostView(const char* operation, Devices devices, bool may_resize = false)
      : operation_(operation), devices_(devices), may_resize_(may_resize) {}

  void expect(OnCpu on_cpu) { on_cpu_ = on_cpu; }

  // The device of the arguments seen so far.
  const std::optional<Device>& device() const { return device_; }

  // Whether there is a CPU tensor that is not allowed beside device tensors.
  bool has_cpu_tensor() const { return has_cpu_tensor_; }
  bool is_first_on_cpu() const { return is_first_on_cpu_; }
  bool is_all_on_cpu() const { return has_seen_cpu_ && !device_; }

  Tensor to_host(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!face.owns(tensor)) {
      const bool is_first = tensors_.empty() && !has_cpu_tensor_;
      has_seen_cpu_ = has_seen_cpu_ || tensor.device().is_cpu();
      if (tensor.device().is_cpu() && (on_cpu_ == OnCpu::kNever || (on_cpu_ == OnCpu::kNumbers && tensor.dim() > 0))) {
        has_cpu_tensor_ = true;
        if (is_first) is_first_on_cpu_ = true;
      }
      return tensor;
    }
    note_device(tensor.device());
    for (const auto& pair : tensors_)
      if (pair.first.is_same(tensor)) return pair.second;
    Tensor host;
    if (tensor.layout() == at::kSparse) {
      auto* parts = sparse_parts(tensor);
      host = make_sparse(tensor, to_host(parts->indices()), to_host(parts->values()), DispatchKey::SparseCPU);
    } else if (is_compressed(tensor)) {
      host = make_compressed(tensor, DispatchKey::SparseCsrCPU, c10::kCPU, [&](const Tensor& part) { return to_host(part); });
    } else {
      host = rebased(tensor, host_of(tensor.storage().unsafeGetStorageImpl()), DispatchKey::CPU);
    }
    tensors_.emplace_back(tensor, host);
    return host;
  }

  Tensor to_device(const Tensor& host, Device device) {
    if (!host.defined() || !host.device().is_cpu()) return host;
    for (const auto& pair : tensors_)
      if (pair.second.is_same(host)) return pair.first;
    Tensor tensor;
    if (host.layout() == at::kSparse) {
      auto* parts = sparse_parts(host);
      tensor = make_sparse(host, to_device(parts->indices(), device), to_device(parts->values(), device), face.sparse_key);
    } else if (is_compressed(host)) {
      tensor = make_compressed(host, face.compressed_key, device, [&](const Tensor& part) { return to_device(part, device); });
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(!host.is_nested(), operation_, ": virtual devices have no nested tensors of strided layout; ",
                                  "use layout=torch.jagged, or the CPU");
      TORCH_CHECK_NOT_IMPLEMENTED(!host.is_quantized(), operation_, ": virtual devices have no quantized tensors; ",
                                  "quantize on the CPU");
      TORCH_CHECK_NOT_IMPLEMENTED(host.layout() == at::kStrided, operation_, ": virtual devices have no tensors of layout ",
                                  host.layout(), "; use the CPU for them, or a dense or sparse COO tensor");
      tensor = rebased(host, device_of(host.storage().unsafeGetStorageImpl(), device), face.key);
    }
    tensors_.emplace_back(tensor, host);
    return tensor;
  }

  // Call it after an operation that may have resized its arguments or changed their strides.
  void write_back() {
    for (std::size_t i = 0, count = storages_.size(); i < count; ++i) write_back_storage(*storages_[i].first, storages_[i].second);
    for (std::size_t i = 0, count = tensors_.size(); i < count; ++i) {
      const Tensor tensor = tensors_[i].first, host = tensors_[i].second;  // copies: the list grows
      if (tensor.layout() == at::kSparse)
        write_back_sparse(tensor, host);
      else if (is_compressed(tensor))
        write_back_compressed(tensor, host);
      else if (tensor.sizes() != host.sizes() || tensor.strides() != host.strides() ||
               tensor.storage_offset() != host.storage_offset())
        tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

 private:
  void note_device(Device device) {
    if (!device_) {
      device_ = device;
    } else if (*device_ != device && devices_ == Devices::kOne) {
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", *device_, " and ",
                  device, "! (when checking argument in method ", operation_, ")");
    }
  }

  StoragePtr host_of(StorageImpl* storage) {
    for (const auto& pair : storages_)
      if (pair.first.get() == storage) return pair.second;
    StoragePtr host;
    const Block* block = block_of(*storage);
    if (!may_resize_ && block != nullptr && block->host->data() == storage->data() && block->host->nbytes() == storage->nbytes())
      host = block->host;
    else
      host = borrowed(storage);
    storages_.emplace_back(StoragePtr::reclaim_copy(storage), host);
    return host;
  }

  // A CPU storage over memory that is not one of our blocks.
  static StoragePtr borrowed(StorageImpl* storage) {
    auto* kept = new StoragePtr(StoragePtr::reclaim_copy(storage));
    DataPtr data(storage->mutable_data(), kept, [](void* context) { delete static_cast<StoragePtr*>(context); }, c10::kCPU);
    return c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), storage->nbytes(), std::move(data),
                                            c10::GetCPUAllocator(), true);
  }

  StoragePtr device_of(StorageImpl* host, Device device) {
    for (const auto& pair : storages_)
      if (pair.second.get() == host) return pair.first;
    StoragePtr kept = StoragePtr::reclaim_copy(host);
    StoragePtr storage = c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), host->nbytes(),
                                                          own(device.index(), kept), &allocator, true);
    storages_.emplace_back(storage, std::move(kept));
    return storage;
  }

  static void write_back_storage(StorageImpl& storage, const StoragePtr& host) {
    if (host->data() == storage.data() && host->nbytes() == storage.nbytes()) return;
    const std::size_t size_bytes = host->nbytes();
    storage.set_data_ptr_noswap(own(storage.device().index(), host));
    storage.set_nbytes(size_bytes);
  }

  void write_back_sparse(const Tensor& tensor, const Tensor& host) {
    auto *parts = sparse_parts(tensor), *host_parts = sparse_parts(host);
    const auto is_same = [](const Tensor& a, const Tensor& b) {
      return a.numel() == b.numel() && (a.numel() == 0 || a.const_data_ptr() == b.const_data_ptr());
    };
    if (!is_same(host_parts->values(), parts->values()) || !is_same(host_parts->indices(), parts->indices()) ||
        tensor.sizes() != host.sizes()) {
      const Device device = tensor.device();
      const Tensor indices = to_device(host_parts->indices(), device), values = to_device(host_parts->values(), device);
      parts->raw_resize_(host_parts->sparse_dim(), host_parts->dense_dim(), host.sizes());
      parts->set_indices_and_values_unsafe(indices, values);
    }
    parts->set_coalesced(host_parts->coalesced());
  }

  void write_back_compressed(const Tensor& tensor, const Tensor& host) {
    auto* parts = compressed_parts(host);
    const Device device = tensor.device();
    compressed_parts(tensor)->set_member_tensors(to_device(parts->compressed_indices(), device),
                                                 to_device(parts->plain_indices(), device),
                                                 to_device(parts->values(), device), host.sizes());
  }

  const char* operation_;
  Devices devices_;
  std::optional<Device> device_;
  bool may_resize_;
  OnCpu on_cpu_ = OnCpu::kNumbers;
  bool has_cpu_tensor_ = false, is_first_on_cpu_ = false, has_seen_cpu_ = false;
  c10::SmallVector<std::pair<Tensor, Tensor>, 6> tensors_;           // on the device, on the host
  c10::SmallVector<std::pair<StoragePtr, StoragePtr>, 6> storages_;  // likewise
};

}  // namespace phalanx::devices
