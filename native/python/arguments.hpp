// Arguments of a method called with the fast convention: by position, then by name. Costs a few compares, no allocation.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cmath>
#include <string>

#include "../core/types.hpp"
#include "plain_text.hpp"

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
      PyObject* name = PyTuple_GET_ITEM(keywords, i);
      std::size_t at = 0;
      while (at < N && PyUnicode_CompareWithASCIIString(name, names[at]) != 0) ++at;
      if (at == N) fail("got an unexpected keyword argument '" + utf8_of(name) + "'");
      if (values_[at] != nullptr) fail(std::string("got multiple values for argument '") + names[at] + "'");
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
  bool flag(std::size_t at) const {
    const int truth = values_[at] == nullptr ? 0 : PyObject_IsTrue(values_[at]);
    if (truth < 0) explain_error(at, "must be True or False");
    return truth == 1;
  }
  int integer(std::size_t at, int otherwise) const {
    const long value = long_integer(at, otherwise);
    if (value != static_cast<int>(value)) fail(std::string("argument '") + names_[at] + "' is out of range");
    return static_cast<int>(value);
  }
  long long_integer(std::size_t at, long otherwise) const {
    if (values_[at] == nullptr) return otherwise;
    const long value = PyLong_AsLong(values_[at]);
    if (value == -1 && PyErr_Occurred() != nullptr) explain_error(at, "must be a whole number");
    return value;
  }
  int required_integer(std::size_t at) const {
    required(at);
    return integer(at, 0);
  }
  // Seconds, as a number or a timedelta; negative when not given.
  double seconds(std::size_t at) const {
    if (values_[at] == nullptr || values_[at] == Py_None) return -1;
    double value = 0;
    if (PyFloat_Check(values_[at]) || PyLong_Check(values_[at])) {
      value = PyFloat_AsDouble(values_[at]);
    } else if (PyObject* const total = PyObject_CallMethod(values_[at], "total_seconds", nullptr)) {
      value = PyFloat_AsDouble(nb::steal(total).ptr());
    }
    if (PyErr_Occurred() != nullptr) explain_error(at, "must be a number of seconds or a timedelta");
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
  // A conversion of the argument has raised. Ctrl-C and the like go on as they are.
  [[noreturn]] void explain_error(std::size_t at, const char* must) const {
    nb::python_error error;
    if (!error.matches(PyExc_Exception)) throw error;
    const std::string type = utf8_of(nb::handle(values_[at]).type().attr("__name__"));
    nb::raise_from(error, PyExc_TypeError, "%s() argument '%s' %s, not %s", function_, names_[at], must, type.c_str());
  }
  [[noreturn]] void fail(const std::string& what) const {
    PyErr_SetString(PyExc_TypeError, (std::string(function_) + "() " + what).c_str());
    throw nb::python_error();
  }

  const char* function_;
  const char* const* names_ = nullptr;
  std::array<PyObject*, kMost> values_{};
};

}  // namespace phalanx::python
