// The devices: how many there are, what torch calls them, and which one is current in a thread.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>

namespace phalanx::devices {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::DispatchKey;

constexpr int kMostDevices = 64;

// Written once, by set_up(), before any device exists.
struct Face {
  DeviceType type = DeviceType::PrivateUse1;
  DispatchKey key = DispatchKey::PrivateUse1;
  DispatchKey sparse_key = DispatchKey::SparsePrivateUse1;
  DispatchKey compressed_key = DispatchKey::SparseCsrPrivateUse1;  // CSR and its relatives
  int count = 0;

  bool is_cuda() const { return type == DeviceType::CUDA; }
  Device device(DeviceIndex index) const { return Device(type, index); }
  bool owns(Device device) const { return device.type() == type; }
  bool owns(const at::Tensor& tensor) const { return tensor.device().type() == type; }
};

inline Face face;
inline thread_local DeviceIndex current_device = 0;

// A device without an index is the current one.
inline DeviceIndex checked_index(Device device) {
  const DeviceIndex index = device.has_index() ? device.index() : current_device;
  TORCH_CHECK(index >= 0 && index < face.count, face.is_cuda() ? "CUDA error: " : "", "invalid device ordinal ",
              static_cast<int>(index), ": there are ", face.count, " virtual devices, numbered from 0; ask for more of them "
              "where they are set up");
  return index;
}

inline DeviceIndex checked_index(DeviceIndex index) { return checked_index(face.device(index)); }

}  // namespace phalanx::devices
