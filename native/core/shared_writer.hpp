// Writing bytes that another core will read next.
//
// Two ways. Plain stores leave the lines in this core's cache, and must first fetch them from the core that read them
// last. Where the two share a cache and the buffers are large enough to leave the smaller caches, that is the quickest;
// where they share none, it is several times as dear as memory itself. Streaming stores go around the caches. How far the
// cores are from each other depends on where the system runs the ranks, and changes as it moves them; so it is measured
// while writing, believed for a while, and measured again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "platform.hpp"

namespace phalanx {

// One thread at a time.
class SharedWriter {
 public:
  explicit SharedWriter(bool is_crowded) noexcept : is_crowded_(is_crowded) {}

  // A piece of what this rank writes in one operation, `all_bytes` together.
  void write(std::byte* destination, const std::byte* source, std::size_t bytes, std::size_t all_bytes) noexcept {
    if (bytes == 0) return;
    if (bytes < (is_crowded_ ? kManyBytes : kTellingBytes)) {
      std::memcpy(destination, source, bytes);
    } else if (stays_in_own_cache(bytes, all_bytes) || is_streaming()) {
      copy_streaming(destination, source, bytes);
    } else if (bytes < kManyBytes && ++num_untimed_ % kUntimed != 0) {
      std::memcpy(destination, source, bytes);
    } else {
      const std::int64_t start = monotonic_ns();
      std::memcpy(destination, source, bytes);
      note(bytes, monotonic_ns() - start);
    }
  }

 private:
  static constexpr std::size_t kTellingBytes = 2 * 1024;  // less says nothing, and is written quickly in any case
  static constexpr std::size_t kManyBytes = 8 * 1024;     // less is timed only now and then: clocks cost as much
  static constexpr std::uint32_t kUntimed = 16;
  static constexpr double kSlowRate = 4.5;  // bytes per nanosecond: 10 and more in a shared cache, 2 to 3 without
  static constexpr int kEnough = 3;         // slow ones in a row: a single one may have been interrupted
  static constexpr std::int64_t kBelievedNs = 300'000'000;

  // That little stays in this core's own cache, where the peer's reads would have to look for it. (Ranks that share cores
  // find it there.)
  bool stays_in_own_cache(std::size_t bytes, std::size_t all_bytes) const noexcept {
    return !is_crowded_ && bytes >= 4 * 1024 && all_bytes <= 256 * 1024;
  }
  bool is_streaming() noexcept {
    if (streaming_until_ns_ == 0) return false;
    if (monotonic_ns() < streaming_until_ns_) return true;
    streaming_until_ns_ = 0;
    return false;
  }
  void note(std::size_t bytes, std::int64_t ns) noexcept {
    num_slow_ = double(bytes) < kSlowRate * double(ns) ? num_slow_ + 1 : 0;
    if (num_slow_ < kEnough) return;
    num_slow_ = kEnough - 1;  // after that time, one more slow one is enough
    streaming_until_ns_ = monotonic_ns() + kBelievedNs;
  }

  const bool is_crowded_;
  std::uint32_t num_untimed_ = 0;
  int num_slow_ = 0;
  std::int64_t streaming_until_ns_ = 0;  // 0: plain stores
};

}  // namespace phalanx
