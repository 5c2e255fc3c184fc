// The operations that concern the device itself: memory, views, copies, reading a value.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/Resize.h>

#include "any_operation.hpp"
#include "kernel_set.hpp"
#include "pinned.hpp"

namespace phalanx::devices::kernels {

using at::IntArrayRef;
using OptionalType = std::optional<at::ScalarType>;
using OptionalLayout = std::optional<at::Layout>;
using OptionalDevice = std::optional<Device>;
using OptionalFlag = std::optional<bool>;
using OptionalFormat = std::optional<at::MemoryFormat>;

inline Device device_or_current(OptionalDevice device) { return face.device(checked_index(device.value_or(Device(face.type)))); }

inline void refuse_pinned(OptionalFlag is_pinned) {
  TORCH_CHECK(!is_pinned.value_or(false), "Only dense CPU tensors can be pinned");
}

inline Tensor empty(IntArrayRef sizes, OptionalType type, OptionalLayout, OptionalDevice device, OptionalFlag is_pinned,
                    OptionalFormat format) {
  refuse_pinned(is_pinned);
  c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(face.key), c10::dtype_or_default(type), format);
}

inline Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, OptionalType type, OptionalLayout, OptionalDevice device,
                            OptionalFlag is_pinned) {
  refuse_pinned(is_pinned);
  c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(sizes, strides, &allocator, c10::DispatchKeySet(face.key),
                                           c10::dtype_or_default(type));
}

inline Tensor efficient_zeros(IntArrayRef sizes, OptionalType type, OptionalLayout layout, OptionalDevice device,
                              OptionalFlag is_pinned) {
  return empty(sizes, type, layout, device, is_pinned, std::nullopt).zero_();
}

inline void grow(StorageImpl& storage, std::size_t needed) {
  if (needed <= storage.nbytes()) return;
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  resize_storage(storage, needed);
}

inline const Tensor& resize_(const Tensor& self, IntArrayRef sizes, OptionalFormat format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) {
    at::detail::check_size_nonnegative(sizes);
    grow(*self.storage().unsafeGetStorageImpl(),
         at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(), self.storage_offset()));
    impl->set_sizes_contiguous(sizes);  // now that there is memory for them
  }
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

// False: CUDA copies through a temporary tensor in pageable memory on the host.
inline bool is_copied_directly(const Tensor& target, const Tensor& source) {
  const bool is_same_type = target.scalar_type() == source.scalar_type();
  if (is_same_type && target.sizes() == source.sizes() && target.strides() == source.strides() &&
      target.is_non_overlapping_and_dense())
    return true;
  const bool is_from_host = source.device().is_cpu();
  return is_from_host ? is_same_type && source.is_contiguous() && source.sizes() == target.sizes() : target.is_contiguous();
}

inline void watch_copy(const Tensor& target, const Tensor& source, bool is_non_blocking) {
  if (target.layout() != at::kStrided || source.layout() != at::kStrided || target.numel() == 0) return;
  const races::Access from = races::access_of(source, false), to = races::access_of(target, true);
  const std::array both{from, to};
  const bool is_to = face.owns(target), is_from = face.owns(source);
  if (is_to && is_from && target.device() != source.device()) {
    races::copy_between_devices(current_stream_key(source.device().index()), current_stream_key(target.device().index()), both,
                                "aten::copy_");
  } else if (is_to && is_from) {
    races::launch(current_stream_key(target.device().index()), both, "aten::copy_");
  } else {
    const Tensor& host = is_to ? source : target;
    const bool is_pinned = host.device().is_cpu() && pinned.contains(host.const_data_ptr()) && is_copied_directly(target, source);
    races::copy_with_host(current_stream_key((is_to ? target : source).device().index()), is_to ? to : from, is_to ? from : to,
                          is_pinned, is_non_blocking, "aten::copy_");
  }
}

// A copy runs after the current streams of both devices. Between host and device it is complete when it returns, unless
// it is non-blocking.
inline Tensor& copy_(Tensor& target, const Tensor& source, bool is_non_blocking) {
  HostView view("aten::copy_", HostView::Devices::kAny);
  const Tensor host_target = view.to_host(target), host_source = view.to_host(source);
  if (races::is_on()) watch_copy(target, source, is_non_blocking);
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    host_target.copy_(host_source);
  }
  if (target.layout() == at::kSparse) view.write_back();
  const bool is_to = face.owns(target), is_from = face.owns(source);
  const DeviceIndex to = is_to ? target.device().index() : source.device().index();
  const DeviceIndex from = is_from ? source.device().index() : to;
  const double until_s = streams.join(to, current_streams[to], from, current_streams[from]);
  if (is_to != is_from) {
    const Tensor& host = is_to ? source : target;
    if (host.layout() == at::kStrided && host.device().is_cpu() && host.numel() > 0) pinned.note_use(host.const_data_ptr(), until_s);
    if (!is_non_blocking) sleep_until(until_s);
  }
  return target;
}

inline Tensor copy_from(const Tensor& source, const Tensor& target, bool is_non_blocking) {
  Tensor written = target;
  copy_(written, source, is_non_blocking);
  return target;
}

inline Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

// The lists may be on several devices, as for an optimizer that keeps its state on another device.
inline void foreach_copy_(at::TensorList targets, at::TensorList sources, bool is_non_blocking) {
  TORCH_CHECK(targets.size() == sources.size(), "Tensor lists must have the same number of tensors, got ", targets.size(), " and ",
              sources.size());
  for (std::size_t at = 0; at < targets.size(); ++at) targets[at].copy_(sources[at], is_non_blocking);
}

inline at::Scalar local_scalar(const Tensor& self) {
  const DeviceIndex device = self.device().index();
  HostView view("aten::_local_scalar_dense", HostView::Devices::kOne);
  RaceAccesses accesses;
  accesses.add(self, false);
  accesses.launch("aten::_local_scalar_dense");
  wait_for_current_stream(device);
  return at::_local_scalar_dense(view.to_host(self));
}

inline void record_stream(Tensor& self, Stream stream) {
  if (self.layout() == at::kStrided && self.has_storage())
    races::record_stream(self.storage().data(), {stream.device_index(), stream.id()});
}

inline Tensor& set_storage(Tensor& self, at::Storage source, std::int64_t offset, IntArrayRef sizes, IntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  TORCH_CHECK(source.device() == self.device(), "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(), "\".  This is no longer allowed; the devices must match.");
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  at::detail::check_size_nonnegative(sizes);
  const bool has_strides = strides.data() != nullptr && strides.size() == sizes.size();
  grow(*source.unsafeGetStorageImpl(),
       has_strides ? at::detail::computeStorageNbytes(sizes, strides, self.itemsize(), offset)
                   : at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(), offset));
  impl->set_storage_keep_dtype(std::move(source));
  if (strides.data() == nullptr || (strides.empty() && !sizes.empty())) {
    impl->set_sizes_contiguous(sizes);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  return self;
}

inline Tensor& set_source(Tensor& self, at::Storage source) {
  const auto count = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

inline Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (self.is_same(source)) return self;
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source.storage());
  impl->set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  return self;
}

inline Tensor& set_nothing(Tensor& self) {
  at::Storage none(at::Storage::use_byte_size_t(), 0, allocate_on(self.device().index(), 0), &allocator, true);
  return set_storage(self, std::move(none), 0, {0}, {});
}

inline void register_direct(KernelSet& kernels) {
  kernels.add("empty.memory_format", TORCH_FN(empty));
  kernels.add("empty_strided", TORCH_FN(empty_strided));
  kernels.add("_efficientzerotensor", TORCH_FN(efficient_zeros));
  kernels.add("resize_", TORCH_FN(resize_));
  kernels.add("copy_", TORCH_FN(copy_));
  kernels.add("_copy_from", TORCH_FN(copy_from));
  kernels.add("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  kernels.add("_foreach_copy_", TORCH_FN(foreach_copy_));
  kernels.add("_local_scalar_dense", TORCH_FN(local_scalar));
  kernels.add("record_stream", TORCH_FN(record_stream));
  kernels.add("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  kernels.add("set_.source_Storage", TORCH_FN(set_source));
  kernels.add("set_.source_Tensor", TORCH_FN(set_tensor));
  kernels.add("set_", TORCH_FN(set_nothing));
  kernels.add("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  kernels.add("view", TORCH_FN(at::native::view));
  kernels.add("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  kernels.add("unfold", TORCH_FN(at::native::unfold));
}

inline void register_direct_sparse(KernelSet& kernels) {
  kernels.add("copy_", TORCH_FN(copy_));
  kernels.add("_indices", TORCH_FN(at::native::_indices_sparse));
  kernels.add("_values", TORCH_FN(at::native::_values_sparse));
  kernels.add("_nnz", TORCH_FN(at::native::_nnz_sparse));
  kernels.add("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  kernels.add("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  kernels.add("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  kernels.add("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
}

}  // namespace phalanx::devices::kernels
