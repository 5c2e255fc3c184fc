#include "call_site.hpp"

#include <algorithm>

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
  Py_XINCREF(reinterpret_cast<PyObject*>(frame));
  std::uint32_t location = 0;
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const bool ours = is_ours(code);
    Py_DECREF(reinterpret_cast<PyObject*>(code));
    if (!ours) {
      const Key key{code, PyFrame_GetLasti(frame)};
      const auto known = locations_.find(key);
      if (known != locations_.end()) {
        location = known->second;
      } else {
        // The table in the segment wraps round: so must what points into it.
        if (locations_.size() + 2 >= kLocations) forget_all(), is_ours(code);
        location = endpoint.journal().add_location(file_of(code) + ":" + std::to_string(PyFrame_GetLineNumber(frame)));
        locations_[key] = location;
      }
      Py_DECREF(reinterpret_cast<PyObject*>(frame));
      return location;
    }
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = back;
  }
  return location;
}

}  // namespace phalanx::python
