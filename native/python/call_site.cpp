#include "call_site.hpp"

#include <algorithm>
#include <iterator>

namespace phalanx::python {
namespace {

std::string file_of(PyCodeObject* code) {
  const char* text = PyUnicode_AsUTF8(code->co_filename);
  if (text == nullptr) PyErr_Clear();
  return text == nullptr ? "?" : text;
}

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

std::uint32_t CallSites::find(Endpoint& endpoint) {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return 0;
  PyCodeObject* code = PyFrame_GetCode(frame);
  Py_DECREF(reinterpret_cast<PyObject*>(code));  // the frame holds it
  const Key key{code, PyFrame_GetLasti(frame)};
  Recent& recent = recent_[static_cast<std::size_t>(key.instruction) / 2 % std::size(recent_)];
  if (recent.key == key) [[likely]]
    return recent.location;
  const std::uint32_t location = find_from(frame, endpoint);
  if (!is_ours(code)) recent = {key, location};  // held by is_ours_ from here on, so its address stays its own
  return location;
}

std::uint32_t CallSites::find_from(PyFrameObject* frame, Endpoint& endpoint) {
  Py_INCREF(reinterpret_cast<PyObject*>(frame));
  std::uint32_t location = 0;
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    Py_DECREF(reinterpret_cast<PyObject*>(code));
    const bool is_users = !is_ours(code);
    if (is_users) location = locate(frame, code, endpoint);
    PyFrameObject* back = is_users ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = back;
  }
  return location;
}

std::uint32_t CallSites::locate(PyFrameObject* frame, PyCodeObject* code, Endpoint& endpoint) {
  const Key key{code, PyFrame_GetLasti(frame)};
  const auto known = locations_.find(key);
  if (known != locations_.end()) return known->second;
  // The table in the segment wraps round: so must what points into it.
  if (locations_.size() + 2 >= kLocations) forget_all(), is_ours(code);
  const std::string place = file_of(code) + ":" + std::to_string(PyFrame_GetLineNumber(frame));
  return locations_[key] = endpoint.journal().add_location(place);
}

}  // namespace phalanx::python
