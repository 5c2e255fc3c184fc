// Device memory from a CUDA driver instead of the CPU's allocator, so that other processes can open it, as with a GPU.
// The host must be able to use this memory: it is for a simulated driver, in tests of ranks on real GPUs.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "face.hpp"

namespace phalanx::devices {

// Blocks whose sizes are powers of two, several in one allocation of the driver, as in torch's allocator for GPUs. A
// freed block is used again; nothing is returned to the driver. Threads may share it.
class DriverMemory {
 public:
  explicit DriverMemory(const char* path) : library_(dlopen(path, RTLD_NOW)) {
    TORCH_CHECK(library_ != nullptr, "the CUDA driver can't be opened: ", dlerror());
    call<unsigned>("cuInit", 0u);
  }

  void* allocate(DeviceIndex device, std::size_t size_bytes) {
    const std::size_t size = std::bit_ceil(std::max(size_bytes, kLeast));
    std::lock_guard guard(lock_);
    auto& idle = idle_[{device, size}];
    if (idle.empty()) {
      const std::size_t segment = std::max(size, kSegment);
      char* start = take(device, segment);
      for (std::size_t at = 0; at < segment; at += size) idle.push_back(start + at);
    }
    char* block = idle.back();
    idle.pop_back();
    in_use_[block] = {device, size};
    return block;
  }

  void release(void* block) {
    std::lock_guard guard(lock_);
    const auto used = in_use_.find(static_cast<char*>(block));
    idle_[used->second].push_back(used->first);
    in_use_.erase(used);
  }

 private:
  using Kind = std::pair<DeviceIndex, std::size_t>;
  static constexpr std::size_t kLeast = 512, kSegment = 2 << 20;

  template <typename... Arguments>
  void call(const char* name, Arguments... arguments) {
    auto* function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    TORCH_CHECK(function != nullptr, "the CUDA driver has no ", name);
    const int result = function(arguments...);
    TORCH_CHECK_WITH(OutOfMemoryError, result != kOutOfMemory, "CUDA out of memory (", name, ")");
    TORCH_CHECK(result == 0, name, " failed with error ", result);
  }

  char* take(DeviceIndex device, std::size_t size_bytes) {
    int driver_device = 0;
    void *context = nullptr, *previous = nullptr;
    std::uint64_t address = 0;
    call<int*, int>("cuDeviceGet", &driver_device, device);
    call<void**, int>("cuDevicePrimaryCtxRetain", &context, driver_device);
    call<void*>("cuCtxPushCurrent_v2", context);
    call<std::uint64_t*, std::size_t>("cuMemAlloc_v2", &address, size_bytes);
    call<void**>("cuCtxPopCurrent_v2", &previous);
    return reinterpret_cast<char*>(address);
  }

  static constexpr int kOutOfMemory = 2;
  void* library_;
  std::mutex lock_;  // guards everything below
  std::map<Kind, std::vector<char*>> idle_;
  std::unordered_map<char*, Kind> in_use_;
};

inline DriverMemory* driver_memory = nullptr;  // set before the first device tensor

}  // namespace phalanx::devices
