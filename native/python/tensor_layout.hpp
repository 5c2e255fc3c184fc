// Where torch keeps three facts of a tensor that DLPack does not tell: its dispatch keys, the memory behind it, and who frees that.
//
// The keys say whether a tensor is plain memory or stands for something else (a lazy negative, a wrapper, a tensor inside vmap).
// torch has no C function for them, and to ask in Python takes as long as a small operation. So the places of these facts in torch's
// objects are learned when the first group is made, from tensors whose facts are known. Where that does not
// succeed, every tensor is asked about in Python: slower, and as right.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace phalanx::python {

namespace nb = nanobind;

// A tensor whose facts are known.
struct Sample {
  nb::object tensor;
  std::uint64_t keys;
  std::uint64_t storage_data;
  std::uint64_t storage_bytes;
  bool is_torch_memory;  // allocated by torch itself
};

// torch's part of a tensor, and what it says.
struct TensorBody {
  std::uint64_t keys;
  const std::byte* storage;
};

class TensorLayout {
 public:
  // Whether the places were found. All samples must agree on them.
  bool learn(const std::vector<Sample>& samples);
  bool is_known() const noexcept { return is_known_; }

  TensorBody body_of(PyObject* tensor) const noexcept {
    const auto* body = reinterpret_cast<const std::byte*>(word(reinterpret_cast<const std::byte*>(tensor), body_));
    return {word(body, keys_), reinterpret_cast<const std::byte*>(word(body, storage_))};
  }
  // Whether [begin, begin + bytes) lies in the tensor's storage.
  bool is_inside(const TensorBody& body, const std::byte* begin, std::uint64_t bytes) const noexcept {
    if (body.storage == nullptr) return false;
    const std::uint64_t at = reinterpret_cast<std::uint64_t>(begin) - word(body.storage, data_);
    const std::uint64_t size = word(body.storage, bytes_);
    return at <= size && bytes <= size - at;
  }

  // Whether torch has allocated the storage itself, so that it may be written to.
  bool is_torch_memory(const TensorBody& body) const noexcept { return word(body.storage, deleter_) == torch_deleter_; }

 private:
  static std::uint64_t word(const std::byte* base, std::size_t offset) noexcept {
    return *reinterpret_cast<const std::uint64_t*>(base + offset);
  }

  bool is_known_ = false;
  // In bytes: the body in the Python object, keys and storage in the body, data, size and deleter in the storage.
  std::size_t body_ = 0, keys_ = 0, storage_ = 0, data_ = 0, bytes_ = 0, deleter_ = 0;
  std::uint64_t torch_deleter_ = 0;
};

}  // namespace phalanx::python
