// Python tensors as plain views, through the DLPack exchange table that torch puts on its tensor type.
//
// No libtorch, no attribute look-ups per call: one C function fills a struct. That is what lets a Group call cost less
// than a microsecond, and one build serve all torch versions.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "../core/call.hpp"
#include "../core/strided.hpp"
#include "tensor_layout.hpp"

namespace phalanx::python {

namespace nb = nanobind;

inline constexpr int kHost = -1;

// The caller's mistake; becomes phalanx.UsageError.
struct UsageProblem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Tensor {
  TensorView view;
  int device = kHost;  // else the number of a GPU, whose memory it is
  std::uint32_t num_dims = 0;
  std::uint64_t shape[kShapeDims] = {};
};

enum class Use { kRead, kWrite };

// Accept tensors of this DLPack device type from now on: their memory must be the host's. It may also be that of the CUDA
// driver in use, which other processes can open.
void admit_device_type(int dlpack_type, bool is_driver_memory);

// Set what decides about tensors that are not known to be plain memory. `judge(tensor)` returns 0 for plain memory, the bits of Lazy
// for a lazy view of it, the tensor that holds the data instead, or the text of a refusal. The samples are plain tensors.
// Returns whether torch's layout was learned from them: else every tensor is judged.
bool open_gate(nb::object judge, nb::object int8, nb::object uint8, const std::vector<Sample>& samples);

// The gate through which every tensor enters the engine. Throws UsageProblem for anything that is neither a CPU tensor, nor a CUDA tensor where CUDA is used, nor of an admitted
// type, naming it by `role`.
Tensor view_tensor(nb::handle object, const char* role, Use use);
std::vector<Tensor> view_tensors(nb::handle list, const char* role, Use use);

// Objects that keep the memory of tensors that were viewed: a list may be changed, and a tensor may get other memory (tensor.data = ...).
nb::object hold_memory(nb::handle object);

// The stream of that GPU that is current for this thread, as torch has it.
void* current_stream(nb::handle tensor, int device);

const char* dtype_name(DType dtype) noexcept;
void describe(const Tensor& tensor, Call& call) noexcept;

}  // namespace phalanx::python
