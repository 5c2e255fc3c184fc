// The few things the engine asks of the operating system: clocks, futexes, processor hints.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>

namespace phalanx {

inline constexpr std::size_t kCacheLine = 64;

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

inline std::int64_t clock_ns(clockid_t clock) noexcept {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

inline std::int64_t monotonic_ns() noexcept { return clock_ns(CLOCK_MONOTONIC); }

// The word lives in shared memory, so the futex must not be process-private.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                       std::int64_t timeout_ns) noexcept {
  timespec t{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &t, nullptr, 0);
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

// Whether a line that another core has written comes more slowly from that core's cache than from memory. That is so on AMD's
// processors, where small caches are apart, and not on Intel's.
inline bool is_slow_between_caches() noexcept {
#if defined(__x86_64__)
  static const bool is_slow = __builtin_cpu_is("amd");
  return is_slow;
#else
  return false;
#endif
}

// The size of the cache that cores share; 0 if the system does not say. (sysconf() adds up those of all cores, also of other
// machines'.)
inline std::size_t shared_cache_bytes() noexcept {
  static const std::size_t bytes = [] {
    std::size_t kilobytes = 0;
    if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re")) {
      if (std::fscanf(file, "%zuK", &kilobytes) != 1) kilobytes = 0;
      std::fclose(file);
    }
    return kilobytes * 1024;
  }();
  return bytes;
}

// Cores that this process may use, not cores of the machine: by its affinity, and by the time that its control group grants.
int usable_cores();

}  // namespace phalanx
