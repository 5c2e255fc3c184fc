// What Python says about CUDA.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "tensors.hpp"

namespace phalanx::python {

// Accept CUDA tensors from now on. Nothing is opened before the first one; `warn(text)` tells the user something.
void use_cuda(const nanobind::str& driver, const std::vector<nanobind::str>& compilers, const nanobind::str& cache_folder,
              nanobind::object warn);
// Tell the user something. Any thread may, but none that holds what a thread with the interpreter's lock waits for.
void warn(const std::string& text);

// Throws UsageProblem for a tensor that no kernel can bring into one piece.
void check_packable(const Tensor& tensor);

}  // namespace phalanx::python
