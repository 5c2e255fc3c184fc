// The methods of an operation under way.
#pragma once

#include <Python.h>

namespace phalanx::python {

// Type slots that add the methods to the class NativeWork.
PyType_Slot* work_slots();

}  // namespace phalanx::python
