// Distributes ranks evenly over the cores where there are more ranks than cores.
//
// The core with the most ranks decides how long a collective takes. The kernel balances the cores within tens of milliseconds,
// and starts again whenever ranks have slept. Ranks know where their peers run, so a rank on too full a core moves at once.
#pragma once

#include "layout.hpp"

namespace phalanx {

// One thread at a time.
class Spread {
 public:
  Spread(const Layout& layout, int rank, int num_ranks) : layout_(layout), rank_(rank), num_ranks_(num_ranks) {}

  // Move this thread to a core with at least two ranks fewer, if no higher rank is on its own core. For ranks that wait.
  void settle(std::int64_t now_ns) noexcept;

 private:
  Layout layout_;
  int rank_;
  int num_ranks_;
  std::int64_t next_look_ns_ = 0;
};

}  // namespace phalanx
