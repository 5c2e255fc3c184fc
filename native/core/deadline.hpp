// A moment that must not pass; it stands still while any rank that this process shares a group with is debugged.
#pragma once

#include <cstdint>

#include "platform.hpp"

namespace phalanx {

// For how long, in all, somebody was seen at a breakpoint by this process. It grows while it is asked: whoever waits asks
// at least every 50 ms. What passed between two looks counts up to 100 ms, so that nothing is made up for times when
// nobody waited.
std::int64_t paused_ns();
// The same without a look.
std::int64_t paused_ns_so_far() noexcept;

// Not thread-safe.
class Deadline {
 public:
  // `paused_then` is paused_ns_so_far() at the moment from which the time was counted.
  Deadline(std::int64_t at_ns, std::int64_t paused_then) : at_ns_(at_ns), paused_then_(paused_then) {}

  std::int64_t left_ns() const { return at_ns_ + (paused_ns() - paused_then_) - monotonic_ns(); }

 private:
  std::int64_t at_ns_;
  std::int64_t paused_then_;
};

}  // namespace phalanx
