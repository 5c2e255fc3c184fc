#include "work_methods.hpp"

#include "arguments.hpp"
#include "methods.hpp"
#include "rank_endpoint.hpp"

namespace phalanx::python {
namespace {

NativeWork& work_of(PyObject* self) {
  if (!nb::inst_ready(self)) throw nb::type_error("this operation was made by hand; a group returns one");
  return *nb::inst_ptr<NativeWork>(self);
}

constexpr Signature<1> kWait{"wait", {"timeout_s"}};

PyObject* wait(PyObject* self, PyObject* const* values, Py_ssize_t num_given, PyObject* keywords) {
  return return_to_python([&]() -> nb::object {
    const Arguments arguments(kWait.function, kWait.names, 1, values, num_given, keywords);
    work_of(self).wait(arguments.seconds(0));
    return nb::none();
  });
}

template <auto kServe>
PyObject* serve(PyObject* self, PyObject*) {
  return return_to_python([&]() -> nb::object { return nb::cast((work_of(self).*kServe)()); });
}

PyMethodDef methods[] = {
    method("wait", &wait, "wait($self, timeout_s=None)\n--\n\nBlock until the operation is done."),
    {"done", &serve<&NativeWork::is_done>, METH_NOARGS,
     "done($self)\n--\n\nTell whether the operation has ended, with or without an error."},
    {"exception", &serve<&NativeWork::exception>, METH_NOARGS,
     "exception($self)\n--\n\nReturn the error of the operation; None while it runs or if it succeeded."},
    {"result", &serve<&NativeWork::result>, METH_NOARGS,
     "result($self)\n--\n\nWait for the operation, then return the tensors that it filled."},
    {"source_rank", &serve<&NativeWork::source_rank>, METH_NOARGS,
     "source_rank($self)\n--\n\nReturn the rank whose message has arrived; None before, and for other operations."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {{Py_tp_methods, methods}, {0, nullptr}};

}  // namespace

PyType_Slot* work_slots() { return slots; }

}  // namespace phalanx::python
