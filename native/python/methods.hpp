// Methods with CPython's fast calling convention. Unlike nanobind's, they have signatures that `inspect` can read.
#pragma once

#include <nanobind/nanobind.h>

#include <system_error>

#include "../core/trouble.hpp"

namespace phalanx::python {

namespace nb = nanobind;

template <std::size_t N>
struct Signature {
  const char* function;
  const char* names[N];
};

// Runs the body of a method: an exception of C++ becomes one of Python.
template <class Body>
PyObject* return_to_python(const Body& body) noexcept {
  try {
    return body().release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const nb::builtin_exception& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const std::system_error& error) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code().value(), error.what()).ptr());
  } catch (const std::bad_alloc& error) {
    PyErr_SetString(PyExc_MemoryError, words_of(error).c_str());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

using FastMethod = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

// The text begins with the signature: "name($self, ...)\n--\n\n".
inline PyMethodDef method(const char* name, FastMethod serve, const char* text) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(serve)), METH_FASTCALL | METH_KEYWORDS, text};
}

}  // namespace phalanx::python
