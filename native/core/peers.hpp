// Whether the other ranks' processes are alive, and how they died.
#pragma once

#include <mutex>
#include <vector>

#include "layout.hpp"

namespace phalanx {

// Thread-safe.
class Peers {
 public:
  Peers(const Layout& layout, int rank, int num_ranks);
  ~Peers();
  Peers(const Peers&) = delete;

  // The first rank found dead, marked so for everybody; or -1. Costs one system call.
  int find_dead();
  // Exit code, 256 + signal, or kStatusUnknown; waits a moment for whoever reaps the process to say.
  std::int32_t exit_status(int rank) const;

 private:
  void open_all();  // needs mutex_
  bool is_same_process(int rank) const;

  const Layout layout_;
  const int rank_;
  const int num_ranks_;
  const std::uint64_t own_namespace_;
  mutable std::mutex mutex_;      // guards descriptors_
  std::vector<int> descriptors_;  // a pidfd per rank, -1 where none
};

// Identifies the namespace in which this process's id is valid.
std::uint64_t own_pid_namespace();

// Start time of a process in clock ticks since boot, 0 if it is gone.
std::uint64_t process_start_ticks(int pid);

}  // namespace phalanx
