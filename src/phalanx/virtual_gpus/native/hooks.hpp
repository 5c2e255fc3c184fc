// torch's interface to a device type as a whole, for both faces.
#pragma once

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "generator.hpp"
#include "guard.hpp"
#include "memory.hpp"
#include "pinned.hpp"

namespace phalanx::devices {

// The methods that both interfaces have.
template <typename Interface>
struct CommonHooks : Interface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return face.count > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(face.count); }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex device) const override { current_device = checked_index(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    const DeviceIndex old = current_device;
    current_device = checked_index(device);
    return old;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    const DeviceIndex old = current_device;
    if (device >= 0) current_device = checked_index(device);
    return old;
  }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(DeviceIndex device) const override { return new_generator(device); }
  at::Device getDeviceFromPtr(void* pointer) const override;
  bool isPinnedPtr(const void* pointer) const override { return pinned.contains(pointer); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
};

struct OwnHooks final : CommonHooks<at::PrivateUse1HooksInterface> {
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t size_bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), size_bytes);
  }
};

struct CudaHooks final : CommonHooks<at::CUDAHooksInterface> {
  bool hasCUDA() const override { return true; }
  int getNumGPUs() const override { return face.count; }
  DeviceIndex current_device() const override { return devices::current_device; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &allocator; }
  void deviceSynchronize(DeviceIndex device) const override { Guard().synchronizeDevice(device); }
};

// Find the device of a pointer: the one with the block that contains it.
template <typename Interface>
at::Device CommonHooks<Interface>::getDeviceFromPtr(void* pointer) const {
  DeviceIndex found = -1;
  const auto* asked = static_cast<const char*>(pointer);
  for (int device = 0; device < face.count && found < 0; ++device)
    memory[device].each_block([&](const Block& block) {
      const auto* start = static_cast<const char*>(block.host->data());
      if (asked >= start && asked < start + block.size_bytes) found = static_cast<DeviceIndex>(device);
    });
  TORCH_CHECK(found >= 0, "The specified pointer resides on host memory and is not registered with any virtual device.");
  return face.device(found);
}

}  // namespace phalanx::devices
