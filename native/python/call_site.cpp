#include "call_site.hpp"

#include <algorithm>

#include "plain_text.hpp"

namespace phalanx::python {
namespace {

std::string file_of(PyCodeObject* code) { return utf8_of(code->co_filename); }

}  // namespace

CallSites::~CallSites() { forget_all(); }

void CallSites::forget_all() {
  for (auto& [code, ours] : is_ours_) Py_DECREF(reinterpret_cast<PyObject*>(code));
  is_ours_.clear();
  locations_.clear();
  std::fill(std::begin(recent_), std::end(recent_), Recent{});
}

bool CallSites::is_ours(PyCodeObject* code) {
  const auto known = is_ours_.find(code);
  if (known != is_ours_.end()) return known->second;
  Py_INCREF(reinterpret_cast<PyObject*>(code));  // so that its address stays its own
  const std::string file = file_of(code);
  const auto is_above = [&](const std::string& folder) { return file.rfind(folder, 0) == 0; };
  return is_ours_[code] = std::any_of(library_folders_.begin(), library_folders_.end(), is_above);
}

std::uint32_t CallSites::find_slowly(FrameWalk& walk, Endpoint& endpoint) {
  const void* const innermost = walk.instruction();
  const bool is_direct = !is_ours(walk.code());
  while (!walk.is_over() && is_ours(walk.code())) walk.next();
  if (walk.is_over()) return 0;
  const std::uint32_t location = locate(walk, endpoint);
  if (is_direct) recent_at(innermost) = {innermost, location};  // is_ours_ holds its code, so the address stays its own
  return location;
}

std::uint32_t CallSites::locate(const FrameWalk& walk, Endpoint& endpoint) {
  const auto known = locations_.find(walk.instruction());
  if (known != locations_.end()) return known->second;
  // The table in the segment wraps round: so must what points into it.
  if (locations_.size() + 2 >= kLocations) forget_all(), is_ours(walk.code());
  const std::string place = file_of(walk.code()) + ":" + std::to_string(walk.line());
  return locations_[walk.instruction()] = endpoint.journal().add_location(place);
}

}  // namespace phalanx::python
