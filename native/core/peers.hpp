// Whether the other ranks' processes are alive, and how they died.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "layout.hpp"
#include "process_status.hpp"
#include "watched_process.hpp"

namespace phalanx {

// Thread-safe.
class Peers {
 public:
  Peers(const Layout& layout, int rank, int num_ranks);
  Peers(const Peers&) = delete;

  // Returns the first rank that it finds dead, and marks it so for all ranks; or -1. Costs one system call.
  int find_dead();
  // The group is closed: stop watching. What is already known stays.
  void let_go();
  // Exit code, 256 + signal, or kStatusUnknown; waits a moment until the process that reaps it has stored the status.
  std::int32_t exit_status(int rank) const;

 private:
  void watch_all();  // needs mutex_
  bool is_same_process(int rank) const;

  const Layout layout_;
  const int rank_;
  const int num_ranks_;
  const std::uint64_t own_namespace_;
  mutable std::mutex mutex_;  // guards all below
  bool is_watching_ = true;
  std::vector<std::shared_ptr<const WatchedProcess>> processes_;  // per rank; null if its process is not watched
};

}  // namespace phalanx
