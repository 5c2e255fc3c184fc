#include "strided.hpp"

#include <cstring>
#include <type_traits>
#include <utility>

namespace phalanx {
namespace {

template <bool kToTensor>
void copy_dimension(const TensorView& view, std::size_t dimension, std::byte* tensor, std::byte*& piece) {
  const std::size_t item = item_bytes(view.dtype);
  const std::int64_t stride = view.strides[dimension] * static_cast<std::int64_t>(item);
  const bool is_innermost = dimension + 1 == view.shape.size();
  for (std::int64_t i = 0; i < view.shape[dimension]; ++i, tensor += stride) {
    if (!is_innermost) {
      copy_dimension<kToTensor>(view, dimension + 1, tensor, piece);
      continue;
    }
    std::memcpy(kToTensor ? tensor : piece, kToTensor ? piece : tensor, item);
    piece += item;
  }
}

template <class T>
void negate(std::byte* data, std::size_t count, std::size_t first = 0, std::size_t step = 1) {
  for (std::size_t i = first; i < count; i += step) {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    if constexpr (std::is_floating_point_v<T>) value = -value;
    else value = static_cast<T>(0u - value);
    std::memcpy(data + i * sizeof(T), &value, sizeof(T));
  }
}

void flip_halves(std::byte* data, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) data[2 * i + 1] ^= std::byte{0x80};  // the sign
}

void negate_all(DType dtype, std::byte* data, std::size_t count) {
  switch (dtype) {
    case DType::kFloat16: case DType::kBFloat16: return flip_halves(data, count);
    case DType::kFloat32: return negate<float>(data, count);
    case DType::kFloat64: return negate<double>(data, count);
    case DType::kComplex64: return negate<float>(data, 2 * count);
    case DType::kComplex128: return negate<double>(data, 2 * count);
    default: break;
  }
  switch (item_bytes(dtype)) {
    case 1: return negate<std::uint8_t>(data, count);
    case 2: return negate<std::uint16_t>(data, count);
    case 4: return negate<std::uint32_t>(data, count);
    default: return negate<std::uint64_t>(data, count);
  }
}

// Turns memory into values, or values into memory: both are the same.
void apply(Lazy lazy, DType dtype, std::byte* data, std::size_t count) {
  if ((std::uint8_t(lazy) & std::uint8_t(Lazy::kNegative)) != 0) negate_all(dtype, data, count);
  if ((std::uint8_t(lazy) & std::uint8_t(Lazy::kConjugate)) == 0) return;
  if (dtype == DType::kComplex64) negate<float>(data, 2 * count, 1, 2);
  if (dtype == DType::kComplex128) negate<double>(data, 2 * count, 1, 2);
}

}  // namespace

Piece::Piece(TensorView view, bool is_apart) : view_(std::move(view)) {
  if ((is_apart || !view_.is_contiguous()) && view_.count != 0) storage_ = std::make_unique<std::byte[]>(view_.bytes());
}

void Piece::load() {
  if (!storage_) return;
  std::byte* piece = storage_.get();
  if (view_.is_contiguous()) std::memcpy(piece, view_.data, view_.bytes());
  else copy_dimension<false>(view_, 0, view_.data, piece);
  apply(view_.lazy, view_.dtype, storage_.get(), view_.count);
}

void Piece::store() {
  if (!storage_) return;
  std::byte* piece = storage_.get();
  apply(view_.lazy, view_.dtype, piece, view_.count);
  if (view_.is_contiguous()) std::memcpy(view_.data, piece, view_.bytes());
  else copy_dimension<true>(view_, 0, view_.data, piece);
}

}  // namespace phalanx
