// Texts and paths from Python as bytes. File names may be any bytes; Python shows those that are no UTF-8 as lone
// surrogates, which have no form in UTF-8. They turn up in every error about such a file.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <string>
#include <vector>

namespace phalanx::python {

namespace nb = nanobind;

inline std::string encoded(nb::handle text, const char* how) {
  const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", how));
  if (!bytes.is_valid()) throw nb::python_error();
  return {PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

// For people to read: always UTF-8, with "\udcff" for what is none, and "\x00" for a zero, which ends texts in group memory.
inline std::string utf8_of(nb::handle text) {
  std::string all = encoded(text, "backslashreplace");
  for (std::size_t at = 0; (at = all.find('\0', at)) != std::string::npos;) all.replace(at, 1, "\\x00");
  return all;
}

// For the kernel: the bytes that Python read the name from.
inline std::string path_of(nb::handle path) { return encoded(path, "surrogateescape"); }

inline std::vector<std::string> each_of(const std::vector<nb::str>& texts, std::string (*as)(nb::handle)) {
  std::vector<std::string> all(texts.size());
  std::transform(texts.begin(), texts.end(), all.begin(), as);
  return all;
}

}  // namespace phalanx::python
