// A deadline that is paused while any rank that shares a group with this process is stopped in the debugger.
#pragma once

#include <cstdint>

#include "platform.hpp"

namespace phalanx {

// For how long, in all, this process has seen a rank in the debugger. Only a call adds to it, and a waiting rank calls at
// least every 50 ms. A call adds at most 100 ms, so that time in which no rank waited does not count.
std::int64_t paused_ns();
// The same, without looking again.
std::int64_t paused_ns_so_far() noexcept;

// Not thread-safe.
class Deadline {
 public:
  // `paused_then` is paused_ns_so_far() at the moment from which the deadline was counted.
  Deadline(std::int64_t at_ns, std::int64_t paused_then) : at_ns_(at_ns), paused_then_(paused_then) {}

  std::int64_t left_ns() const { return at_ns_ + (paused_ns() - paused_then_) - monotonic_ns(); }

 private:
  std::int64_t at_ns_;
  std::int64_t paused_then_;
};

}  // namespace phalanx
