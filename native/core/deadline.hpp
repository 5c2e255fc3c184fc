// A moment that must not pass; it stands still while any rank that this process shares a group with is debugged.
#pragma once

#include <cstdint>

#include "platform.hpp"

namespace phalanx {

// Whether a living rank of any group of this process stands at a breakpoint.
bool is_anybody_debugged();

// Not thread-safe. Ask often: time counts as debugged when somebody is debugged at the moment of asking.
class Deadline {
 public:
  explicit Deadline(std::int64_t at_ns) : at_ns_(at_ns), looked_ns_(monotonic_ns()) {}

  std::int64_t left_ns() {
    const std::int64_t now = monotonic_ns();
    if (is_anybody_debugged()) at_ns_ += now - looked_ns_;
    looked_ns_ = now;
    return at_ns_ - now;
  }

 private:
  std::int64_t at_ns_;
  std::int64_t looked_ns_;
};

}  // namespace phalanx
