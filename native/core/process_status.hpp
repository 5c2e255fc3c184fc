// What the kernel says about any process: when it started, and how it ended.
#pragma once

#include <cstdint>

namespace phalanx {

// Identifies the namespace in which this process's id is valid.
std::uint64_t own_pid_namespace();

// Start time of a process in clock ticks since boot, 0 if it is gone.
std::uint64_t process_start_ticks(int pid);

// Exit code, 256 + signal, or kStatusUnknown, of a process that has ended and has not been reaped.
std::int32_t status_from_proc(int pid, std::uint64_t start_ticks);

// The same from a pidfd, also after it has been reaped (Linux 6.15).
std::int32_t status_from_pidfd(int descriptor);

}  // namespace phalanx
