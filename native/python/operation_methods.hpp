// The operations as methods with CPython's fast calling convention: they are called millions of times.
#pragma once

#include <Python.h>

namespace phalanx::python {

// Type slots that add the operations to the class RankEndpoint.
PyType_Slot* operation_slots();

}  // namespace phalanx::python
