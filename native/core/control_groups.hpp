// The limits that control groups (version 1 and 2) set on a process, in its own group or in any group above it.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace phalanx {

// Finds the folders of the groups once, and reads the numbers in them at each call. Threads may share it.
class ControlGroups {
 public:
  // `process` is a folder like /proc/self: its files "cgroup" and "mountinfo" say where the groups are.
  explicit ControlGroups(const std::string& process = "/proc/self");

  // The smallest limit of memory.
  std::optional<std::size_t> memory_limit_bytes() const;
  // What the limits leave. The kernel frees its cache of files before it refuses memory, so the cache does not count as used.
  std::optional<std::size_t> memory_left_bytes() const;
  // How many more processes and threads may be started.
  std::optional<std::size_t> processes_left() const;
  // How many cores' time may be used.
  std::optional<double> cores() const;

 private:
  using Folders = std::vector<std::string>;
  const Folders& folders(const std::string& controller) const;

  std::map<std::string, Folders> folders_;  // by controller, the own group first; "" is version 2
};

// Like usable_cores() of platform.hpp, with the control groups that this folder shows.
int usable_cores(const std::string& process);

}  // namespace phalanx
