// Where in the user's program a call was made, at the price of a hash look-up.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "../core/endpoint.hpp"

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
  std::uint32_t find(Endpoint& endpoint);

 private:
  struct Key {
    PyCodeObject* code;
    int instruction;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      return (reinterpret_cast<std::size_t>(key.code) >> 4) * 31 + static_cast<std::size_t>(key.instruction);
    }
  };
  bool is_ours(PyCodeObject* code);
  void forget_all();
  std::uint32_t find_from(PyFrameObject* frame, Endpoint& endpoint);
  std::uint32_t locate(PyFrameObject* frame, PyCodeObject* code, Endpoint& endpoint);

  std::vector<std::string> library_folders_;
  std::unordered_map<PyCodeObject*, bool> is_ours_;         // holds a reference to each code object
  std::unordered_map<Key, std::uint32_t, Hash> locations_;  // code objects are held by is_ours_
  // Calls straight from the user's code that were made lately, by instruction: most programs repeat a few.
  struct Recent {
    Key key{nullptr, 0};
    std::uint32_t location = 0;
  };
  Recent recent_[16];
};

}  // namespace phalanx::python
