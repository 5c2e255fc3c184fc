// Tensors as the engine wants them during an operation: memory in one piece each.
#pragma once

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "../core/strided.hpp"
#include "per_rank.hpp"
#include "tensors.hpp"

namespace phalanx::python {

// A tensor during an operation. Copies share the piece.
struct Place {
  // Apart: with memory of its own in any case.
  explicit Place(const Tensor& tensor, bool is_apart = false) : data(tensor.view.data), bytes(tensor.view.bytes()) {
    if ((tensor.view.is_contiguous() && !is_apart) || tensor.device != kHost) return;
    try {
      piece = std::make_shared<Piece>(tensor.view, is_apart);
    } catch (const std::bad_alloc&) {
      throw UsageProblem("there is no memory for a copy in one piece of a tensor of " + std::to_string(bytes) + " bytes");
    }
    data = piece->data();
  }
  void load() const {
    if (piece) piece->load();
  }
  void store() const {
    if (piece) piece->store();
  }

  std::byte* data;
  std::size_t bytes;
  std::shared_ptr<Piece> piece;
};

struct Places {
  Places() = default;
  explicit Places(const std::vector<Tensor>& tensors, bool is_apart = false) {
    for (const Tensor& tensor : tensors) {
      const Place place(tensor, is_apart);
      data.push_back(place.data);
      bytes.push_back(place.bytes);
      if (place.piece) places.push_back(place);
    }
  }
  // One tensor cut into consecutive blocks.
  Places(const Tensor& tensor, PerRank<std::size_t> block_bytes, bool is_apart = false) : bytes(std::move(block_bytes)) {
    const Place place(tensor, is_apart);
    if (place.piece) places.push_back(place);
    std::byte* at = place.data;
    for (std::size_t block : bytes) {
      data.push_back(at);
      at += block;
    }
  }
  void load() const {
    for (const Place& place : places) place.load();
  }
  void store() const {
    for (const Place& place : places) place.store();
  }

  std::vector<Place> places;  // tensors that are in pieces
  PerRank<std::byte*> data;
  PerRank<std::size_t> bytes;
};

}  // namespace phalanx::python
