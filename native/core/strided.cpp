#include "strided.hpp"

#include <cstring>
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

}  // namespace

Piece::Piece(TensorView view) : view_(std::move(view)) {
  if (!view_.is_contiguous() && view_.count != 0) storage_ = std::make_unique<std::byte[]>(view_.bytes());
}

void Piece::load() {
  if (!storage_) return;
  std::byte* piece = storage_.get();
  copy_dimension<false>(view_, 0, view_.data, piece);
}

void Piece::store() {
  if (!storage_) return;
  std::byte* piece = storage_.get();
  copy_dimension<true>(view_, 0, view_.data, piece);
}

}  // namespace phalanx
