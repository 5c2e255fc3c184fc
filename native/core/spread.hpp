// Ranks that outnumber the cores, evenly on them.
//
// A collective is as slow as the fullest core. The kernel evens out within tens of milliseconds, and starts anew whenever
// ranks have slept; ranks know where their peers are, and the one that is too many moves at once.
#pragma once

#include "layout.hpp"

namespace phalanx {

// One thread at a time.
class Spread {
 public:
  Spread(const Layout& layout, int rank, int num_ranks) : layout_(layout), rank_(rank), num_ranks_(num_ranks) {}

  // Move this thread to a core with at least two ranks fewer, if no higher rank of this core would. For ranks that wait.
  void settle(std::int64_t now_ns) noexcept;

 private:
  Layout layout_;
  int rank_;
  int num_ranks_;
  std::int64_t next_look_ns_ = 0;
};

}  // namespace phalanx
