// Arguments of a method called with the fast convention: by position, then by name. Costs a few compares, no allocation.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "../core/types.hpp"

namespace phalanx::python {

namespace nb = nanobind;

struct ReduceArgument {
  ReduceOp op = ReduceOp::kSum;
  nb::handle spelling = {};  // what was given, if it is no number of a ReduceOp
};

// Throws TypeError like any Python function.
class Arguments {
 public:
  static constexpr std::size_t kMost = 8;

  // `names` in order; the first `num_positional` may be given by position.
  template <std::size_t N>
  Arguments(const char* function, const char* const (&names)[N], std::size_t num_positional, PyObject* const* values,
            Py_ssize_t num_given, PyObject* keywords)
      : function_(function) {
    static_assert(N <= kMost);
    if (static_cast<std::size_t>(num_given) > num_positional)
      fail("takes at most " + std::to_string(num_positional) + " positional arguments (" + std::to_string(num_given) + " given)");
    for (Py_ssize_t i = 0; i < num_given; ++i) values_[static_cast<std::size_t>(i)] = values[i];
    const Py_ssize_t num_keywords = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t i = 0; i < num_keywords; ++i) {
      const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(keywords, i));
      std::size_t at = 0;
      while (at < N && std::strcmp(names[at], name) != 0) ++at;
      if (at == N) fail(std::string("got an unexpected keyword argument '") + name + "'");
      if (values_[at] != nullptr) fail(std::string("got multiple values for argument '") + name + "'");
      values_[at] = values[num_given + i];
    }
    names_ = names;
  }

  nb::handle required(std::size_t at) const {
    if (values_[at] == nullptr) fail(std::string("missing required argument '") + names_[at] + "'");
    return values_[at];
  }
  // None stands for a missing one.
  nb::handle optional(std::size_t at) const { return values_[at] == nullptr ? Py_None : values_[at]; }
  bool flag(std::size_t at) const { return values_[at] != nullptr && PyObject_IsTrue(values_[at]) == 1; }
  int integer(std::size_t at, int otherwise) const {
    const long value = long_integer(at, otherwise);
    if (value != static_cast<int>(value)) fail(std::string("argument '") + names_[at] + "' is out of range");
    return static_cast<int>(value);
  }
  long long_integer(std::size_t at, long otherwise) const {
    if (values_[at] == nullptr) return otherwise;
    const long value = PyLong_AsLong(values_[at]);
    if (value == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      fail(std::string("argument '") + names_[at] + "' must be a whole number");
    }
    return value;
  }
  int required_integer(std::size_t at) const {
    required(at);
    return integer(at, 0);
  }
  // Seconds, as a number or a timedelta; negative when not given.
  double seconds(std::size_t at) const {
    if (values_[at] == nullptr || values_[at] == Py_None) return -1;
    const double value = PyFloat_Check(values_[at]) || PyLong_Check(values_[at])
                             ? PyFloat_AsDouble(values_[at])
                             : nb::cast<double>(nb::handle(values_[at]).attr("total_seconds")());
    if (!(value >= 0)) fail(std::string("argument '") + names_[at] + "' must not be negative");
    return value;
  }
  // A number of phalanx.ReduceOp is read here; any other spelling is left to the operation, which can tell its peers.
  ReduceArgument reduction(std::size_t at) const {
    PyObject* value = values_[at];
    if (value == nullptr) return {};
    if (!PyLong_Check(value)) return {.spelling = value};
    const long code = PyLong_AsLong(value);
    if (code < 0 || code >= static_cast<long>(ReduceOp::kPremulSum)) {
      PyErr_Clear();
      return {.spelling = value};
    }
    return {.op = static_cast<ReduceOp>(code)};
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    PyErr_SetString(PyExc_TypeError, (std::string(function_) + "() " + what).c_str());
    throw nb::python_error();
  }

  const char* function_;
  const char* const* names_ = nullptr;
  std::array<PyObject*, kMost> values_{};
};

}  // namespace phalanx::python
