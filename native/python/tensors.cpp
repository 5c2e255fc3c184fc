#include "tensors.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "../cuda/cuda_driver.hpp"
#include "writable_memory.hpp"

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

// What Python has told of torch's tensors. Changed under the interpreter's lock; references are kept for ever.
struct Gate {
  TensorLayout layout;
  PyObject* judge = nullptr;                    // tensor -> what it is, see open_gate
  PyObject *int8 = nullptr, *uint8 = nullptr;   // torch's; its types of fewer bits come as these
  std::array<std::uint64_t, 8> plain_keys{};    // of tensors that were judged to be plain memory
  std::size_t num_keys = 0;

  bool has_plain_keys(const TensorBody& body) const noexcept {
    if (body.keys == plain_keys[0]) [[likely]]
      return true;
    return std::ranges::find(plain_keys, body.keys) != plain_keys.end();
  }
};
constinit Gate gate;

struct KnownType {
  PyTypeObject* type = nullptr;
  const ExchangeTable* table = nullptr;
};

const ExchangeTable* find_exchange_table(PyTypeObject* type) {
  nb::handle type_object(reinterpret_cast<PyObject*>(type));
  if (!nb::hasattr(type_object, "__dlpack_c_exchange_api__") || !nb::hasattr(type_object, "_make_subclass")) return nullptr;
  const nb::object capsule = type_object.attr("__dlpack_c_exchange_api__");
  const auto* table =
      static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr || table->major != 1 || table->view_from_python == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  return table;
}

// Looked up once per tensor type, of which a program has few.
const ExchangeTable* exchange_table(PyTypeObject* type) {
  static constinit std::array<KnownType, 8> known{};
  static std::size_t num_known = 0;
  for (const KnownType& one : known) {
    if (one.type == type) [[likely]]
      return one.table;
  }
  const ExchangeTable* table = find_exchange_table(type);
  if (table == nullptr) return nullptr;
  KnownType& place = known[num_known++ % known.size()];
  PyTypeObject* gone = place.type;
  Py_INCREF(type);  // so that no other type can come to lie at this address
  place = {type, table};
  Py_XDECREF(gone);
  return table;
}

DType opaque_type(int bits) {
  switch (bits) {
    case 8: return DType::kOpaque1;
    case 16: return DType::kOpaque2;
    case 32: return DType::kOpaque4;
    case 64: return DType::kOpaque8;
    case 128: return DType::kOpaque16;
    default: throw UsageProblem("has elements of " + std::to_string(bits) + " bits, which can't be moved; pass it as bytes");
  }
}

DType integer_type(int bits, bool is_signed) {
  switch (bits) {
    case 8: return is_signed ? DType::kInt8 : DType::kUInt8;
    case 16: return is_signed ? DType::kInt16 : DType::kUInt16;
    case 32: return is_signed ? DType::kInt32 : DType::kUInt32;
    case 64: return is_signed ? DType::kInt64 : DType::kUInt64;
    default: return opaque_type(bits);
  }
}

// Codes that DLPack got after those that nanobind names.
enum : int { kCodeE4M3 = 10, kCodeE4M3Z = 11, kCodeE5M2 = 12, kCodeE5M2Z = 13, kCodeE8M0 = 14, kCodeFloat4 = 17 };

DType float8_type(int code) {
  switch (code) {
    case kCodeE4M3: return DType::kFloat8E4M3;
    case kCodeE4M3Z: return DType::kFloat8E4M3Z;
    case kCodeE5M2: return DType::kFloat8E5M2;
    case kCodeE5M2Z: return DType::kFloat8E5M2Z;
    case kCodeE8M0: return DType::kFloat8E8M0;
    default: return DType::kOpaque1;
  }
}

// Elements of a known size, or UsageProblem: nothing is guessed.
[[gnu::noinline]] DType unusual_dtype(const nb::dlpack::dtype& type, const char* role) {
  using Code = nb::dlpack::dtype_code;
  const int bits = type.bits * type.lanes;
  try {
    if (type.lanes != 1) return type.code == kCodeFloat4 && bits == 8 ? DType::kFloat4x2 : opaque_type(bits);
    switch (static_cast<Code>(type.code)) {
      case Code::Int: return integer_type(bits, true);
      case Code::UInt: return integer_type(bits, false);
      case Code::Bool: return bits == 8 ? DType::kBool : opaque_type(bits);
      case Code::Bfloat: return bits == 16 ? DType::kBFloat16 : opaque_type(bits);
      case Code::Float: return bits == 16 ? DType::kFloat16 : bits == 64 ? DType::kFloat64 : opaque_type(bits);
      case Code::Complex:
        return bits == 64 ? DType::kComplex64 : bits == 128 ? DType::kComplex128 : bits == 32 ? DType::kComplex32 : opaque_type(bits);
      default: return bits == 8 ? float8_type(type.code) : opaque_type(bits);
    }
  } catch (const UsageProblem& problem) {
    throw UsageProblem(std::string(role) + " " + problem.what());
  }
}

// torch's integers of 1 to 7 bits take a byte each, but are none that could be added.
DType dtype_of(nb::handle object, const nb::dlpack::dtype& type, const char* role) {
  if (type.code == std::uint8_t(nb::dlpack::dtype_code::Float) && type.bits == 32 && type.lanes == 1) [[likely]]
    return DType::kFloat32;
  const DType dtype = unusual_dtype(type, role);
  if ((dtype != DType::kInt8 && dtype != DType::kUInt8) || gate.judge == nullptr) return dtype;
  return object.attr("dtype").ptr() == (dtype == DType::kInt8 ? gate.int8 : gate.uint8) ? dtype : DType::kOpaque1;
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

struct Dimension {
  std::int64_t size, stride;
};

// From the smallest stride on, without those of one element.
std::vector<Dimension> dimensions_by_stride(const DlTensor& t) {
  std::vector<Dimension> dimensions;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[i] != 1) dimensions.push_back({t.shape[i], t.strides[i]});
  }
  std::ranges::sort(dimensions, {}, &Dimension::stride);
  return dimensions;
}

// The elements from the first to the last, those between them included.
std::uint64_t extent_of(const DlTensor& t) {
  std::int64_t extent = 1;
  for (int i = 0; i < t.ndim; ++i) extent += (t.shape[i] - 1) * t.strides[i];
  return static_cast<std::uint64_t>(extent);
}

void visit(const std::vector<Dimension>& dimensions, std::size_t depth, std::int64_t at, std::vector<bool>& seen, bool& is_twice) {
  if (depth == dimensions.size()) {
    is_twice = is_twice || seen[std::size_t(at)];
    seen[std::size_t(at)] = true;
    return;
  }
  for (std::int64_t i = 0; i < dimensions[depth].size && !is_twice; ++i)
    visit(dimensions, depth + 1, at + i * dimensions[depth].stride, seen, is_twice);
}

// Whether two elements share memory.
bool has_overlap(const DlTensor& t) {
  const std::vector<Dimension> dimensions = dimensions_by_stride(t);
  std::int64_t reach = 0;  // of the dimensions so far
  bool is_nested = true;   // each dimension steps over all before it
  for (const Dimension& dimension : dimensions) {
    if (dimension.size == 0) return false;
    if (dimension.stride == 0) return true;
    is_nested = is_nested && dimension.stride > reach;
    reach += (dimension.size - 1) * dimension.stride;
  }
  if (is_nested) return false;
  std::vector<bool> seen(std::size_t(reach) + 1);
  bool is_twice = false;
  visit(dimensions, 0, 0, seen, is_twice);
  return is_twice;
}

[[noreturn]] void refuse_object(nb::handle object, const char* role) {
  throw UsageProblem(std::string(role) + " must be a torch tensor, not " + name_of_type(object));
}

// The GPU whose memory it is, or kHost.
int device_of(nb::handle object, const DlTensor& t, const char* role) {
  if (t.device.device_type == kCpu || t.device.device_type == kPinned) [[likely]]
    return kHost;
  const bool is_virtual = is_admitted(t.device.device_type);
  if (t.device.device_type == kCuda && cuda::is_cuda_used() && (!is_virtual || has_driver_memory)) return t.device.device_id;
  if (is_virtual) return kHost;
  const std::string device = nb::cast<std::string>(nb::str(object.attr("device")));
  throw UsageProblem(std::string(role) + " is on device " + device + ", but this group moves CPU tensors only; " +
                     "pass tensor.cpu(), or make a group for that device");
}

[[noreturn]] void refuse_unreadable(const char* role) {
  nb::python_error error;
  const std::string told = error.what();
  throw UsageProblem(std::string(role) + " can't be used: " + told.substr(0, told.find('\n')));
}

void describe_elements(nb::handle object, const DlTensor& t, const char* role, Tensor& result) {
  TensorView& view = result.view;
  view.data = static_cast<std::byte*>(t.data) + t.byte_offset;
  view.dtype = dtype_of(object, t.dtype, role);
  view.count = 1;
  result.num_dims = static_cast<std::uint32_t>(t.ndim);
  for (int i = 0; i < t.ndim; ++i) {
    view.count *= static_cast<std::uint64_t>(t.shape[i]);
    if (i < static_cast<int>(kShapeDims)) result.shape[i] = static_cast<std::uint64_t>(t.shape[i]);
  }
}

// What a tensor is that is not known to be plain memory.
struct Admission {
  nb::object instead;  // the tensor that holds its data, if that is another
  Lazy lazy = Lazy::kNone;
};

[[gnu::noinline]] Admission judge(nb::handle object, const char* role) {
  if (gate.judge == nullptr) return {};
  const nb::object told = nb::handle(gate.judge)(object);
  if (nb::isinstance<nb::str>(told)) throw UsageProblem(std::string(role) + " " + nb::cast<std::string>(told));
  if (!nb::isinstance<nb::int_>(told)) return {told, Lazy::kNone};
  const auto lazy = static_cast<Lazy>(nb::cast<int>(told));
  if (lazy == Lazy::kNone && gate.layout.is_known())
    gate.plain_keys[gate.num_keys++ % gate.plain_keys.size()] = gate.layout.body_of(object.ptr()).keys;
  return {nb::object(), lazy};
}

void set_lazy(Tensor& tensor, Lazy lazy, const char* role) {
  if (tensor.device != kHost || !can_be_lazy(tensor.view.dtype))
    throw UsageProblem(std::string(role) + " is a lazy conjugate or negative view; pass tensor.resolve_conj().resolve_neg()");
  tensor.view.lazy = lazy;
}

}  // namespace

void admit_device_type(int dlpack_type, bool is_driver_memory) {
  if (dlpack_type <= 0 || dlpack_type >= 32)
    throw nb::value_error("admit_device_type: DLPack has no such device type");
  admitted_types |= 1u << dlpack_type;
  has_driver_memory = is_driver_memory;
}

bool open_gate(nb::object judge, nb::object int8, nb::object uint8, const std::vector<Sample>& samples) {
  gate.judge = judge.release().ptr();
  gate.int8 = int8.release().ptr();
  gate.uint8 = uint8.release().ptr();
  gate.num_keys = 0;
  if (!gate.layout.learn(samples)) return false;
  gate.plain_keys.fill(gate.layout.body_of(samples.front().tensor.ptr()).keys);
  return true;
}

namespace {

// A tensor whose memory is there, but not in one piece, or with other values than the tensor has.
// Returns how many bytes it reaches over.
[[gnu::noinline]] std::uint64_t describe_pieces(const DlTensor& t, const char* role, Use use, Tensor& result) {
  if (use == Use::kWrite && !is_contiguous(t) && has_overlap(t))
    throw UsageProblem(std::string(role) + " is an expanded view whose elements share memory; pass tensor.contiguous()");
  TensorView& view = result.view;
  view.shape.assign(t.shape, t.shape + t.ndim);
  view.strides.assign(t.strides, t.strides + t.ndim);
  if (t.ndim == 0) view.shape = view.strides = {1};
  // An expanded view may have more bytes than can be counted.
  if (view.count > PTRDIFF_MAX / item_bytes(view.dtype))
    throw UsageProblem(std::string(role) + " is an expanded view of " + std::to_string(view.count) + " elements, which no memory can hold");
  return extent_of(t) * item_bytes(view.dtype);
}

// Refuse an output on the host that a write would end the process in.
[[gnu::noinline]] void check_writable(const Tensor& tensor, std::uint64_t bytes, const char* role) {
  if (tensor.device != kHost || tensor.view.count == 0 || is_writable(tensor.view.data, bytes)) return;
  throw UsageProblem(std::string(role) + " is in memory that can't be written to, such as a file that is mapped read-only; pass tensor.clone()");
}

// A tensor that is not known to be plain memory.
[[gnu::noinline]] void view_unknown(nb::handle object, const ExchangeTable& table, const char* role, Use use, Tensor& result) {
  const Admission admission = judge(object, role);
  if (admission.instead.is_valid()) {
    result = view_tensor(admission.instead, role, use);  // lives as long as the object
    return;
  }
  DlTensor t;
  if (table.view_from_python(object.ptr(), &t) != 0) refuse_unreadable(role);
  result.device = device_of(object, t, role);
  describe_elements(object, t, role, result);
  if (admission.lazy != Lazy::kNone) set_lazy(result, admission.lazy, role);
  const bool is_one_piece = result.view.count == 0 || is_contiguous(t);
  std::uint64_t bytes = result.view.bytes();
  if (!is_one_piece || admission.lazy != Lazy::kNone) bytes = describe_pieces(t, role, use, result);
  if (use == Use::kWrite) check_writable(result, bytes, role);
}

}  // namespace

// Every way out returns the one result, so that it is made where the caller has it.
Tensor view_tensor(nb::handle object, const char* role, Use use) {
  const ExchangeTable* table = exchange_table(object.ptr()->ob_type);
  if (table == nullptr) [[unlikely]]
    refuse_object(object, role);
  Tensor result;
  TensorBody body{};
  const bool is_known = gate.layout.is_known();
  if (is_known) [[likely]]
    body = gate.layout.body_of(object.ptr());
  if (!is_known || !gate.has_plain_keys(body)) [[unlikely]] {
    view_unknown(object, *table, role, use, result);
    return result;
  }
  DlTensor t;
  if (table->view_from_python(object.ptr(), &t) != 0) [[unlikely]]
    refuse_unreadable(role);
  result.device = device_of(object, t, role);
  describe_elements(object, t, role, result);
  if (result.view.count == 0) [[unlikely]]
    return result;  // whatever its strides are
  std::uint64_t bytes = result.view.bytes();
  if (!is_contiguous(t)) [[unlikely]]
    bytes = describe_pieces(t, role, use, result);
  if (!gate.layout.is_inside(body, result.view.data, bytes)) [[unlikely]]
    view_unknown(object, *table, role, use, result);  // says that memory is missing
  else if (use == Use::kWrite && !gate.layout.is_torch_memory(body)) [[unlikely]]
    check_writable(result, bytes, role);
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

nb::object hold_memory(nb::handle object) {
  if (object.is_none()) return nb::none();
  if (nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object)) {
    nb::list held;
    for (nb::handle item : object) held.append(hold_memory(item));
    return held;
  }
  // The caller lends the memory of other devices, and takes it back as soon as the operation is over.
  if (!nb::cast<bool>(object.attr("is_cpu"))) return nb::borrow(object);
  return nb::make_tuple(object, object.attr("untyped_storage")());
}

const char* dtype_name(DType dtype) noexcept {
  static constexpr const char* names[] = {
      "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
      "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
      "float8_e8m0fnu", "float4_e2m1fn_x2", "complex32", "8-bit", "16-bit", "32-bit", "64-bit", "128-bit"};
  static_assert(std::size(names) == std::size_t(DType::kCount));
  return dtype < DType::kCount ? names[static_cast<std::size_t>(dtype)] : "unknown";
}

void describe(const Tensor& tensor, Call& call) noexcept {
  call.dtype = tensor.view.dtype;
  call.count = tensor.view.count;
  call.size_bytes = tensor.view.bytes();
  call.num_dims = tensor.num_dims;
  for (std::size_t i = 0; i < kShapeDims; ++i) call.shape[i] = tensor.shape[i];
}

}  // namespace phalanx::python
