// Where in the user's program a call was made, at the price of a hash look-up.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <unordered_map>
#include <vector>

#include "../core/endpoint.hpp"
#include "frame_walk.hpp"

namespace phalanx::python {

namespace nb = nanobind;

// Needs the GIL.
class CallSites {
 public:
  // Frames of files below these folders are not the user's.
  explicit CallSites(std::vector<std::string> library_folders) : library_folders_(std::move(library_folders)) {}
  ~CallSites();
  CallSites(const CallSites&) = delete;

  // Index into the endpoint's location table; 0 when there is no Python frame.
  std::uint32_t find(Endpoint& endpoint) {
    FrameWalk walk;
    if (walk.is_over()) return 0;
    const Recent& recent = recent_at(walk.instruction());
    if (recent.instruction == walk.instruction()) [[likely]]
      return recent.location;
    return find_slowly(walk, endpoint);
  }

 private:
  // Calls straight from the user's code that were made lately: most programs repeat a few.
  struct Recent {
    const void* instruction = nullptr;
    std::uint32_t location = 0;
  };
  Recent& recent_at(const void* instruction) noexcept {
    return recent_[reinterpret_cast<std::uintptr_t>(instruction) / 2 % std::size(recent_)];
  }
  std::uint32_t find_slowly(FrameWalk& walk, Endpoint& endpoint);
  bool is_ours(PyCodeObject* code);
  void forget_all();
  std::uint32_t locate(const FrameWalk& walk, Endpoint& endpoint);

  std::vector<std::string> library_folders_;
  std::unordered_map<PyCodeObject*, bool> is_ours_;           // holds a reference to each code object
  std::unordered_map<const void*, std::uint32_t> locations_;  // by instruction; their code is held by is_ours_
  Recent recent_[16];
};

}  // namespace phalanx::python
