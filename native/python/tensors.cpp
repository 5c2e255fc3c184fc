#include "tensors.hpp"

#include <algorithm>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "../device/cuda_driver.hpp"

namespace phalanx::python {
namespace {

using DlTensor = nb::dlpack::dltensor;

// Facts of the DLPack 1.2+ exchange table; only the member we call is typed.
struct ExchangeTable {
  std::uint32_t major, minor;
  void* previous;
  void* allocate;
  void* from_python_managed;
  void* to_python;
  int (*view_from_python)(void* object, DlTensor* out);
  int (*current_stream)(int device_type, std::int32_t device, void** out);
};

constexpr int kCpu = 1, kCuda = 2, kPinned = 3;

// One bit per DLPack device type whose memory is the host's. Changed under the interpreter's lock, before first use.
std::uint32_t admitted_types = 0;
// Virtual CUDA devices have memory that a CUDA driver knows, so they are served as real ones.
bool has_driver_memory = false;

bool is_admitted(int type) { return type > 0 && type < 32 && (admitted_types >> type & 1u) != 0; }

std::string name_of_type(nb::handle object) { return nb::cast<std::string>(nb::str(object.type().attr("__name__"))); }

// Looked up once per tensor type.
const ExchangeTable* exchange_table(PyTypeObject* type) {
  static PyTypeObject* last_type = nullptr;
  static const ExchangeTable* last_table = nullptr;
  if (type == last_type) return last_table;
  nb::handle type_object(reinterpret_cast<PyObject*>(type));
  if (!nb::hasattr(type_object, "__dlpack_c_exchange_api__")) return nullptr;
  const nb::object capsule = type_object.attr("__dlpack_c_exchange_api__");
  const auto* table =
      static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr || table->major != 1 || table->view_from_python == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  Py_INCREF(type_object.ptr());  // so that no other type can come to lie at this address
  last_type = type;
  last_table = table;
  return table;
}

DType integer_type(int bits, bool is_signed) {
  switch (bits) {
    case 8: return is_signed ? DType::kInt8 : DType::kUInt8;
    case 16: return is_signed ? DType::kInt16 : DType::kUInt16;
    case 32: return is_signed ? DType::kInt32 : DType::kUInt32;
    default: return is_signed ? DType::kInt64 : DType::kUInt64;
  }
}

DType opaque_type(int bits) {
  switch (bits) {
    case 8: return DType::kOpaque1;
    case 16: return DType::kOpaque2;
    case 32: return DType::kOpaque4;
    default: return DType::kOpaque8;
  }
}

DType dtype_of(const nb::dlpack::dtype& type) {
  using Code = nb::dlpack::dtype_code;
  switch (static_cast<Code>(type.code)) {
    case Code::Int: return integer_type(type.bits, true);
    case Code::UInt: return integer_type(type.bits, false);
    case Code::Bool: return DType::kBool;
    case Code::Bfloat: return DType::kBFloat16;
    case Code::Float:
      return type.bits == 16 ? DType::kFloat16 : type.bits == 32 ? DType::kFloat32 : DType::kFloat64;
    case Code::Complex:
      if (type.bits == 64) return DType::kComplex64;
      if (type.bits == 128) return DType::kComplex128;
      return opaque_type(type.bits);
    default: return opaque_type(type.bits);
  }
}

bool is_contiguous(const DlTensor& t) {
  if (t.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] == 0) return true;
    if (t.shape[i] == 1) continue;
    if (t.strides[i] != expected) return false;
    expected *= t.shape[i];
  }
  return true;
}

// Contiguous to the letter, also where a dimension of one element would allow any stride: certainly no special view.
bool is_plain(const DlTensor& t) {
  if (t.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.strides[i] != expected) return false;
    expected *= t.shape[i] == 0 ? 1 : t.shape[i];
  }
  return true;
}

bool has_overlap(const DlTensor& t) {
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[i] > 1 && t.strides[i] == 0) return true;
  }
  return false;
}

[[noreturn]] void refuse_object(nb::handle object, const char* role) {
  throw UsageProblem(std::string(role) + " must be a torch tensor on the CPU, not " + name_of_type(object));
}

// The GPU whose memory it is, or kHost.
int device_of(nb::handle object, const DlTensor& t, const char* role) {
  if (t.device.device_type == kCpu || t.device.device_type == kPinned) [[likely]]
    return kHost;
  const bool is_virtual = is_admitted(t.device.device_type);
  if (t.device.device_type == kCuda && device::is_cuda_used() && (!is_virtual || has_driver_memory)) return t.device.device_id;
  if (is_virtual) return kHost;
  const std::string device = nb::cast<std::string>(nb::str(object.attr("device")));
  throw UsageProblem(std::string(role) + " is on device " + device + ", but this group moves CPU tensors only; " +
                     "pass tensor.cpu(), or make a group for that device");
}

void check_lazy_bits(nb::handle object, const char* role) {
  if (nb::cast<bool>(object.attr("is_conj")()))
    throw UsageProblem(std::string(role) + " is a lazy conjugate view; pass tensor.resolve_conj()");
}

}  // namespace

void admit_device_type(int dlpack_type, bool is_driver_memory) {
  if (dlpack_type <= 0 || dlpack_type >= 32)
    throw nb::value_error("admit_device_type: DLPack has no such device type");
  admitted_types |= 1u << dlpack_type;
  has_driver_memory = is_driver_memory;
}

Tensor view_tensor(nb::handle object, const char* role, Use use) {
  const ExchangeTable* table = exchange_table(object.ptr()->ob_type);
  if (table == nullptr) refuse_object(object, role);
  DlTensor t;
  if (table->view_from_python(object.ptr(), &t) != 0) {
    nb::python_error error;
    const std::string told = error.what();
    throw UsageProblem(std::string(role) + " can't be used: " + told.substr(0, told.find('\n')));
  }
  Tensor result;
  result.device = device_of(object, t, role);
  TensorView& view = result.view;
  view.data = static_cast<std::byte*>(t.data) + t.byte_offset;
  view.dtype = dtype_of(t.dtype);
  if (is_complex(view.dtype)) check_lazy_bits(object, role);
  view.count = 1;
  result.num_dims = static_cast<std::uint32_t>(t.ndim);
  for (int i = 0; i < t.ndim; ++i) {
    view.count *= static_cast<std::uint64_t>(t.shape[i]);
    if (i < static_cast<int>(kShapeDims)) result.shape[i] = static_cast<std::uint64_t>(t.shape[i]);
  }
  if (is_plain(t)) [[likely]]
    return result;
  if (nb::cast<bool>(object.attr("is_neg")()))
    throw UsageProblem(std::string(role) + " is a lazy negative view; pass tensor.resolve_neg()");
  if (is_contiguous(t)) return result;
  if (use == Use::kWrite && has_overlap(t))
    throw UsageProblem(std::string(role) + " is an expanded view whose elements share memory; pass tensor.contiguous()");
  view.shape.assign(t.shape, t.shape + t.ndim);
  view.strides.assign(t.strides, t.strides + t.ndim);
  return result;
}

void* current_stream(nb::handle tensor, int device) {
  if (is_admitted(kCuda)) return nullptr;  // virtual devices have no streams of the driver's
  const ExchangeTable* table = exchange_table(tensor.ptr()->ob_type);
  void* stream = nullptr;
  if (table == nullptr || table->current_stream == nullptr)
    throw UsageProblem("this torch does not tell which CUDA stream is current; use torch 2.11 or newer");
  if (table->current_stream(kCuda, device, &stream) != 0) throw nb::python_error();
  return stream;
}

std::vector<Tensor> view_tensors(nb::handle list, const char* role, Use use) {
  if (!nb::isinstance<nb::list>(list) && !nb::isinstance<nb::tuple>(list))
    throw UsageProblem(std::string(role) + " must be a list of tensors, not " + name_of_type(list));
  std::vector<Tensor> tensors;
  tensors.reserve(nb::len(list));
  for (nb::handle item : list) tensors.push_back(view_tensor(item, role, use));
  return tensors;
}

const char* dtype_name(DType dtype) noexcept {
  static constexpr const char* names[] = {"bool",    "int8",    "uint8",    "int16",   "uint16",  "int32",     "uint32",
                                          "int64",   "uint64",  "float16",  "bfloat16", "float32", "float64",   "complex64",
                                          "complex128", "8-bit", "16-bit", "32-bit", "64-bit", "unknown"};
  static_assert(std::size(names) == static_cast<std::size_t>(DType::kCount) + 1);
  return names[std::min(static_cast<std::size_t>(dtype), static_cast<std::size_t>(DType::kCount))];
}

void describe(const Tensor& tensor, Call& call) noexcept {
  call.dtype = tensor.view.dtype;
  call.count = tensor.view.count;
  call.size_bytes = tensor.view.bytes();
  call.num_dims = tensor.num_dims;
  for (std::size_t i = 0; i < kShapeDims; ++i) call.shape[i] = tensor.shape[i];
}

}  // namespace phalanx::python
