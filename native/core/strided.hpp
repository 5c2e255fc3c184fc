// Copies tensors that are not contiguous into one piece, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "types.hpp"

namespace phalanx {

// How the values of a tensor differ from those in its memory, until a copy writes them out. The values are bits.
enum class Lazy : std::uint8_t { kNone = 0, kConjugate = 1, kNegative = 2, kBoth = 3 };

// Whether lazy views of such elements can be moved.
constexpr bool can_be_lazy(DType t) noexcept { return t <= DType::kComplex128 && t != DType::kBool; }

struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kUInt8;
  std::uint64_t count = 0;
  std::vector<std::int64_t> shape, strides;  // in elements; empty when contiguous, and not lazy
  Lazy lazy = Lazy::kNone;

  bool is_contiguous() const noexcept { return strides.empty(); }
  std::size_t bytes() const noexcept { return count * item_bytes(dtype); }
};

// Contiguous memory that stands for a tensor during an operation: the tensor's own memory if possible.
class Piece {
 public:
  // If `is_apart`, it has memory of its own in any case.
  explicit Piece(TensorView view, bool is_apart = false);
  Piece(Piece&&) noexcept = default;

  std::byte* data() const noexcept { return storage_ ? storage_.get() : view_.data; }
  std::size_t bytes() const noexcept { return view_.bytes(); }
  void load();   // tensor to piece
  void store();  // piece to tensor

 private:
  TensorView view_;
  std::unique_ptr<std::byte[]> storage_;
};

}  // namespace phalanx
