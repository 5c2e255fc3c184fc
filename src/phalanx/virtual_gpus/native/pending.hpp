// Collectives that run outside the streams. Synchronizing a device waits for them too.
#pragma once

#include <atomic>

#include "face.hpp"

namespace phalanx::devices {

// Python's function that waits; it takes the GIL itself.
using WaitForPending = void (*)(int device);

inline std::atomic<WaitForPending> wait_for_pending{nullptr};
inline std::atomic<long> num_pending{0};

inline void finish_pending(DeviceIndex device) {
  if (num_pending.load(std::memory_order_acquire) <= 0) return;
  if (const WaitForPending wait = wait_for_pending.load(std::memory_order_acquire)) wait(device);
}

}  // namespace phalanx::devices
